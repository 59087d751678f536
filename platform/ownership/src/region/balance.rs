//! Loads: each broker reports its own and cuts its hot bundles; the leader sheds and joins cold ones.
//!
//! Invariants: a report costs at most a twentieth of the time, however many topics there are.

use super::{GroupsOf, RegionOwnership};
use crate::api::{Ownership, TopicLoad};
use crate::bundles::topic_hash;
use crate::machine::Machine;
use crate::records::{BundleFigures, BundleId, BundleLoad, LoadRecord, encode, load_key};
use crate::resize::{self, Cuts, Resizer, SplitAlgorithm};
use crate::shed::Shedder;
use meridian_metadata::{Condition, Operation};
use meridian_types::NamespaceName;
use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::{sleep, timeout};

/// Bundles in one report at most, busiest first.
const MAX_REPORTED: usize = 2_000;
/// A report takes at most this share of the time.
const REPORT_SHARE: u32 = 20;
/// A change of pressure worth a report, in thousandths.
const WORTH_PERMILLE: u32 = 100;

/// What the leader remembers between looks.
#[derive(Default)]
pub(super) struct Balancer {
    shedder: Shedder,
    resizer: Resizer,
    next_ms: u64,
}

impl Balancer {
    /// Whether a look is due; sets when the next one is.
    pub fn is_due(&mut self, now_ms: u64, every_ms: u64) -> bool {
        let due = now_ms >= self.next_ms;
        if due {
            self.next_ms = now_ms + every_ms.max(100);
        }
        due
    }
}

/// Reports this broker's load, and cuts its hot bundles.
pub(super) async fn report(weak: Weak<RegionOwnership>) {
    let (mut machine, mut resizer) = (Machine::default(), Resizer::default());
    let (mut last, mut sent_ms, mut looked_ms): (Option<LoadRecord>, u64, u64) = (None, 0, 0);
    loop {
        let Some(region) = weak.upgrade() else { return };
        let begun = Instant::now();
        if let Some(host) = region.host().filter(|_| region.in_force()) {
            let topics = host.loads();
            let loads = region.by_bundle(&topics);
            let record = region.load_record(&mut machine, &loads);
            let now_ms = region.now_ms();
            let stale = now_ms >= sent_ms + region.config.report_at_least_every_ms;
            if stale || last.as_ref().is_none_or(|last| is_news(last, &record)) {
                region.send_report(&record).await;
                (last, sent_ms) = (Some(record), now_ms);
            }
            if region.config.resizing && now_ms >= looked_ms + region.config.balance_every_ms {
                looked_ms = now_ms;
                region.cut_hot(&mut resizer, &loads, &topics).await;
            }
        }
        let pause = Duration::from_millis(region.config.report_every_ms.max(100)).max(begun.elapsed() * REPORT_SHARE);
        drop(region);
        sleep(pause).await;
    }
}

fn is_news(last: &LoadRecord, now: &LoadRecord) -> bool {
    let far = |one: u32, other: u32| one.abs_diff(other) >= WORTH_PERMILLE;
    let rate = |load: &LoadRecord| {
        let total = load.total.unwrap_or_default();
        total.messages_in + total.messages_out
    };
    far(last.cpu_permille, now.cpu_permille)
        || far(last.memory_permille, now.memory_permille)
        || far(last.bandwidth_permille, now.bandwidth_permille)
        || last.incarnation != now.incarnation
        || last.bundle_count.abs_diff(now.bundle_count) * 10 > last.bundle_count
        || rate(last).abs_diff(rate(now)) * 10 > rate(last)
}

fn weight(figures: &BundleFigures) -> u64 {
    figures.messages_in + figures.messages_out + (figures.bytes_in + figures.bytes_out) / 1024
}

impl RegionOwnership {
    fn by_bundle(&self, topics: &[TopicLoad]) -> BTreeMap<BundleId, BundleFigures> {
        let mut loads: BTreeMap<BundleId, BundleFigures> = BTreeMap::new();
        for load in topics {
            if let Some(bundle) = self.bundle_of(&load.topic) {
                resize::add(loads.entry(bundle).or_default(), &load.figures);
            }
        }
        loads
    }

