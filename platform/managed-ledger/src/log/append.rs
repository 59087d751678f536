//! Appending: positions and indexes under one short lock, answers in order.
//!
//! Lock order: `order`, then `flight`; `view` alone. Sinks are called with none of them held. A ledger may confirm from
//! inside its `append`, on our own stack with `order` held: events take `flight` only, and who appends has claimed the
//! delivery before, so answers leave after `order` is free, on another task.

use super::ManagedLedger;
use super::flight::{Answer, Pending, Settled, Slot};
use crate::api::{AppendRequest, Appended, LogEntry, LogError, LogSettings};
use crate::cache::tail::unpin;
use crate::roll::{OpenLedger, Roll, decide};
use meridian_bookie_api::EntryBytes;
use meridian_bookie_api::envelope::{ENVELOPE_BYTES, Envelope, FLAG_MARKER};
use meridian_ledger::{AppendEvent, AppendSink, LedgerWriter};
use meridian_types::{EntryId, LedgerId, Position};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The ledger that is being written.
pub(crate) struct Current {
    pub writer: Arc<dyn LedgerWriter>,
    pub ledger_id: LedgerId,
    pub next_entry: EntryId,
    pub bytes: u64,
    pub created_ms: u64,
    /// Entries at the last look of the upkeep: no difference = no traffic.
    pub seen_entries: i64,
}

/// A writer that is to be closed, with what it must hold.
pub(crate) struct Retiring {
    pub current: Current,
    pub end_index: u64,
}

/// A request that waits for a ledger.
pub(crate) enum Queued {
    Request(AppendRequest, u64),
    Refused(Vec<u64>, LogError),
}

/// Who comes next: guarded by one short lock.
pub(crate) struct Order {
    pub settings: Arc<LogSettings>,
    pub current: Option<Current>,
    /// Listed and empty, ready to be switched to.
    pub next: Option<(Arc<dyn LedgerWriter>, u64)>,
    pub queue: VecDeque<Queued>,
    pub next_index: u64,
    pub creating: bool,
    pub recovering: bool,
    pub terminated: Option<Position>,
    pub stopped: Option<LogError>,
    /// Since when `queue` waits, and why.
    pub waiting: Option<(u64, &'static str)>,
    /// Why the last attempts to have a ledger were given up; none since then has succeeded.
    pub unwritable: Option<LogError>,
}

/// Work that an append leaves to a task.
pub(crate) enum Chore {
    Create,
    Retire(Retiring),
    Recover,
}

/// Brings a writer's news to the log, without keeping the log alive.
pub(crate) struct WriterSink(pub Weak<ManagedLedger>);

impl AppendSink for WriterSink {
    fn append_event(&self, event: AppendEvent) {
        let Some(log) = self.0.upgrade() else { return };
        match event {
            AppendEvent::Confirmed { ledger_id, up_to } => {
                let claimed = {
                    let mut flight = log.flight.lock();
                    flight.confirm(ledger_id, up_to);
                    flight.claim()
                };
                if claimed {
                    log.deliver();
                }
            }
            AppendEvent::Ended { ledger_id, error } => {
                tracing::warn!(log = %log.name, %ledger_id, %error, "ledger writer ended");
                log.flight.lock().note_ended(ledger_id);
                log.start(Chore::Recover);
            }
        }
    }
}

impl Order {
    fn writes_now(&self) -> bool {
        self.current.is_some() && !self.recovering && self.queue.is_empty()
    }

    /// Switches to the prepared ledger.
    pub fn promote(&mut self) -> Option<Retiring> {
        let (writer, created_ms) = self.next.take()?;
        let ledger_id = writer.id();
        let next = Current { writer, ledger_id, next_entry: EntryId(0), bytes: 0, created_ms, seen_entries: 0 };
        let end_index = self.next_index;
        self.current.replace(next).map(|current| Retiring { current, end_index })
    }

    /// A chore to have a ledger ready, unless one is under way.
    pub fn want_ledger(&mut self) -> Option<Chore> {
        let wanted = self.next.is_none() && !self.creating && !self.recovering;
        if wanted {
            self.creating = true;
        }
        wanted.then_some(Chore::Create)
    }

