//! What topics have stored, as all brokers know it: records in the metadata store, and what is open here looked at anew.
//!
//! Role: [`StoredBook`] reads the records at the start, page by page, follows them, and writes those of topics that are
//! open here; [`Table`] sums them up by place.
//! Invariants: S1 a topic counts once, wherever it is served: with what it has here while it is open here, else with its
//! record; S2 a sum of a place is the sum over its topics after each change (tested); S3 what left this broker counts with
//! what it had until that is written; S4 a deleted topic counts no more, and does again only when it is seen open after
//! its deletion.
//! Failure: [`QuotaError`]; what was not written is due again. A record that was overwritten by a former owner differs
//! from what its owner sees, who writes it again.
//! Must never know: topics' handles, which limits there are.

use crate::record::{decode, encode};
use crate::{QuotaError, keys};
use meridian_metadata::{Condition, Entry, Operation, SharedStore, Watch, WatchEvent};
use meridian_policy::quota::Place;
use meridian_types::{NamespaceName, TopicName};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Records written together.
const BATCH: usize = 256;
/// Records read at once.
const PAGE: usize = 1_000;

/// Pause before everything is read again after a failure.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// What a topic, or all topics of a place, have stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stored {
    /// Bytes kept, whoever has read them.
    pub stored_bytes: u64,
    /// Bytes that subscriptions have not acknowledged.
    pub backlog_bytes: u64,
    /// Durable subscriptions.
    pub subscriptions: u64,
}

impl Stored {
    fn replace(&mut self, before: &Stored, after: &Stored) {
        let moved = |sum: u64, before: u64, after: u64| sum.saturating_sub(before).saturating_add(after);
        self.stored_bytes = moved(self.stored_bytes, before.stored_bytes, after.stored_bytes);
        self.backlog_bytes = moved(self.backlog_bytes, before.backlog_bytes, after.backlog_bytes);
        self.subscriptions = moved(self.subscriptions, before.subscriptions, after.subscriptions);
    }

    /// Adds what others have.
    pub fn add(&mut self, other: &Stored) {
        self.replace(&Stored::default(), other);
    }
}

/// Limits of a place on what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredLimits {
    /// Bytes kept.
    pub stored_bytes: Option<u64>,
    /// Bytes not acknowledged.
    pub backlog_bytes: Option<u64>,
}

impl StoredLimits {
    /// What may stay unwritten at a place: a hundredth of each limit, and nothing while it is reached.
    fn slack(&self, sum: &Stored) -> (u64, u64) {
        let of = |limit: Option<u64>, sum: u64| match limit {
            Some(limit) if sum >= limit => 0,
            Some(limit) => limit / 100,
            None => u64::MAX,
        };
        (of(self.stored_bytes, sum.stored_bytes), of(self.backlog_bytes, sum.backlog_bytes))
    }
}

/// Records, what is open here, and their sums.
#[derive(Default)]
pub struct Table {
    written: HashMap<TopicName, Stored>,
    open: HashMap<TopicName, Stored>,
    /// Closed here and not written since (S3).
    left: HashMap<TopicName, Stored>,
    /// Deleted, with the look before which; their records go (S4).
    gone: HashMap<TopicName, u64>,
    sums: HashMap<Place, Stored>,
    /// Looks begun and ended.
    looks: u64,
    ended: u64,
}

impl Table {
    /// What a topic counts with (S1).
    pub fn of(&self, topic: &TopicName) -> Option<Stored> {
        if self.gone.contains_key(topic) {
            return None;
        }
        self.open.get(topic).or_else(|| self.left.get(topic)).or_else(|| self.written.get(topic)).copied()
    }

    /// The sum of a place (S2).
    pub fn sum(&self, place: &Place) -> Stored {
        self.sums.get(place).copied().unwrap_or_default()
    }

