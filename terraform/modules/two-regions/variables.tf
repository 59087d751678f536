variable "name" {
  description = "The environment."
  type        = string
}

variable "home" {
  description = "The region that applies the environment's document."
  type = object({
    name       = string
    admin_url  = string
    broker_url = string
    link_url   = optional(string)
  })
}

variable "away" {
  description = "The other region."
  type = object({
    name       = string
    admin_url  = string
    broker_url = string
    link_url   = optional(string)
  })
}

variable "teams" {
  description = "Teams that live in both regions, as in the module environment."
  type        = any
  default     = {}
}

variable "failover_groups" {
  description = "Namespaces (TENANT/NAME) that are active in one region together, by the group's name."
  type        = map(object({ namespaces = set(string), active = string }))
  default     = {}
}

variable "force_destroy" {
  description = "Destroy topics in use, and topics that clients made in the teams' namespaces."
  type        = bool
  default     = false
}
