output "revision" {
  description = "The revision that is in force."
  value       = meridian_environment.this.revision
}

output "changes" {
  description = "What the last plan found to do."
  value       = meridian_environment.this.changes
}
