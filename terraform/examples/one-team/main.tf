# One region, one team: `MERIDIAN_URL=http://127.0.0.1:8080 terraform apply`.

terraform {
  required_providers {
    meridian = {
      source = "terraform.local/meridian/meridian"
    }
  }
}

provider "meridian" {}

variable "region" {
  description = "The region's name."
  type        = string
  default     = "standalone"
}

module "orders" {
  source = "../../modules/team"

  name        = "orders"
  regions     = [var.region]
  admin_roles = ["orders-admin"]
  quota       = { publish_bytes_per_second = 10000000, stored_bytes = 10737418240, topics = 100, producers = 500 }
  namespaces = {
    live = {
      message_ttl_seconds = 86400
      retention           = { minutes = 1440, mebibytes = 1024 }
      backlog_bytes       = 536870912
      grants              = { shop = ["produce"], billing = ["consume"] }
      topics              = { placed = { partitions = 4 } }
    }
  }
}

resource "meridian_schema" "placed" {
  topic = module.orders.topics["live/placed"]
  type  = "JSON"
  schema = jsonencode({
    type   = "record"
    name   = "Placed"
    fields = [{ name = "id", type = "string" }]
  })
}

resource "meridian_subscription" "billing" {
  topic    = module.orders.topics["live/placed"]
  name     = "billing"
  position = "earliest"
}

output "topics" {
  value = module.orders.topics
}
