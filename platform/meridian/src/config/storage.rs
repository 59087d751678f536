//! Settings of bookies, ledgers, managed ledgers and caches.

use meridian_bookie::BookieConfig;
use meridian_bookie_api::RemoteConfig;
use meridian_ledger::LedgerConfig;
use meridian_ledger::writer::words::WriterTimes;
use meridian_managed_ledger::LogSettings;
use meridian_placement::Rule;
use meridian_settings::{Key, Settings};
use meridian_topology::Location;
use meridian_types::BookieId;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Folder of the one bookie of a cluster's process.
const ALONE_FOLDER: &str = "bookie";

/// Whole days, hours, … in a setting in minutes with an own one in seconds beside it that wins.
fn minutes_or_seconds(settings: &Settings, minutes: Key, seconds: Key) -> u64 {
    match settings.count(seconds) {
        0 => settings.count(minutes) * 60,
        own => own,
    }
}

/// Who a bookie of this process is, and where its data lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// Its id.
    id: BookieId,
    /// The cluster that its folders belong to.
    instance: String,
    /// Its folder, as far as the settings name no others.
    home: PathBuf,
    /// Its place among several bookies in one process, from 0.
    index: u64,
}

impl Seat {
    /// The bookies of a region in one process.
    pub fn embedded(settings: &Settings, data_dir: &Path, instance: &str) -> Vec<Self> {
        let seat = |index: u64| {
            let name = format!("bookie-{index}");
            Self { home: data_dir.join(&name), id: BookieId::new(name), instance: instance.to_owned(), index }
        };
        (0..settings.count(Key::Bookies).max(1)).map(seat).collect()
    }

    /// The one bookie of a cluster's process, which listens at `bound`.
    ///
    /// # Errors
    /// It has no id that outlives its address.
    pub fn alone(
        settings: &Settings,
        data_dir: &Path,
        instance: &str,
        bound: Option<SocketAddr>,
    ) -> Result<Self, String> {
        let port = settings.port(Key::BookiePort).unwrap_or_default();
        let id = match (settings.optional(Key::BookieId), bound) {
            (Some(id), _) => id.to_owned(),
            (None, Some(_)) if port == 0 => {
                return Err(
                    "bookieId is empty: expected an id, since bookiePort=0 gives another address at each start"
                        .to_owned(),
                );
            }
            (None, _) => format!("{}:{port}", super::broker::advertised_host(settings)),
        };
        if id.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
            return Err(format!("bookieId={id}: expected an id without slashes and blanks"));
        }
        let home = data_dir.join(ALONE_FOLDER);
        Ok(Self { id: BookieId::new(id), instance: instance.to_owned(), home, index: 0 })
    }

    /// Whether the folder is that of a cluster's process.
    pub fn is_alone(data_dir: &Path) -> bool {
        data_dir.join(ALONE_FOLDER).exists()
    }
}

