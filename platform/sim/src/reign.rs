//! Fail-over in a region: records told and learned, switches driven, tails set aside.
//!
//! Role: the shell of [`meridian_failover::NamespaceState`] and [`Switch`], as the service is in a broker.

use crate::events::{Event, SwitchStep};
use crate::planted::Planted;
use crate::site::{NAMES, Region, id_of, named};
use crate::world::World;
use meridian_failover::record::Learned;
use meridian_failover::switch::{Effect, Event as SwitchEvent, Switch};
use meridian_failover::{ActiveRecord, Epoch, FailoverError, NamespaceState, Phase, PublishRule};
use meridian_types::Position;

/// How long a planned switch may hold publishes.
const DRAIN_MS: u64 = 1500;
/// How long a freeze waits for what consumers hold.
const SETTLE_MS: u64 = 60;
/// After so long without an answer a target was not told.
const TELL_MS: u64 = 400;
/// How long an active region waits for a peer's word after its start.
const CONFIRM_MS: u64 = 1500;

/// A planned switch under way.
pub(crate) struct SwitchRun {
    pub(crate) number: u64,
    switch: Switch,
    current: ActiveRecord,
    pub(crate) to: Region,
    /// Token of the telling that is not answered.
    pub(crate) told: Option<u64>,
}

impl SwitchRun {
    pub(crate) fn next_epoch(&self) -> Epoch {
        Epoch { counter: self.current.epoch.counter + 1, region: id_of(self.to) }
    }
}

impl World {
    /// Takes a record into force: stored first, then acted on. Answers the record in force.
    pub(crate) fn learn(&mut self, region: Region, told: &ActiveRecord) -> Option<ActiveRecord> {
        let now_ms = self.now_ms();
        let site = &mut self.sites[region];
        let state = site.live.as_mut()?.state.as_mut()?;
        let before = state.record.epoch;
        let learned = state.learn(NAMES[region], told);
        let record = state.record.clone();
        if record.epoch < before {
            self.oracle.violated(now_ms, format!("epochs: {} goes back to {}", NAMES[region], record.epoch));
        }
        if let Learned::Newer { deposed } = learned {
            site.disk.state = Some(state.encode());
            self.note(|| format!("{} learns epoch {}, deposed {deposed}", NAMES[region], record.epoch));
            self.rule_changed(region);
        }
        Some(record)
    }

    /// Closes whom the rule refuses, and links so that they are asked for their epoch anew.
    fn rule_changed(&mut self, region: Region) {
        if self.planted == Planted::EpochsIgnored {
            return;
        }
        if matches!(self.rule(region), PublishRule::Moved { .. }) {
            self.move_clients(region);
        }
        let incoming = self.conns.values().filter(|conn| conn.to == region);
        let keys: Vec<_> = incoming.filter_map(|conn| conn.at_target).collect();
        let life = self.sites[region].life;
        for (_, key) in keys.into_iter().filter(|(of, _)| *of == life) {
            if let Some(live) = self.live(region) {
                live.topic.close(key);
            }
        }
        self.drain_answers(region);
        if let Some(live) = self.live(region) {
            live.gate_epoch = live.state.as_ref().map(|state| state.record.epoch);
        }
    }

    /// The sessions of a link end, and it begins again where its cursor stands.
    fn start_link_anew(&mut self, region: Region, remote: Region) {
        let outgoing = self.conns.iter().filter(|(_, conn)| conn.from == region && conn.to == remote && !conn.closed);
        let numbers: Vec<u64> = outgoing.map(|(number, _)| *number).collect();
        for number in numbers {
            let after_ms = self.travel_ms();
            self.queue.after(after_ms, Event::CloseArrives(number));
        }
        self.start_link(region, remote);
    }

    fn move_clients(&mut self, region: Region) {
        let unsettled = self.live(region).is_some_and(|live| !live.in_flight.is_empty());
        for number in 0..self.clients.len() {
            let client = &self.clients[number];
            let Some(key) = client.key.filter(|_| client.region == region) else { continue };
            if unsettled {
                self.make_uncertain(number);
            }
            if let Some(live) = self.live(region) {
                live.topic.close(key);
            }
        }
        if let Some(live) = self.live(region) {
            live.subs.iter_mut().for_each(|sub| sub.fence());
        }
        self.drain_answers(region);
    }

    /// From time to time: peers are told and asked, tails set aside.
    pub(crate) fn beat(&mut self, region: Region) {
        let life = self.sites[region].life;
        let after_ms = self.rng.between(100, 300);
        self.queue.after(after_ms, Event::Beat(region, life));
        for peer in self.others(region) {
            self.tell(region, peer, 0);
        }
        let state = self.sites[region].live.as_ref().and_then(|live| live.state.as_ref());
        if state.is_some_and(|state| state.tail_pending) {
            self.cut_tail(region);
        }
    }

