//! Golden scripts: events in, effects out. Here what is sent, answered and acknowledged; in [`states`] what holds a link back.

mod states;

use super::limit::{LinkLimits, NamespaceLimit};
use super::words::{Effect, Event, Now, Peer, ReadEntry, Receipt, SendRefusal, StartPoint};
use super::{Bounds, LinkConfig, Machine};
use crate::testing::{LOCAL, Written};
use meridian_types::Position;
use meridian_wire::replicate::MARKER_RECEIPT;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

const MERIDIAN: Peer = Peer { meridian: true, positions: true, max_entry_bytes: 5 << 20 };
const PULSAR: Peer = Peer { meridian: false, ..MERIDIAN };
const OLD: Peer = Peer { positions: false, ..PULSAR };
const DUPLICATE: Position = Position::EARLIEST;

fn bounds() -> Bounds {
    Bounds { max_waiting_entries: 5, read_entries: 8, ..Bounds::default() }
}

fn at(entry: i64) -> Position {
    Position::new(1, entry)
}

/// A machine and what it did.
struct Script {
    machine: Machine,
    now_ms: u64,
    session: u64,
    epoch: u64,
    sequences: Vec<(Position, u64)>,
}

impl Script {
    fn with(bounds: Bounds, limits: LinkLimits, shared: Option<Arc<NamespaceLimit>>) -> Self {
        let shared = shared.map(|shared| shared as Arc<dyn super::limit::SharedLimit>);
        let config = LinkConfig { local: LOCAL.into(), remote: "east".into(), bounds, limits, shared };
        let machine = Machine::new(config, 1000);
        Self { machine, now_ms: 1000, session: 0, epoch: 0, sequences: Vec::new() }
    }

    /// Started at 1:0 with a cursor from before, not yet connected.
    fn started() -> Self {
        let mut script = Self::with(bounds(), LinkLimits::default(), None);
        assert_eq!(script.start(false), "open #1; read 1:0 x1");
        script
    }

    fn start(&mut self, created: bool) -> String {
        self.step(Event::Started(StartPoint {
            first: at(0),
            last_confirmed: at(99),
            created,
            highest_acked: None,
            generation: 0,
        }))
    }

    /// Connected, nothing read.
    fn open(peer: Peer) -> Self {
        let mut script = Self::started();
        script.read(Vec::new());
        script.step(Event::Grown { epoch: script.epoch });
        assert_eq!(script.opened(peer), "");
        script.read(Vec::new());
        script
    }

    /// Connected, entries read and sent as far as the window goes.
    fn sending(peer: Peer, entries: Range<i64>) -> Self {
        let mut script = Self::open(peer);
        script.grow(entries);
        script
    }

    fn step(&mut self, event: Event) -> String {
        let effects = self.machine.handle(Now { ms: self.now_ms, jitter_permille: 0 }, event);
        let mut lines: Vec<String> = Vec::new();
        for effect in effects {
            lines.push(self.line(effect));
        }
        lines.join("; ")
    }

    fn line(&mut self, effect: Effect) -> String {
        let list = |positions: Vec<Position>| {
            positions.iter().fold(String::new(), |mut text, position| {
                let _ = write!(text, " {position}");
                text
            })
        };
        match effect {
            Effect::Open { session, generation } => {
                self.session = session;
                let name = if generation > 0 { format!(" as {generation}") } else { String::new() };
                format!("open #{session}{name}")
            }
            Effect::Close { session } => format!("close #{session}"),
            Effect::Read { epoch, from, max_entries, .. } => {
                self.epoch = epoch;
                format!("read {from} x{max_entries}")
            }
            Effect::Await { from, .. } => format!("await {from}"),
            Effect::Send { session, entries } => {
                assert_eq!(session, self.session);
                self.sequences.extend(entries.iter().map(|entry| (entry.position, entry.sequence_id)));
                format!("send{}", list(entries.iter().map(|entry| entry.position).collect()))
            }
            Effect::Ack(positions) => format!("ack{}", list(positions)),
            Effect::BringSchema { version, .. } => format!("bring schema {version:?}"),
            Effect::Marker(marker) => format!("marker {} at {}", marker.kind, marker.position),
            Effect::Announce(notice) => format!("{notice:?}"),
        }
    }

