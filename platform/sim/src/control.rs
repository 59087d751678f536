//! The region link between regions: messages in order while a session lasts; what is under way when it ends is lost.

use crate::events::{Control, Event};
use crate::planted::Planted;
use crate::site::{NAMES, Region, id_of};
use crate::world::World;
use meridian_failover::switch;

impl World {
    /// Sends a message, if there is a session.
    pub(crate) fn say(&mut self, from: Region, to: Region, message: Control) {
        let travel_ms = self.travel_ms();
        let now_ms = self.now_ms();
        let way = self.way(from, to);
        if !way.control_up {
            return;
        }
        let session = way.control_session;
        let slot = &mut way.control_ms[usize::from(from > to)];
        *slot = (*slot).max(now_ms + travel_ms);
        let after_ms = *slot - now_ms;
        self.queue.after(after_ms, Event::ControlArrives { from, to, session, message });
    }

    pub(crate) fn control_arrives(&mut self, from: Region, to: Region, session: u64, message: Control) {
        let way = self.way(from, to);
        if !way.control_up || way.control_session != session || self.sites[to].live.is_none() {
            self.coverage.ack_parts_lost += u64::from(matches!(message, Control::Acks { .. }));
            return;
        }
        let now_ms = self.now_ms();
        match message {
            Control::Acks { sub, version, bytes } => self.part_arrives(from, to, sub, version, &bytes),
            Control::Confirmed { sub, version } => {
                if let Some(live) = self.live(to) {
                    live.subs[sub].acks.confirm(id_of(from), version);
                }
            }
            Control::Resync => {
                self.say(to, from, Control::ResyncHeard);
                if let Some(live) = self.live(to) {
                    live.subs.iter_mut().for_each(|sub| sub.acks.resync(id_of(from), now_ms));
                }
            }
            Control::ResyncHeard => {
                if let Some(live) = self.live(to) {
                    live.greeted.insert(from);
                }
            }
            Control::Learn { record, token } => {
                if let Some(record) = self.learn(to, &record) {
                    self.say(to, from, Control::Learned { record, token });
                }
            }
            Control::Learned { record, token } => self.answered(to, from, &record, token),
        }
    }

    /// Tells a region the record that is in force here, and so asks for its own.
    pub(crate) fn tell(&mut self, from: Region, to: Region, token: u64) {
        let state = self.sites[from].live.as_ref().and_then(|live| live.state.as_ref());
        if let Some(record) = state.map(|state| state.record.clone()) {
            self.say(from, to, Control::Learn { record, token });
        }
    }

    fn answered(&mut self, region: Region, peer: Region, record: &meridian_failover::ActiveRecord, token: u64) {
        let known = self.learn(region, record).map(|known| known.epoch);
        if let Some(state) = self.live(region).and_then(|live| live.state.as_mut())
            && Some(state.record.epoch) == known
        {
            // Somebody answered (S3).
            state.confirmed = true;
        }
        let Some(run) = self.live(region).and_then(|live| live.switch.as_mut()) else { return };
        if run.told != Some(token) || run.to != peer {
            return;
        }
        run.told = None;
        let told = record.epoch >= run.next_epoch();
        let event = if told { switch::Event::Told } else { switch::Event::NotTold };
        self.feed_switch(region, event);
    }

    /// A session of the region link begins.
    pub(crate) fn control_up(&mut self, a: Region, b: Region) {
        let parted = self.parted(a, b);
        let alive = self.sites[a].live.is_some() && self.sites[b].live.is_some();
        let way = self.way(a, b);
        if way.control_up || parted || !alive {
            return;
        }
        (way.control_up, way.control_ms) = (true, [0, 0]);
        way.control_session += 1;
        self.note(|| format!("region link {} {} up", NAMES[a], NAMES[b]));
        for (here, there) in [(a, b), (b, a)] {
            let silent = self.planted == Planted::NoResync;
            let Some(live) = self.live(here) else { continue };
            live.subs.iter_mut().for_each(|sub| sub.acks.lost(id_of(there)));
            if !live.greeted.contains(&there) && !silent {
                self.say(here, there, Control::Resync);
            }
            self.tell(here, there, 0);
            self.send_parts(here);
        }
    }

    /// It ends; both sides learn it when the next one begins.
    pub(crate) fn control_down(&mut self, a: Region, b: Region) {
        let dropped = self.planted == Planted::AcksDropped;
        self.way(a, b).control_up = false;
        for (here, there) in [(a, b), (b, a)] {
            let Some(live) = self.live(here).filter(|_| dropped) else { continue };
            for sub in &mut live.subs {
                (0..10_000).for_each(|version| _ = sub.acks.confirm(id_of(there), version));
            }
        }
    }
}