    fn check_roll(&mut self, now_ms: u64) -> Option<Chore> {
        let current = self.current.as_ref()?;
        let ledger = OpenLedger {
            entries: current.next_entry.0 as u64,
            bytes: current.bytes,
            age_ms: now_ms.saturating_sub(current.created_ms),
        };
        match decide(ledger, &self.settings) {
            Roll::Keep => None,
            Roll::Switch if self.next.is_some() => self.promote().map(Chore::Retire),
            Roll::Prepare | Roll::Switch => self.want_ledger(),
        }
    }
}

impl ManagedLedger {
    /// Appends entries; each is answered once through the sink, in order (L1).
    pub fn append(&self, requests: Vec<AppendRequest>) {
        if requests.is_empty() {
            return;
        }
        let now_ms = self.shared.now_ms();
        let bytes: u64 = requests.iter().map(|request| request.payload.len() as u64).sum();
        let (claimed, chore) = {
            let mut order = self.order.lock();
            match self.refusal(&order, bytes) {
                Some(error) => {
                    let tokens = requests.iter().map(|request| request.token).collect();
                    (self.refuse(&mut order, tokens, error), None)
                }
                None => {
                    self.unconfirmed_bytes.fetch_add(bytes, Ordering::Relaxed);
                    let requests = requests.into_iter().map(|request| (request, now_ms));
                    self.accept(&mut order, requests, now_ms)
                }
            }
        };
        self.follow_up(claimed, chore);
    }

    /// What is left after `order` was released. Answers are not given on the caller's stack: it may hold its own locks.
    pub(crate) fn follow_up(&self, claimed: bool, chore: Option<Chore>) {
        if claimed && !self.flight.lock().release_if_empty() {
            self.spawn(async |log| log.deliver());
        }
        if let Some(chore) = chore {
            self.start(chore);
        }
    }

    fn refusal(&self, order: &Order, bytes: u64) -> Option<LogError> {
        if let Some(error) = &order.stopped {
            return Some(error.clone());
        }
        if let Some(at) = order.terminated {
            return Some(LogError::Terminated(at));
        }
        let waiting = self.unconfirmed_bytes.load(Ordering::Relaxed);
        let max_bytes = order.settings.max_unconfirmed_bytes;
        // Who was refused must know it before anything behind it is taken.
        let untold = self.refused_untold.load(Ordering::SeqCst) > 0;
        // One request over the whole limit must still be possible.
        (untold || waiting > 0 && waiting + bytes > max_bytes).then_some(LogError::Busy { bytes: waiting, max_bytes })
    }

    fn refuse(&self, order: &mut Order, tokens: Vec<u64>, error: LogError) -> bool {
        if matches!(error, LogError::Busy { .. }) {
            self.refused_untold.fetch_add(tokens.len() as u64, Ordering::SeqCst);
        }
        if !order.queue.is_empty() {
            order.queue.push_back(Queued::Refused(tokens, error));
            return false;
        }
        let mut flight = self.flight.lock();
        flight.refuse(tokens, error);
        flight.claim()
    }

    fn accept(
        &self,
        order: &mut Order,
        requests: impl Iterator<Item = (AppendRequest, u64)>,
        now_ms: u64,
    ) -> (bool, Option<Chore>) {
        if order.writes_now() {
            let claimed = self.write(order, requests);
            return (claimed, order.check_roll(now_ms));
        }
        order.queue.extend(requests.map(|(request, at_ms)| Queued::Request(request, at_ms)));
        let why = if order.recovering { "recovering a ledger" } else { "creating a ledger" };
        order.waiting.get_or_insert((now_ms, why));
        if order.current.is_none() && order.next.is_some() && !order.recovering {
            return self.drain_queue(order);
        }
        (false, if order.current.is_none() { order.want_ledger() } else { None })
    }