    fn tick(&mut self, ms: u64) -> String {
        self.now_ms += ms;
        self.step(Event::Tick)
    }

    fn opened(&mut self, peer: Peer) -> String {
        self.step(Event::Opened { session: self.session, peer })
    }

    fn closed_and_reopened(&mut self, wait_ms: u64, peer: Peer) -> String {
        let mut text = self.step(Event::Closed { session: self.session });
        text = text + "; " + &self.tick(wait_ms);
        text + "; " + &self.opened(peer)
    }

    fn read(&mut self, entries: Vec<ReadEntry>) -> String {
        self.step(Event::Read { epoch: self.epoch, entries })
    }

    fn plain(entries: Range<i64>) -> Vec<ReadEntry> {
        let entry = |entry| ReadEntry { entry: Written::default().at(1, entry), acked: false, hold: None };
        entries.map(entry).collect()
    }

    /// A caught-up reader is told of more and gets it.
    fn grow(&mut self, entries: Range<i64>) -> String {
        self.grow_with(Self::plain(entries))
    }

    fn grow_with(&mut self, entries: Vec<ReadEntry>) -> String {
        self.step(Event::Grown { epoch: self.epoch });
        self.read(entries)
    }

    fn receipt(&mut self, entry: i64, position: Position) -> String {
        let receipt = Receipt { sequence_id: 1, highest_sequence_id: entry as u64, position };
        self.step(Event::Receipts { session: self.session, receipts: vec![receipt] })
    }

    fn receipts(&mut self, entries: Range<i64>) -> String {
        let receipt = |entry: i64| Receipt {
            sequence_id: 1,
            highest_sequence_id: entry as u64,
            position: Position::new(70, entry),
        };
        self.step(Event::Receipts { session: self.session, receipts: entries.map(receipt).collect() })
    }

    fn sequence(&self, entry: i64) -> u64 {
        self.sequences.iter().rev().find(|(position, _)| *position == at(entry)).expect("sent").1
    }

    fn refuse(&mut self, entries: Range<i64>, error: &str) -> String {
        let refusals = entries
            .map(|entry| SendRefusal { sequence_id: self.sequence(entry), error: error.to_owned(), undecided: false })
            .collect();
        self.step(Event::Refused { session: self.session, refusals })
    }

    fn lose(&mut self) -> String {
        self.step(Event::Lost { session: self.session, reason: "connection reset".into() })
    }

    fn state(&self) -> String {
        self.machine.view().state.to_string()
    }
}

#[test]
fn entries_go_out_in_order_and_are_acknowledged_as_they_are_stored() {
    let mut s = Script::started();
    assert_eq!(s.state(), "connecting");
    assert_eq!(s.read(Script::plain(0..1)), "", "one entry is read ahead, to know its age");
    assert_eq!(s.opened(MERIDIAN), "read 1:1 x8; send 1:0");
    assert_eq!(s.state(), "running");
    assert_eq!(s.read(Script::plain(1..3)), "read 1:3 x8; send 1:1 1:2");
    assert_eq!(s.read(Vec::new()), "await 1:3");
    assert_eq!(s.receipts(0..2), "ack 1:0 1:1");
    assert_eq!(s.receipt(2, Position::new(70, 2)), "ack 1:2");
    assert_eq!(s.grow(3..4), "read 1:4 x8; send 1:3");
    let view = s.machine.view();
    assert_eq!((view.counters.entries_sent, view.counters.entries_stored, view.waiting_entries), (4, 3, 1));
}

