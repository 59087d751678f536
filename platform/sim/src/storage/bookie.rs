//! A bookie as the protocol sees it, with a disk that knows what is synced.
//!
//! Invariants: B1 an add or a fence is answered after its record is synced (but for planted bugs); B2 a crash keeps what
//! is synced, and of the rest a part from the front: a torn record ends what is kept; B3 reads see what is not synced yet,
//! as a write cache gives it; B4 a damaged copy is never given as a good one (but for a planted bug).

use super::net::{Address, Answer, Token};
use bytes::Bytes;
use meridian_bookie_api::entry::digest_of;
use meridian_bookie_api::{AddEntry, AddResult, BookieError, FenceState, ReadEntry, ReadRequest};
use meridian_types::{BookieId, EntryId, LedgerId};
use std::collections::{BTreeMap, BTreeSet};

/// A stored entry.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Content {
    pub payload: Bytes,
    pub digest: u32,
    pub last_add_confirmed: i64,
}

/// One ledger on a bookie.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    pub entries: BTreeMap<i64, Content>,
    pub fenced: bool,
    /// Last-add-confirmed + 1.
    heard: i64,
}

impl Held {
    fn state(&self) -> FenceState {
        let last_entry = self.entries.last_key_value().map_or(EntryId::NONE, |(id, _)| EntryId(*id));
        FenceState { last_add_confirmed: EntryId(self.heard - 1), last_entry }
    }
}

/// A record on its way to the disk.
#[derive(Debug, Clone)]
enum Record {
    Entry(LedgerId, i64, Content),
    Fence(LedgerId),
}

/// An answer that waits for the sync.
pub(super) struct Due {
    pub to: Address,
    pub serial: u64,
    pub token: Token,
    pub answer: Answer,
}

#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    due: Option<Due>,
}

/// See the head of the file.
pub(super) struct Bookie {
    pub id: BookieId,
    pub up: bool,
    pub life: u64,
    /// Its disk is gone for ever.
    pub lost: bool,
    pub down_since_ms: u64,
    pub syncing: bool,
    disk: BTreeMap<LedgerId, Held>,
    memory: BTreeMap<LedgerId, Held>,
    queue: Vec<Batch>,
    /// Fenced ledgers that were deleted.
    gone: BTreeSet<LedgerId>,
    pub fences_nothing: bool,
    pub hides_damage: bool,
    pub forgets_deleted_fences: bool,
}

fn apply(to: &mut BTreeMap<LedgerId, Held>, record: Record) {
    match record {
        Record::Entry(ledger, id, content) => {
            let held = to.entry(ledger).or_default();
            held.heard = held.heard.max(content.last_add_confirmed + 1);
            held.entries.insert(id, content);
        }
        Record::Fence(ledger) => to.entry(ledger).or_default().fenced = true,
    }
}

impl Bookie {
    pub fn new(id: BookieId) -> Self {
        Self {
            id,
            up: true,
            life: 0,
            lost: false,
            down_since_ms: 0,
            syncing: false,
            disk: BTreeMap::new(),
            memory: BTreeMap::new(),
            queue: Vec::new(),
            gone: BTreeSet::new(),
            fences_nothing: false,
            hides_damage: false,
            forgets_deleted_fences: false,
        }
    }

    /// A ledger, made if it is not known; one that was deleted while fenced is fenced from the beginning.
    fn touched(&mut self, ledger: LedgerId) -> &mut Held {
        let fenced = self.gone.contains(&ledger);
        self.memory.entry(ledger).or_insert_with(|| Held { fenced, ..Held::default() })
    }

    /// Takes adds; the answers come with the sync.
    pub fn add(&mut self, adds: Vec<AddEntry>, to: Address) {
        let mut batch = Batch::default();
        let mut results = Vec::with_capacity(adds.len());
        for add in adds {
            let held = self.touched(add.ledger_id);
            let result = if held.fenced && !add.recovery { Err(BookieError::Fenced) } else { Ok(()) };
            if result.is_ok() {
                let payload = add.entry.to_bytes();
                let last_add_confirmed = add.last_add_confirmed.0;
                let content = Content { payload, digest: add.digest, last_add_confirmed };
                let record = Record::Entry(add.ledger_id, add.entry_id.0, content);
                apply(&mut self.memory, record.clone());
                batch.records.push(record);
            }
            results.push(AddResult { ledger_id: add.ledger_id, entry_id: add.entry_id, result });
        }
        batch.due = Some(Due { to, serial: 0, token: Token::None, answer: Answer::Added(results) });
        self.queue.push(batch);
    }

    fn begin_fence(&mut self, ledger: LedgerId) -> Vec<Record> {
        if self.fences_nothing {
            return Vec::new();
        }
        apply(&mut self.memory, Record::Fence(ledger));
        vec![Record::Fence(ledger)]
    }

