# Two regions with three teams; what one region is sent, the other receives.

terraform {
  required_providers {
    meridian = {
      source = "terraform.local/meridian/meridian"
    }
  }
}

variable "west" {
  type = object({ admin_url = string, broker_url = string, link_url = optional(string) })
  default = {
    admin_url  = "http://localhost:8080"
    broker_url = "pulsar://localhost:6650"
    link_url   = "http://localhost:6680"
  }
}

variable "east" {
  type = object({ admin_url = string, broker_url = string, link_url = optional(string) })
  default = {
    admin_url  = "http://localhost:8180"
    broker_url = "pulsar://localhost:6750"
    link_url   = "http://localhost:6780"
  }
}

provider "meridian" {
  alias = "west"
  url   = var.west.admin_url
}

provider "meridian" {
  alias = "east"
  url   = var.east.admin_url
}

module "shop" {
  source = "../../modules/two-regions"
  providers = {
    meridian.home = meridian.west
    meridian.away = meridian.east
  }

  name          = "shop"
  home          = merge({ name = "west" }, var.west)
  away          = merge({ name = "east" }, var.east)
  force_destroy = true

  teams = {
    orders = {
      admin_roles = ["orders-admin"]
      quotas      = { publishBytesPerSecond = 10000000, topics = 100 }
      namespaces = {
        live = {
          policies = { messageTTL = 86400 }
          grants   = { shop = ["produce", "consume"] }
          topics   = { placed = { partitions = 2 }, returned = {} }
        }
      }
    }
    billing = {
      namespaces = {
        invoices = {
          policies = { deduplication = true }
          topics   = { sent = {} }
        }
      }
    }
    search = {
      namespaces = {
        index = { topics = { updates = { partitions = 4 } } }
      }
    }
  }

  failover_groups = {
    money = { namespaces = ["billing/invoices"], active = "west" }
  }
}

output "revision" {
  value = module.shop.revision
}
