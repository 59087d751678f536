# The document is checked at plan time, without a region.

variables {
  name    = "shop"
  home    = "west"
  regions = ["west", "east"]
  teams = {
    orders = {
      admin_roles = ["orders-admin"]
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

run "a_policy_that_is_none_is_refused_by_its_path" {
  command = plan

  variables {
    teams = {
      orders = { namespaces = { live = { policies = { messageTTLs = 60 } } } }
    }
  }

  expect_failures = [meridian_environment.this]
}
