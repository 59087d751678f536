//! Settings of autorecovery.

use meridian_autorecovery::AutorecoveryConfig;
use meridian_settings::{Key, Settings};

/// Of a process with this name; figures go to `registry`.
pub fn autorecovery(settings: &Settings, name: &str, registry: &prometheus::Registry) -> AutorecoveryConfig {
    let defaults = AutorecoveryConfig::default();
    let mut replicate = defaults.replicate;
    replicate.batch_entries =
        u32::try_from(settings.count(Key::RereplicationEntryBatchSize)).unwrap_or(u32::MAX).max(1);
    AutorecoveryConfig {
        name: name.to_owned(),
        lost_grace_ms: settings.count(Key::LostBookieRecoveryDelay) * 1000,
        open_grace_ms: settings.count(Key::OpenLedgerRereplicationGracePeriod),
        // Nothing above 0 = no limit, as BookKeeper has it.
        bytes_per_second: u64::try_from(settings.number(Key::ReplicationRateByBytes)).unwrap_or(0),
        ledgers_in_flight: usize::try_from(settings.count(Key::AutorecoveryLedgersInFlight)).unwrap_or(1).max(1),
        replicate,
        audit_interval_ms: settings.count(Key::AuditorPeriodicCheckInterval) * 1000,
        audit_samples: u32::try_from(settings.count(Key::AuditorSamplesPerCopy)).unwrap_or(u32::MAX),
        audit_ledgers_per_second: settings.count(Key::AuditorLedgersPerSecond).max(1),
        mends_placement: settings.switch(Key::RepairedPlacementPolicyNotAdheringBookieEnabled),
        registry: registry.clone(),
        ..defaults
    }
}