    /// Nobody answered in time: the active region goes on.
    pub(crate) fn confirm_timeout(&mut self, region: Region) {
        let now_ms = self.now_ms();
        let Some(live) = self.live(region) else { return };
        let over = now_ms >= live.state_since_ms + CONFIRM_MS;
        if let Some(state) = live.state.as_mut().filter(|_| over) {
            state.confirmed = true;
        }
    }

    pub(crate) fn await_confirmation(&mut self, region: Region) {
        let life = self.sites[region].life;
        self.queue.after(CONFIRM_MS, Event::Confirm(region, life));
    }

    /// Makes a region active without asking the one that is.
    pub(crate) fn force(&mut self, region: Region) {
        let now_ms = self.now_ms();
        let state = self.sites[region].live.as_ref().and_then(|live| live.state.as_ref());
        let Some(state) = state.filter(|state| state.record.active != NAMES[region]) else { return };
        let record = state.record.next(NAMES[region], true, now_ms);
        self.coverage.forced += 1;
        self.note(|| format!("{} is made active by force", NAMES[region]));
        self.learn(region, &record);
        self.others(region).for_each(|peer| self.tell(region, peer, 0));
    }

    /// Begins a planned switch away from a region.
    pub(crate) fn begin_switch(&mut self, region: Region, to: Region) {
        let now_ms = self.now_ms();
        let number = self.number();
        let reachable = self.way(region, to).control_up;
        let theirs = self.sites[to].live.as_ref().and_then(|live| live.state.as_ref()).map(|state| state.record.epoch);
        let Some(live) = self.live(region).filter(|live| live.switch.is_none() && reachable) else { return };
        let Some(state) = live.state.as_ref().filter(|state| state.record.active == NAMES[region] && state.confirmed)
        else {
            return;
        };
        // Nothing is held for a target that does not answer with the same epoch.
        if theirs != Some(state.record.epoch) || to == region {
            return;
        }
        let current = state.record.clone();
        let (switch, effects) = Switch::begin(&current, NAMES[to], now_ms, DRAIN_MS);
        live.switch = Some(SwitchRun { number, switch, current, to, told: None });
        self.note(|| format!("{} begins a switch to {}", NAMES[region], NAMES[to]));
        self.switch_effects(region, number, effects);
    }

    pub(crate) fn feed_switch(&mut self, region: Region, event: SwitchEvent) {
        let now_ms = self.now_ms();
        let Some(run) = self.live(region).and_then(|live| live.switch.as_mut()) else { return };
        let number = run.number;
        let effects = run.switch.handle(event, now_ms);
        self.switch_effects(region, number, effects);
    }

    pub(crate) fn switch_step(&mut self, region: Region, number: u64, step: SwitchStep) {
        let now_ms = self.now_ms();
        let Some(live) = self.live(region) else { return };
        let Some(run) = live.switch.as_mut().filter(|run| run.number == number) else { return };
        match step {
            SwitchStep::Feed(event) => self.feed_switch(region, event),
            SwitchStep::Tick => {
                if run.switch.due_ms().is_some_and(|due_ms| due_ms <= now_ms) {
                    self.feed_switch(region, SwitchEvent::Tick);
                }
            }
            SwitchStep::TellTimeout { token } => {
                if run.told.take_if(|told| *told == token).is_some() {
                    self.feed_switch(region, SwitchEvent::NotTold);
                }
            }
            SwitchStep::Freezing { since_ms } => {
                let held = live.subs.iter().any(|sub| !sub.outstanding.is_empty());
                let frozen = live.in_flight.is_empty() && (!held || now_ms >= since_ms + SETTLE_MS);
                match frozen {
                    true => self.feed_switch(region, SwitchEvent::Frozen),
                    false => self.later(region, number, 3, SwitchStep::Freezing { since_ms }),
                }
            }
        }
    }

    fn later(&mut self, region: Region, number: u64, after_ms: u64, step: SwitchStep) {
        self.queue.after(after_ms, Event::Switch { region, number, step });
    }

    fn switch_effects(&mut self, region: Region, number: u64, effects: Vec<Effect>) {
        let now_ms = self.now_ms();
        for effect in effects {
            self.switch_effect(region, number, effect);
        }
        let run = self.live(region).and_then(|live| live.switch.as_ref()).filter(|run| run.number == number);
        if let Some(due_ms) = run.and_then(|run| run.switch.due_ms()) {
            self.later(region, number, due_ms.saturating_sub(now_ms).max(1), SwitchStep::Tick);
        }
    }

