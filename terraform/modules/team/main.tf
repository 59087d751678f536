# A team's part of the platform: its tenant, its namespaces with policies, its topics, and who may do what.

resource "meridian_tenant" "this" {
  name             = var.name
  admin_roles      = var.admin_roles
  allowed_clusters = var.regions
  force_destroy    = var.force_destroy
}

resource "meridian_namespace" "this" {
  for_each = var.namespaces

  tenant        = meridian_tenant.this.name
  name          = each.key
  force_destroy = var.force_destroy

  replication              = length(var.regions) > 1 ? var.regions : null
  message_ttl              = each.value.message_ttl_seconds
  max_topics_per_namespace = each.value.max_topics
  max_producers_per_topic  = each.value.max_producers_per_topic
  max_consumers_per_topic  = each.value.max_consumers_per_topic
  deduplication            = each.value.deduplication

  retention = each.value.retention == null ? null : {
    retention_time_in_minutes = each.value.retention.minutes
    retention_size_in_mb      = each.value.retention.mebibytes
  }

  backlog_quota = each.value.backlog_bytes == null ? null : {
    destination_storage = {
      limit_size = each.value.backlog_bytes
      policy     = "producer_exception"
    }
  }

  publish_rate = each.value.publish_bytes_per_second == null ? null : {
    publish_throttling_rate_in_byte = each.value.publish_bytes_per_second
  }
}

resource "meridian_topic" "this" {
  for_each = local.topics

  namespace     = meridian_namespace.this[each.value.namespace].id
  name          = each.value.name
  partitions    = each.value.partitions
  properties    = { team = var.name }
  force_destroy = var.force_destroy
}

resource "meridian_grant" "this" {
  for_each = local.grants

  namespace = meridian_namespace.this[each.value.namespace].id
  role      = each.value.role
  actions   = each.value.actions
}

locals {
  topics = merge([
    for namespace, settings in var.namespaces : {
      for name, topic in settings.topics : "${namespace}/${name}" => {
        namespace  = namespace
        name       = name
        partitions = topic.partitions
      }
    }
  ]...)

  grants = merge([
    for namespace, settings in var.namespaces : {
      for role, actions in settings.grants : "${namespace}/${role}" => {
        namespace = namespace
        role      = role
        actions   = actions
      }
    }
  ]...)
}