    /// Writes what waits for a ledger; call when one is there. Answers whether to deliver, and a chore.
    pub(crate) fn drain_queue(&self, order: &mut Order) -> (bool, Option<Chore>) {
        if order.recovering || order.stopped.is_some() {
            return (false, None);
        }
        if order.current.is_none() {
            order.promote();
        }
        if order.current.is_none() {
            let chore = if order.queue.is_empty() { None } else { order.want_ledger() };
            return (false, chore);
        }
        order.waiting = None;
        let mut claimed = false;
        let mut run = Vec::new();
        for queued in std::mem::take(&mut order.queue) {
            match queued {
                Queued::Request(request, at_ms) => run.push((request, at_ms)),
                Queued::Refused(tokens, error) => {
                    claimed |= self.write(order, std::mem::take(&mut run).into_iter());
                    let mut flight = self.flight.lock();
                    flight.refuse(tokens, error);
                    claimed |= flight.claim();
                }
            }
        }
        claimed |= self.write(order, run.into_iter());
        (claimed, order.check_roll(self.shared.now_ms()))
    }

    /// Gives entries their places and hands them to the ledger. Answers whether this thread has claimed the delivery.
    fn write(&self, order: &mut Order, requests: impl Iterator<Item = (AppendRequest, u64)>) -> bool {
        let Some(current) = order.current.as_mut() else { return false };
        let room = requests.size_hint().0;
        let (mut encoded, mut pending) = (Vec::with_capacity(room), Vec::with_capacity(room));
        for (request, broker_time_ms) in requests {
            let position = Position { ledger_id: current.ledger_id, entry_id: current.next_entry };
            current.next_entry = current.next_entry.next();
            current.bytes += (request.payload.len() + ENVELOPE_BYTES) as u64;
            order.next_index += u64::from(request.messages);
            // A marker before the first message has the index before 0.
            let index = order.next_index.wrapping_sub(1);
            let entry = LogEntry {
                position,
                index,
                messages: request.messages,
                marker: request.marker,
                broker_time_ms,
                origin: request.origin.unwrap_or((self.shared.region, self.incarnation, position)),
                payload: request.payload,
            };
            encoded.push(EntryBytes { head: envelope(&entry).encode(), body: entry.payload.clone() });
            pending.push(Pending { entry, token: request.token, born_here: request.origin.is_none() });
        }
        if pending.is_empty() {
            return false;
        }
        let first = pending[0].entry.position.entry_id;
        let claimed = {
            let mut flight = self.flight.lock();
            flight.push(pending.into_iter());
            flight.claim()
        };
        let refused = match current.writer.append(encoded) {
            Ok(given) if given == first => None,
            Ok(given) => Some(format!("the ledger took entry {first} as {given}")),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = refused {
            tracing::warn!(log = %self.name, ledger = %current.ledger_id, why, "append refused by the ledger; recovering it");
            self.flight.lock().note_ended(current.ledger_id);
            self.start(Chore::Recover);
        }
        claimed
    }

    /// Delivers answers until there are none (F1). The caller has claimed it.
    pub(crate) fn deliver(&self) {
        loop {
            let Some(answers) = self.flight.lock().take() else { break };
            for answer in answers {
                match answer {
                    Answer::Confirmed(entries) => self.confirmed(entries),
                    Answer::Failed(tokens, error) => {
                        self.sink.append_failed(&tokens, &error);
                        if matches!(error, LogError::Busy { .. }) {
                            self.refused_untold.fetch_sub(tokens.len() as u64, Ordering::SeqCst);
                        }
                    }
                    Answer::Settled(settled) => self.settled(settled),
                }
            }
        }
        if self.flight.lock().is_idle() {
            self.drained.notify_waiters();
        }
    }

    fn confirmed(&self, pending: Vec<Pending>) {
        let mut payload_bytes = 0;
        let appended: Vec<Appended> = pending
            .iter()
            .map(|p| {
                payload_bytes += p.entry.payload.len() as u64;
                let (position, index, messages) = (p.entry.position, p.entry.index, p.entry.messages);
                Appended { token: p.token, position, index, messages }
            })
            .collect();
        let runs = ledger_runs(&pending);
        let up_to = appended.last().map_or(Position::EARLIEST, |last| last.position);
        let cached = self.cursor_count.load(Ordering::Relaxed) > 0;
        let entries = if cached {
            let mut entries: Vec<LogEntry> = pending.into_iter().map(|p| p.entry).collect();
            unpin(&mut entries);
            entries
        } else {
            Vec::new()
        };
        {
            let mut view = self.view.lock();
            for (last, bytes, end_index) in runs {
                view.layout.confirm(last, bytes, end_index);
            }
            if cached {
                view.push(entries.into_iter());
            } else {
                view.clear();
            }
        }
        if cached {
            let now_ms = self.shared.coarse_now_ms();
            self.shared.tail.account(&self.view, up_to, appended.len(), payload_bytes, now_ms);
        }
        self.unconfirmed_bytes.fetch_sub(payload_bytes, Ordering::Relaxed);
        self.sink.appended(&appended);
        self.tell_followers();
    }

    fn settled(&self, settled: Settled) {
        let mut view = self.view.lock();
        let before = view.layout.ledger(settled.ledger_id).map_or(0, |ledger| ledger.entries);
        if before != settled.entries {
            // Found by a recovery, not in the cache (G1).
            view.clear();
        }
        view.layout.settle(settled.ledger_id, settled.entries, settled.bytes, settled.end_index);
        view.layout.close(settled.ledger_id, settled.closed_ms);
        drop(view);
        self.tell_followers();
        // Nobody may wait for it any more.
        let _ = settled.done.send(());
    }

    /// Puts what was lost back to the front of the queue, in order.
    pub(crate) fn requeue(order: &mut Order, lost: VecDeque<Slot>) {
        for slot in lost.into_iter().rev() {
            order.queue.push_front(match slot {
                Slot::Entry(Pending { entry, token, born_here }) => {
                    let request = AppendRequest {
                        payload: entry.payload,
                        messages: entry.messages,
                        marker: entry.marker,
                        origin: (!born_here).then_some(entry.origin),
                        token,
                    };
                    Queued::Request(request, entry.broker_time_ms)
                }
                Slot::Refused(tokens, error) => Queued::Refused(tokens, error),
            });
        }
    }

    /// Fails everything that waits, in order: first what is in flight, then what waits for a ledger.
    pub(crate) fn fail_waiting(&self, order: &mut Order, error: &LogError) -> bool {
        let mut flight = self.flight.lock();
        let mut bytes = flight.fail_all(error);
        for queued in std::mem::take(&mut order.queue) {
            match queued {
                Queued::Request(request, _) => {
                    bytes += request.payload.len() as u64;
                    flight.refuse(vec![request.token], error.clone());
                }
                Queued::Refused(tokens, error) => flight.refuse(tokens, error),
            }
        }
        order.waiting = None;
        self.unconfirmed_bytes.fetch_sub(bytes, Ordering::Relaxed);
        flight.claim()
    }

    /// Runs a chore as a task of its own.
    pub(crate) fn start(&self, chore: Chore) {
        self.spawn(async move |log| match chore {
            Chore::Create => log.create_ledger().await,
            Chore::Retire(retiring) => log.retire(retiring).await,
            Chore::Recover => log.recover_ended().await,
        });
    }
}

fn envelope(entry: &LogEntry) -> Envelope {
    Envelope {
        flags: if entry.marker { FLAG_MARKER } else { 0 },
        broker_time_ms: entry.broker_time_ms,
        index: entry.index,
        messages: entry.messages,
        origin_region: entry.origin.0,
        origin_incarnation: entry.origin.1,
        origin: entry.origin.2,
    }
}

/// Last position, bytes and end index of each ledger's run.
fn ledger_runs(pending: &[Pending]) -> Vec<(Position, u64, u64)> {
    let mut runs: Vec<(Position, u64, u64)> = Vec::with_capacity(1);
    for p in pending {
        let (at, bytes) = (p.entry.position, (p.entry.payload.len() + ENVELOPE_BYTES) as u64);
        let end_index = p.entry.index.wrapping_add(1);
        match runs.last_mut() {
            Some(run) if run.0.ledger_id == at.ledger_id => *run = (at, run.1 + bytes, end_index),
            _ => runs.push((at, bytes, end_index)),
        }
    }
    runs
}
