//! A bookie in memory that keeps the contract (B1–B3) and fails as told.

use bytes::Bytes;
use meridian_bookie_api::entry::digest_of;
use meridian_bookie_api::{
    AddEntry, AddResult, AddSink, Bookie, BookieError, BoxFuture, FenceState, ReadEntry, ReadRequest,
};
use meridian_types::{BookieId, EntryId, LedgerId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What goes wrong. All off at first.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Everything is answered "unavailable".
    pub down: bool,
    /// Adds are stored, but no answer leaves, of adds or reads or anything.
    pub mute: bool,
    /// Adds are lost on the way in: not stored, not answered.
    pub deaf: bool,
    /// Answers to adds wait for [`MemoryBookie::release`].
    pub hold_answers: bool,
    /// Answers to adds come twice.
    pub repeat_answers: bool,
    /// Ordinary adds are refused as read-only; recovery adds are taken.
    pub read_only: bool,
    /// The next adds (so many batches) are refused with this, and not stored.
    pub refuse_adds: Option<(u32, BookieError)>,
}

#[derive(Debug, Clone)]
struct Stored {
    last_add_confirmed: EntryId,
    digest: u32,
    payload: Bytes,
}

#[derive(Debug)]
struct Ledger {
    entries: BTreeMap<i64, Stored>,
    fenced: bool,
    last_add_confirmed: EntryId,
}

impl Ledger {
    fn new() -> Self {
        Self { entries: BTreeMap::new(), fenced: false, last_add_confirmed: EntryId::NONE }
    }

    fn state(&self) -> FenceState {
        let last_entry = self.entries.last_key_value().map_or(EntryId::NONE, |(id, _)| EntryId(*id));
        FenceState { last_add_confirmed: self.last_add_confirmed, last_entry }
    }
}

type Held = (Arc<dyn AddSink>, Vec<AddResult>);

#[derive(Default)]
struct State {
    ledgers: HashMap<LedgerId, Ledger>,
    faults: Faults,
    held: Vec<Held>,
    adds: u64,
    reads: u64,
}

/// See the head of this file. Answers adds inside [`Bookie::add`] unless told to hold them.
pub struct MemoryBookie {
    id: BookieId,
    state: Mutex<State>,
}

impl MemoryBookie {
    /// An empty bookie.
    pub fn new(id: &str) -> Self {
        Self { id: BookieId::new(id), state: Mutex::new(State::default()) }
    }

    /// Changes what goes wrong.
    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state.lock().faults);
    }

    /// Whether it would be chosen for a ledger.
    pub fn is_writable(&self) -> bool {
        let state = self.state.lock();
        !state.faults.down && !state.faults.read_only
    }

    /// Lets held answers go, in order, or the last first.
    pub fn release(&self, reversed: bool) {
        let mut held = std::mem::take(&mut self.state.lock().held);
        if reversed {
            held.reverse();
        }
        for (sink, results) in held {
            self.answer(&sink, results);
        }
    }

    /// Goes down and forgets the answers it held. What it stored stays (B1).
    pub fn crash(&self) {
        let mut state = self.state.lock();
        state.faults.down = true;
        state.held.clear();
    }

    /// Damages a stored entry: reads of it answer "corrupt".
    pub fn damage(&self, ledger_id: LedgerId, entry_id: EntryId) {
        let mut state = self.state.lock();
        if let Some(stored) = state.ledgers.get_mut(&ledger_id).and_then(|l| l.entries.get_mut(&entry_id.0)) {
            stored.digest ^= 1;
        }
    }

    /// Loses a stored entry.
    pub fn forget(&self, ledger_id: LedgerId, entry_id: EntryId) {
        let mut state = self.state.lock();
        if let Some(ledger) = state.ledgers.get_mut(&ledger_id) {
            ledger.entries.remove(&entry_id.0);
        }
    }

    /// Whether an entry is stored.
    pub fn holds(&self, ledger_id: LedgerId, entry_id: EntryId) -> bool {
        self.state.lock().ledgers.get(&ledger_id).is_some_and(|l| l.entries.contains_key(&entry_id.0))
    }

    /// Whether a ledger is fenced.
    pub fn is_fenced(&self, ledger_id: LedgerId) -> bool {
        self.state.lock().ledgers.get(&ledger_id).is_some_and(|l| l.fenced)
    }

    /// Last-add-confirmed as known here.
    pub fn heard(&self, ledger_id: LedgerId) -> EntryId {
        self.state.lock().ledgers.get(&ledger_id).map_or(EntryId::NONE, |l| l.last_add_confirmed)
    }

    /// Adds and reads that arrived.
    pub fn requests(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.adds, state.reads)
    }

    fn answer(&self, sink: &Arc<dyn AddSink>, results: Vec<AddResult>) {
        let repeat = self.state.lock().faults.repeat_answers;
        if repeat {
            sink.add_results(&self.id, results.clone());
        }
        sink.add_results(&self.id, results);
    }

    /// Whether calls get through: `Err` = refused, `Ok(false)` = never answered.
    fn reachable(&self) -> Result<bool, BookieError> {
        let state = self.state.lock();
        if state.faults.down {
            return Err(BookieError::Unavailable("down".to_owned()));
        }
        Ok(!state.faults.mute && !state.faults.deaf)
    }

    fn read_now(&self, request: ReadRequest) -> Result<Vec<ReadEntry>, BookieError> {
        let mut state = self.state.lock();
        state.reads += 1;
        if request.fence {
            state.ledgers.entry(request.ledger_id).or_insert_with(Ledger::new).fenced = true;
        }
        let ledger = state.ledgers.get(&request.ledger_id).ok_or(BookieError::NoSuchLedger)?;
        let (mut read, mut bytes, mut next) = (Vec::new(), 0, request.first_entry_id.0);
        for (id, stored) in ledger.entries.range(request.first_entry_id.0..) {
            let gap = *id != next && !request.gaps_allowed;
            let full = read.len() >= request.max_entries as usize
                || (!read.is_empty() && bytes + stored.payload.len() as u64 > request.max_bytes);
            if gap || full {
                break;
            }
            if digest_of(request.ledger_id, EntryId(*id), &stored.payload) != stored.digest {
                if read.is_empty() && !request.gaps_allowed {
                    return Err(BookieError::Corrupt(format!("entry {id}")));
                }
                break;
            }
            bytes += stored.payload.len() as u64;
            next = id + 1;
            read.push(ReadEntry {
                entry_id: EntryId(*id),
                last_add_confirmed: stored.last_add_confirmed,
                digest: stored.digest,
                payload: stored.payload.clone(),
            });
        }
        if read.is_empty() { Err(BookieError::NoSuchEntry) } else { Ok(read) }
    }
}

