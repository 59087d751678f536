//! Compaction against a map, tombstones of every kind, batches and chunks.

use super::latest::{Content, open};
use super::*;
use crate::api::BoxFuture;
use bytes::{Bytes, BytesMut};
use meridian_ledger::testing::MemoryLedgers;
use meridian_ledger::{LedgerOptions, Ledgers};
use meridian_managed_ledger::LogEntry;
use meridian_types::{Incarnation, RegionId};
use meridian_wire::batch::put_message;
use meridian_wire::compression::compress;
use meridian_wire::payload::encode;
use meridian_wire::proto::{CompressionType, EncryptionKeys, MessageMetadata, SingleMessageMetadata};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A log in memory, five entries a ledger.
#[derive(Default)]
struct MemoryLog {
    entries: Mutex<Vec<LogEntry>>,
    properties: Mutex<BTreeMap<String, String>>,
    refuse_changes_of: Mutex<Option<&'static str>>,
}

impl MemoryLog {
    fn push(&self, payload: Bytes, messages: u32) -> Position {
        let mut entries = self.entries.lock();
        let position = entries.last().map_or(Position::new(10, 0), |last| match last.position.next_in_ledger() {
            next if next.entry_id.0 < 5 => next,
            next => Position::new(next.ledger_id.0 + 3, 0),
        });
        let index = entries.last().map_or(0, |last| last.index) + u64::from(messages);
        let origin = (RegionId(1), Incarnation(2), position);
        entries.push(LogEntry {
            position,
            index,
            messages,
            marker: false,
            broker_time_ms: index * 10,
            origin,
            payload,
        });
        position
    }
}

impl CompactionSource for MemoryLog {
    fn read(&self, from: Position, max_entries: u32, _: u64) -> BoxFuture<'_, Result<Vec<LogEntry>, LogError>> {
        let entries = self.entries.lock();
        let after = entries.iter().filter(|entry| entry.position >= from);
        let read: Vec<_> = after.take(max_entries.min(7) as usize).cloned().collect();
        Box::pin(async move { Ok(read) })
    }

    fn last_confirmed(&self) -> Position {
        self.entries.lock().last().map_or(Position::new(10, -1), |last| last.position)
    }

    fn properties(&self) -> BTreeMap<String, String> {
        self.properties.lock().clone()
    }

    fn change_properties(&self, changes: BTreeMap<String, String>) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            if self.refuse_changes_of.lock().is_some_and(|name| changes.contains_key(name)) {
                return Err(LogError::Corrupt("refused for the test".to_owned()));
            }
            self.properties.lock().extend(changes);
            self.properties.lock().retain(|_, value| !value.is_empty());
            Ok(())
        })
    }
}

fn options() -> CompactionOptions {
    let ledger = LedgerOptions { ensemble_size: 1, write_quorum: 1, ack_quorum: 1, properties: BTreeMap::new() };
    CompactionOptions { ledger, keep_keyless: false }
}

fn metadata(key: Option<&str>) -> MessageMetadata {
    MessageMetadata {
        producer_name: "p".to_owned(),
        partition_key: key.map(str::to_owned),
        ..MessageMetadata::default()
    }
}

fn entry(metadata: &MessageMetadata, body: &[u8]) -> Bytes {
    let mut raw = BytesMut::new();
    encode(metadata, body, &mut raw);
    raw.freeze()
}

fn single(key: &str, value: &str) -> Bytes {
    entry(&metadata(Some(key)), value.as_bytes())
}

/// `None` = null.
fn batch(messages: &[(Option<&str>, Option<&str>)], kind: CompressionType) -> Bytes {
    let mut plain = BytesMut::new();
    for (key, value) in messages {
        let single = SingleMessageMetadata {
            partition_key: key.map(str::to_owned),
            null_value: value.is_none().then_some(true),
            ..SingleMessageMetadata::default()
        };
        put_message(single, value.unwrap_or_default().as_bytes(), &mut plain);
    }
    let plain = plain.freeze();
    let body = if kind == CompressionType::None { plain.clone() } else { compress(kind, &plain).unwrap() };
    let metadata = MessageMetadata {
        num_messages_in_batch: Some(messages.len() as i32),
        compression: Some(kind as i32),
        uncompressed_size: Some(plain.len() as u32),
        ..metadata(None)
    };
    entry(&metadata, &body)
}

