# Nothing is asked of a region: what is planned is looked at.

provider "meridian" {
  url = "http://127.0.0.1:1"
}

variables {
  name        = "orders"
  admin_roles = ["orders-admin"]
  regions     = ["west", "east"]
  quota       = { publish_bytes_per_second = 10000000, topics = 500, connections = 0 }
  namespaces = {
    live = {
      message_ttl_seconds = 3600
      retention           = { minutes = 60, mebibytes = 512 }
      grants              = { shop = ["produce", "consume"] }
      topics              = { placed = { partitions = 4 }, seen = {} }
      quota               = { producers = 50 }
    }
    test = {}
  }
}

run "a_team_is_planned" {
  command = plan

  assert {
    condition     = meridian_namespace.this["live"].id == "orders/live"
    error_message = "The namespace is named after its tenant."
  }
  assert {
    condition     = meridian_namespace.this["live"].message_ttl == 3600 && meridian_namespace.this["test"].message_ttl == null
    error_message = "What is left out is not set."
  }
  assert {
    condition     = length(meridian_namespace.this["live"].replication) == 2
    error_message = "A team of two regions is replicated."
  }
  assert {
    condition     = meridian_topic.this["live/placed"].partitions == 4 && meridian_topic.this["live/seen"].partitions == 0
    error_message = "Partitions are those that were asked for."
  }
  assert {
    condition     = meridian_grant.this["live/shop"].actions == toset(["produce", "consume"])
    error_message = "Grants are those that were asked for."
  }
}

run "a_teams_quota_is_planned" {
  command = plan

  assert {
    condition     = meridian_quota.team[0].id == "tenant:orders" && meridian_quota.team[0].topics == 500
    error_message = "The team's limits are those of its tenant."
  }
  assert {
    condition     = meridian_quota.team[0].connections == 0 && meridian_quota.team[0].producers == null
    error_message = "What is left out is not set, and nothing allowed is not left out."
  }
  assert {
    condition     = length(meridian_quota.namespace) == 1 && meridian_quota.namespace["live"].producers == 50
    error_message = "A namespace has the limits that were asked for."
  }
}

run "a_team_without_a_quota_has_none" {
  command = plan

  variables {
    quota = null
  }

  assert {
    condition     = length(meridian_quota.team) == 0
    error_message = "There is nothing to limit."
  }
}

run "a_name_that_can_not_be_is_refused" {
  command = plan

  variables {
    name = "orders/live"
  }

  expect_failures = [var.name]
}

run "a_team_without_regions_is_refused" {
  command = plan

  variables {
    regions = []
  }

  expect_failures = [var.regions]
}