    fn change(&mut self, topic: &TopicName, change: impl FnOnce(&mut Self)) {
        let before = self.of(topic).unwrap_or_default();
        change(self);
        let after = self.of(topic).unwrap_or_default();
        if before == after {
            return;
        }
        for place in Place::way_to(topic) {
            let sum = self.sums.entry(place.clone()).or_default();
            sum.replace(&before, &after);
            if *sum == Stored::default() {
                self.sums.remove(&place);
            }
        }
    }

    /// A record was written, or there is none any more.
    pub fn read(&mut self, topic: &TopicName, record: Option<Stored>) {
        self.change(topic, |table| match record {
            Some(record) => drop(table.written.insert(topic.clone(), record)),
            None => drop(table.written.remove(topic)),
        });
    }

    /// All records anew.
    pub fn read_all(&mut self, records: HashMap<TopicName, Stored>) {
        let missing: Vec<TopicName> =
            self.written.keys().filter(|topic| !records.contains_key(topic)).cloned().collect();
        missing.iter().for_each(|topic| self.read(topic, None));
        records.iter().for_each(|(topic, record)| self.read(topic, Some(*record)));
    }

    /// A look at what is open here begins; its number.
    pub fn begin_look(&mut self) -> u64 {
        self.looks += 1;
        self.looks
    }

    /// What a look has found open; what is not among it has left.
    pub fn end_look(&mut self, look: u64, found: Vec<(TopicName, Stored)>) {
        self.ended = self.ended.max(look);
        let here: HashSet<&TopicName> = found.iter().map(|(topic, _)| topic).collect();
        let closed: Vec<TopicName> = self.open.keys().filter(|topic| !here.contains(topic)).cloned().collect();
        for topic in closed {
            self.change(&topic, |table| {
                let Some(had) = table.open.remove(&topic) else { return };
                if table.written.get(&topic) != Some(&had) && !table.gone.contains_key(&topic) {
                    table.left.insert(topic.clone(), had);
                }
            });
        }
        for (topic, has) in found {
            self.change(&topic, |table| {
                if table.gone.get(&topic).is_some_and(|deleted| *deleted >= look) {
                    return;
                }
                table.gone.remove(&topic);
                table.left.remove(&topic);
                table.open.insert(topic.clone(), has);
            });
        }
    }

    /// A topic was deleted (S4).
    pub fn deleted(&mut self, topic: &TopicName) {
        // A look that is under way may have found it.
        if self.of(topic).is_none() && self.ended == self.looks {
            return;
        }
        self.change(topic, |table| {
            table.open.remove(topic);
            table.left.remove(topic);
            table.gone.insert(topic.clone(), table.looks);
        });
    }

    /// What is to be written: all that left and all that is new here or has other subscriptions; of the rest what has
    /// changed, if `all`, or if the changes of a place together are more than it has slack for.
    pub fn due(&self, limits: &BTreeMap<Place, StoredLimits>, all: bool) -> Vec<(TopicName, Stored)> {
        let mut due: Vec<(TopicName, Stored)> = self.left.iter().map(|(topic, had)| (topic.clone(), *had)).collect();
        let changed = self.open.iter().filter(|(topic, has)| self.written.get(topic) != Some(has));
        let (now, later): (Vec<_>, Vec<_>) = changed.partition(|(topic, has)| {
            all || self.written.get(topic).is_none_or(|written| written.subscriptions != has.subscriptions)
        });
        due.extend(now.into_iter().map(|(topic, has)| (topic.clone(), *has)));
        let mut unwritten: HashMap<Place, (u64, u64)> = HashMap::new();
        for (topic, has) in &later {
            let written = self.written.get(topic).copied().unwrap_or_default();
            for place in Place::way_to(topic).into_iter().filter(|place| limits.contains_key(place)) {
                let sums = unwritten.entry(place).or_default();
                sums.0 += has.stored_bytes.abs_diff(written.stored_bytes);
                sums.1 += has.backlog_bytes.abs_diff(written.backlog_bytes);
            }
        }
        unwritten.retain(|place, (stored, backlog)| {
            let slack = limits.get(place).map_or((u64::MAX, u64::MAX), |limits| limits.slack(&self.sum(place)));
            *stored > slack.0 || *backlog > slack.1
        });
        let is_due = |topic: &TopicName| Place::way_to(topic).iter().any(|place| unwritten.contains_key(place));
        if !unwritten.is_empty() {
            due.extend(later.into_iter().filter(|(topic, _)| is_due(topic)).map(|(topic, has)| (topic.clone(), *has)));
        }
        due
    }

