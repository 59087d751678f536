variable "name" {
  description = "The environment: the owner of the document."
  type        = string
}

variable "home" {
  description = "The region that applies the document; any other refuses it."
  type        = string
  default     = null
}

variable "regions" {
  description = "Regions that the teams' namespaces are replicated between."
  type        = set(string)
}

variable "teams" {
  description = <<-EOT
    Teams by name, each
    { admin_roles = [], quotas = {}, namespaces = { NAME = { policies = {}, grants = { ROLE = [] }, quotas = {},
      active = REGION, topics = { NAME = { partitions = 0, policies = {}, grants = {}, quotas = {} } } } } }.
    Everything may be left out. Policies and limits go by their names in the admin API, see docs/reference/policies.md
    and quotas.md; what the document can't say is refused by the plan, with its path. A limit that is left out is not set;
    limits bind in the region that applies the document.
  EOT
  type        = any
  default     = {}
}

variable "quotas" {
  description = "Limits of the whole region that applies the document, by name; null = they are not this environment's."
  type        = map(number)
  default     = null
}

variable "force_destroy" {
  description = "Destroy topics in use, and topics that clients made in the teams' namespaces."
  type        = bool
  default     = false
}
