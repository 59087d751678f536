//! What one peer has not confirmed of one subscription's state.
//!
//! Role: acks authored here go out at once; what was learned from another peer is held back for a while, because that
//! peer tells everybody itself, and mostly an `upto` has overtaken it by then. While the peer is away nothing is kept but
//! the note that it needs everything.
//! Invariants: O1 whatever is in the state and was not confirmed by the peer is in `fresh`, `relay` or `in_flight`, or
//! `everything` is set; O2 a part in flight that is lost goes back; O3 memory is at most that of the state.
//! Must never know: the state's merging rules but through [`AckState`].

use super::epoch::Origin;
use super::state::AckState;
use meridian_types::Position;
use std::collections::VecDeque;

/// How far a peer is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lag {
    /// Entries acknowledged here, above what is acknowledged without a gap, that it has not confirmed.
    pub entries: u64,
    /// When the oldest change that it has not confirmed was made.
    pub since_ms: Option<u64>,
    /// It needs the whole state.
    pub everything: bool,
    /// What other peers told is held back from it for a while.
    pub relaying: bool,
}

#[derive(Debug)]
struct InFlight {
    version: u64,
    part: AckState,
    since_ms: u64,
    /// It tells the epoch, which says something even if nothing is acknowledged.
    base: bool,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    everything: bool,
    /// The peer has confirmed the state's epoch.
    epoch_confirmed: bool,
    /// Each `upto` that it has confirmed under this epoch, or is known to have by itself ([`Outbox::credit`]).
    confirmed: AckState,
    fresh: AckState,
    relay: AckState,
    in_flight: VecDeque<InFlight>,
    last_version: u64,
    /// Oldest change of `fresh` (or of `everything`) and of `relay`.
    since_ms: Option<u64>,
    relay_since_ms: Option<u64>,
}

impl Outbox {
    pub(super) fn new(now_ms: u64) -> Self {
        Self { everything: true, since_ms: Some(now_ms), ..Self::default() }
    }

    /// The peer needs everything: the epoch is new, or what it has is not known.
    pub(super) fn reset(&mut self, now_ms: u64) {
        let last_version = self.last_version;
        *self = Self { last_version, ..Self::new(now_ms) };
    }

    /// Acks authored here.
    pub(super) fn push(&mut self, new: &AckState, now_ms: u64) {
        if !self.everything {
            self.fresh.merge(new);
        }
        self.since_ms.get_or_insert(now_ms);
    }