    /// These were written.
    pub fn wrote(&mut self, records: &[(TopicName, Stored)]) {
        for (topic, record) in records {
            self.change(topic, |table| {
                table.written.insert(topic.clone(), *record);
                if table.left.get(topic) == Some(record) {
                    table.left.remove(topic);
                }
            });
        }
    }

    /// The records of these are gone.
    pub fn erased(&mut self, topics: &[TopicName]) {
        for topic in topics {
            self.change(topic, |table| {
                table.written.remove(topic);
                table.gone.remove(topic);
            });
        }
    }
}

/// See the module.
pub struct StoredBook {
    store: SharedStore,
    table: RwLock<Table>,
    keeper: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Drop for StoredBook {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.lock().take() {
            keeper.abort();
        }
    }
}

fn read(entry: &Entry) -> Option<(TopicName, Stored)> {
    let topic = keys::parse_stored(&entry.key)?;
    match decode(&entry.key, &entry.value) {
        Ok(record) => Some((topic, record)),
        Err(error) => {
            tracing::error!(%error, "what a topic has stored can't be read and does not count");
            None
        }
    }
}

async fn read_all(store: &SharedStore) -> Result<HashMap<TopicName, Stored>, QuotaError> {
    let (mut records, mut after) = (HashMap::new(), None::<String>);
    loop {
        let page = store.range(keys::STORED, after.as_deref(), PAGE).await?;
        records.extend(page.entries.iter().filter_map(read));
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(records),
        }
    }
}

impl StoredBook {
    /// Reads all records and follows them until the last handle is dropped.
    ///
    /// # Errors
    /// The store can't be read.
    pub async fn open(store: SharedStore) -> Result<Arc<Self>, QuotaError> {
        let version = store.current_version().await?;
        let mut table = Table::default();
        table.read_all(read_all(&store).await?);
        let changes = store.watch(keys::STORED, Some(version)).await?;
        let book = Arc::new(Self { store, table: RwLock::new(table), keeper: Mutex::default() });
        let keeper = tokio::spawn(keep(Arc::downgrade(&book), changes));
        *book.keeper.lock() = Some(keeper);
        Ok(book)
    }

    /// What all topics of a place have.
    pub fn sum(&self, place: &Place) -> Stored {
        self.table.read().sum(place)
    }

    /// Whether a topic has a record.
    pub fn has_record(&self, topic: &TopicName) -> bool {
        self.table.read().written.contains_key(topic)
    }

    /// Whether there is nothing to count and to write.
    pub fn is_empty(&self) -> bool {
        let table = self.table.read();
        table.written.is_empty() && table.open.is_empty() && table.left.is_empty() && table.gone.is_empty()
    }

    /// Whether a topic counts with something that is known here.
    pub fn counts(&self, topic: &TopicName) -> bool {
        self.table.read().of(topic).is_some()
    }

    /// Topics with records that `of` wants.
    pub fn topics(&self, of: impl Fn(&TopicName) -> bool) -> Vec<TopicName> {
        self.table.read().written.keys().filter(|topic| of(topic)).cloned().collect()
    }

    /// What has left this broker and is not written since.
    pub fn left(&self) -> Vec<TopicName> {
        self.table.read().left.keys().cloned().collect()
    }

    /// Namespaces of topics with records.
    pub fn namespaces(&self) -> HashSet<NamespaceName> {
        self.table.read().written.keys().map(TopicName::namespace).collect()
    }

    /// Looks at what is open here: `see` answers all of it that counts.
    pub fn look(&self, see: impl FnOnce() -> Vec<(TopicName, Stored)>) {
        let look = self.table.write().begin_look();
        let found = see();
        self.table.write().end_look(look, found);
    }