#[test]
fn the_window_bounds_entries_and_bytes() {
    let mut s = Script::sending(MERIDIAN, 0..8);
    assert_eq!(s.machine.view().waiting_entries, 5);
    assert_eq!(s.receipts(0..1), "ack 1:0; send 1:5");
    let small = Bounds { max_waiting_bytes: 2500, ..bounds() };
    let mut s = Script::with(small, LinkLimits::default(), None);
    s.start(true);
    s.opened(MERIDIAN);
    let large = |entry| ReadEntry {
        entry: Written { bytes: 1000, ..Written::default() }.at(1, entry),
        acked: false,
        hold: None,
    };
    s.read((0..4).map(large).collect());
    assert_eq!(s.machine.view().waiting_entries, 2);
    let huge = |entry| ReadEntry {
        entry: Written { bytes: 9000, ..Written::default() }.at(1, entry),
        acked: false,
        hold: None,
    };
    s.receipts(0..2);
    s.receipts(2..4);
    s.read(vec![huge(4)]);
    assert_eq!(s.machine.view().waiting_entries, 1, "one entry always passes");
}

/// B002, B003, B012: a refused send stops the pipeline behind it; its permits come back; it is tried again alone.
#[test]
fn b012_a_refused_send_stops_the_pipeline_and_is_sent_first_again() {
    let mut s = Script::sending(MERIDIAN, 0..8);
    assert_eq!(s.refuse(1..2, "quota exceeded"), "");
    assert_eq!(s.state(), "refused: quota exceeded");
    assert_eq!(s.receipts(0..1), "ack 1:0", "what is stored is acknowledged, nothing more is sent");
    assert_eq!(s.refuse(2..5, "behind a refused one"), "close #1; read 1:1 x1");
    let view = s.machine.view();
    assert_eq!((view.waiting_entries, view.waiting_bytes, view.counters.refused), (0, 0, 4));
    assert_eq!(s.closed_and_reopened(100, MERIDIAN), "; open #2; ");
    assert_eq!(s.state(), "refused: quota exceeded");
    assert_eq!(s.read(Script::plain(1..2)), "read 1:2 x2; send 1:1");
    assert_eq!(s.read(Script::plain(2..4)), "", "one at a time until it is stored");
    assert_eq!(s.refuse(1..2, "quota exceeded"), "close #2; read 1:1 x1");
    // The second wait is twice the first.
    s.step(Event::Closed { session: 2 });
    assert_eq!(s.tick(199), "");
    assert_eq!(s.tick(1), "open #3");
    s.opened(MERIDIAN);
    s.read(Script::plain(1..2));
    assert_eq!(s.receipts(1..2), "ack 1:1");
    assert_eq!(s.state(), "running");
    assert_eq!(s.read(Script::plain(2..6)), "send 1:2 1:3");
    assert_eq!(s.receipts(2..4), "ack 1:2 1:3; read 1:6 x8; send 1:4 1:5");
}

/// B012 with a peer that stores what stands behind a refused entry and then calls that one a duplicate.
#[test]
fn b012_a_refused_entry_is_not_believed_to_be_a_duplicate() {
    let mut s = Script::sending(PULSAR, 0..4);
    s.refuse(1..2, "too large");
    assert_eq!(s.receipts(0..1), "ack 1:0");
    assert_eq!(s.receipts(2..4), "ack 1:2 1:3; close #1; read 1:1 x1");
    assert_eq!(s.closed_and_reopened(100, PULSAR), "; open #2; ");
    let mut again = Script::plain(1..4);
    again[1].acked = true;
    again[2].acked = true;
    assert_eq!(s.read(again), "Unproven { position: 1:1 }; close #2; read 1:1 x1");
    let reopened = s.closed_and_reopened(200, PULSAR);
    assert_eq!(reopened, "; open #3 as 1100; ", "under a name that the peer knows nothing of");
    assert_eq!(s.read(Script::plain(1..2)), "read 1:2 x2; send 1:1");
    assert_eq!(s.receipt(1, Position::new(70, 9)), "ack 1:1");
    let counters = s.machine.view().counters;
    assert_eq!((counters.unproven_duplicates, counters.duplicates), (1, 0));
}

