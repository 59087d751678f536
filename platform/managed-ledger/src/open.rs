//! Opening a log: read everything of it in one range, recover what its last owner left open, take the ownership.
//!
//! Invariants: L2 the head is written once, with a higher epoch, on the version that was read: an owner that still runs and
//! changed the list meanwhile makes the write fail and the opening start again, one that changes it later fails itself;
//! L5 indexes go on from the envelope of the last entry.
//! Cost: one range and one commit, beside the recovery of open ledgers.

use crate::api::{LogError, LogSettings, LogSink};
use crate::cache::catch_up::Blocks;
use crate::cache::tail::View;
use crate::cursor::ack_set::AckSet;
use crate::cursor::{CursorStart, load};
use crate::keys::{self, Kind};
use crate::layout::Layout;
use crate::log::ManagedLedger;
use crate::log::append::Order;
use crate::log::ending::erase;
use crate::log::ledgers::end_index_of;
use crate::log::meta::{Meta, Segment, cut_segments, put};
use crate::records::{CursorRecord, HeadRecord, LedgerRecord, SegmentRecord, decode, encode};
use crate::registry::Shared;
use meridian_metadata::{Condition, MetadataError, Operation, Version};
use meridian_types::{EntryId, Incarnation, LedgerId, OwnerEpoch, Position};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Openings that collide with another owner start again that often.
const ATTEMPTS: u32 = 10;
/// Cursor ledgers read at the same time.
const CURSOR_LOADS: usize = 32;

/// Everything stored of one log.
pub(crate) struct Stored {
    pub head: HeadRecord,
    pub version: Version,
    pub segments: VecDeque<Segment>,
    pub cursors: Vec<(String, CursorRecord)>,
}

/// Reads everything of a log; `None` if there is nothing.
pub(crate) async fn read_stored(shared: &Shared, name: &str) -> Result<Option<Stored>, LogError> {
    let prefix = keys::log(name);
    let entries = shared.metadata.scan(&prefix).await?;
    let mut head = None;
    let (mut segments, mut cursors) = (VecDeque::new(), Vec::new());
    for entry in entries {
        match keys::kind(&prefix, &entry.key) {
            Some(Kind::Head) => head = Some((decode::<HeadRecord>(&entry.value, "head")?, entry.version)),
            Some(Kind::Cursor(cursor)) => cursors.push((cursor, decode(&entry.value, "cursor")?)),
            Some(Kind::Segment(number)) => {
                let record: SegmentRecord = decode(&entry.value, "segment")?;
                segments.push_back(Segment { number, record });
            }
            None => tracing::warn!(log = name, key = entry.key, "unknown key of a log"),
        }
    }
    Ok(head.map(|(head, version)| Stored { head, version, segments, cursors }))
}

