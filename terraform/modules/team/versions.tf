terraform {
  required_version = ">= 1.5"
  required_providers {
    meridian = {
      source = "terraform.local/meridian/meridian"
    }
  }
}
