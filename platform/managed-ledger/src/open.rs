//! Opening a log: read everything of it in one range, recover what its last owner left open, take the ownership.
//!
//! Invariants: L2 the head is written once, with a higher epoch, on the version that was read: an owner that still runs and
//! changed the list meanwhile makes the write fail and the opening start again, one that changes it later fails itself;
//! L5 indexes go on from the envelope of the last entry; L6 a log that was in use gets its next ledger in the write that
//! takes the ownership, so that its first append waits for no metadata.
//! Cost: one range and one commit, beside the recovery of open ledgers, all of which run side by side.

use crate::api::{LogError, LogSettings, LogSink};
use crate::cache::catch_up::Blocks;
use crate::cache::tail::View;
use crate::cursor::ack_set::AckSet;
use crate::cursor::{CursorStart, load};
use crate::keys::{self, Kind};
use crate::layout::Layout;
use crate::log::ManagedLedger;
use crate::log::append::{Order, WriterSink};
use crate::log::ending::erase;
use crate::log::ledgers::{end_index_of, ledger_options};
use crate::log::meta::{Meta, Segment, cut_segments, put};
use crate::records::{CursorRecord, HeadRecord, LedgerRecord, SegmentRecord, decode, encode};
use crate::registry::Shared;
use meridian_ledger::PreparedLedger;
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
/// A log whose last entry is younger was in use: somebody will go on writing.
const IN_USE_MS: u64 = 60_000;

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
                    return Ok(build(
                        shared,
                        name,
                        settings,
                        sink,
                        Loaded { meta, layout, cursors: Vec::new(), next: None },
                    ));
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
            Ok(loaded) => return Ok(build(shared, name, settings, sink, loaded)),
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

/// What an opening found and made.
struct Loaded {
    meta: Meta,
    layout: Layout,
    cursors: Vec<CursorStart>,
    /// The ledger to go on with, and when it was made (L6).
    next: Option<(PreparedLedger, u64)>,
}

async fn take_over(
    shared: &Arc<Shared>,
    name: &str,
    settings: &LogSettings,
    stored: Stored,
    check: Option<Operation>,
) -> Result<Loaded, LogError> {
    let Stored { mut head, version, mut segments, cursors } = stored;
    let now_ms = shared.now_ms();
    let (cursors, recovered, next) = tokio::try_join!(
        load_cursors(shared, cursors),
        recover_open(shared, name, settings, &head),
        next_ledger(shared, name, settings, &head, &segments, now_ms),
    )?;
    let next = next.filter(|_| is_in_use(&head, &recovered, now_ms));
    let trimmed_to = head.trimmed_to.map_or(Position::EARLIEST, Position::from);
    let mut layout = Layout::new(trimmed_to, head.trimmed_index);
    for record in segments.iter().flat_map(|segment| &segment.record.ledgers) {
        add_closed(&mut layout, record);
    }
    for record in &mut head.ledgers {
        if let Some(found) = recovered.get(&record.ledger_id) {
            found.close(record, layout.next_index(), now_ms);
        }
        if record.entries == 0 {
            head.doomed.push(record.ledger_id);
        } else {
            add_closed(&mut layout, record);
        }
    }
    head.ledgers.retain(|record| record.entries > 0);
    head.owner_epoch += 1;
    head.revision += 1;
    let mut writes = Vec::new();
    if let Some((next, created_ms)) = &next {
        head.ledgers.push(LedgerRecord::open(next.id, *created_ms));
        writes.extend(next.operations.iter().cloned());
    }
    let cut = cut_segments(&mut head);
    writes.insert(0, put(keys::head(name), encode(&head), Condition::Is(version)));
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
    let settle = |mut start: CursorStart| {
        start.acks.settle(&layout);
        start
    };
    let cursors = cursors.into_iter().map(settle).collect();
    if let Some((next, created_ms)) = &next {
        layout.add(next.id, *created_ms);
    }
    Ok(Loaded { meta: Meta { head, version, segments }, layout, cursors, next })
}

/// Whether somebody wrote to a log a moment ago.
fn is_in_use(head: &HeadRecord, recovered: &HashMap<i64, Recovered>, now_ms: u64) -> bool {
    let young = |record: &LedgerRecord| {
        let closed_ms = record.closed_ms.filter(|_| record.entries > 0);
        closed_ms.is_some_and(|closed_ms| now_ms.saturating_sub(closed_ms) < IN_USE_MS)
    };
    head.ledgers.iter().any(young) || recovered.values().any(Recovered::holds_entries)
}

