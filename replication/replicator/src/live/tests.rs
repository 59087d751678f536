//! Golden scripts of links of topics that keep nothing: events in, effects out.

use super::machine::{HOLD_MS, LiveMachine};
use super::queue::LiveEntry;
use super::words::{LiveEffect, LiveEvent};
use crate::machine::limit::LinkLimits;
use crate::machine::words::{Now, OpenFailure, Peer};
use crate::machine::{Bounds, LinkConfig};
use crate::testing::{LOCAL, Written};
use bytes::Bytes;
use meridian_wire::payload::decode;

const IDLE_MS: u64 = 300_000;
const EAST: Peer = Peer { meridian: true, positions: true, max_entry_bytes: 5 << 20 };

struct Script {
    machine: LiveMachine,
    now_ms: u64,
    session: u64,
}

fn entry(written: Written) -> LiveEntry {
    LiveEntry { messages: 1, payload: written.at(1, 0).payload, hold: None }
}

fn plain(count: usize) -> Vec<LiveEntry> {
    (0..count).map(|number| entry(Written { sequence_id: number as u64 + 1, ..Written::default() })).collect()
}

impl Script {
    fn with(bounds: Bounds, limits: LinkLimits) -> Self {
        let config = LinkConfig { local: LOCAL.into(), remote: "east".into(), bounds, limits, shared: None };
        Self { machine: LiveMachine::new(config, IDLE_MS, 1000), now_ms: 1000, session: 0 }
    }

    fn new() -> Self {
        Self::with(Bounds { max_waiting_entries: 5, ..Bounds::default() }, LinkLimits::default())
    }

    fn open() -> Self {
        let mut script = Self::new();
        assert_eq!(script.step(LiveEvent::Tick), "open #1");
        assert_eq!(script.opened(), "");
        script
    }

    fn opened(&mut self) -> String {
        let session = self.session;
        self.step(LiveEvent::Opened { session, peer: EAST })
    }

    fn answer(&mut self, answers: Vec<Result<(), String>>) -> String {
        let session = self.session;
        self.step(LiveEvent::Answers { session, answers })
    }

    fn lost(&mut self) -> String {
        let session = self.session;
        self.step(LiveEvent::Lost { session, reason: "reset".to_owned() })
    }

    fn failed(&mut self, failure: OpenFailure) -> String {
        let session = self.session;
        self.step(LiveEvent::OpenFailed { session, failure })
    }

    fn publish(&mut self, count: usize) -> String {
        self.step(LiveEvent::Entries(plain(count)))
    }

    fn after(&mut self, ms: u64) -> String {
        self.now_ms += ms;
        self.step(LiveEvent::Tick)
    }

    fn step(&mut self, event: LiveEvent) -> String {
        let effects = self.machine.handle(Now { ms: self.now_ms, jitter_permille: 0 }, event);
        let lines: Vec<String> = effects.into_iter().map(|effect| self.line(effect)).collect();
        lines.join("; ")
    }

    fn line(&mut self, effect: LiveEffect) -> String {
        match effect {
            LiveEffect::Open { session } => {
                self.session = session;
                format!("open #{session}")
            }
            LiveEffect::Close { session } => format!("close #{session}"),
            LiveEffect::BringSchema { version, .. } => format!("bring {version:?}"),
            LiveEffect::Send { session, entries } => {
                assert_eq!(session, self.session);
                for outgoing in &entries {
                    let (metadata, _) = decode(&outgoing.entry).unwrap();
                    assert_eq!(metadata.replicated_from.as_deref(), Some(LOCAL));
                    assert!(metadata.properties.is_empty(), "there is no position to name");
                    assert_eq!(outgoing.source_position, None);
                }
                let ids = entries.iter().map(|outgoing| outgoing.sequence_id.to_string());
                format!("send {}", ids.collect::<Vec<_>>().join(" "))
            }
        }
    }

    fn state(&self) -> String {
        self.machine.view().state.to_string()
    }

    fn dropped(&self) -> u64 {
        self.machine.view().counters.dropped_messages
    }

    /// Entries that it takes now.
    fn wants(&self) -> usize {
        self.machine.wants().0
    }
}