    fn switch_effect(&mut self, region: Region, number: u64, effect: Effect) {
        let now_ms = self.now_ms();
        match effect {
            Effect::Freeze => {
                let Some(live) = self.live(region) else { return };
                let (Some(state), Some(run)) = (&mut live.state, &live.switch) else { return };
                let to = NAMES[run.to].to_owned();
                state.phase = Phase::Draining { to, begun_ms: now_ms, deadline_ms: now_ms + DRAIN_MS };
                self.later(region, number, 1, SwitchStep::Freezing { since_ms: now_ms });
            }
            Effect::Poll => {
                let (entries, acks) = self.left(region);
                let event = SwitchEvent::Left { entries, acks };
                self.later(region, number, 1, SwitchStep::Feed(event));
            }
            Effect::Store(record) => {
                let failed = !self.healed && self.rng.hits(50);
                let stored = if failed { None } else { self.hand_over(region, &record) };
                let event = stored.map_or_else(
                    || SwitchEvent::NotStored(FailoverError::Host("the store does not answer".to_owned())),
                    |()| SwitchEvent::Stored,
                );
                self.later(region, number, 1, SwitchStep::Feed(event));
            }
            Effect::Tell(record) => {
                let token = self.number();
                let Some(run) = self.live(region).and_then(|live| live.switch.as_mut()) else { return };
                run.told = Some(token);
                let to = run.to;
                self.say(region, to, crate::events::Control::Learn { record, token });
                self.later(region, number, TELL_MS, SwitchStep::TellTimeout { token });
            }
            Effect::Thaw => {
                if let Some(state) = self.live(region).and_then(|live| live.state.as_mut()) {
                    state.phase = Phase::Steady;
                }
                self.dispatch(region);
                self.later(region, number, 1, SwitchStep::Feed(SwitchEvent::Thawed));
            }
            Effect::Move => {
                self.rule_changed(region);
                self.others(region).for_each(|peer| self.tell(region, peer, 0));
                self.later(region, number, 1, SwitchStep::Feed(SwitchEvent::Moved));
            }
            Effect::End(outcome) => {
                let done = outcome.is_ok();
                *(if done { &mut self.coverage.switches } else { &mut self.coverage.switches_given_up }) += 1;
                self.note(|| format!("{} ends its switch: {outcome:?}", NAMES[region]));
                if let Some(live) = self.live(region) {
                    live.switch = None;
                }
            }
        }
    }

    /// What the target has not confirmed: entries, acknowledgements.
    fn left(&mut self, region: Region) -> (u64, u64) {
        let Some(to) = self.live(region).and_then(|live| live.switch.as_ref()).map(|run| run.to) else { return (1, 0) };
        if self.planted == Planted::DrainSkipped {
            self.oracle.on_drained(region);
            return (0, 0);
        }
        let entries = self.link_backlog(region, to);
        let mut acks = 0;
        for number in 0..self.plan.subscriptions {
            self.author(region, number);
            let Some(sub) = self.live(region).map(|live| &mut live.subs[number]) else { continue };
            sub.acks.relay_now(id_of(to));
            let lag = sub.acks.lag(id_of(to));
            let open = lag.since_ms.is_some() || lag.everything || lag.relaying || !sub.applied;
            acks += lag.entries.max(u64::from(open));
        }
        if (entries, acks) == (0, 0) {
            self.oracle.on_drained(region);
        }
        (entries, acks)
    }

    /// The one point of a hand-over: the record is durable here.
    fn hand_over(&mut self, region: Region, record: &ActiveRecord) -> Option<()> {
        let now_ms = self.now_ms();
        let site = &mut self.sites[region];
        let live = site.live.as_mut()?;
        if live.state.as_ref()?.record.epoch > record.epoch {
            return None;
        }
        let state = NamespaceState { confirmed: true, ..NamespaceState::new(record.clone()) };
        site.disk.state = Some(state.encode());
        live.state = Some(state);
        self.oracle.on_handed_over(now_ms, region, named(&record.active), record.epoch);
        Some(())
    }

    /// Sets aside what the active region never got.
    fn cut_tail(&mut self, region: Region) {
        let forgotten = self.planted == Planted::TailForgotten;
        let site = &mut self.sites[region];
        let Some(live) = site.live.as_mut() else { return };
        let Some(state) = live.state.as_mut() else { return };
        let record = state.record.clone();
        let (active, to) = (named(&record.active), site.disk.last);
        // Active again meanwhile: nothing is left behind.
        let link = live.links.get(&active);
        let open = link.into_iter().flat_map(|link| link.cursor.open_entries(&site.disk.log));
        let own = open.filter(|entry| entry.origin.0 == id_of(region));
        let members: Vec<Position> = own.map(|entry| entry.position).collect();
        // R4: the first one stays.
        if !site.disk.tails.contains_key(&record.epoch) && !members.is_empty() {
            site.disk.tails.insert(record.epoch, members.clone());
            self.coverage.tails += 1;
            self.coverage.tail_entries += members.len() as u64;
            if !forgotten {
                members.iter().for_each(|position| self.oracle.on_tail((region, *position)));
            }
        }
        for (remote, link) in &mut live.links {
            match *remote == active {
                true => link.cursor.ack_to(to, &site.disk.log),
                false => link.cursor.ack(members.iter().map(|at| (*at, u64::MAX)), &site.disk.log),
            }
            site.disk.links.insert(*remote, link.cursor.clone());
        }
        state.tail_pending = false;
        site.disk.state = Some(state.encode());
        self.note(|| format!("{} sets {} entries aside", NAMES[region], members.len()));
        for remote in self.others(region) {
            self.start_link_anew(region, remote);
        }
    }
}