    fn load_record(&self, machine: &mut Machine, loads: &BTreeMap<BundleId, BundleFigures>) -> LoadRecord {
        let usage = machine.sample();
        let mut total = BundleFigures::default();
        loads.values().for_each(|figures| resize::add(&mut total, figures));
        let busier = total.bytes_in.max(total.bytes_out).saturating_mul(1000);
        let mut bundles: Vec<BundleLoad> = loads
            .iter()
            .map(|(bundle, figures)| BundleLoad {
                namespace: bundle.namespace.to_string(),
                start: bundle.range.start,
                end: bundle.range.end,
                figures: Some(*figures),
            })
            .collect();
        bundles.sort_by_key(|bundle| std::cmp::Reverse(weight(&bundle.figures.unwrap_or_default())));
        bundles.truncate(MAX_REPORTED);
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        LoadRecord {
            incarnation: self.me().incarnation,
            at_ms,
            cpu_permille: usage.cpu_permille,
            memory_permille: usage.memory_permille,
            bandwidth_permille: busier.checked_div(self.config.bandwidth_bytes).unwrap_or(0).min(1000) as u32,
            total: Some(total),
            bundles,
            bundle_count: self.ours.lock().len() as u64,
        }
    }

    async fn send_report(&self, record: &LoadRecord) {
        let session = *self.session.lock();
        let Some(session) = session else { return };
        let (key, value) = (load_key(&self.me().id), encode(record));
        let put = Operation::Put {
            key: key.clone(),
            value: value.clone(),
            condition: Condition::Any,
            ephemeral: Some(session),
        };
        let limit = Duration::from_millis(self.config.call_limit_ms);
        match timeout(limit, self.store.commit(vec![put])).await {
            Ok(Ok(version)) => self.apply_put(&key, &value, version),
            Ok(Err(error)) => tracing::debug!(%error, "the load was not reported"),
            Err(_) => {}
        }
    }

    async fn cut_hot(&self, resizer: &mut Resizer, loads: &BTreeMap<BundleId, BundleFigures>, topics: &[TopicLoad]) {
        let count = |namespace: &NamespaceName| self.bundles(namespace).map_or(usize::MAX, |bundles| bundles.count());
        for bundle in resizer.hot(&self.config.resize, loads, count) {
            let within = topics.iter().filter(|load| self.bundle_of(&load.topic).as_ref() == Some(&bundle));
            let weighed: Vec<(u32, u64)> =
                within.map(|load| (topic_hash(&load.topic), weight(&load.figures))).collect();
            let is_quiet = weighed.iter().all(|(_, weight)| *weight == 0);
            let algorithm = match is_quiet {
                true => SplitAlgorithm::TopicCountEquallyDivide,
                false => SplitAlgorithm::FlowOrQpsEquallyDivide,
            };
            let cuts = resize::cuts(&algorithm, bundle.range, &weighed);
            if cuts.is_empty() {
                self.stats.count_stuck("bundle_can_not_be_cut");
            } else if let Err(error) = self.split_now(&bundle, &cuts).await {
                tracing::warn!(%bundle, %error, "a hot bundle was not split");
            }
        }
    }

    /// One look of the leader.
    pub(super) async fn balance(&self, balancer: &mut Balancer) {
        if self.config.shedding {
            let look = {
                let table = self.table.read();
                balancer.shedder.look(&self.config.shed, self.now_ms(), &table, &GroupsOf(&*self.namespaces))
            };
            for (broker, why) in look.stuck {
                self.stats.count_stuck(why);
                tracing::info!(broker, why, "a busy broker sheds nothing");
            }
            for one in look.moves {
                tracing::info!(bundle = %one.bundle, from = one.from, to = one.to, "moving a bundle to a less busy broker");
                if let Err(error) = self.move_bundle(&one.bundle, Some(&one.to), "shed").await {
                    tracing::warn!(bundle = %one.bundle, %error, "a bundle was not moved");
                }
            }
        }
        if self.config.resizing {
            for bundle in self.cold(balancer) {
                if let Err(error) = self.merge_now(&bundle).await {
                    tracing::warn!(%bundle, %error, "cold bundles were not merged");
                }
            }
        }
    }

    fn cold(&self, balancer: &mut Balancer) -> Vec<BundleId> {
        let table = self.table.read();
        let mut loads: BTreeMap<BundleId, BundleFigures> = BTreeMap::new();
        for (id, broker) in table.brokers() {
            // Who has not said what it has to do may have much.
            let Some(load) = table.load(id).filter(|load| load.incarnation == broker.record.incarnation) else {
                return Vec::new();
            };
            for bundle in &load.bundles {
                if let Ok(namespace) = NamespaceName::parse(&bundle.namespace) {
                    let range = crate::BundleRange { start: bundle.start, end: bundle.end };
                    loads.insert(BundleId { namespace, range }, bundle.figures.unwrap_or_default());
                }
            }
        }
        let namespaces = table
            .cuts()
            .filter_map(|(namespace, now)| {
                let made = self.namespaces.made_with(namespace)?;
                Some((namespace.clone(), Cuts { now: now.clone(), made }))
            })
            .collect();
        balancer.resizer.cold(&self.config.resize, &loads, &namespaces)
    }
}