/// A bookie at its seat.
pub fn bookie(settings: &Settings, seat: &Seat) -> BookieConfig {
    let Seat { id, home, index, instance } = seat;
    // Several bookies in one process never share a folder.
    let folders = |key: Key, fallback: &str| -> Vec<PathBuf> {
        let given = settings.list(key);
        if given.is_empty() {
            return vec![home.join(fallback)];
        }
        given.iter().map(|dir| if *index == 0 { dir.into() } else { Path::new(dir).join(id.as_str()) }).collect()
    };
    let (journals, ledgers) = (folders(Key::JournalDirectories, "journal"), folders(Key::LedgerDirectories, "ledgers"));
    let mut config = BookieConfig::new(id.clone(), home.join("journal"), home.join("ledgers"));
    config.instance_id = instance.clone();
    config.journal_dirs = journals;
    config.ledger_dirs = ledgers;
    config.journal.file_bytes = settings.count(Key::JournalMaxSizeMB).max(4) * MIB;
    config.journal.direct = settings.switch(Key::JournalDirectIo);
    config.write_cache_bytes = (settings.count(Key::DbStorageWriteCacheMaxSizeMb).max(2) * MIB) / 2;
    config.read_cache_bytes = settings.count(Key::DbStorageReadAheadCacheMaxSizeMb).max(1) * MIB;
    config.entry_log_bytes = settings.count(Key::LogSizeLimit).max(MIB);
    config.max_entry_bytes = settings.count(Key::MaxMessageSize) + MIB;
    config.flush_interval = Duration::from_millis(settings.count(Key::FlushInterval).max(100));
    config.disk.threshold = settings.decimal(Key::DiskUsageThreshold);
    config.disk.low_threshold = settings.decimal(Key::DiskUsageLwmThreshold).min(config.disk.threshold);
    config.disk.quota_bytes = Some(settings.count(Key::DiskQuotaMB) * MIB).filter(|quota| *quota > 0);
    config.compaction.minor_threshold = settings.decimal(Key::MinorCompactionThreshold);
    config.compaction.minor_interval = Duration::from_secs(settings.count(Key::MinorCompactionInterval));
    config.compaction.major_threshold = settings.decimal(Key::MajorCompactionThreshold);
    config.compaction.major_interval = Duration::from_secs(settings.count(Key::MajorCompactionInterval));
    config
}

/// A place as a setting says it.
///
/// # Errors
/// The setting with what was expected.
fn location(key: &str, label: &str) -> Result<Location, String> {
    Location::parse(label).ok_or_else(|| format!("{key}={label}: expected /zone or /region/zone"))
}

/// Where the bookies of this process stand, as far as it is said.
///
/// # Errors
/// The first that can't be read.
pub fn bookie_locations(settings: &Settings) -> Result<Vec<Location>, String> {
    settings.list(Key::BookieLocations).iter().map(|label| location("bookieLocations", label)).collect()
}

/// How ledgers are written and read.
///
/// # Errors
/// A place that can't be read.
pub fn ledgers(settings: &Settings) -> Result<LedgerConfig, String> {
    let zones = settings.count(Key::BookkeeperClientMinNumRacksPerWriteQuorum).max(1);
    let timeout_ms = settings.count(Key::BookkeeperClientTimeoutInSeconds).max(1) * 1000;
    let defaults = LedgerConfig::default();
    Ok(LedgerConfig {
        times: WriterTimes {
            add_timeout_ms: timeout_ms,
            give_up_ms: timeout_ms * 5,
            change_delay_ms: settings.count(Key::BookkeeperClientEnsembleChangeDelayMillis),
            ..defaults.times
        },
        read_timeout_ms: timeout_ms,
        read_hedge_ms: settings.count(Key::BookkeeperClientSpeculativeReadTimeoutInMillis),
        quarantine_ms: settings.count(Key::BookkeeperClientQuarantineSeconds) * 1000,
        max_entry_bytes: settings.count(Key::MaxMessageSize) + MIB,
        placement: Rule {
            min_zones: u32::try_from(zones).unwrap_or(u32::MAX),
            min_regions: 1,
            enforced: settings.switch(Key::BookkeeperClientEnforceMinNumRacksPerWriteQuorum),
        },
        location: location("brokerLocation", settings.text(Key::BrokerLocation))?,
        ..defaults
    })
}

/// Connections to the bookies of other processes.
pub fn connections(settings: &Settings) -> RemoteConfig {
    let timeout = Duration::from_secs(settings.count(Key::BookkeeperClientTimeoutInSeconds).max(1));
    let queue = settings.count(Key::BookkeeperClientConnectionQueueMB).max(1) * MIB;
    RemoteConfig {
        connect_timeout: timeout.min(RemoteConfig::default().connect_timeout),
        // The writer's own time-out comes first; this one ends a connection that answers nobody.
        request_timeout: timeout * 2,
        outbox_bytes: usize::try_from(queue).unwrap_or(usize::MAX),
        ..RemoteConfig::default()
    }
}

