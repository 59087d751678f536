output "tenant" {
  description = "The tenant."
  value       = meridian_tenant.this.name
}

output "namespaces" {
  description = "Namespaces by name, as TENANT/NAME."
  value       = { for name, namespace in meridian_namespace.this : name => namespace.id }
}

output "topics" {
  description = "Topics by NAMESPACE/NAME, with their whole names."
  value       = { for name, topic in meridian_topic.this : name => topic.id }
}
