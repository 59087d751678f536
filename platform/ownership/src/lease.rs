//! The life of a broker's session as a state machine: when it may serve, when it must stop, when it begins anew.
//!
//! Times are of a monotonic clock that also runs while the process is paused. Invariants:
//! L1 a broker serves only until `asked + ttl - margin` of its last renewal that was answered, counted from when it
//! asked, so that it stops before anybody can take its bundles; L2 it goes on beyond that only while fresh evidence of
//! its peers says that the store is away for all of them, and then nobody can take anything either: who reaches the
//! store again waits a whole time to live before it takes ([`Lease::settled_ms`]), which is why the evidence holds that
//! long whatever a peer says next; L3 once stopped, it serves again only under a new session and a new incarnation, with
//! nothing loaded.
//! Failure: none; every event is answered in every state.
//! Must never know: the store, tasks, sockets.

/// Times of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Time to live of the session.
    pub ttl_ms: u64,
    /// Serving ends so long before the session may.
    pub margin_ms: u64,
    /// Pause between two renewals.
    pub renew_every_ms: u64,
    /// Evidence of peers that the store is away for all holds so long; at most the time to live.
    pub evidence_ms: u64,
}

impl LeaseTimes {
    /// Proportions for a time to live: renewals at a quarter, a margin of a quarter.
    pub fn of(ttl_ms: u64) -> Self {
        Self { ttl_ms, margin_ms: ttl_ms / 4, renew_every_ms: ttl_ms / 4, evidence_ms: ttl_ms }
    }

    fn serves_for_ms(&self) -> u64 {
        self.ttl_ms.saturating_sub(self.margin_ms)
    }
}

/// What peers know of the metadata store while this broker does not reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// More than half of them answered, and none reaches it.
    AwayForAll,
    /// One of them reaches it: this broker is cut off.
    OnlyHere,
    /// Too few answered.
    Unknown,
}

