output "revision" {
  description = "The revision of the teams' document that is in force."
  value       = module.teams.revision
}