    /// Acks that another peer told.
    pub(super) fn push_relay(&mut self, new: &AckState, now_ms: u64) {
        if !self.everything {
            self.relay.merge(new);
            self.relay_since_ms.get_or_insert(now_ms);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.everything && self.fresh.is_empty() && self.relay.is_empty() && self.in_flight.is_empty()
    }

    /// The peer said something of an older epoch.
    pub(super) fn peer_is_behind(&mut self, now_ms: u64) {
        // Otherwise it is being told, or will be.
        if self.epoch_confirmed {
            self.reset(now_ms);
        }
    }

    pub(super) fn wants(&self, relay_before_ms: Option<u64>) -> bool {
        self.everything || !self.fresh.is_empty() || self.relay_due(relay_before_ms)
    }

    /// Something is held back and not due yet.
    pub(super) fn holds_back(&self, relay_before_ms: Option<u64>) -> bool {
        self.relay_since_ms.is_some() && !self.relay_due(relay_before_ms)
    }

    fn relay_due(&self, before_ms: Option<u64>) -> bool {
        self.relay_since_ms.zip(before_ms).is_some_and(|(since_ms, before_ms)| since_ms <= before_ms)
    }

    /// Holds nothing back any longer; whether something was held back.
    pub(super) fn relay_now(&mut self) -> bool {
        let Some(relay_since_ms) = self.relay_since_ms.take() else { return false };
        let none = AckState::new(self.relay.epoch());
        let relay = std::mem::replace(&mut self.relay, none);
        self.fresh.merge(&relay);
        self.since_ms = Some(self.since_ms.map_or(relay_since_ms, |since_ms| since_ms.min(relay_since_ms)));
        true
    }

    /// The next part to send, with its version.
    pub(super) fn take(
        &mut self,
        state: &AckState,
        limits: &super::Limits,
        relay_before_ms: Option<u64>,
        now_ms: u64,
    ) -> Option<(u64, AckState)> {
        if self.in_flight.len() >= limits.max_in_flight || !self.wants(relay_before_ms) {
            return None;
        }
        let base = self.everything;
        if base {
            let since_ms = self.since_ms;
            let confirmed = std::mem::take(&mut self.confirmed);
            *self =
                Self { last_version: self.last_version, fresh: state.clone(), since_ms, confirmed, ..Self::default() };
        } else if self.relay_due(relay_before_ms) {
            self.relay_now();
        }
        self.overtake(state);
        let part = self.fresh.take_part(limits.max_delta_bytes);
        let since_ms = self.since_ms.unwrap_or(now_ms);
        if self.fresh.is_empty() {
            self.since_ms = None;
        }
        self.last_version += 1;
        self.in_flight.push_back(InFlight { version: self.last_version, part: part.clone(), since_ms, base });
        Some((self.last_version, part))
    }

    /// Where the state knows a higher `upto` than waits here, it says in fewer bytes what waits below it.
    fn overtake(&mut self, state: &AckState) {
        let raised: Vec<_> = self
            .fresh
            .origins()
            .iter()
            .filter(|(origin, acks)| {
                !(acks.acked().is_empty() && acks.partial().is_empty()) && state.upto(**origin) > acks.upto()
            })
            .map(|(origin, _)| (*origin, state.upto(*origin)))
            .collect();
        for (origin, upto) in raised {
            self.fresh.raise_upto(origin, upto);
        }
    }

    pub(super) fn confirm(&mut self, version: u64) -> bool {
        self.epoch_confirmed |= self.in_flight.iter().any(|sent| sent.version == version && sent.base);
        if let Some(sent) = self.in_flight.iter().find(|sent| sent.version == version) {
            self.confirmed.merge(&sent.part.uptos());
        }
        let before = self.in_flight.len();
        self.in_flight.retain(|sent| sent.version != version);
        self.in_flight.len() < before
    }

    /// The connection broke: what was in flight may be lost.
    pub(super) fn lost(&mut self) {
        for sent in std::mem::take(&mut self.in_flight) {
            self.everything |= sent.base;
            self.fresh.merge(&sent.part);
            self.since_ms = Some(self.since_ms.map_or(sent.since_ms, |since_ms| since_ms.min(sent.since_ms)));
        }
    }

    pub(super) fn lag(&self, state: &AckState) -> Lag {
        let in_flight: u64 = self.in_flight.iter().map(|sent| sent.part.scattered_entries()).sum();
        let oldest = self.in_flight.iter().map(|sent| sent.since_ms).min();
        Lag {
            entries: match self.everything {
                true => state.scattered_entries(),
                false => in_flight + self.fresh.scattered_entries(),
            },
            since_ms: oldest.into_iter().chain(self.since_ms).min(),
            everything: self.everything,
            relaying: !self.relay.is_empty(),
        }
    }

    /// A peer that is owed nothing has the whole state (O1), whoever told the last of it: a gap that it closed itself may
    /// have raised an `upto` that nobody sends.
    pub(super) fn credit(&mut self, state: &AckState) {
        if self.is_idle() {
            self.confirmed.merge(&state.uptos());
        }
    }

    pub(super) fn confirmed_upto(&self, origin: Origin) -> Position {
        self.confirmed.upto(origin)
    }

    /// The peer itself told the state: it needs nothing.
    pub(super) fn settle_under(&mut self, state: &AckState) {
        let epoch = state.epoch();
        *self = Self {
            last_version: self.last_version,
            epoch_confirmed: true,
            confirmed: state.uptos(),
            fresh: AckState::new(epoch),
            relay: AckState::new(epoch),
            ..Self::default()
        };
    }
}