/// Whether new ledgers can be made at all; with `bookies` if it is known how many there will be.
///
/// # Errors
/// The setting that can't be met, with its value and what is possible.
pub fn check_quorums(settings: &Settings, bookies: Option<u64>) -> Result<(), String> {
    let value = |key: Key| settings.count(key).max(1);
    let (ensemble, write, ack) = (
        value(Key::ManagedLedgerDefaultEnsembleSize),
        value(Key::ManagedLedgerDefaultWriteQuorum),
        value(Key::ManagedLedgerDefaultAckQuorum),
    );
    if let Some(bookies) = bookies.filter(|bookies| ensemble > *bookies) {
        return Err(format!(
            "managedLedgerDefaultEnsembleSize={ensemble}: expected at most {bookies}, the number of bookies in this process \
             (--bookies {ensemble} starts more)"
        ));
    }
    if write > ensemble {
        return Err(format!("managedLedgerDefaultWriteQuorum={write}: expected at most the ensemble size, {ensemble}"));
    }
    if ack > write {
        return Err(format!("managedLedgerDefaultAckQuorum={ack}: expected at most the write quorum, {write}"));
    }
    Ok(())
}

/// How topics' logs roll, keep and persist.
pub fn log(settings: &Settings) -> LogSettings {
    let number = |key: Key| u32::try_from(settings.count(key)).unwrap_or(u32::MAX).max(1);
    let rate = settings.decimal(Key::ManagedLedgerDefaultMarkDeleteRateLimit);
    let unlimited = |key: Key, unit: u64| u64::try_from(settings.number(key)).ok().map(|value| value * unit);
    LogSettings {
        ensemble_size: number(Key::ManagedLedgerDefaultEnsembleSize),
        write_quorum: number(Key::ManagedLedgerDefaultWriteQuorum),
        ack_quorum: number(Key::ManagedLedgerDefaultAckQuorum),
        max_entries_per_ledger: settings.count(Key::ManagedLedgerMaxEntriesPerLedger).max(1),
        max_bytes_per_ledger: settings.count(Key::ManagedLedgerMaxSizePerLedgerMbytes).max(1) * MIB,
        min_rollover_ms: 1000
            * minutes_or_seconds(
                settings,
                Key::ManagedLedgerMinLedgerRolloverTimeMinutes,
                Key::ManagedLedgerMinLedgerRolloverTimeSeconds,
            ),
        max_rollover_ms: 1000
            * minutes_or_seconds(
                settings,
                Key::ManagedLedgerMaxLedgerRolloverTimeMinutes,
                Key::ManagedLedgerMaxLedgerRolloverTimeSeconds,
            ),
        retention_ms: unlimited(Key::DefaultRetentionTimeInMinutes, 60_000),
        retention_bytes: unlimited(Key::DefaultRetentionSizeInMB, MIB),
        cursor_flush_interval_ms: if rate > 0.0 { (1000.0 / rate) as u64 } else { 0 },
        skip_unreadable: settings.switch(Key::AutoSkipNonRecoverableData),
        max_unconfirmed_bytes: settings.count(Key::ManagedLedgerMaxUnconfirmedMB).max(1) * MIB,
    }
}

/// Bytes of the cache of recent entries.
pub fn tail_cache_bytes(settings: &Settings) -> u64 {
    match settings.count(Key::ManagedLedgerCacheSizeMB) {
        0 => (memory_bytes() / 8).clamp(32 * MIB, 128 * MIB),
        set => set * MIB,
    }
}

/// Bytes of the cache of lagging readers.
pub fn catch_up_cache_bytes(settings: &Settings) -> u64 {
    settings.count(Key::CatchUpCacheSizeMB).max(1) * MIB
}