impl State {
    fn store(&mut self, add: &AddEntry) -> Result<(), BookieError> {
        if self.faults.read_only && !add.recovery {
            return Err(BookieError::ReadOnly("told to be".to_owned()));
        }
        let ledger = self.ledgers.entry(add.ledger_id).or_insert_with(Ledger::new);
        if ledger.fenced && !add.recovery {
            return Err(BookieError::Fenced);
        }
        ledger.last_add_confirmed = ledger.last_add_confirmed.max(add.last_add_confirmed);
        let payload = add.entry.to_bytes();
        let stored = Stored { last_add_confirmed: add.last_add_confirmed, digest: add.digest, payload };
        if let Some(there) = ledger.entries.insert(add.entry_id.0, stored.clone()) {
            assert_eq!(there.payload, stored.payload, "an entry has one content for ever");
        }
        Ok(())
    }

    /// Takes a batch; `None` = no answer will come.
    fn take(&mut self, entries: &[AddEntry]) -> Option<Vec<AddResult>> {
        self.adds += entries.len() as u64;
        let refusal = match &mut self.faults {
            faults if faults.down => Some(BookieError::Unavailable("down".to_owned())),
            faults if faults.deaf => return None,
            Faults { refuse_adds: Some((batches @ 1.., error)), .. } => {
                *batches -= 1;
                Some(error.clone())
            }
            _ => None,
        };
        let mut results = Vec::with_capacity(entries.len());
        for add in entries {
            let result = refusal.clone().map_or_else(|| self.store(add), Err);
            results.push(AddResult { ledger_id: add.ledger_id, entry_id: add.entry_id, result });
        }
        (!self.faults.mute).then_some(results)
    }
}

impl Bookie for MemoryBookie {
    fn id(&self) -> &BookieId {
        &self.id
    }

    fn add(&self, entries: Vec<AddEntry>, sink: Arc<dyn AddSink>) {
        let mut state = self.state.lock();
        let Some(results) = state.take(&entries) else { return };
        if state.faults.hold_answers {
            state.held.push((sink, results));
            return;
        }
        drop(state);
        self.answer(&sink, results);
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'_, Result<Vec<ReadEntry>, BookieError>> {
        Box::pin(async move {
            if !self.reachable()? {
                std::future::pending::<()>().await;
            }
            self.read_now(request)
        })
    }

    fn fence(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<FenceState, BookieError>> {
        Box::pin(async move {
            if !self.reachable()? {
                std::future::pending::<()>().await;
            }
            let mut state = self.state.lock();
            let ledger = state.ledgers.entry(ledger_id).or_insert_with(Ledger::new);
            ledger.fenced = true;
            Ok(ledger.state())
        })
    }

    fn last_add_confirmed(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<FenceState, BookieError>> {
        Box::pin(async move {
            if !self.reachable()? {
                std::future::pending::<()>().await;
            }
            let state = self.state.lock();
            state.ledgers.get(&ledger_id).map(Ledger::state).ok_or(BookieError::NoSuchLedger)
        })
    }

    fn write_lac(&self, ledger_id: LedgerId, last_add_confirmed: EntryId) -> BoxFuture<'_, Result<(), BookieError>> {
        Box::pin(async move {
            if !self.reachable()? {
                std::future::pending::<()>().await;
            }
            let mut state = self.state.lock();
            let ledger = state.ledgers.entry(ledger_id).or_insert_with(Ledger::new);
            ledger.last_add_confirmed = ledger.last_add_confirmed.max(last_add_confirmed);
            Ok(())
        })
    }
}