/// Key and value of each message that a reader of these entries sees.
fn seen(entries: &[LogEntry]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut seen = Vec::new();
    for entry in entries {
        match open(&entry.payload) {
            Content::Single { key, .. } | Content::Part { key, .. } => {
                let parts = meridian_wire::payload::split(&entry.payload).unwrap();
                seen.push((key.unwrap_or_default(), text(parts.payload)));
            }
            Content::Batch(messages) => {
                assert_eq!(messages.len() as u32, entry.messages, "a batch keeps its count");
                let staying = messages.into_iter().filter(|(metadata, _)| !metadata.compacted_out());
                seen.extend(staying.map(|(metadata, value)| (metadata.partition_key().to_owned(), text(&value))));
            }
            Content::Closed => seen.push(("closed".to_owned(), String::new())),
        }
    }
    seen
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

async fn view(log: &MemoryLog, ledgers: &MemoryLedgers) -> CompactedView {
    let horizon = Horizon::of(&log.properties()).unwrap();
    CompactedView::new(horizon, ledgers.client.open(horizon.ledger_id).await.unwrap())
}

async fn read_all(view: &CompactedView) -> Vec<LogEntry> {
    let (mut all, mut at) = (Vec::new(), Position::EARLIEST);
    loop {
        let entries = view.read(at, 3, u64::MAX).await.unwrap();
        let Some(last) = entries.last() else { return all };
        at = last.position.next_in_ledger();
        all.extend(entries);
    }
}

async fn run(log: &MemoryLog, ledgers: &MemoryLedgers) -> Result<Option<Compacted>, CompactionError> {
    compact(log, &*ledgers.client, &options()).await
}

#[tokio::test]
async fn the_latest_of_each_key_stays_in_place_and_byte_for_byte() {
    let (log, ledgers) = (MemoryLog::default(), MemoryLedgers::new(1));
    for i in 0..20 {
        log.push(single(&format!("k{}", i % 3), &format!("v{i}")), 1);
    }
    log.push(entry(&metadata(None), b"no key"), 1);
    let compacted = run(&log, &ledgers).await.unwrap().unwrap();
    assert_eq!((compacted.entries_in, compacted.entries_out, compacted.keys), (21, 3, 3));
    let entries = read_all(&view(&log, &ledgers).await).await;
    assert_eq!(seen(&entries), pairs(&[("k2", "v17"), ("k0", "v18"), ("k1", "v19")]));
    let original = log.entries.lock()[17].clone();
    assert_eq!(entries[0].payload, original.payload);
    assert_eq!((entries[0].position, entries[0].index), (original.position, original.index));
    assert_eq!(run(&log, &ledgers).await.unwrap(), None, "nothing new, nothing to do");
}

#[tokio::test]
async fn tombstones_take_their_key_away_batched_or_not() {
    let (log, ledgers) = (MemoryLog::default(), MemoryLedgers::new(1));
    for key in ["null", "empty", "packed", "batched-null", "batched-empty", "back"] {
        log.push(single(key, "old"), 1);
    }
    log.push(entry(&MessageMetadata { null_value: Some(true), ..metadata(Some("null")) }, b""), 1);
    log.push(entry(&metadata(Some("empty")), b""), 1);
    let lz4 = CompressionType::Lz4;
    let nothing = compress(lz4, &Bytes::new()).unwrap();
    log.push(entry(&MessageMetadata { compression: Some(lz4 as i32), ..metadata(Some("packed")) }, &nothing), 1);
    let gone = [(Some("batched-null"), None), (Some("batched-empty"), Some("")), (Some("back"), None)];
    log.push(batch(&gone, lz4), 3);
    log.push(single("back", "again"), 1);
    run(&log, &ledgers).await.unwrap();
    assert_eq!(seen(&read_all(&view(&log, &ledgers).await).await), pairs(&[("back", "again")]));
}

#[tokio::test]
async fn batches_keep_their_count_and_their_compression() {
    let kinds = [
        CompressionType::None,
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ];
    for kind in kinds {
        let (log, ledgers) = (MemoryLog::default(), MemoryLedgers::new(1));
        let first = log.push(batch(&[(Some("a"), Some("1")), (Some("b"), Some("2")), (Some("c"), Some("3"))], kind), 3);
        log.push(batch(&[(Some("a"), Some("4")), (None, Some("5")), (Some("c"), Some("6"))], kind), 3);
        run(&log, &ledgers).await.unwrap();
        let view = view(&log, &ledgers).await;
        let entries = read_all(&view).await;
        assert_eq!(seen(&entries), pairs(&[("b", "2"), ("a", "4"), ("c", "6")]), "{kind:?}");
        assert_eq!(entries[0].position, first);
        let (rewritten, _) = meridian_wire::payload::decode(&entries[0].payload).unwrap();
        assert_eq!((rewritten.compression(), rewritten.num_messages_in_batch), (kind, Some(3)));
        assert_eq!(meridian_wire::payload::verify_checksum(&entries[0].payload), Ok(true));
        assert_eq!(view.last_message().await.unwrap(), Some((log.last_confirmed(), 2)));
    }
}

#[tokio::test]
async fn the_last_message_of_a_batch_is_one_that_stayed() {
    let (log, ledgers) = (MemoryLog::default(), MemoryLedgers::new(1));
    let kept = log.push(batch(&[(Some("a"), Some("1")), (Some("b"), Some("2"))], CompressionType::None), 2);
    log.push(batch(&[(Some("b"), None)], CompressionType::None), 1);
    run(&log, &ledgers).await.unwrap();
    assert_eq!(view(&log, &ledgers).await.last_message().await.unwrap(), Some((kept, 0)));
    log.push(single("a", ""), 1);
    run(&log, &ledgers).await.unwrap();
    let empty = view(&log, &ledgers).await;
    assert_eq!((empty.last_message().await.unwrap(), empty.entries()), (None, 0));
    assert!(read_all(&empty).await.is_empty());
}

#[tokio::test]
async fn what_is_encrypted_stays_as_it_is() {
    let (log, ledgers) = (MemoryLog::default(), MemoryLedgers::new(1));
    let keys = vec![EncryptionKeys { key: "k".to_owned(), value: Bytes::new(), ..EncryptionKeys::default() }];
    let sealed =
        |key, count| MessageMetadata { encryption_keys: keys.clone(), num_messages_in_batch: count, ..metadata(key) };
    log.push(entry(&sealed(None, Some(2)), b"cipher"), 2);
    log.push(entry(&sealed(Some("a"), None), b"cipher1"), 1);
    log.push(entry(&sealed(Some("a"), None), b"cipher2"), 1);
    log.push(Bytes::from_static(b"\x0e\x01 no message"), 1);
    run(&log, &ledgers).await.unwrap();
    let entries = read_all(&view(&log, &ledgers).await).await;
    assert_eq!(seen(&entries), pairs(&[("closed", ""), ("a", "cipher2"), ("closed", "")]));
    assert_eq!(entries[0].payload, log.entries.lock()[0].payload);
}

#[tokio::test]
async fn chunked_messages_stay_or_go_as_a_whole() {
    let (log, ledgers) = (MemoryLog::default(), MemoryLedgers::new(1));
    let part = |uuid: &str, id, count| MessageMetadata {
        uuid: Some(uuid.to_owned()),
        chunk_id: Some(id),
        num_chunks_from_msg: Some(count),
        ..metadata(Some("big"))
    };
    for (uuid, id, value) in [("old", 0, "o0"), ("old", 1, "o1"), ("new", 0, "n0"), ("new", 1, "n1"), ("open", 0, "x0")]
    {
        log.push(entry(&part(uuid, id, 2), value.as_bytes()), 1);
    }
    run(&log, &ledgers).await.unwrap();
    let expected = pairs(&[("big", "n0"), ("big", "n1"), ("big", "x0")]);
    assert_eq!(seen(&read_all(&view(&log, &ledgers).await).await), expected);
    log.push(entry(&part("open", 1, 2), b"x1"), 1);
    run(&log, &ledgers).await.unwrap();
    assert_eq!(seen(&read_all(&view(&log, &ledgers).await).await), pairs(&[("big", "x0"), ("big", "x1")]));
}

#[tokio::test]
async fn the_next_compaction_starts_from_the_view_and_replaces_it() {
    let (log, ledgers) = (MemoryLog::default(), MemoryLedgers::new(1));
    log.push(single("a", "1"), 1);
    log.push(single("b", "1"), 1);
    let first = run(&log, &ledgers).await.unwrap().unwrap().horizon;
    log.push(single("b", "2"), 1);
    log.entries.lock().drain(..2);
    let second = run(&log, &ledgers).await.unwrap().unwrap().horizon;
    assert_eq!(second.position, log.last_confirmed());
    assert_eq!(seen(&read_all(&view(&log, &ledgers).await).await), pairs(&[("a", "1"), ("b", "2")]));
    assert!(ledgers.client.open(first.ledger_id).await.is_err(), "the old ledger is gone");
}

#[tokio::test]
async fn a_read_starts_at_any_position() {
    let (log, ledgers) = (MemoryLog::default(), MemoryLedgers::new(1));
    let all: Vec<Position> = (0..60).map(|i| log.push(single(&format!("k{}", i % 40), "v"), 1)).collect();
    run(&log, &ledgers).await.unwrap();
    let view = view(&log, &ledgers).await;
    for (i, position) in all.iter().enumerate() {
        let entries = view.read(*position, 1000, u64::MAX).await.unwrap();
        let expected: Vec<Position> = all[i.max(20)..].to_vec();
        assert_eq!(entries.iter().map(|entry| entry.position).collect::<Vec<_>>(), expected);
    }
    assert!(view.read(Position::LATEST, 10, u64::MAX).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_failed_compaction_leaves_the_view_and_no_ledger() {
    let (log, ledgers) = (MemoryLog::default(), MemoryLedgers::new(1));
    log.push(single("a", "1"), 1);
    let first = run(&log, &ledgers).await.unwrap().unwrap().horizon;
    log.push(single("a", "2"), 1);
    *log.refuse_changes_of.lock() = Some(HORIZON_PROPERTY);
    assert!(run(&log, &ledgers).await.is_err());
    assert_eq!(Horizon::of(&log.properties()), Some(first));
    assert_eq!(seen(&read_all(&view(&log, &ledgers).await).await), pairs(&[("a", "1")]));
    let half_way: i64 = log.properties()[PENDING_PROPERTY].parse().unwrap();
    *log.refuse_changes_of.lock() = None;
    run(&log, &ledgers).await.unwrap().unwrap();
    assert!(ledgers.client.open(LedgerId(half_way)).await.is_err(), "what the failed one wrote is gone");
    assert_eq!(seen(&read_all(&view(&log, &ledgers).await).await), pairs(&[("a", "2")]));

    log.push(single("a", "3"), 1);
    ledgers.bookies[0].set(|faults| faults.down = true);
    assert!(run(&log, &ledgers).await.is_err());
    ledgers.bookies[0].set(|faults| faults.down = false);
    assert_eq!(seen(&read_all(&view(&log, &ledgers).await).await), pairs(&[("a", "2")]));
}

#[test]
fn the_horizon_is_a_property() {
    let horizon = Horizon { ledger_id: LedgerId(7), position: Position::new(3, 12) };
    assert_eq!(horizon.to_property(), "7@3:12");
    assert_eq!(Horizon::from_property("7@3:12"), Some(horizon));
    for bad in ["", "7", "7@3", "7@3:", "@3:1", "a@b:c", "7@3:1:2"] {
        assert_eq!(Horizon::from_property(bad), None, "{bad}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever comes, batched or not, in however many runs: the view holds what a map would, and a reader that starts at
    /// the beginning ends with the same map.
    #[test]
    fn a_view_is_the_map_of_the_log(
        entries in proptest::collection::vec(
            (proptest::collection::vec((0u8..6, 0u8..4), 1..5), any::<bool>(), 0u8..10), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (log, ledgers) = (MemoryLog::default(), MemoryLedgers::new(1));
            let mut model: BTreeMap<String, String> = BTreeMap::new();
            for (number, (messages, packed, run_now)) in entries.into_iter().enumerate() {
                let named: Vec<(String, Option<String>)> = messages
                    .iter()
                    .map(|(key, value)| (format!("k{key}"), (*value > 0).then(|| format!("v{number}-{value}"))))
                    .collect();
                for (key, value) in &named {
                    match value {
                        Some(value) => model.insert(key.clone(), value.clone()),
                        None => model.remove(key),
                    };
                }
                if let [(key, Some(value))] = &named[..] {
                    log.push(single(key, value), 1);
                } else {
                    let borrowed: Vec<_> = named.iter().map(|(key, value)| (Some(key.as_str()), value.as_deref())).collect();
                    let kind = if packed { CompressionType::Zstd } else { CompressionType::None };
                    log.push(batch(&borrowed, kind), borrowed.len() as u32);
                }
                if run_now == 0 {
                    run(&log, &ledgers).await.unwrap();
                }
            }
            run(&log, &ledgers).await.unwrap();
            let left = seen(&read_all(&view(&log, &ledgers).await).await);
            assert_eq!(left.len(), model.len(), "one message for each key");
            assert_eq!(left.into_iter().collect::<BTreeMap<_, _>>(), model);
        });
    }
}