#[test]
fn what_is_published_is_sent_at_once_and_within_the_window() {
    let mut script = Script::open();
    assert_eq!(script.wants(), 5);
    assert_eq!(script.publish(3), "send 0 1 2");
    assert_eq!(script.wants(), 2);
    assert_eq!(script.publish(2), "send 3 4");
    assert_eq!(script.wants(), 0, "V3: the rest stays in the queue");
    assert_eq!(script.answer(vec![Ok(()), Ok(())]), "");
    assert_eq!((script.wants(), script.state().as_str()), (2, "running"));
    let counters = script.machine.view().counters;
    assert_eq!((counters.messages, counters.dropped_messages), (2, 0));
}

#[test]
fn what_came_from_elsewhere_or_is_not_for_the_remote_is_not_sent_and_not_counted() {
    let mut script = Script::open();
    let run = vec![
        entry(Written { replicated_from: Some("south"), ..Written::default() }),
        entry(Written { replicated_from: Some("east"), ..Written::default() }),
        entry(Written { replicate_to: &["__local__"], ..Written::default() }),
        entry(Written { replicate_to: &["north"], ..Written::default() }),
        entry(Written { replicate_to: &["north", "east"], ..Written::default() }),
    ];
    assert_eq!(script.step(LiveEvent::Entries(run.clone())), "send 0", "V2");
    script.lost();
    assert_eq!(script.after(100), "open #2");
    script.failed(OpenFailure::Unreachable("no route".into()));
    let before = script.dropped();
    script.step(LiveEvent::Entries(run));
    assert_eq!(script.dropped() - before, 1, "V2: dropped is only what was meant for it");
}

#[test]
fn messages_wait_for_the_first_attempt_only() {
    let mut script = Script::new();
    assert_eq!(script.step(LiveEvent::Tick), "open #1");
    assert_eq!((script.wants(), script.state().as_str()), (0, "connecting"), "V4: they wait in the queue");
    script.failed(OpenFailure::Unreachable("no route".into()));
    assert_eq!(script.state(), "disconnected: no route");
    assert!(script.wants() > 0, "V4: they are taken");
    assert_eq!(script.publish(3), "");
    assert_eq!(script.dropped(), 3, "V4: and dropped");
    assert_eq!(script.after(100), "open #2");
    assert!(script.wants() > 0, "the remote is known to be away");
    assert_eq!(script.opened(), "");
    assert_eq!(script.publish(1), "send 0");
    assert_eq!((script.dropped(), script.state().as_str()), (3, "running"));
}

#[test]
fn no_wait_for_a_session_lasts_longer_than_its_limit() {
    let mut script = Script::new();
    assert_eq!(script.step(LiveEvent::Tick), "open #1");
    assert_eq!(script.machine.wake_at_ms(), Some(1000 + HOLD_MS));
    assert_eq!(script.after(HOLD_MS), "");
    assert!(script.wants() > 0);
    script.publish(2);
    assert_eq!(script.dropped(), 2);
    assert_eq!(script.opened(), "");
    assert_eq!(script.publish(1), "send 0");
}

#[test]
fn what_is_under_way_when_a_session_ends_is_counted() {
    let mut script = Script::open();
    script.publish(4);
    script.answer(vec![Ok(())]);
    assert_eq!(script.lost(), "");
    assert_eq!((script.dropped(), script.state().as_str()), (3, "disconnected: reset"));
    assert_eq!(script.wants(), 0, "V4: a moment");
    assert_eq!(script.after(100), "open #2");
    assert_eq!(script.opened(), "");
    assert_eq!(script.wants(), 5);
    script.answer(vec![Err("too large".to_owned())]);
    assert_eq!(script.state(), "refused: too large", "an answer to nothing counts nothing");
    assert_eq!(script.dropped(), 3);
}

#[test]
fn a_refused_send_is_dropped_and_the_next_goes_on() {
    let mut script = Script::open();
    script.publish(2);
    script.answer(vec![Err("full".to_owned())]);
    assert_eq!((script.dropped(), script.state().as_str()), (1, "refused: full"));
    script.answer(vec![Ok(())]);
    assert_eq!((script.dropped(), script.state().as_str()), (1, "running"));
}

