//! When the faults are over: is everything settled, and is it as it should be.
//!
//! Invariants: a run ends, with a violation if it does not settle in time.

use crate::events::Event;
use crate::site::{NAMES, Region, all_of, id_of};
use crate::world::World;

/// Pause between two looks.
const LOOK_MS: u64 = 120;
/// So long after the last fault everything has to be settled.
const LIMIT_MS: u64 = 60_000;

impl World {
    pub(crate) fn look_if_settled(&mut self) {
        let now_ms = self.now_ms();
        self.queue.after(LOOK_MS, Event::Settled);
        let open = if self.healed { self.what_is_open() } else { Some("faults".to_owned()) };
        let over = now_ms > 1000 + self.plan.faults_until_ms + LIMIT_MS;
        match open {
            None if self.settled_before => {
                self.check_end();
                self.done = true;
            }
            Some(open) if over => {
                self.oracle.violated(now_ms, format!("diverged: not settled in time: {open}"));
                self.done = true;
            }
            open => self.settled_before = open.is_none(),
        }
    }

    /// The first thing that is not settled.
    fn what_is_open(&self) -> Option<String> {
        if let Some(client) = self.clients.iter().position(|client| !client.is_done(self.plan.messages)) {
            let one = &self.clients[client];
            let (place, rule) = (NAMES[one.region], self.rule(one.region));
            let (attached, pending) = (one.attached, one.pending.len());
            return Some(format!(
                "p{client} in {place} ({rule:?}), connection {attached}, waits for {pending} receipts"
            ));
        }
        (0..self.plan.regions).find_map(|region| self.open_in(region))
    }

    fn open_in(&self, region: Region) -> Option<String> {
        let name = NAMES[region];
        let site = &self.sites[region];
        let Some(live) = &site.live else { return Some(format!("{name} is down")) };
        if !live.in_flight.is_empty() {
            return Some(format!("{name} has appends under way"));
        }
        for (remote, link) in &live.links {
            let open = link.cursor.open_entries(&site.disk.log).count();
            if open > 0 {
                let state = link.machine.view().state;
                return Some(format!("{name} has {open} entries for {}: {state}", NAMES[*remote]));
            }
        }
        for (number, sub) in live.subs.iter().enumerate() {
            let lags: Vec<_> = self.others(region).map(|peer| sub.acks.lag(id_of(peer))).collect();
            if !sub.applied || sub.cursor != sub.authored || !sub.acks.is_settled() {
                return Some(format!("{name} has acks of s{number} to tell: {lags:?}, applied {}", sub.applied));
            }
        }
        let state = live.state.as_ref();
        if live.switch.is_some() || state.is_some_and(|state| state.tail_pending || !state.confirmed) {
            return Some(format!("{name} is not done with a switch: {state:?}"));
        }
        let other = self.sites[0].live.as_ref().and_then(|live| live.state.as_ref());
        let differs = state.map(|state| state.record.epoch) != other.map(|state| state.record.epoch);
        differs.then(|| format!("{name} and {} know different records", NAMES[0]))
    }

    fn check_end(&mut self) {
        let now_ms = self.now_ms();
        self.oracle.check_copies(now_ms);
        for number in 0..self.plan.subscriptions {
            self.check_states(number);
        }
        let rules: Vec<_> = (0..self.plan.regions)
            .filter(|region| self.plan.reign && self.rule(*region) == meridian_failover::PublishRule::Accept)
            .collect();
        if self.plan.reign && rules.len() != 1 {
            self.oracle.violated(now_ms, format!("epochs: {} regions are active in the end", rules.len()));
        }
    }

    fn check_states(&mut self, number: usize) {
        let now_ms = self.now_ms();
        let states: Vec<_> = self
            .sites
            .iter()
            .filter_map(|site| site.live.as_ref().map(|live| live.subs[number].acks.state().clone()))
            .collect();
        for (region, state) in states.iter().enumerate() {
            if *state != states[0] {
                let text = format!("diverged: {} and {} know other acks of s{number}", NAMES[region], NAMES[0]);
                self.note(|| format!("{}: {state:?}\n{}: {:?}", NAMES[region], NAMES[0], states[0]));
                self.oracle.violated(now_ms, text);
            }
            let site = &self.sites[region];
            let Some(sub) = site.live.as_ref().map(|live| &live.subs[number]) else { continue };
            for entry in site.disk.log.values() {
                let partial = sub.cursor.partial.get(&entry.position).copied().unwrap_or(0);
                let acked = if sub.cursor.is_acked(entry.position) { all_of(entry.messages) } else { partial };
                self.oracle.check_cursor(now_ms, region, entry, state, acked & all_of(entry.messages));
            }
        }
    }
}