/// Memory of the machine, or 4 GiB where it can't be read.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.trim().parse().ok());
    kib.map_or(4 << 30, |kib: u64| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_win_over_minutes() {
        let mut settings = Settings::default();
        assert_eq!(log(&settings).max_rollover_ms, 240 * 60_000);
        settings.set_pair("test", "managedLedgerMaxLedgerRolloverTimeSeconds=5").expect("it is a setting");
        assert_eq!(log(&settings).max_rollover_ms, 5_000);
    }

    #[test]
    fn quorums_that_can_not_be_met_are_refused() {
        let mut settings = Settings::default();
        assert_eq!(check_quorums(&settings, Some(1)), Ok(()));
        settings.set_pair("test", "managedLedgerDefaultAckQuorum=2").expect("it is a setting");
        let refused = check_quorums(&settings, Some(1)).expect_err("two acks of one copy");
        assert_eq!(refused, "managedLedgerDefaultAckQuorum=2: expected at most the write quorum, 1");
        settings.set_pair("test", "managedLedgerDefaultEnsembleSize=2").expect("it is a setting");
        assert!(
            check_quorums(&settings, Some(1))
                .expect_err("one bookie")
                .starts_with("managedLedgerDefaultEnsembleSize=2: ")
        );
    }

    #[test]
    fn places_are_read_or_named() {
        let mut settings = Settings::default();
        assert_eq!(ledgers(&settings).expect("defaults are good").placement, Rule::default());
        settings.set_pair("test", "bookieLocations=/w/a,/b").expect("it is a setting");
        let places = bookie_locations(&settings).expect("they are good");
        assert_eq!(places[0].region.as_deref(), Some("w"));
        settings.set_pair("test", "brokerLocation=/a/b/c").expect("it is a setting");
        let refused = ledgers(&settings).expect_err("too long");
        assert_eq!(refused, "brokerLocation=/a/b/c: expected /zone or /region/zone");
    }

    #[test]
    fn minus_one_is_without_limit() {
        let mut settings = Settings::default();
        assert_eq!(log(&settings).retention_ms, Some(0));
        settings.set_pair("test", "defaultRetentionTimeInMinutes=-1").expect("it is a setting");
        assert_eq!(log(&settings).retention_ms, None);
    }

    #[test]
    fn several_bookies_share_no_folder() {
        let mut settings = Settings::default();
        settings.set_pair("test", "journalDirectories=/j").expect("it is a setting");
        settings.set_pair("test", "bookies=2").expect("it is a setting");
        let seats = Seat::embedded(&settings, Path::new("/d"), "west");
        let (first, second) = (bookie(&settings, &seats[0]), bookie(&settings, &seats[1]));
        assert_eq!(first.journal_dirs, [Path::new("/j")]);
        assert_eq!(second.journal_dirs, [Path::new("/j/bookie-1")]);
        assert_ne!(first.ledger_dirs, second.ledger_dirs);
    }

    #[test]
    fn a_bookie_of_a_cluster_has_an_id_that_outlives_its_address() {
        let mut settings = Settings::default();
        let at = Some(SocketAddr::from(([127, 0, 0, 1], 3181)));
        settings.set_pair("test", "advertisedAddress=b7").expect("it is a setting");
        let seat = Seat::alone(&settings, Path::new("/d"), "0f", at).expect("it has an address");
        let config = bookie(&settings, &seat);
        assert_eq!((config.id.as_str(), config.instance_id.as_str()), ("b7:3181", "0f"));
        assert_eq!(config.journal_dirs, [Path::new("/d/bookie/journal")]);
        settings.set_pair("test", "bookiePort=0").expect("it is a setting");
        assert!(
            Seat::alone(&settings, Path::new("/d"), "0f", at)
                .expect_err("another each time")
                .starts_with("bookieId is empty")
        );
        settings.set_pair("test", "bookieId=a/b").expect("it is a setting");
        assert!(Seat::alone(&settings, Path::new("/d"), "0f", at).expect_err("a slash").starts_with("bookieId=a/b: "));
    }
}