/// The source's positions begin anew below those of an earlier life: everything would be called a duplicate.
#[test]
fn what_was_never_sent_is_not_believed_to_be_a_duplicate() {
    let mut s = Script::with(bounds(), LinkLimits::default(), None);
    s.start(true);
    s.opened(PULSAR);
    assert_eq!(s.read(Script::plain(0..2)), "read 1:2 x8; send 1:0 1:1");
    assert_eq!(s.receipt(0, DUPLICATE), "Unproven { position: 1:0 }");
    assert_eq!(s.state(), "refused: 1:0 called a duplicate though it was never taken");
    assert_eq!(s.receipt(1, DUPLICATE), "Unproven { position: 1:1 }; close #1; read 1:0 x1");
    assert_eq!(s.closed_and_reopened(100, PULSAR), "; open #2 as 1000; ");
    let mut s = Script::sending(MERIDIAN, 0..1);
    assert_eq!(s.receipt(0, DUPLICATE), "ack 1:0", "a Meridian region says so only of what it has");
}

/// All sends of it were refused: it can't be there, whatever the peer's marks say.
#[test]
fn b012_what_was_only_refused_is_not_believed_to_be_a_duplicate() {
    let mut s = Script::with(bounds(), LinkLimits::default(), None);
    s.start(true);
    s.opened(PULSAR);
    assert_eq!(s.read(Script::plain(0..1)), "read 1:1 x8; send 1:0");
    assert_eq!(s.refuse(0..1, "too large"), "close #1; read 1:0 x1");
    s.closed_and_reopened(100, PULSAR);
    assert_eq!(s.read(Script::plain(0..1)), "read 1:1 x2; send 1:0");
    assert_eq!(s.receipt(0, DUPLICATE), "Unproven { position: 1:0 }; close #2; read 1:0 x1");
}

#[test]
fn sends_without_a_receipt_are_sent_again_and_may_be_duplicates() {
    let mut s = Script::sending(PULSAR, 0..3);
    assert_eq!(s.receipts(0..1), "ack 1:0");
    assert_eq!(s.lose(), "read 1:1 x1");
    assert_eq!(s.state(), "disconnected: connection reset");
    assert_eq!(s.read(Script::plain(1..2)), "");
    assert_eq!(s.tick(100), "open #2");
    assert_eq!(s.opened(PULSAR), "read 1:2 x8; send 1:1");
    assert_eq!(s.read(Script::plain(2..4)), "read 1:4 x8; send 1:2 1:3");
    assert_eq!(s.receipt(1, DUPLICATE), "ack 1:1");
    assert_eq!(s.receipts(2..4), "ack 1:2 1:3");
    let counters = s.machine.view().counters;
    assert_eq!((counters.duplicates, counters.unproven_duplicates, counters.disconnected), (1, 0, 1));
}

/// B005: whatever was begun before a rewind is void.
#[test]
fn b005_a_rewind_wins_over_reads_sends_and_receipts_before_it() {
    let mut s = Script::sending(MERIDIAN, 0..3);
    let (old_session, old_epoch) = (s.session, s.epoch);
    s.lose();
    assert_eq!(s.step(Event::Read { epoch: old_epoch, entries: Script::plain(3..6) }), "");
    let receipt = Receipt { sequence_id: 1, highest_sequence_id: 0, position: Position::new(70, 0) };
    assert_eq!(s.step(Event::Receipts { session: old_session, receipts: vec![receipt] }), "");
    assert_eq!(s.read(Script::plain(0..1)), "", "from the first entry that is not through");
    assert_eq!(s.tick(100), "open #2");
    assert_eq!(s.step(Event::Opened { session: old_session, peer: MERIDIAN }), "");
    assert_eq!(s.step(Event::Lost { session: old_session, reason: "late".into() }), "");
    assert_eq!(s.opened(MERIDIAN), "read 1:1 x8; send 1:0");
    let refusal = SendRefusal { sequence_id: 0, error: "late".into(), undecided: false };
    assert_eq!(s.step(Event::Refused { session: old_session, refusals: vec![refusal] }), "");
    assert_eq!(s.state(), "running");
}