#[test]
fn a_remote_that_says_nothing_is_dialled_anew() {
    let bounds = Bounds::default();
    let mut script = Script::open();
    script.publish(2);
    assert_eq!(script.after(bounds.stalled_after_ms), "");
    assert_eq!(script.state(), "stalled");
    assert_eq!(script.after(bounds.restart_after_ms - bounds.stalled_after_ms), "close #1");
    let counters = script.machine.view().counters;
    assert_eq!((counters.restarts, counters.dropped_messages), (1, 2));
    let session = script.session;
    script.step(LiveEvent::Closed { session });
    assert_eq!(script.after(100), "open #2");
}

#[test]
fn a_schema_is_waited_for_once_and_then_what_has_it_is_dropped_for_a_while() {
    let with = || vec![entry(Written { schema: Some(&[7]), ..Written::default() })];
    let version = Bytes::from_static(&[7]);
    let mut script = Script::open();
    assert_eq!(script.step(LiveEvent::Entries(with())), "bring b\"\\x07\"");
    assert_eq!(script.wants(), 0, "it waits");
    let outcome = Err("incompatible".to_owned());
    script.step(LiveEvent::Schema { session: 1, version: version.clone(), outcome });
    assert_eq!((script.dropped(), script.state().as_str()), (1, "schema-blocked: incompatible"));
    assert_eq!(script.step(LiveEvent::Entries(with())), "");
    assert_eq!(script.publish(1), "send 0", "others go on");
    assert_eq!(script.dropped(), 2);
    script.after(100);
    assert_eq!(script.state(), "running", "nothing is held back by it now");
    assert_eq!(script.step(LiveEvent::Entries(with())), "bring b\"\\x07\"");
    let outcome = Ok(Some(Bytes::from_static(&[9])));
    assert_eq!(script.step(LiveEvent::Schema { session: 1, version, outcome }), "send 1");
    assert_eq!(script.state(), "running");
}

#[test]
fn a_rate_holds_back_and_the_queue_does_the_rest() {
    let limits = LinkLimits { messages_per_second: 2, ..LinkLimits::default() };
    let mut script = Script::with(Bounds { max_waiting_entries: 50, ..Bounds::default() }, limits);
    script.step(LiveEvent::Tick);
    script.opened();
    assert_eq!(script.publish(3), "send 0 1");
    assert_eq!((script.wants(), script.state().as_str()), (0, "throttled"));
    let wake_ms = script.machine.wake_at_ms().unwrap() - script.now_ms;
    assert_eq!(script.after(wake_ms), "send 2");
    assert_eq!(script.dropped(), 0);
}

#[test]
fn a_link_without_messages_rests_and_the_next_message_wakes_it() {
    let mut script = Script::open();
    script.publish(1);
    script.answer(vec![Ok(())]);
    assert_eq!(script.after(IDLE_MS), "close #1");
    assert_eq!(script.state(), "idle");
    script.step(LiveEvent::Closed { session: 1 });
    assert_eq!((script.machine.wake_at_ms(), script.state().as_str()), (None, "idle"));
    assert_eq!(script.publish(6), "open #2", "V5: held, not dropped");
    assert_eq!(script.opened(), "send 1 2 3 4 5");
    assert_eq!(script.answer(vec![Ok(())]), "send 6");
    assert_eq!(script.after(IDLE_MS), "close #2", "the answers never came");
    assert_eq!(script.dropped(), 5);
}

#[test]
fn a_message_while_it_closes_for_want_of_messages_is_not_lost() {
    let mut script = Script::open();
    assert_eq!(script.after(IDLE_MS), "close #1");
    assert!(script.wants() > 0);
    assert_eq!(script.publish(1), "");
    assert_eq!(script.step(LiveEvent::Closed { session: 1 }), "open #2");
    assert_eq!(script.opened(), "send 0");
}

#[test]
fn it_stops_from_every_state() {
    let mut script = Script::open();
    script.publish(1);
    assert_eq!(script.step(LiveEvent::Stop), "close #1");
    assert!(!script.machine.is_stopped());
    script.step(LiveEvent::Closed { session: 1 });
    assert!(script.machine.is_stopped());
    let mut opening = Script::new();
    opening.step(LiveEvent::Tick);
    assert_eq!(opening.step(LiveEvent::Stop), "close #1");
    let mut waiting = Script::new();
    waiting.step(LiveEvent::Tick);
    waiting.failed(OpenFailure::Refused("no".into()));
    assert_eq!(waiting.state(), "refused: no");
    assert_eq!(waiting.step(LiveEvent::Stop), "");
    assert!(waiting.machine.is_stopped());
}
