# Which entries go to which region, without asking one.

provider "meridian" {
  alias = "home"
}

provider "meridian" {
  alias = "away"
}

variables {
  name = "shop"
  home = { name = "west", admin_url = "http://west:8080", broker_url = "pulsar://west:6650" }
  away = { name = "east", admin_url = "http://east:8080", broker_url = "pulsar://east:6650", link_url = "https://east:6680" }
  teams = {
    orders = { namespaces = { live = { topics = { placed = {} } } } }
  }
}

run "each_region_learns_of_the_other" {
  command = plan

  providers = {
    meridian.home = meridian.home
    meridian.away = meridian.away
  }

  assert {
    condition     = jsondecode(meridian_environment.home_links.document).regions.east.regionLinkUrl == "https://east:6680"
    error_message = "The home region has the other one's entry."
  }
  assert {
    condition     = keys(jsondecode(meridian_environment.away_links.document).regions) == ["west"]
    error_message = "The other region has the home region's entry."
  }
}
