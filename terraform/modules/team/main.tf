# A team's part of the platform: its tenant, its namespaces with policies, its topics, and who may do what.

resource "meridian_tenant" "this" {
  name             = var.name
  admin_roles      = var.admin_roles
  allowed_clusters = var.regions
  force_destroy    = var.force_destroy
}

# What the whole team may use, over all brokers.
resource "meridian_quota" "team" {
  count = var.quota == null ? 0 : 1

  tenant = meridian_tenant.this.name

  publish_messages_per_second     = var.quota.publish_messages_per_second
  publish_bytes_per_second        = var.quota.publish_bytes_per_second
  dispatch_messages_per_second    = var.quota.dispatch_messages_per_second
  dispatch_bytes_per_second       = var.quota.dispatch_bytes_per_second
  replication_messages_per_second = var.quota.replication_messages_per_second
  replication_bytes_per_second    = var.quota.replication_bytes_per_second
  stored_bytes                    = var.quota.stored_bytes
  backlog_bytes                   = var.quota.backlog_bytes
  namespaces                      = var.quota.namespaces
  topics                          = var.quota.topics
  partitions                      = var.quota.partitions
  producers                       = var.quota.producers
  consumers                       = var.quota.consumers
  subscriptions                   = var.quota.subscriptions
  connections                     = var.quota.connections
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

resource "meridian_quota" "namespace" {
  for_each = { for name, settings in var.namespaces : name => settings.quota if settings.quota != null }

  namespace = meridian_namespace.this[each.key].id

  publish_messages_per_second     = each.value.publish_messages_per_second
  publish_bytes_per_second        = each.value.publish_bytes_per_second
  dispatch_messages_per_second    = each.value.dispatch_messages_per_second
  dispatch_bytes_per_second       = each.value.dispatch_bytes_per_second
  replication_messages_per_second = each.value.replication_messages_per_second
  replication_bytes_per_second    = each.value.replication_bytes_per_second
  stored_bytes                    = each.value.stored_bytes
  backlog_bytes                   = each.value.backlog_bytes
  topics                          = each.value.topics
  partitions                      = each.value.partitions
  producers                       = each.value.producers
  consumers                       = each.value.consumers
  subscriptions                   = each.value.subscriptions
  connections                     = each.value.connections
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
