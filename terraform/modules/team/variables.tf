variable "name" {
  description = "The team, and its tenant."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_.=:-]+$", var.name))
    error_message = "A tenant's name holds letters, digits and any of _ - = : ."
  }
}

variable "admin_roles" {
  description = "Roles that administer the tenant."
  type        = set(string)
  default     = []
}

variable "regions" {
  description = "Regions that the team's namespaces are replicated between; one region = no replication."
  type        = set(string)

  validation {
    condition     = length(var.regions) > 0
    error_message = "A tenant has at least one region."
  }
}

variable "namespaces" {
  description = "Namespaces by name. What is left out is not set."
  type = map(object({
    message_ttl_seconds      = optional(number)
    max_topics               = optional(number)
    max_producers_per_topic  = optional(number)
    max_consumers_per_topic  = optional(number)
    deduplication            = optional(bool)
    retention                = optional(object({ minutes = number, mebibytes = number }))
    backlog_bytes            = optional(number)
    publish_bytes_per_second = optional(number)
    grants                   = optional(map(set(string)), {})
    topics                   = optional(map(object({ partitions = optional(number, 0) })), {})
    quota = optional(object({
      publish_messages_per_second     = optional(number)
      publish_bytes_per_second        = optional(number)
      dispatch_messages_per_second    = optional(number)
      dispatch_bytes_per_second       = optional(number)
      replication_messages_per_second = optional(number)
      replication_bytes_per_second    = optional(number)
      stored_bytes                    = optional(number)
      backlog_bytes                   = optional(number)
      topics                          = optional(number)
      partitions                      = optional(number)
      producers                       = optional(number)
      consumers                       = optional(number)
      subscriptions                   = optional(number)
      connections                     = optional(number)
    }))
  }))
  default = {}
}

variable "quota" {
  description = "What the whole team may use at most, over all its namespaces; what is left out is not limited, 0 allows none."
  type = object({
    publish_messages_per_second     = optional(number)
    publish_bytes_per_second        = optional(number)
    dispatch_messages_per_second    = optional(number)
    dispatch_bytes_per_second       = optional(number)
    replication_messages_per_second = optional(number)
    replication_bytes_per_second    = optional(number)
    stored_bytes                    = optional(number)
    backlog_bytes                   = optional(number)
    namespaces                      = optional(number)
    topics                          = optional(number)
    partitions                      = optional(number)
    producers                       = optional(number)
    consumers                       = optional(number)
    subscriptions                   = optional(number)
    connections                     = optional(number)
  })
  default = null
}

variable "force_destroy" {
  description = "Destroy namespaces with topics in them and topics in use."
  type        = bool
  default     = false
}
