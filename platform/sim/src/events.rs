//! What can happen, and the queue of it.
//!
//! Invariants: events of the same moment happen in the order in which they were made (D1).

use crate::site::Region;
use meridian_failover::ActiveRecord;
use meridian_replicator::machine::words::{self, Outgoing};
use meridian_topic::sim::Answer;
use meridian_types::Position;
use std::collections::BTreeMap;

/// What regions say to each other beside data.
#[derive(Debug, Clone)]
pub(crate) enum Control {
    /// A part of acknowledgements.
    Acks { sub: usize, version: u64, bytes: Vec<u8> },
    /// It is stored.
    Confirmed { sub: usize, version: u64 },
    /// Tell me everything.
    Resync,
    /// It will be told.
    ResyncHeard,
    /// Learn this record, answer yours.
    Learn { record: ActiveRecord, token: u64 },
    /// The answer.
    Learned { record: ActiveRecord, token: u64 },
}

/// A step of a planned switch that takes time.
#[derive(Debug, Clone)]
pub(crate) enum SwitchStep {
    Freezing { since_ms: u64 },
    Feed(meridian_failover::switch::Event),
    TellTimeout { token: u64 },
    Tick,
}

/// Something happens.
#[derive(Debug)]
pub(crate) enum Event {
    Chaos,
    /// The process with that number does what it does from time to time.
    Gather(Region, u64),
    Flush(Region, u64),
    Beat(Region, u64),
    Confirm(Region, u64),
    /// The first append under way is durable.
    Stored(Region, u64),
    Restart(Region),
    /// For the machine of a link.
    Link {
        region: Region,
        remote: Region,
        number: u64,
        event: words::Event,
    },
    LinkTick {
        region: Region,
        remote: Region,
        number: u64,
    },
    /// An opening, a send, a close arrives at the remote.
    OpenArrives(u64),
    SendArrives(u64, Outgoing),
    CloseArrives(u64),
    /// An answer arrives at the source.
    AnswerArrives(u64, words::Event),
    /// The target notices that a session is gone.
    TargetLost(u64),
    ControlArrives {
        from: Region,
        to: Region,
        session: u64,
        message: Control,
    },
    ControlUp(Region, Region),
    Heal(Region, Region, u64),
    ClientWork(usize),
    ClientAnswer {
        client: usize,
        attached: u64,
        answer: Answer,
    },
    ReaderWork(usize),
    ReaderAcks {
        sub: usize,
        region: Region,
        attached: u64,
        acks: Vec<(Position, u64)>,
        cumulative: bool,
    },
    /// A moved cursor is put in its place.
    SeekDone {
        region: Region,
        life: u64,
        sub: usize,
        to: Position,
    },
    /// A new epoch is followed.
    Follow {
        region: Region,
        life: u64,
        sub: usize,
    },
    Switch {
        region: Region,
        number: u64,
        step: SwitchStep,
    },
    Settled,
}

/// The clock and what is to come.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) now_ms: u64,
    events: BTreeMap<(u64, u64), Event>,
    made: u64,
}

impl Queue {
    pub(crate) fn at(now_ms: u64) -> Self {
        Self { now_ms, ..Self::default() }
    }

    pub(crate) fn after(&mut self, after_ms: u64, event: Event) {
        self.made += 1;
        self.events.insert((self.now_ms + after_ms, self.made), event);
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        let ((at_ms, _), event) = self.events.pop_first()?;
        self.now_ms = self.now_ms.max(at_ms);
        Some(event)
    }
}