/// The ledger that a log goes on with if it was in use (L6); nothing is written, and one that can't be had now is made when
/// it is needed.
async fn next_ledger(
    shared: &Shared,
    name: &str,
    settings: &LogSettings,
    head: &HeadRecord,
    segments: &VecDeque<Segment>,
    now_ms: u64,
) -> Result<Option<(PreparedLedger, u64)>, LogError> {
    let was_open = head.ledgers.iter().any(|record| record.closed_ms.is_none());
    if head.terminated.is_some() || !(was_open || is_in_use(head, &HashMap::new(), now_ms)) {
        return Ok(None);
    }
    let in_segments = segments.iter().flat_map(|segment| &segment.record.ledgers);
    let listed = head.ledgers.iter().chain(in_segments).map(|record| LedgerId(record.ledger_id)).max();
    let trimmed = head.trimmed_to.map(|position| LedgerId(position.ledger_id));
    let floor = listed.max(trimmed).unwrap_or(LedgerId(-1));
    let prepare = async {
        shared.ledgers.ids_above(floor).await?;
        shared.ledgers.prepare(ledger_options(settings, name, "data")).await
    };
    match prepare.await {
        Ok(prepared) => Ok(prepared.filter(|next| next.id > floor).map(|next| (next, now_ms))),
        Err(error) => {
            tracing::debug!(log = name, %error, "no ledger to go on with yet");
            Ok(None)
        }
    }
}

/// What the recovery of a ledger found; `None` = it is lost and passed over.
struct Recovered(Option<Ending>);

struct Ending {
    last: EntryId,
    bytes: u64,
    exact: bool,
    /// Index after the last message, unless it is empty.
    end_index: Option<u64>,
}

impl Recovered {
    fn holds_entries(&self) -> bool {
        self.0.as_ref().is_some_and(|ending| ending.last > EntryId::NONE)
    }

    /// Closes the record of the ledger that begins at `next_index`.
    fn close(&self, record: &mut LedgerRecord, next_index: u64, now_ms: u64) {
        record.closed_ms = Some(now_ms);
        record.end_index = next_index;
        let Some(Ending { last, bytes, exact, end_index: Some(end_index) }) = &self.0 else { return };
        record.entries = (last.0 + 1) as u64;
        (record.bytes, record.bytes_estimated, record.end_index) = (*bytes, !exact, *end_index);
    }
}

/// Recovers every ledger that was left open, side by side.
async fn recover_open(
    shared: &Arc<Shared>,
    name: &str,
    settings: &LogSettings,
    head: &HeadRecord,
) -> Result<HashMap<i64, Recovered>, LogError> {
    let mut recoveries = JoinSet::new();
    for record in head.ledgers.iter().filter(|record| record.closed_ms.is_none()) {
        let (shared, name, id) = (shared.clone(), name.to_owned(), record.ledger_id);
        let skip_unreadable = settings.skip_unreadable;
        recoveries.spawn(async move { (id, recover_ledger(&shared, &name, skip_unreadable, LedgerId(id)).await) });
    }
    let mut recovered = HashMap::with_capacity(recoveries.len());
    while let Some(ended) = recoveries.join_next().await {
        let (id, outcome) = ended.map_err(|error| LogError::Corrupt(format!("a recovery was cut short: {error}")))?;
        recovered.insert(id, outcome?);
    }
    Ok(recovered)
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
    skip_unreadable: bool,
    id: LedgerId,
) -> Result<Recovered, LogError> {
    let reader = match shared.ledgers.recover(id).await {
        Ok(reader) => reader,
        Err(error) if skip_unreadable && load::is_lost(&error.clone().into()) => {
            shared.ledgers_skipped.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tracing::error!(log = name, ledger = %id, %error, "ledger is lost; the log goes on without it");
            return Ok(Recovered(None));
        }
        Err(error) => return Err(error.into()),
    };
    let last = reader.last_confirmed();
    let end_index = if last > EntryId::NONE { Some(end_index_of(&*reader, last).await?) } else { None };
    let (bytes, exact) = (reader.length_bytes(), reader.length_is_exact());
    Ok(Recovered(Some(Ending { last, bytes, exact, end_index })))
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
    loaded: Loaded,
) -> Arc<ManagedLedger> {
    let Loaded { meta, layout, cursors, next } = loaded;
    let version = meta.version;
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
    if let Some((next, created_ms)) = next {
        let writer = (next.start)(version, Arc::new(WriterSink(log.me.clone())));
        log.order.lock().next = Some((writer, created_ms));
    }
    log
}
