# Two regions that know each other, and the teams that live in both.
#
# The entries by which the regions reach each other go first and last: while one of them is missing, a deletion would not
# reach the other region.

resource "meridian_environment" "home_links" {
  provider = meridian.home
  owner    = "${var.name}-links"
  document = jsonencode({ home = var.home.name, regions = { (var.away.name) = local.entries[var.away.name] } })
}

resource "meridian_environment" "away_links" {
  provider = meridian.away
  owner    = "${var.name}-links"
  document = jsonencode({ home = var.away.name, regions = { (var.home.name) = local.entries[var.home.name] } })

  depends_on = [meridian_environment.home_links]
}

module "teams" {
  source = "../environment"
  providers = {
    meridian = meridian.home
  }

  name          = var.name
  home          = var.home.name
  regions       = [var.home.name, var.away.name]
  teams         = var.teams
  force_destroy = var.force_destroy

  depends_on = [meridian_environment.away_links]
}

resource "meridian_failover_group" "this" {
  for_each = var.failover_groups
  provider = meridian.home

  name       = each.key
  namespaces = each.value.namespaces
  active     = each.value.active

  depends_on = [module.teams]
}

locals {
  entries = {
    for region in [var.home, var.away] : region.name => {
      for key, value in {
        serviceUrl       = region.admin_url
        brokerServiceUrl = region.broker_url
        regionLinkUrl    = region.link_url
      } : key => value if value != null
    }
  }
}
