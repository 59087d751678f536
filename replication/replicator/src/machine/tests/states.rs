//! Golden scripts of what holds a link back, and what it says of itself then.

use super::{MERIDIAN, Script, at, bounds};
use crate::machine::limit::{LinkLimits, NamespaceLimit};
use crate::machine::state::LinkState;
use crate::machine::words::{Event, OpenFailure, Peer, ReadEntry};
use crate::testing::Written;
use bytes::Bytes;
use std::sync::Arc;

/// B014, B015: one order out of the source; a schema that the remote refuses stops the link with its reason.
#[test]
fn b015_entries_wait_behind_a_schema() {
    let with = |schema, entry| Written { schema, ..Written::default() }.at(1, entry);
    let schemas: [Option<&'static [u8]>; 4] = [Some(b"a"), Some(b"b"), None, Some(b"a")];
    let entries = || -> Vec<ReadEntry> {
        let all = schemas.iter().zip(0..);
        all.map(|(schema, entry)| ReadEntry { entry: with(*schema, entry), acked: false, hold: None }).collect()
    };
    let mut s = Script::open(MERIDIAN);
    assert_eq!(s.grow_with(entries()), "bring schema b\"a\"");
    let answer = |version: &'static [u8], outcome| Event::Schema { session: 1, version: version.into(), outcome };
    assert_eq!(s.step(answer(b"a", Ok(None))), "bring schema b\"b\"; read 1:4 x8; send 1:0");
    assert_eq!(s.step(answer(b"b", Err("incompatible".into()))), "");
    assert_eq!(s.state(), "schema-blocked: incompatible");
    assert_eq!(s.receipts(0..1), "ack 1:0");
    assert_eq!(s.state(), "schema-blocked: incompatible");
    assert_eq!(s.tick(99), "");
    assert_eq!(s.tick(1), "bring schema b\"b\"");
    assert_eq!(s.step(answer(b"b", Ok(Some(Bytes::from_static(b"z"))))), "send 1:1 1:2 1:3");
    assert_eq!(s.state(), "running");
}

#[test]
fn a_limit_holds_the_link_back_and_says_so() {
    let limits = LinkLimits { messages_per_second: 2, ..LinkLimits::default() };
    let mut s = Script::with(bounds(), limits, None);
    s.start(true);
    s.opened(MERIDIAN);
    assert_eq!(s.read(Script::plain(0..5)), "read 1:5 x8; send 1:0 1:1");
    assert_eq!((s.state(), s.machine.wake_at_ms()), ("throttled".into(), Some(1010)));
    assert_eq!(s.tick(10), "send 1:2", "a bucket lends one entry");
    assert_eq!(s.machine.wake_at_ms(), Some(1501));
    assert_eq!(s.tick(490), "");
    assert_eq!(s.step(Event::SetLimits(LinkLimits::default())), "send 1:3 1:4");
    assert_eq!(s.state(), "running");
}

#[test]
fn links_share_the_limit_of_their_namespace() {
    let shared = Arc::new(NamespaceLimit::default());
    shared.set(3, 0, 1000);
    let mut links: Vec<Script> = (0..2)
        .map(|_| {
            let mut s = Script::with(bounds(), LinkLimits::default(), Some(shared.clone()));
            s.start(true);
            s.opened(MERIDIAN);
            s
        })
        .collect();
    assert_eq!(links[0].read(Script::plain(0..2)), "read 1:2 x8; send 1:0 1:1");
    assert_eq!(links[1].read(Script::plain(0..5)), "send 1:0");
    assert_eq!(links[1].state(), "throttled");
}

/// B018: what expires before it is copied is counted, at the moment it would have been sent.
#[test]
fn b018_expired_messages_are_counted() {
    let mut s = Script::with(bounds(), LinkLimits { ttl_ms: Some(500), ..LinkLimits::default() }, None);
    s.start(false);
    let aged = |entry, broker_time_ms| {
        let entry = Written { broker_time_ms, ..Written::default() }.at(1, entry);
        ReadEntry { entry, acked: false, hold: None }
    };
    s.read(vec![aged(0, 900)]);
    s.step(Event::OpenFailed { session: 1, failure: OpenFailure::Unreachable("no route".into()) });
    assert_eq!((s.state(), s.machine.view().oldest_ms), ("disconnected: no route".into(), Some(900)));
    s.now_ms = 1450;
    s.step(Event::Tick);
    assert_eq!(s.opened(MERIDIAN), "ack 1:0; read 1:1 x8");
    assert_eq!(s.read(vec![aged(1, 950), aged(2, 951)]), "ack 1:1; read 1:3 x8; send 1:2");
    assert_eq!(s.machine.view().counters.messages_expired, 2);
}

/// What was refused may expire or be skipped: then there is no trouble any more.
#[test]
fn trouble_is_over_when_nothing_is_left() {
    let mut s = Script::sending(MERIDIAN, 0..1);
    s.refuse(0..1, "full");
    s.closed_and_reopened(100, MERIDIAN);
    assert_eq!(s.state(), "refused: full");
    let gone = ReadEntry { acked: true, ..Script::plain(0..1).remove(0) };
    assert_eq!(s.read(vec![gone]), "read 1:1 x2");
    assert_eq!(s.read(Vec::new()), "await 1:1");
    assert_eq!(s.state(), "running");
}

#[test]
fn what_stays_here_is_acknowledged_when_all_before_it_is_through() {
    let mut entries = Script::plain(0..4);
    entries[1].entry = Written { replicated_from: Some("east"), ..Written::default() }.at(1, 1);
    entries[2].entry = Written { replicate_to: &["south"], ..Written::default() }.at(1, 2);
    let mut s = Script::open(MERIDIAN);
    assert_eq!(s.grow_with(entries), "read 1:4 x8; send 1:0 1:3");
    assert_eq!(s.receipts(0..1), "ack 1:0 1:1 1:2");
    let counters = s.machine.view().counters;
    assert_eq!((counters.skipped_foreign, counters.skipped_not_targeted), (1, 1));
}

#[test]
fn markers_of_the_remote_go_to_the_controller_once() {
    let marker = Written { marker: Some(11), replicated_from: Some("east"), ..Written::default() };
    let entries = || {
        let mut entries = Script::plain(0..2);
        entries[1].entry = marker.at(1, 1);
        entries
    };
    let mut s = Script::open(MERIDIAN);
    assert_eq!(s.grow_with(entries()), "marker 11 at 1:1; read 1:2 x8; send 1:0");
    s.lose();
    s.read(Script::plain(0..1));
    s.tick(100);
    s.opened(MERIDIAN);
    assert_eq!(s.read(entries().split_off(1)), "read 1:2 x8");
    assert_eq!(s.receipts(0..1), "ack 1:0 1:1");
}

#[test]
fn unreadable_entries_are_counted_and_passed() {
    let mut entries = Script::plain(0..3);
    entries[0].entry.payload = Bytes::from_static(b"no message");
    let mut damaged = entries[1].entry.payload.to_vec();
    // In the checksum: the metadata can still be read.
    damaged[3] ^= 1;
    entries[1].entry.payload = damaged.into();
    let mut s = Script::open(MERIDIAN);
    let text = s.grow_with(entries);
    assert!(text.starts_with("ack 1:0 1:1; Undecodable") && text.ends_with("; send 1:2"), "{text}");
    assert_eq!(s.machine.view().counters.undecodable, 2);
}

/// B011: no answer is not the same as lag.
#[test]
fn b011_silence_is_noticed_and_ended() {
    let mut s = Script::sending(MERIDIAN, 0..2);
    assert_eq!(s.machine.wake_at_ms(), Some(11_000));
    s.tick(10_000);
    assert_eq!((s.machine.view().state, s.machine.view().since_ms), (LinkState::Stalled, 1000));
    assert_eq!(s.machine.wake_at_ms(), Some(31_000));
    assert_eq!(s.tick(20_000), "Restarted { after_ms: 30000 }; close #1; read 1:0 x1");
    assert_eq!(s.closed_and_reopened(100, MERIDIAN), "; open #2; ");
    assert_eq!(s.state(), "stalled", "until something gets through");
    assert_eq!(s.read(Script::plain(0..2)), "send 1:0");
    assert_eq!(s.receipts(0..1), "ack 1:0; read 1:2 x4; send 1:1");
    assert_eq!((s.state(), s.machine.view().counters.restarts), ("running".into(), 1));
}

/// B032: a topic of another shape is never copied into.
#[test]
fn b032_a_partition_mismatch_is_a_state() {
    let mut s = Script::started();
    let failure = OpenFailure::PartitionMismatch { local: 4, remote: 0 };
    assert_eq!(s.step(Event::OpenFailed { session: 1, failure }), "");
    assert_eq!(s.state(), "partition-mismatch: 4 here, 0 there");
    assert_eq!(s.tick(100), "open #2");
    s.opened(MERIDIAN);
    assert_eq!(s.state(), "running");
}

#[test]
fn an_entry_above_the_remotes_limit_stops_the_link_with_its_reason() {
    let mut s = Script::started();
    s.read(Vec::new());
    s.opened(Peer { max_entry_bytes: 1000, ..MERIDIAN });
    let entry = Written { bytes: 20_000, ..Written::default() }.at(1, 0);
    let text = s.grow_with(vec![ReadEntry { entry, acked: false, hold: None }]);
    assert_eq!(text, "close #1; read 1:0 x1");
    assert!(s.state().starts_with("refused: 1:0 has 20"), "{}", s.state());
}

#[test]
fn messages_that_were_removed_before_they_were_copied_are_announced() {
    let mut s = Script::sending(MERIDIAN, 0..2);
    assert_eq!(s.receipts(0..2), "ack 1:0 1:1");
    let text = s.grow(7..8);
    assert_eq!(text, "Gap { messages: 5, before: 1:7 }; read 1:8 x8; send 1:7");
    let view = s.machine.view();
    assert_eq!((view.counters.gaps, view.counters.gap_messages), (1, 5));
    assert!(view.last_notice.is_some());
}

#[test]
fn a_moved_cursor_starts_the_link_there() {
    let mut s = Script::sending(MERIDIAN, 0..3);
    assert_eq!(s.step(Event::CursorMoved { first: at(50) }), "close #1; read 1:50 x1");
    assert_eq!(s.closed_and_reopened(100, MERIDIAN), "; open #2; ");
    assert_eq!(s.read(Script::plain(50..51)), "read 1:51 x8; send 1:50");
    assert_eq!(s.machine.view().counters.gaps, 0, "that was wanted");
}

#[test]
fn a_stopped_link_does_nothing_more() {
    let mut s = Script::sending(MERIDIAN, 0..3);
    assert_eq!(s.step(Event::Stop), "", "what is under way gets its answer");
    assert_eq!(s.grow(3..5), "", "nothing more is sent");
    assert_eq!(s.receipts(0..3), "ack 1:0 1:1 1:2; close #1");
    assert_eq!(s.receipts(0..3), "");
    assert_eq!(s.step(Event::Closed { session: 1 }), "");
    assert_eq!((s.tick(100_000), s.machine.wake_at_ms()), (String::new(), None));
    assert_eq!(s.state(), "stopped");
}

#[test]
fn a_stop_ends_whatever_the_remote_does() {
    let mut s = Script::sending(MERIDIAN, 0..3);
    s.step(Event::Stop);
    assert_eq!(s.machine.wake_at_ms(), Some(3000));
    assert_eq!(s.tick(2000), "close #1");
    let mut s = Script::sending(MERIDIAN, 0..3);
    s.step(Event::Stop);
    s.lose();
    assert!(s.machine.is_stopped());
    let mut s = Script::started();
    assert_eq!(s.step(Event::Stop), "close #1", "the opening is given up");
    assert!(s.machine.is_stopped());
}

#[test]
fn a_log_that_cannot_be_read_is_a_state() {
    let mut s = Script::open(MERIDIAN);
    s.step(Event::Grown { epoch: s.epoch });
    let epoch = s.epoch;
    assert_eq!(s.step(Event::ReadFailed { epoch, error: "no bookie".into() }), "");
    assert_eq!(s.state(), "unreadable: no bookie");
    assert_eq!(s.tick(100), "read 1:0 x8");
    s.read(Script::plain(0..1));
    assert_eq!(s.state(), "running");
}