    /// A topic was deleted, here or elsewhere.
    pub fn deleted(&self, topic: &TopicName) {
        self.table.write().deleted(topic);
    }

    /// Writes what is due, and deletes records of what was deleted.
    ///
    /// # Errors
    /// [`QuotaError`]; the rest is due again.
    pub async fn write(&self, limits: &BTreeMap<Place, StoredLimits>, all: bool) -> Result<(), QuotaError> {
        let (due, gone) = {
            let table = self.table.read();
            let gone: Vec<TopicName> = table.gone.keys().cloned().collect();
            (table.due(limits, all), gone)
        };
        for records in due.chunks(BATCH) {
            let mut operations = Vec::with_capacity(records.len());
            for (topic, record) in records {
                let key = keys::stored(topic);
                let value = encode(&key, record)?;
                operations.push(Operation::Put { key, value, condition: Condition::Any, ephemeral: None });
            }
            self.store.commit(operations).await?;
            self.table.write().wrote(records);
        }
        for topics in gone.chunks(BATCH) {
            let delete = |topic| Operation::Delete { key: keys::stored(topic), condition: Condition::Any };
            self.store.commit(topics.iter().map(delete).collect()).await?;
            self.table.write().erased(topics);
        }
        Ok(())
    }

    fn apply(&self, event: WatchEvent) {
        match event {
            WatchEvent::Put(entry) => {
                if let Some((topic, record)) = read(&entry) {
                    self.table.write().read(&topic, Some(record));
                }
            }
            WatchEvent::Delete { key, .. } => {
                if let Some(topic) = keys::parse_stored(&key) {
                    self.table.write().read(&topic, None);
                }
            }
            WatchEvent::Rescan => {}
        }
    }
}

