//! Settings of ownership: the lease, shedding, splitting and merging.

use meridian_ownership::resize::ResizeLimits;
use meridian_ownership::shed::ShedLimits;
use meridian_ownership::{LeaseTimes, RegionConfig};
use meridian_settings::{Key, Settings};

/// Shortest lease: below it a machine that is busy for a moment would lose everything it serves.
const MIN_LEASE_MS: u64 = 500;
/// Bytes per second of one Gbit/s.
const GIGABIT_BYTES: f64 = 125e6;

fn small(settings: &Settings, key: Key) -> u32 {
    u32::try_from(settings.count(key)).unwrap_or(u32::MAX)
}

/// What ownership among several brokers is run with.
pub fn region(settings: &Settings) -> RegionConfig {
    let balances = settings.switch(Key::LoadBalancerEnabled);
    let defaults = RegionConfig::default();
    RegionConfig {
        times: LeaseTimes::of(settings.count(Key::OwnershipLeaseMillis).max(MIN_LEASE_MS)),
        report_every_ms: settings.count(Key::LoadBalancerReportUpdateMinIntervalMillis),
        report_at_least_every_ms: settings.count(Key::LoadBalancerReportUpdateMaxIntervalMinutes) * 60_000,
        balance_every_ms: settings.count(Key::LoadBalancerSheddingIntervalMinutes) * 60_000,
        shedding: balances && settings.switch(Key::LoadBalancerSheddingEnabled),
        shed: ShedLimits {
            overload_permille: settings.count(Key::LoadBalancerBrokerOverloadedThresholdPercentage) * 10,
            difference_permille: settings.count(Key::LoadBalancerBrokerThresholdShedderPercentage) * 10,
            looks: small(settings, Key::LoadBalancerSheddingConditionHitCountThreshold),
            stay_ms: settings.count(Key::LoadBalancerSheddingGracePeriodMinutes) * 60_000,
            topics: settings.count(Key::LoadBalancerBrokerMaxTopics),
            ..ShedLimits::default()
        },
        resizing: balances && settings.switch(Key::LoadBalancerAutoBundleSplitEnabled),
        resize: ResizeLimits {
            topics: settings.count(Key::LoadBalancerNamespaceBundleMaxTopics),
            clients: settings.count(Key::LoadBalancerNamespaceBundleMaxSessions),
            messages: settings.count(Key::LoadBalancerNamespaceBundleMaxMsgRate),
            bytes: settings.count(Key::LoadBalancerNamespaceBundleMaxBandwidthMbytes) << 20,
            hot_looks: small(settings, Key::LoadBalancerNamespaceBundleSplitConditionHitCountThreshold),
            cold_looks: small(settings, Key::BundleMergeConditionHitCountThreshold),
            cold_permille: settings.count(Key::BundleMergeColdPercentage) * 10,
            max_bundles: settings.count(Key::LoadBalancerNamespaceMaximumBundles) as usize,
        },
        bandwidth_bytes: (settings.decimal(Key::LoadBalancerOverrideBrokerNicSpeedGbps) * GIGABIT_BYTES) as u64,
        leave_limit_ms: settings.count(Key::BrokerShutdownTimeoutMs).max(1_000) / 2,
        ..defaults
    }
}