    /// Fences; answered with the sync.
    pub fn fence(&mut self, ledger: LedgerId, to: Address, serial: u64, token: Token) {
        let records = self.begin_fence(ledger);
        let answer = Answer::Fenced(Ok(self.memory.entry(ledger).or_default().state()));
        self.queue.push(Batch { records, due: Some(Due { to, serial, token, answer }) });
    }

    /// Reads; one that fences too is answered with the sync.
    pub fn read(&mut self, request: ReadRequest, to: Address, serial: u64, token: Token) -> Option<Due> {
        let records = if request.fence { self.begin_fence(request.ledger_id) } else { Vec::new() };
        let answer = Answer::Read(self.read_now(request));
        let due = Due { to, serial, token, answer };
        if records.is_empty() {
            return Some(due);
        }
        self.queue.push(Batch { records, due: Some(due) });
        None
    }

    fn read_now(&self, request: ReadRequest) -> Result<Vec<ReadEntry>, BookieError> {
        let held = self.memory.get(&request.ledger_id).ok_or(BookieError::NoSuchLedger)?;
        let (mut read, mut next) = (Vec::new(), request.first_entry_id.0);
        for (id, content) in held.entries.range(request.first_entry_id.0..) {
            let gap = *id != next && !request.gaps_allowed;
            if gap || read.len() >= request.max_entries as usize {
                break;
            }
            let digest = digest_of(request.ledger_id, EntryId(*id), &content.payload);
            if digest != content.digest && !self.hides_damage {
                if read.is_empty() && *id == request.first_entry_id.0 {
                    return Err(BookieError::Corrupt(format!("entry {id}")));
                }
                break;
            }
            next = id + 1;
            read.push(ReadEntry {
                entry_id: EntryId(*id),
                last_add_confirmed: EntryId(content.last_add_confirmed),
                digest,
                payload: content.payload.clone(),
            });
        }
        if read.is_empty() { Err(BookieError::NoSuchEntry) } else { Ok(read) }
    }

    pub fn write_lac(&mut self, ledger: LedgerId, lac: EntryId) {
        // Need not be durable.
        let held = self.touched(ledger);
        held.heard = held.heard.max(lac.0 + 1);
    }

    /// Whether there is something to sync.
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Everything queued is on the disk; what waited for that.
    pub fn sync(&mut self) -> Vec<Due> {
        let mut due = Vec::new();
        for batch in std::mem::take(&mut self.queue) {
            batch.records.into_iter().for_each(|record| apply(&mut self.disk, record));
            due.extend(batch.due);
        }
        due
    }

    /// The answers that wait, as a bookie that does not wait for its disk would give them.
    pub fn unsynced_answers(&mut self) -> Vec<Due> {
        self.queue.iter_mut().filter_map(|batch| batch.due.take()).collect()
    }

    /// Crashes: of what is not synced the first `keep` records reached the disk (B2). Answers how many there were.
    pub fn crash(&mut self, keep: usize) -> usize {
        let records: Vec<Record> =
            std::mem::take(&mut self.queue).into_iter().flat_map(|batch| batch.records).collect();
        let there = records.len();
        records.into_iter().take(keep).for_each(|record| apply(&mut self.disk, record));
        self.memory = self.disk.clone();
        (self.up, self.syncing) = (false, false);
        self.life += 1;
        there
    }

    /// Its disk is gone.
    pub fn lose(&mut self) {
        self.crash(0);
        self.disk.clear();
        self.memory.clear();
        self.lost = true;
    }

    /// Drops a ledger that no longer exists; that it was fenced is kept.
    pub fn collect(&mut self, ledger: LedgerId) {
        let was = [self.disk.remove(&ledger), self.memory.remove(&ledger)];
        if was.into_iter().flatten().any(|held| held.fenced) && !self.forgets_deleted_fences {
            self.gone.insert(ledger);
        }
    }

    /// A durable copy.
    pub fn durable(&self, ledger: LedgerId, entry: i64) -> Option<&Content> {
        self.disk.get(&ledger)?.entries.get(&entry)
    }

    /// Damages a durable copy.
    pub fn damage(&mut self, ledger: LedgerId, entry: i64) {
        for side in [&mut self.disk, &mut self.memory] {
            if let Some(content) = side.get_mut(&ledger).and_then(|held| held.entries.get_mut(&entry)) {
                content.payload = Bytes::from_static(b"damaged");
            }
        }
    }

    /// A good durable copy: its bytes match its digest.
    pub fn good(&self, ledger: LedgerId, entry: i64) -> bool {
        self.durable(ledger, entry)
            .is_some_and(|content| digest_of(ledger, EntryId(entry), &content.payload) == content.digest)
    }
}
