//! The same random calls on the memory and the RocksDB store: the same answers, the same changes watched (M1 to M4).

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use meridian_metadata::{
    Condition, MemoryStore, MetadataError, Operation, Page, RocksStore, Session, SharedStore, Version, WatchEvent,
};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use std::sync::Arc;

/// A condition before versions are known: an index into the versions seen.
#[derive(Debug, Clone)]
enum Wanted {
    Any,
    Absent,
    Current,
    Seen(usize),
}

#[derive(Debug, Clone)]
struct Write {
    key: u8,
    wanted: Wanted,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Put(u8),
    PutEphemeral(usize),
    Delete,
    Check,
}

#[derive(Debug, Clone)]
enum Call {
    Commit(Vec<Write>),
    Range(u8, Option<u8>, usize),
    Allocate(u8, u64),
    OpenSession,
    CloseSession(usize),
}

#[derive(Debug, PartialEq)]
enum Answer {
    Commit(Result<Version, MetadataError>),
    Range(Result<Page, MetadataError>),
    Allocate(Result<u64, MetadataError>),
    Session,
    Closed(bool),
}

fn write() -> impl Strategy<Value = Write> {
    let wanted = prop_oneof![
        3 => Just(Wanted::Any),
        2 => Just(Wanted::Absent),
        3 => Just(Wanted::Current),
        1 => any::<usize>().prop_map(Wanted::Seen),
    ];
    let kind = prop_oneof![
        4 => any::<u8>().prop_map(Kind::Put),
        2 => any::<usize>().prop_map(Kind::PutEphemeral),
        2 => Just(Kind::Delete),
        1 => Just(Kind::Check),
    ];
    (0..8u8, wanted, kind).prop_map(|(key, wanted, kind)| Write { key, wanted, kind })
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        8 => proptest::collection::vec(write(), 1..4).prop_map(Call::Commit),
        2 => (0..3u8, proptest::option::of(0..8u8), 1..5usize).prop_map(|(p, a, l)| Call::Range(p, a, l)),
        1 => (0..2u8, 0..150u64).prop_map(|(sequence, count)| Call::Allocate(sequence, count)),
        1 => Just(Call::OpenSession),
        1 => any::<usize>().prop_map(Call::CloseSession),
    ]
}

/// Keys of two prefixes and one without.
fn key(index: u8) -> String {
    ["a/1", "a/2", "a/10", "a", "b/1", "b/2", "b", "é"][usize::from(index) % 8].to_owned()
}

struct Driven {
    store: SharedStore,
    seen: Vec<Version>,
    sessions: Vec<Session>,
}

impl Driven {
    async fn operation(&self, write: &Write) -> Operation {
        let key = key(write.key);
        let condition = match write.wanted {
            Wanted::Any => Condition::Any,
            Wanted::Absent => Condition::Absent,
            Wanted::Current => {
                let entry = self.store.get(&key).await.unwrap();
                entry.map_or(Condition::Absent, |entry| Condition::Is(entry.version))
            }
            Wanted::Seen(index) => {
                let seen = self.seen.get(index % self.seen.len().max(1));
                seen.map_or(Condition::Absent, |version| Condition::Is(*version))
            }
        };
        match write.kind {
            Kind::Put(value) => Operation::Put { key, value: vec![value].into(), condition, ephemeral: None },
            Kind::PutEphemeral(index) => {
                let session = self.sessions.get(index % self.sessions.len().max(1)).map(|session| session.id);
                Operation::Put { key, value: "e".into(), condition, ephemeral: session }
            }
            Kind::Delete => Operation::Delete { key, condition },
            Kind::Check => Operation::Check { key, condition },
        }
    }

    async fn call(&mut self, call: &Call) -> Answer {
        match call {
            Call::Commit(writes) => {
                let mut operations = Vec::new();
                for write in writes {
                    operations.push(self.operation(write).await);
                }
                let result = self.store.commit(operations).await;
                self.seen.extend(result.as_ref().ok());
                Answer::Commit(self.without_ids(result))
            }
            Call::Range(prefix, after, limit) => {
                let after = after.map(key);
                let page = self.store.range(["", "a/", "b"][usize::from(*prefix)], after.as_deref(), *limit).await;
                Answer::Range(page.map(|mut page| {
                    page.entries.iter_mut().for_each(|entry| entry.ephemeral = None);
                    page
                }))
            }
            Call::Allocate(sequence, count) => {
                Answer::Allocate(self.store.allocate(["s", "t"][usize::from(*sequence)], *count).await)
            }
            Call::OpenSession => {
                self.sessions.push(self.store.open_session(3_600_000).await.unwrap());
                Answer::Session
            }
            Call::CloseSession(index) => match self.sessions.get(index % self.sessions.len().max(1)) {
                Some(session) => Answer::Closed(self.store.close_session(session.id).await.is_ok()),
                None => Answer::Session,
            },
        }
    }

    /// Ids of sessions differ between stores.
    fn without_ids(&self, result: Result<Version, MetadataError>) -> Result<Version, MetadataError> {
        match result {
            Err(MetadataError::SessionExpired(_)) => Err(MetadataError::Invalid("session".into())),
            result => result,
        }
    }
}

/// All changes up to `last`.
async fn watched(store: &SharedStore, prefix: &str, last: Version) -> Vec<(String, Version, bool)> {
    let mut changes = store.watch(prefix, Some(Version(0))).await.unwrap();
    store.put(&format!("{prefix}~end"), "", Condition::Any).await.unwrap();
    let mut all = Vec::new();
    loop {
        match changes.next().await.unwrap().0 {
            WatchEvent::Put(entry) if entry.version > last => return all,
            WatchEvent::Put(entry) => all.push((entry.key, entry.version, true)),
            WatchEvent::Delete { key, version } => all.push((key, version, false)),
            WatchEvent::Rescan => panic!("the log holds all of it"),
        }
    }
}

async fn compare(calls: Vec<Call>) {
    let dir = tempfile::tempdir().unwrap();
    let mut memory = Driven { store: Arc::new(MemoryStore::new()), seen: vec![], sessions: vec![] };
    let rocks: SharedStore = Arc::new(RocksStore::open(dir.path()).unwrap());
    let mut rocks = Driven { store: rocks, seen: vec![], sessions: vec![] };
    for (step, call) in calls.iter().enumerate() {
        assert_eq!(memory.call(call).await, rocks.call(call).await, "step {step}: {call:?}");
    }
    let last = memory.store.current_version().await.unwrap();
    assert_eq!(rocks.store.current_version().await.unwrap(), last);
    for prefix in ["", "a/"] {
        assert_eq!(watched(&memory.store, prefix, last).await, watched(&rocks.store, prefix, last).await);
    }
    let all = memory.store.scan("a").await.unwrap();
    drop(rocks);
    let again: SharedStore = Arc::new(RocksStore::open(dir.path()).unwrap());
    let kept = again.scan("a").await.unwrap();
    let lasting: Vec<_> = all.into_iter().filter(|entry| entry.ephemeral.is_none()).collect();
    assert_eq!(kept, lasting, "after a restart the ephemeral keys are gone, and nothing else");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn both_stores_answer_alike(calls in proptest::collection::vec(call(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(compare(calls));
    }
}