impl Evidence {
    /// From what peers answered: whether each of those that did reaches the store.
    pub fn of(peers: usize, answers: &[bool]) -> Self {
        match answers.iter().any(|reaches| *reaches) {
            true => Evidence::OnlyHere,
            false if answers.len() * 2 > peers => Evidence::AwayForAll,
            false => Evidence::Unknown,
        }
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEvent {
    /// A session was opened and the broker is registered; asked for at that time.
    Opened {
        /// When it was asked for.
        asked_ms: u64,
    },
    /// A renewal that was asked for at that time was answered.
    Renewed {
        /// When it was asked for.
        asked_ms: u64,
    },
    /// A call was not answered in time or refused for the moment.
    Failed,
    /// The store says that the session has ended.
    Expired,
    /// What peers said when they were asked at that time.
    Peers {
        /// When they were asked.
        asked_ms: u64,
        /// What they said.
        evidence: Evidence,
    },
    /// Time has passed.
    Tick,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEffect {
    /// Open a session and register. `same_life`: under the same incarnation, as nothing can have been taken.
    Open {
        /// Keep the incarnation.
        same_life: bool,
    },
    /// Renew the session.
    Renew,
    /// Ask peers whether they reach the store.
    AskPeers,
    /// Serving may begin.
    Serve,
    /// Stop serving at once and close everything.
    Stop(StopReason),
}

/// Why serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StopReason {
    /// The store says that the session has ended.
    SessionExpired,
    /// No renewal was answered in time, and peers reach the store.
    CutOff,
    /// No renewal was answered in time, and peers could not be asked.
    NoContact,
    /// The process stood still for longer than the lease.
    Paused,
}

impl StopReason {
    /// Its word in metrics.
    pub fn word(self) -> &'static str {
        match self {
            StopReason::SessionExpired => "session_expired",
            StopReason::CutOff => "cut_off",
            StopReason::NoContact => "no_contact",
            StopReason::Paused => "paused",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No session; one is asked for at the next tick, under the same life or a new one.
    Absent { same_life: bool },
    /// A session.
    Held,
}

/// A broker's lease.
#[derive(Debug, Clone)]
pub struct Lease {
    times: LeaseTimes,
    state: State,
    serving: bool,
    /// Serving ends here (L1).
    until_ms: u64,
    /// Evidence that nobody reaches the store holds until here (L2).
    away_until_ms: u64,
    last_evidence: Evidence,
    busy: bool,
    asking: bool,
    next_call_ms: u64,
    last_tick_ms: u64,
    /// When the store last answered, and since when it does without a long silence.
    answered_ms: Option<u64>,
    contact_since_ms: u64,
    /// It was silent for long at least once.
    lost_contact: bool,
}

impl Lease {
    /// Of a broker that starts now.
    pub fn new(times: LeaseTimes, now_ms: u64) -> Self {
        Self {
            times,
            state: State::Absent { same_life: true },
            serving: false,
            until_ms: 0,
            away_until_ms: 0,
            last_evidence: Evidence::Unknown,
            busy: false,
            asking: false,
            next_call_ms: now_ms,
            last_tick_ms: now_ms,
            answered_ms: None,
            contact_since_ms: 0,
            lost_contact: false,
        }
    }

    /// Until when the broker may serve, as things stand (L1, L2); 0 = it does not.
    pub fn serves_until_ms(&self) -> u64 {
        if self.serving { self.until_ms.max(self.away_until_ms) } else { 0 }
    }

    /// From when on bundles of brokers that have gone may be taken: after a long silence of the store their owners are given
    /// a whole time to live to come back. `None` = the store never answered.
    pub fn settled_ms(&self) -> Option<u64> {
        self.answered_ms?;
        Some(self.contact_since_ms + if self.lost_contact { self.times.ttl_ms } else { 0 })
    }

    /// Whether serving goes on only because the store is away for everybody.
    pub fn rides_outage(&self, now_ms: u64) -> bool {
        self.serving && now_ms >= self.until_ms && now_ms < self.away_until_ms
    }

    /// One event.
    pub fn step(&mut self, now_ms: u64, event: LeaseEvent) -> Vec<LeaseEffect> {
        let mut effects = Vec::new();
        let paused = now_ms.saturating_sub(self.last_tick_ms) >= self.times.serves_for_ms();
        self.check(now_ms, paused, &mut effects);
        match event {
            LeaseEvent::Opened { asked_ms } => {
                self.busy = false;
                self.state = State::Held;
                self.renewed(now_ms, asked_ms);
                if !self.serving && now_ms < self.until_ms {
                    self.serving = true;
                    effects.push(LeaseEffect::Serve);
                }
            }
            LeaseEvent::Renewed { asked_ms } => {
                self.busy = false;
                // After a stop the session is given up, whatever the store thinks of it (L3).
                if self.state == State::Held {
                    self.renewed(now_ms, asked_ms);
                }
            }
            LeaseEvent::Failed => {
                self.busy = false;
                self.next_call_ms = now_ms + self.times.renew_every_ms / 4;
            }
            LeaseEvent::Expired => self.expired(now_ms, &mut effects),
            LeaseEvent::Peers { asked_ms, evidence } => {
                self.asking = false;
                self.last_evidence = evidence;
                if evidence == Evidence::AwayForAll {
                    self.away_until_ms = asked_ms + self.times.evidence_ms;
                }
            }
            LeaseEvent::Tick => {
                self.last_tick_ms = now_ms;
                self.tick(now_ms, &mut effects);
            }
        }
        effects
    }

    fn renewed(&mut self, now_ms: u64, asked_ms: u64) {
        self.until_ms = self.until_ms.max(asked_ms + self.times.serves_for_ms());
        self.next_call_ms = asked_ms + self.times.renew_every_ms;
        self.away_until_ms = 0;
        let silence_ms = self.answered_ms.map(|answered_ms| now_ms.saturating_sub(answered_ms));
        if silence_ms.is_some_and(|silence_ms| silence_ms >= self.times.ttl_ms / 2) {
            self.lost_contact = true;
            self.contact_since_ms = now_ms;
        } else if silence_ms.is_none() {
            self.contact_since_ms = now_ms;
        }
        self.answered_ms = Some(now_ms);
    }

    fn stop(&mut self, reason: StopReason, effects: &mut Vec<LeaseEffect>) {
        self.serving = false;
        self.state = State::Absent { same_life: false };
        self.until_ms = 0;
        self.away_until_ms = 0;
        effects.push(LeaseEffect::Stop(reason));
    }

    fn check(&mut self, now_ms: u64, paused: bool, effects: &mut Vec<LeaseEffect>) {
        if !self.serving || now_ms < self.until_ms.max(self.away_until_ms) {
            return;
        }
        let reason = match self.last_evidence {
            _ if paused => StopReason::Paused,
            Evidence::OnlyHere => StopReason::CutOff,
            _ => StopReason::NoContact,
        };
        self.stop(reason, effects);
    }

    fn expired(&mut self, now_ms: u64, effects: &mut Vec<LeaseEffect>) {
        self.busy = false;
        self.next_call_ms = now_ms;
        if self.state != State::Held {
            return;
        }
        if self.rides_outage(now_ms) {
            // The store is back and the session did not outlive its absence; nobody may have taken anything yet.
            self.state = State::Absent { same_life: true };
        } else if self.serving {
            self.stop(StopReason::SessionExpired, effects);
        } else {
            self.state = State::Absent { same_life: false };
        }
    }

    fn tick(&mut self, now_ms: u64, effects: &mut Vec<LeaseEffect>) {
        if !self.busy && now_ms >= self.next_call_ms {
            self.busy = true;
            effects.push(match self.state {
                State::Held => LeaseEffect::Renew,
                State::Absent { same_life } => LeaseEffect::Open { same_life },
            });
        }
        // A renewal is overdue: half of what is left is enough to ask peers.
        let half_ms = self.times.serves_for_ms() / 2;
        let ends_ms = self.until_ms.max(self.away_until_ms);
        if self.serving && !self.asking && now_ms + half_ms >= ends_ms {
            self.asking = true;
            effects.push(LeaseEffect::AskPeers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LeaseEffect::{AskPeers, Open, Renew, Serve, Stop};
    use super::LeaseEvent::{Expired, Failed, Opened, Peers, Renewed, Tick};
    use super::*;
    use proptest::prelude::{any, prop, prop_assert, proptest};

    const TIMES: LeaseTimes = LeaseTimes { ttl_ms: 1000, margin_ms: 200, renew_every_ms: 300, evidence_ms: 600 };

    fn held() -> Lease {
        let mut lease = Lease::new(TIMES, 0);
        assert_eq!(lease.step(0, Tick), [Open { same_life: true }]);
        assert_eq!(lease.step(10, Opened { asked_ms: 0 }), [Serve]);
        assert_eq!(lease.serves_until_ms(), 800);
        lease
    }

    #[test]
    fn a_session_is_renewed_in_time() {
        let mut lease = held();
        assert_eq!(lease.step(299, Tick), []);
        assert_eq!(lease.step(300, Tick), [Renew]);
        assert_eq!(lease.step(310, Tick), []);
        assert_eq!(lease.step(350, Renewed { asked_ms: 300 }), []);
        assert_eq!(lease.serves_until_ms(), 1100);
        assert_eq!(lease.settled_ms(), Some(10));
    }

    #[test]
    fn who_is_cut_off_stops_before_the_lease_ends() {
        let mut lease = held();
        assert_eq!(lease.step(300, Tick), [Renew]);
        assert_eq!(lease.step(400, Failed), []);
        assert_eq!(lease.step(480, Tick), [Renew, AskPeers]);
        assert_eq!(lease.step(500, Peers { asked_ms: 480, evidence: Evidence::OnlyHere }), []);
        assert_eq!(lease.step(801, Tick)[0], Stop(StopReason::CutOff));
        assert_eq!(lease.serves_until_ms(), 0);
        // A late answer gives nothing back (L3).
        assert_eq!(lease.step(810, Renewed { asked_ms: 480 }), []);
        assert_eq!(lease.serves_until_ms(), 0);
        assert_eq!(lease.step(2000, Tick), [Open { same_life: false }]);
        assert_eq!(lease.step(2010, Opened { asked_ms: 2000 }), [Serve]);
    }

    #[test]
    fn a_pause_ends_it_before_anything_else_is_done() {
        let mut lease = held();
        assert_eq!(lease.step(60_000, Renewed { asked_ms: 20 }), [Stop(StopReason::Paused)]);
        assert_eq!(lease.step(60_001, Tick), [Open { same_life: false }]);
    }

    #[test]
    fn while_the_store_is_away_for_all_serving_goes_on() {
        let mut lease = held();
        assert_eq!(lease.step(300, Tick), [Renew]);
        assert_eq!(lease.step(400, Failed), []);
        assert_eq!(lease.step(475, Tick), [Renew, AskPeers]);
        assert_eq!(lease.step(500, Peers { asked_ms: 475, evidence: Evidence::AwayForAll }), []);
        assert_eq!(lease.step(805, Tick), [AskPeers]);
        assert!(lease.rides_outage(805));
        assert_eq!(lease.step(810, Peers { asked_ms: 805, evidence: Evidence::AwayForAll }), []);
        assert_eq!(lease.serves_until_ms(), 1405);
        assert_eq!(lease.step(820, Failed), []);
        assert_eq!(lease.step(1300, Tick), [Renew, AskPeers]);
        assert_eq!(lease.step(1310, Expired), []);
        assert_eq!(lease.step(1311, Tick), [Open { same_life: true }]);
        assert_eq!(lease.step(1320, Opened { asked_ms: 1311 }), []);
        assert_eq!(lease.serves_until_ms(), 2111);
        assert_eq!(lease.settled_ms(), Some(2320), "others are given a time to live to come back");
    }

    #[test]
    fn a_peer_that_has_the_store_back_first_stops_nobody() {
        let mut lease = held();
        assert_eq!(lease.step(300, Tick), [Renew]);
        assert_eq!(lease.step(475, Tick), [AskPeers]);
        assert_eq!(lease.step(480, Peers { asked_ms: 475, evidence: Evidence::AwayForAll }), []);
        assert_eq!(lease.step(850, Tick), [AskPeers]);
        // The peer waits a time to live before it takes anything, counted from after 475.
        assert_eq!(lease.step(860, Peers { asked_ms: 850, evidence: Evidence::OnlyHere }), []);
        assert!(lease.rides_outage(860));
        assert_eq!(lease.step(1000, Failed), []);
        assert_eq!(lease.step(1070, Renewed { asked_ms: 1000 }), []);
        assert_eq!(lease.serves_until_ms(), 1800);
        // Who does not reach it by then stops.
        let mut lease = held();
        lease.step(480, Peers { asked_ms: 475, evidence: Evidence::AwayForAll });
        lease.step(860, Peers { asked_ms: 850, evidence: Evidence::OnlyHere });
        assert_eq!(lease.step(1074, Tick)[0], Renew);
        assert_eq!(lease.step(1075, Tick), [Stop(StopReason::CutOff)]);
    }

    #[test]
    fn evidence_grows_old() {
        let mut lease = held();
        lease.step(300, Tick);
        lease.step(500, Peers { asked_ms: 480, evidence: Evidence::AwayForAll });
        lease.step(700, Tick);
        assert_eq!(lease.step(1079, Tick), []);
        assert_eq!(lease.step(1080, Tick), [Stop(StopReason::NoContact)]);
    }

    #[test]
    fn an_expired_session_ends_it_at_once() {
        let mut lease = held();
        assert_eq!(lease.step(300, Tick), [Renew]);
        assert_eq!(lease.step(310, Expired), [Stop(StopReason::SessionExpired)]);
        assert_eq!(lease.step(311, Tick), [Open { same_life: false }]);
    }

    #[test]
    fn one_peer_that_reaches_the_store_is_enough() {
        assert_eq!(Evidence::of(3, &[false, true]), Evidence::OnlyHere);
        assert_eq!(Evidence::of(3, &[false, false]), Evidence::AwayForAll);
        assert_eq!(Evidence::of(4, &[false, false]), Evidence::Unknown);
        assert_eq!(Evidence::of(1, &[]), Evidence::Unknown);
    }

    fn event(kind: u8, now_ms: u64, back_ms: u64) -> LeaseEvent {
        let asked_ms = now_ms.saturating_sub(back_ms);
        match kind % 8 {
            0 => Opened { asked_ms },
            1 => Renewed { asked_ms },
            2 => Failed,
            3 => Expired,
            4 => Peers { asked_ms, evidence: Evidence::OnlyHere },
            5 => Peers { asked_ms, evidence: Evidence::Unknown },
            _ => Tick,
        }
    }

    proptest! {
        // L1 and L3: without evidence of an outage, serving never reaches beyond the last answered call's lease, and a new
        // begin after a stop is a new life.
        #[test]
        fn nothing_is_served_beyond_the_lease(steps in prop::collection::vec((any::<u8>(), 0u64..500, 0u64..1500), 0..200)) {
            let mut lease = Lease::new(TIMES, 0);
            let (mut now_ms, mut answered_ms, mut stopped) = (0, 0u64, false);
            for (kind, passed_ms, back_ms) in steps {
                now_ms += passed_ms;
                let event = event(kind, now_ms, back_ms);
                if let Opened { asked_ms } | Renewed { asked_ms } = event {
                    answered_ms = answered_ms.max(asked_ms);
                }
                for effect in lease.step(now_ms, event) {
                    match effect {
                        Stop(_) => stopped = true,
                        Open { same_life } => prop_assert!(!stopped || !same_life),
                        Serve => stopped = false,
                        _ => {}
                    }
                }
                prop_assert!(lease.serves_until_ms() <= answered_ms + TIMES.ttl_ms - TIMES.margin_ms);
            }
        }
    }
}
