//! From settings to the numbers that each room is run with. Nothing but translation.

pub mod autorecovery;
pub mod broker;
pub mod ownership;
pub mod storage;
pub mod storage_tls;

use crate::cli::{Failure, SettingsArgs};
use crate::role::Role;
use meridian_settings::{Key, Notice, Settings};

/// Defaults of a process of a cluster where they are others than those of `standalone`.
const CLUSTER_DEFAULTS: &[(&str, &str)] = &[
    ("managedLedgerDefaultEnsembleSize", "3"),
    ("managedLedgerDefaultWriteQuorum", "3"),
    ("managedLedgerDefaultAckQuorum", "2"),
];
/// What the kernel calls this machine.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Reads the file, then `--set`.
///
/// # Errors
/// The first line or pair that can't be taken.
pub fn load(role: Role, args: &SettingsArgs) -> Result<(Settings, Vec<Notice>), Failure> {
    let mut settings = Settings::default();
    let mut notices = Vec::new();
    if role.in_cluster() {
        for (key, value) in CLUSTER_DEFAULTS {
            settings.set_pair("defaults", &format!("{key}={value}"))?;
        }
    }
    if let Some(path) = &args.config {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|e| meridian_settings::SettingsError::Unreadable { path: shown.clone(), reason: e.to_string() })?;
        notices.extend(settings.read_text(&shown, &text)?);
    }
    for pair in &args.set {
        notices.extend(settings.set_pair("--set", pair)?);
    }
    if role.in_cluster() && settings.optional(Key::AdvertisedAddress).is_none() {
        // Others of the cluster have to reach it: `localhost` would be themselves.
        let name = std::fs::read_to_string(HOST_NAME_FILE).unwrap_or_default();
        settings.set_pair("host name", &format!("advertisedAddress={}", name.trim()))?;
    }
    settings.check()?;
    Ok((settings, notices))
}