/// B006: receipts are matched by position; those of markers by their number, in any order.
#[test]
fn b006_receipts_are_matched_by_position() {
    let marker = Written { marker: Some(10), ..Written::default() };
    let mut entries = Script::plain(0..3);
    entries[1].entry = marker.at(1, 1);
    let mut s = Script::open(PULSAR);
    assert_eq!(s.grow_with(entries), "read 1:3 x8; send 1:0 1:1 1:2");
    assert_eq!(s.receipts(0..1), "ack 1:0");
    assert_eq!(s.receipts(2..3), "ack 1:2", "the marker's receipt is late");
    let sequence_id = s.sequence(1);
    let receipt = Receipt { sequence_id, highest_sequence_id: MARKER_RECEIPT, position: Position::new(70, 1) };
    assert_eq!(s.step(Event::Receipts { session: 1, receipts: vec![receipt] }), "ack 1:1");
    assert_eq!(s.step(Event::Receipts { session: 1, receipts: vec![receipt] }), "", "again: stale");
    assert_eq!(s.receipts(0..1), "", "again: stale");
    assert_eq!(s.machine.view().counters.stale_receipts, 2);
    assert_eq!(s.state(), "running");
}

#[test]
fn a_message_that_was_passed_over_is_refused() {
    let mut s = Script::sending(PULSAR, 0..3);
    assert_eq!(s.receipts(1..2), "ack 1:1");
    assert_eq!(s.state(), "refused: no receipt for 1 entries before 1:1");
    assert_eq!(s.receipts(2..3), "ack 1:2; close #1; read 1:0 x1");
}

#[test]
fn a_receipt_for_what_was_not_sent_ends_the_session() {
    let mut s = Script::sending(MERIDIAN, 0..2);
    assert_eq!(s.receipts(7..8), "");
    assert_eq!(s.state(), "refused: a receipt (1, 7) for what was not sent");
    assert_eq!(s.receipts(0..2), "ack 1:0 1:1; close #1; read 1:2 x1");
}

#[test]
fn old_peers_answer_in_the_order_of_the_sends() {
    let mut s = Script::open(OLD);
    let mut entries = Script::plain(0..3);
    entries[0].entry = Written { sequence_id: 40, ..Written::default() }.at(1, 0);
    entries[1].entry = Written { sequence_id: 7, ..Written::default() }.at(1, 1);
    assert_eq!(s.grow_with(entries), "read 1:3 x8; send 1:0 1:1 1:2");
    assert_eq!((s.sequence(0), s.sequence(1)), (40, 7), "the peer judges duplicates by the number of the SEND");
    let receipt = |sequence_id| {
        let receipt = Receipt { sequence_id, highest_sequence_id: 0, position: Position::new(70, 0) };
        Event::Receipts { session: 1, receipts: vec![receipt] }
    };
    assert_eq!(s.step(receipt(40)), "ack 1:0");
    assert_eq!(s.step(receipt(2)), "");
    assert_eq!(s.state(), "refused: a receipt (2, 0) for what was not sent");
    assert_eq!(s.step(receipt(7)), "ack 1:1");
    s.now_ms += 5000;
    assert_eq!(s.step(Event::Tick), "close #1; read 1:2 x1", "what is under way is waited for, within a bound");
}

#[test]
fn an_undecided_send_is_no_hole() {
    let mut s = Script::sending(PULSAR, 0..3);
    let sequence_id = s.sequence(0);
    let refusals = vec![SendRefusal { sequence_id, error: "can't say".into(), undecided: true }];
    s.step(Event::Refused { session: 1, refusals });
    let why = "nothing above it is acknowledged: after a crash that would say that it was refused";
    assert_eq!(s.receipts(1..3), "close #1; read 1:0 x1", "{why}");
    s.closed_and_reopened(100, PULSAR);
    assert_eq!(s.read(Script::plain(0..1)), "read 1:1 x2; send 1:0");
    assert_eq!(s.receipt(0, DUPLICATE), "ack 1:0");
    assert_eq!(s.read(Script::plain(1..3)), "read 1:3 x4; send 1:1 1:2");
    assert_eq!(s.receipt(1, DUPLICATE), "ack 1:1");
    assert_eq!(s.receipt(2, DUPLICATE), "ack 1:2");
    assert_eq!(s.machine.view().counters.unproven_duplicates, 0);
}

#[test]
fn a_refusal_by_an_old_peer_voids_the_session_at_once() {
    let mut s = Script::sending(OLD, 0..3);
    assert_eq!(s.refuse(1..2, "no"), "close #1; read 1:0 x1");
    assert_eq!(s.receipts(0..3), "");
}
