# The document is checked at plan time, without a region.

variables {
  name    = "shop"
  home    = "west"
  regions = ["west", "east"]
  teams = {
    orders = {
      admin_roles = ["orders-admin"]
      quotas      = { publishBytesPerSecond = 10000000, topics = 0 }
      namespaces = {
        live = {
          policies = { messageTTL = 60 }
          active   = "west"
          topics   = { placed = { partitions = 2 } }
        }
      }
    }
  }
}

run "one_document_says_it_all" {
  command = plan

  assert {
    condition     = jsondecode(meridian_environment.this.document).tenants.orders.namespaces.live.policies.replication == ["east", "west"]
    error_message = "Namespaces are replicated between all regions."
  }
  assert {
    condition     = jsondecode(meridian_environment.this.document).tenants.orders.namespaces.live.failover.active == "west"
    error_message = "The active region is the one that was asked for."
  }
}

run "a_teams_quota_is_said" {
  command = plan

  assert {
    condition     = jsondecode(meridian_environment.this.document).tenants.orders.quotas == { publishBytesPerSecond = 10000000, topics = 0 }
    error_message = "A team has the limits that were asked for."
  }
  assert {
    condition     = length(jsondecode(meridian_environment.this.document).tenants.orders.namespaces.live.quotas) == 0
    error_message = "Limits that are left out are said to be none."
  }
  assert {
    condition     = !can(jsondecode(meridian_environment.this.document).quotas)
    error_message = "The region's own limits are nobody's unless they are given."
  }
}

run "one_region_is_not_replicated" {
  command = plan

  variables {
    regions = ["west"]
  }

  assert {
    condition     = !can(jsondecode(meridian_environment.this.document).tenants.orders.namespaces.live.policies.replication)
    error_message = "A namespace of one region says nothing of replication."
  }
}
