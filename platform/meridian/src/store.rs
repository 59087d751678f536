//! The metadata store of a process: which one, and what is told of it.
//!
//! Failure: a store that can't be opened ends the start with the setting to change; one that does not answer is waited
//! for, at the start and later.

use crate::cli::Failure;
use crate::patience::Patience as StartPatience;
use meridian_metadata::{
    Figure, MetadataError, MetadataStore, ObservedStore, Patience, RocksStore, SharedStore, StoreFigures,
};
use meridian_metadata_tikv::{TikvConfig, TikvStore};
use meridian_settings::{Key, Settings};
use prometheus::core::{Collector, Desc, Describer};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, IntCounter, Opts};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Where metadata is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// In the data folder.
    Embedded,
    /// In a folder of its own; one process alone.
    Rocks(PathBuf),
    /// In TiKV.
    Tikv {
        /// Placement drivers, `host:port`.
        endpoints: Vec<String>,
        /// Prefix of all keys.
        prefix: String,
    },
}

impl StoreUrl {
    /// Reads `metadataStoreUrl`.
    ///
    /// # Errors
    /// The setting with what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refused = |expected: &str| Err(format!("metadataStoreUrl={text}: expected {expected}"));
        if text.is_empty() {
            return Ok(Self::Embedded);
        }
        if let Some(folder) = text.strip_prefix("rocksdb://") {
            return match Path::new(folder).is_absolute() {
                true => Ok(Self::Rocks(folder.into())),
                false => refused("rocksdb:///folder, an absolute path"),
            };
        }
        let Some(rest) = text.strip_prefix("tikv://") else {
            return refused("tikv://host:port[,host:port…]/prefix, rocksdb:///folder, or nothing");
        };
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        let good = |endpoint: &String| {
            endpoint.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if !endpoints.iter().all(good) {
            return refused("tikv://host:port[,host:port…]/prefix");
        }
        if prefix.is_empty() || prefix.contains('/') {
            return refused("a prefix of one word behind the hosts: one TiKV may serve several clusters");
        }
        Ok(Self::Tikv { endpoints, prefix: prefix.to_owned() })
    }
}

/// The folder of the embedded metadata store.
pub fn metadata_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("metadata")
}

/// Opens the store.
///
/// # Errors
/// It can't be opened.
pub async fn open(url: &StoreUrl, settings: &Settings, data_dir: Option<&Path>) -> Result<Arc<ObservedStore>, Failure> {
    match url {
        StoreUrl::Tikv { endpoints, prefix } => Ok(connect(endpoints, prefix, settings).await?),
        StoreUrl::Rocks(folder) => open_folder(folder, settings),
        StoreUrl::Embedded => open_embedded(settings, data_dir),
    }
}

/// Opens the store at the start of a process, which waits for one that is not up yet.
///
/// # Errors
/// It can't be opened, whatever time passes, or did not answer in time.
pub async fn await_open(
    url: &StoreUrl,
    settings: &Settings,
    data_dir: Option<&Path>,
    patience: &mut StartPatience,
) -> Result<Arc<ObservedStore>, Failure> {
    match url {
        StoreUrl::Tikv { endpoints, prefix } => patience.until(|| connect(endpoints, prefix, settings)).await,
        StoreUrl::Rocks(folder) => open_folder(folder, settings),
        StoreUrl::Embedded => open_embedded(settings, data_dir),
    }
}

async fn connect(endpoints: &[String], prefix: &str, settings: &Settings) -> Result<Arc<ObservedStore>, MetadataError> {
    let inner: SharedStore = TikvStore::connect(tikv(endpoints, prefix, settings)).await?;
    Ok(observed(inner, settings))
}

fn open_folder(folder: &Path, settings: &Settings) -> Result<Arc<ObservedStore>, Failure> {
    Ok(observed(Arc::new(RocksStore::open(folder)?), settings))
}

fn open_embedded(settings: &Settings, data_dir: Option<&Path>) -> Result<Arc<ObservedStore>, Failure> {
    let Some(data_dir) = data_dir else {
        return Err(
            "metadataStoreUrl is empty: expected tikv://host:port/prefix, the same for all processes of the cluster"
                .into(),
        );
    };
    open_folder(&metadata_dir(data_dir), settings)
}

fn observed(inner: SharedStore, settings: &Settings) -> Arc<ObservedStore> {
    let call_limit_ms = settings.count(Key::MetadataStoreOperationTimeoutSeconds).max(1) * 1000;
    let patience = Patience { call_limit_ms, ..Patience::default() };
    ObservedStore::new(inner, patience)
}

/// How to reach TiKV. A prefix ends with a stroke, so that none is the beginning of another.
fn tikv(endpoints: &[String], prefix: &str, settings: &Settings) -> TikvConfig {
    let file = |key: Key| Some(settings.text(key)).filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut config = TikvConfig::new(endpoints.to_vec(), format!("{prefix}/"));
    config.ca_path = file(Key::MetadataStoreTrustCertsFilePath);
    config.cert_path = file(Key::MetadataStoreCertificateFilePath);
    config.key_path = file(Key::MetadataStoreKeyFilePath);
    config.poll_interval_ms = settings.count(Key::MetadataStorePollIntervalMillis).max(10);
    config.collect_garbage = settings.switch(Key::MetadataStoreCollectGarbage);
    config
}