/// Opens the log, created if it is absent.
pub(crate) async fn open(
    shared: &Arc<Shared>,
    name: &str,
    settings: LogSettings,
    sink: Arc<dyn LogSink>,
) -> Result<Arc<ManagedLedger>, LogError> {
    for _ in 0..ATTEMPTS {
        // Asked before anything is recovered: a recovery fences whoever writes.
        let check = shared.opening_check(name)?;
        let Some(stored) = read_stored(shared, name).await? else {
            match create(shared, name, check).await {
                Ok(meta) => {
                    let layout = Layout::new(Position::EARLIEST, 0);
                    return Ok(build(shared, name, settings, sink, meta, layout, Vec::new()));
                }
                Err(LogError::Metadata(MetadataError::Conflict { .. })) => continue,
                Err(error) => return Err(error),
            }
        };
        if stored.head.deleting {
            erase(shared, name, &stored.head.doomed).await?;
            continue;
        }
        match take_over(shared, name, &settings, stored, check).await {
            Ok((meta, layout, cursors)) => return Ok(build(shared, name, settings, sink, meta, layout, cursors)),
            Err(LogError::Metadata(MetadataError::Conflict { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Err(MetadataError::Unavailable(format!("{name}: {ATTEMPTS} openings collided with another owner")).into())
}

async fn create(shared: &Shared, name: &str, check: Option<Operation>) -> Result<Meta, LogError> {
    let now_ms = shared.now_ms();
    // Time above, chance below: two lives of one name differ.
    let chance = RandomState::new().hash_one(name) & 0xf_ffff;
    let head = HeadRecord {
        owner_epoch: 1,
        incarnation: (now_ms << 20) | chance,
        created_ms: now_ms,
        ..HeadRecord::default()
    };
    let write = put(keys::head(name), encode(&head), Condition::Absent);
    let named = put(keys::name(name), bytes::Bytes::from_static(&[crate::records::VERSION]), Condition::Any);
    let writes = [write, named].into_iter().chain(check).collect();
    let version = shared.metadata.commit(writes).await?;
    Ok(Meta { head, version, segments: VecDeque::new() })
}

type Loaded = (Meta, Layout, Vec<CursorStart>);

async fn take_over(
    shared: &Arc<Shared>,
    name: &str,
    settings: &LogSettings,
    stored: Stored,
    check: Option<Operation>,
) -> Result<Loaded, LogError> {
    let Stored { mut head, version, mut segments, cursors } = stored;
    let cursors = load_cursors(shared, cursors).await?;
    let trimmed_to = head.trimmed_to.map_or(Position::EARLIEST, Position::from);
    let mut layout = Layout::new(trimmed_to, head.trimmed_index);
    for record in segments.iter().flat_map(|segment| &segment.record.ledgers) {
        add_closed(&mut layout, record);
    }
    let now_ms = shared.now_ms();
    let mut empty = Vec::new();
    for record in &mut head.ledgers {
        if record.closed_ms.is_none() {
            recover_ledger(shared, name, settings, record, layout.next_index(), now_ms).await?;
        }
        if record.entries == 0 {
            empty.push(record.ledger_id);
        } else {
            add_closed(&mut layout, record);
        }
    }
    head.ledgers.retain(|record| record.entries > 0);
    head.doomed.extend(empty);
    head.owner_epoch += 1;
    head.revision += 1;
    let cut = cut_segments(&mut head);
    let mut writes = vec![put(keys::head(name), encode(&head), Condition::Is(version))];
    for segment in &cut {
        writes.push(put(keys::segment(name, segment.number), encode(&segment.record), Condition::Any));
    }
    segments.extend(cut);
    writes.extend(check);
    let version = match shared.metadata.commit(writes).await {
        Err(MetadataError::UnknownOutcome(_)) => {
            // The next attempt finds the record as it is and takes a higher epoch.
            return Err(MetadataError::Conflict { key: keys::head(name), current: None }.into());
        }
        outcome => outcome?,
    };
    let starts = cursors.into_iter().map(|mut start| {
        start.acks.settle(&layout);
        start
    });
    let starts = starts.collect();
    Ok((Meta { head, version, segments }, layout, starts))
}

fn add_closed(layout: &mut Layout, record: &LedgerRecord) {
    let id = LedgerId(record.ledger_id);
    layout.add(id, record.created_ms);
    layout.settle(id, record.entries, record.bytes, record.end_index);
    layout.close(id, record.closed_ms.unwrap_or_default());
    if record.bytes_estimated {
        layout.estimated(id);
    }
}

async fn recover_ledger(
    shared: &Shared,
    name: &str,
    settings: &LogSettings,
    record: &mut LedgerRecord,
    next_index: u64,
    now_ms: u64,
) -> Result<(), LogError> {
    let id = LedgerId(record.ledger_id);
    record.closed_ms = Some(now_ms);
    record.end_index = next_index;
    let reader = match shared.ledgers.recover(id).await {
        Ok(reader) => reader,
        Err(error) if settings.skip_unreadable && load::is_lost(&error.clone().into()) => {
            shared.ledgers_skipped.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tracing::error!(log = name, ledger = %id, %error, "ledger is lost; the log goes on without it");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let last = reader.last_confirmed();
    if last > EntryId::NONE {
        record.entries = (last.0 + 1) as u64;
        record.bytes = reader.length_bytes();
        record.bytes_estimated = !reader.length_is_exact();
        record.end_index = end_index_of(&*reader, last).await?;
    }
    Ok(())
}

/// Loads all durable cursors, some at a time.
async fn load_cursors(
    shared: &Arc<Shared>,
    records: Vec<(String, CursorRecord)>,
) -> Result<Vec<CursorStart>, LogError> {
    let mut starts = Vec::with_capacity(records.len());
    let mut loads = JoinSet::new();
    for (name, record) in records {
        if record.ledger_id.is_none() && record.doomed.is_empty() {
            starts.push(load_cursor(shared, name, record).await?);
            continue;
        }
        if loads.len() >= CURSOR_LOADS {
            starts.push(joined(loads.join_next().await)?);
        }
        let shared = shared.clone();
        loads.spawn(async move { load_cursor(&shared, name, record).await });
    }
    while !loads.is_empty() {
        starts.push(joined(loads.join_next().await)?);
    }
    Ok(starts)
}

fn joined(
    outcome: Option<Result<Result<CursorStart, LogError>, tokio::task::JoinError>>,
) -> Result<CursorStart, LogError> {
    match outcome {
        Some(Ok(start)) => start,
        Some(Err(error)) => Err(LogError::Corrupt(format!("loading a cursor failed: {error}"))),
        None => Err(LogError::Corrupt("loading a cursor was cut short".to_owned())),
    }
}

async fn load_cursor(shared: &Shared, name: String, record: CursorRecord) -> Result<CursorStart, LogError> {
    let state = load::load(shared, &name, &record).await?;
    for doomed in &record.doomed {
        // Left by a crash between a record and the deletion of what it no longer names.
        if let Err(error) = shared.ledgers.delete(LedgerId(*doomed)).await {
            tracing::warn!(cursor = name, ledger = doomed, %error, "deleting an old cursor ledger failed");
        }
    }
    Ok(CursorStart {
        name: name.into(),
        durable: true,
        internal: record.internal,
        created_ms: record.created_ms,
        acks: AckSet::load(state, true),
        record_ledger: record.ledger_id.map(LedgerId),
        properties: record.properties,
    })
}

fn build(
    shared: &Arc<Shared>,
    name: &str,
    settings: LogSettings,
    sink: Arc<dyn LogSink>,
    meta: Meta,
    layout: Layout,
    cursors: Vec<CursorStart>,
) -> Arc<ManagedLedger> {
    let order = Order {
        settings: shared.intern(settings),
        current: None,
        next: None,
        queue: VecDeque::new(),
        next_index: layout.next_index(),
        creating: false,
        recovering: false,
        terminated: meta.head.terminated.map(Position::from),
        stopped: None,
        waiting: None,
        unwritable: None,
    };
    let log = Arc::new_cyclic(|me| ManagedLedger {
        me: me.clone(),
        shared: shared.clone(),
        name: name.into(),
        sink,
        incarnation: Incarnation(meta.head.incarnation),
        epoch: OwnerEpoch(meta.head.owner_epoch),
        order: Mutex::new(order),
        flight: Mutex::default(),
        view: Arc::new(Mutex::new(View::new(layout))),
        blocks: Arc::new(Mutex::new(Blocks::default())),
        readers: Mutex::default(),
        head_version: Mutex::new(meta.version),
        properties: Mutex::new(meta.head.properties.clone()),
        meta: tokio::sync::Mutex::new(meta),
        cursors: Mutex::new(HashMap::new()),
        cursor_count: AtomicU32::new(0),
        unconfirmed_bytes: AtomicU64::new(0),
        refused_untold: AtomicU64::new(0),
        check_at_ms: Arc::new(AtomicU64::new(0)),
        drained: Notify::new(),
        grown: Notify::new(),
        followers: Default::default(),
    });
    for start in cursors {
        log.add_cursor(start);
    }
    log
}
