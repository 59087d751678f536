# Many teams as one document: planned by the region, applied in order, one applier at a time.

locals {
  tenants = {
    for team, settings in var.teams : team => {
      adminRoles      = sort(tolist(try(settings.admin_roles, [])))
      allowedClusters = sort(tolist(var.regions))
      # Always said, so that what is taken out here is taken away there.
      quotas = try(settings.quotas, {})
      namespaces = {
        for name, namespace in try(settings.namespaces, {}) : name => merge(
          {
            policies = merge(
              length(var.regions) > 1 ? { replication = sort(tolist(var.regions)) } : {},
              try(namespace.policies, {}),
            )
            grants = try(namespace.grants, {})
            quotas = try(namespace.quotas, {})
            topics = {
              for topic, wanted in try(namespace.topics, {}) : topic => {
                partitions = try(wanted.partitions, 0)
                policies   = try(wanted.policies, {})
                grants     = try(wanted.grants, {})
                quotas     = try(wanted.quotas, {})
              }
            }
          },
          can(namespace.active) ? { failover = { active = namespace.active } } : {},
        )
      }
    }
  }
}

resource "meridian_environment" "this" {
  owner         = var.name
  prune         = true
  force_destroy = var.force_destroy

  document = jsonencode(merge(
    { apiVersion = "meridian/v1", tenants = local.tenants },
    var.home == null ? {} : { home = var.home },
    var.quotas == null ? {} : { quotas = var.quotas },
  ))
}