/// Figures of the store, read when they are asked for.
pub struct StoreMetrics {
    store: Weak<ObservedStore>,
    /// A registry tells collectors apart by what they describe.
    desc: Desc,
}

type Read = fn(&StoreFigures) -> f64;

const GAUGES: &[(&str, &str, Read)] = &[
    ("available", "1 while the metadata store answers.", |f| f64::from(u8::from(f.available))),
    ("away_seconds", "How long it has been away.", |f| f.away_ms as f64 / 1e3),
    ("waiting_calls", "Calls that wait for it.", |f| f.waiting as f64),
    ("oldest_wait_seconds", "How long the oldest of them has waited.", |f| f.oldest_wait_ms as f64 / 1e3),
];

type Count = fn(&StoreFigures) -> u64;

const COUNTERS: &[(&str, &str, Count)] = &[
    ("outages_total", "Times that the store went away.", |f| f.outages),
    ("reads_total", "Reads done.", |f| f.reads),
    ("writes_total", "Writes done.", |f| f.writes),
    ("repeated_total", "Attempts repeated because they got no answer.", |f| f.repeated),
    ("contended_total", "Attempts that failed although it answered others: contended or slow, not away.", |f| {
        f.contended
    }),
    ("timed_out_total", "Calls given up past their time.", |f| f.timed_out),
    ("refused_total", "Calls refused because too many waited.", |f| f.refused),
];

impl StoreMetrics {
    /// Of a store.
    ///
    /// # Errors
    /// Never: the name is constant and valid.
    pub fn new(store: &Arc<ObservedStore>) -> Result<Self, prometheus::Error> {
        let (name, help, _) = GAUGES[0];
        Ok(Self {
            store: Arc::downgrade(store),
            desc: Opts::new(format!("meridian_metadata_{name}"), help).describe()?,
        })
    }

    fn families(figures: &StoreFigures, own: &[Figure]) -> Result<Vec<MetricFamily>, prometheus::Error> {
        let opts = |name: &str, help: &str| Opts::new(format!("meridian_metadata_{name}"), help);
        let mut families = Vec::new();
        for (name, help, read) in GAUGES {
            let gauge = Gauge::with_opts(opts(name, help))?;
            gauge.set(read(figures));
            families.extend(gauge.collect());
        }
        for (name, help, count) in COUNTERS {
            let counter = IntCounter::with_opts(opts(name, help))?;
            counter.inc_by(count(figures));
            families.extend(counter.collect());
        }
        for figure in own {
            if figure.name.ends_with("_total") {
                let counter = Counter::with_opts(opts(figure.name, figure.help))?;
                counter.inc_by(figure.value.max(0.0));
                families.extend(counter.collect());
            } else {
                let gauge = Gauge::with_opts(opts(figure.name, figure.help))?;
                gauge.set(figure.value);
                families.extend(gauge.collect());
            }
        }
        Ok(families)
    }
}

impl Collector for StoreMetrics {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(store) = self.store.upgrade() else { return Vec::new() };
        Self::families(&store.figures(), &store.own_figures()).unwrap_or_else(|error| {
            tracing::error!(%error, "figures of the metadata store can't be made");
            Vec::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_or_the_setting_is_named() {
        let tikv = StoreUrl::parse("tikv://a:2379,b:2379/west").expect("it is good");
        assert_eq!(tikv, StoreUrl::Tikv { endpoints: vec!["a:2379".into(), "b:2379".into()], prefix: "west".into() });
        assert_eq!(StoreUrl::parse("rocksdb:///var/m"), Ok(StoreUrl::Rocks("/var/m".into())));
        assert_eq!(StoreUrl::parse(""), Ok(StoreUrl::Embedded));
        for bad in [
            "zk:a:2181",
            "tikv://a/west",
            "tikv://a:1",
            "tikv://a:1/",
            "tikv://:1/p",
            "rocksdb://here",
            "tikv://a:1/p/q",
        ] {
            let error = StoreUrl::parse(bad).expect_err(bad);
            assert!(error.starts_with(&format!("metadataStoreUrl={bad}: expected ")), "{error}");
        }
    }

    #[test]
    fn what_waits_is_told() {
        let figures = StoreFigures { waiting: 3, away_ms: 1500, outages: 2, ..StoreFigures::default() };
        let own = [
            Figure { name: "tikv_conflicts_total", help: "Conflicts.", value: 4.0 },
            Figure { name: "tikv_doubts", help: "Doubts.", value: 1.0 },
        ];
        let families = StoreMetrics::families(&figures, &own).expect("names are good");
        let text = prometheus::TextEncoder::new().encode_to_string(&families).expect("it is text");
        for line in [
            "meridian_metadata_available 0",
            "meridian_metadata_away_seconds 1.5",
            "meridian_metadata_waiting_calls 3",
            "meridian_metadata_outages_total 2",
            "meridian_metadata_tikv_conflicts_total 4",
            "meridian_metadata_tikv_doubts 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
