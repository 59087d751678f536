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
    { admin_roles = [], namespaces = { NAME = { policies = {}, grants = { ROLE = [] }, active = REGION,
      topics = { NAME = { partitions = 0, policies = {}, grants = {} } } } } }.
    Everything may be left out. Policies go by their names in the admin API, see docs/reference/policies.md; what the
    document can't say is refused by the plan, with its path.
  EOT
  type        = any
  default     = {}
}

variable "force_destroy" {
  description = "Destroy topics in use, and topics that clients made in the teams' namespaces."
  type        = bool
  default     = false
}