async fn keep(book: Weak<StoredBook>, mut changes: Box<dyn Watch>) {
    while let Some((event, _)) = changes.next().await {
        if !matches!(event, WatchEvent::Rescan) {
            let Some(book) = book.upgrade() else { return };
            book.apply(event);
            continue;
        }
        loop {
            let Some(book) = book.upgrade() else { return };
            match read_all(&book.store).await {
                Ok(records) => {
                    book.table.write().read_all(records);
                    break;
                }
                Err(error) => tracing::warn!(%error, "what is stored can't be read again; what was known counts"),
            }
            drop(book);
            tokio::time::sleep(READ_AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn topic(number: u8) -> TopicName {
        let text = format!("persistent://t{}/n{}/a{number}", number % 2, number % 4);
        TopicName::parse(&text).expect("a valid name")
    }

    fn has(bytes: u64) -> Stored {
        Stored { stored_bytes: bytes, backlog_bytes: bytes / 2, subscriptions: bytes % 3 }
    }

    fn look(table: &mut Table, found: &[(TopicName, Stored)]) {
        let look = table.begin_look();
        table.end_look(look, found.to_vec());
    }

    #[test]
    fn a_topic_that_moves_counts_once() {
        let (mut here, mut there) = (Table::default(), Table::default());
        look(&mut here, &[(topic(0), has(100))]);
        let due = here.due(&BTreeMap::new(), false);
        assert_eq!(due, [(topic(0), has(100))], "new ones are written at once");
        here.wrote(&due);
        there.read(&topic(0), Some(has(100)));
        look(&mut there, &[(topic(0), has(130))]);
        look(&mut here, &[]);
        here.read(&topic(0), Some(has(130)));
        assert_eq!((here.sum(&Place::Cluster), there.sum(&Place::Cluster)), (has(130), has(130)));
        assert!(here.due(&BTreeMap::new(), true).is_empty());
        // What a former owner wrote late is put right.
        there.read(&topic(0), Some(has(100)));
        assert_eq!(there.due(&BTreeMap::new(), true), [(topic(0), has(130))]);
    }

    #[test]
    fn what_left_counts_until_it_is_written() {
        let mut table = Table::default();
        table.read(&topic(0), Some(has(10)));
        look(&mut table, &[(topic(0), has(70))]);
        look(&mut table, &[]);
        assert_eq!(table.sum(&Place::Cluster), has(70));
        let due = table.due(&BTreeMap::new(), false);
        assert_eq!(due, [(topic(0), has(70))]);
        table.wrote(&due);
        assert!(table.due(&BTreeMap::new(), true).is_empty());
        assert_eq!(table.sum(&Place::Cluster), has(70));
    }

    #[test]
    fn what_is_deleted_comes_back_only_by_a_later_look() {
        let mut table = Table::default();
        let running = table.begin_look();
        table.deleted(&topic(0));
        table.end_look(running, vec![(topic(0), has(10))]);
        assert_eq!(table.of(&topic(0)), None);
        assert!(table.due(&BTreeMap::new(), true).is_empty());
        look(&mut table, &[(topic(0), has(5))]);
        assert_eq!(table.sum(&Place::Cluster), has(5));
        assert_eq!(table.due(&BTreeMap::new(), true), [(topic(0), has(5))]);
    }

    #[test]
    fn small_changes_wait_and_those_at_a_limit_do_not() {
        let mut table = Table::default();
        let limits = |bytes| {
            let limits = StoredLimits { stored_bytes: Some(bytes), ..StoredLimits::default() };
            BTreeMap::from([(Place::Tenant("t0".to_owned()), limits)])
        };
        for number in [0, 2, 1] {
            table.read(&topic(number), Some(Stored { stored_bytes: 1_000, ..Stored::default() }));
        }
        let grown = |bytes| Stored { stored_bytes: bytes, ..Stored::default() };
        let open = [(topic(0), grown(1_006)), (topic(2), grown(1_006)), (topic(1), grown(5_000))];
        look(&mut table, &open);
        assert!(table.due(&limits(10_000), false).is_empty(), "12 bytes of a slack of 100; nothing limits the third");
        assert_eq!(table.due(&limits(1_100), false).len(), 2, "the limit is reached");
        assert_eq!(table.due(&limits(1_000_000), true).len(), 3);
        look(&mut table, &[(topic(0), grown(1_060)), (topic(2), grown(1_060))]);
        let due = table.due(&limits(10_000), false);
        assert_eq!(due.len(), 3, "both together are over the slack, and the third has left: {due:?}");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Read(u8, Option<u64>),
        Look(Vec<(u8, u64)>),
        Deleted(u8),
        Write(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..8, proptest::option::of(0u64..1_000)).prop_map(|(at, bytes)| Step::Read(at, bytes)),
            proptest::collection::btree_map(0u8..8, 0u64..1_000, 0..6)
                .prop_map(|found| Step::Look(found.into_iter().collect())),
            (0u8..8).prop_map(Step::Deleted),
            any::<bool>().prop_map(Step::Write),
        ]
    }

    proptest! {
        /// S2
        #[test]
        fn sums_are_sums_of_topics(steps in proptest::collection::vec(step(), 0..60)) {
            let mut table = Table::default();
            for step in steps {
                match step {
                    Step::Read(at, bytes) => table.read(&topic(at), bytes.map(has)),
                    Step::Look(found) => {
                        let found: Vec<_> = found.into_iter().map(|(at, bytes)| (topic(at), has(bytes))).collect();
                        look(&mut table, &found);
                    }
                    Step::Deleted(at) => table.deleted(&topic(at)),
                    Step::Write(all) => {
                        let due = table.due(&BTreeMap::new(), all);
                        table.wrote(&due);
                        let gone: Vec<TopicName> = table.gone.keys().cloned().collect();
                        table.erased(&gone);
                    }
                }
                let mut sums: HashMap<Place, Stored> = HashMap::new();
                for at in 0..8 {
                    let Some(has) = table.of(&topic(at)) else { continue };
                    Place::way_to(&topic(at)).into_iter().for_each(|place| sums.entry(place).or_default().add(&has));
                }
                sums.retain(|_, sum| *sum != Stored::default());
                prop_assert_eq!(&table.sums, &sums);
            }
        }
    }
}
