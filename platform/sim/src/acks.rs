//! Acknowledgements between regions: what is authored here, what comes from peers, moves by hand.
//!
//! Role: the shell of [`meridian_cursors::exact::SharedAcks`]. A part is stored before it is confirmed; a new epoch is
//! stored before the cursor moves and again when it has (K1).

use crate::events::{Control, Event};
use crate::planted::Planted;
use crate::site::{Cursor, NAMES, Region, Sub, after, all_of, id_of, incarnation_of};
use crate::world::World;
use meridian_cursors::exact::{AckState, Ackedness, Limits, Origin, Received, decode, encode};
use meridian_managed_ledger::LogEntry;
use meridian_types::Position;

/// Small ones, so that states travel in parts.
pub(crate) const LIMITS: Limits =
    Limits { max_bytes: 512 << 10, max_delta_bytes: 120, max_in_flight: 3, relay_after_ms: 300 };

pub(crate) fn origin_of(entry: &LogEntry) -> (Origin, Position) {
    let (region, incarnation, position) = entry.origin;
    (Origin::new(region, incarnation), position)
}

/// Which messages of an entry a state says are acknowledged.
pub(crate) fn acked_in(state: &AckState, origin: Origin, position: Position, messages: u32) -> u64 {
    match state.ackedness(origin, position) {
        Ackedness::No => 0,
        Ackedness::Whole => all_of(messages),
        Ackedness::Partly(words) => words.first().copied().unwrap_or(0) & all_of(messages),
    }
}

/// What a state says of entries of a log.
fn acks_for<'a>(
    state: &'a AckState,
    entries: impl Iterator<Item = &'a LogEntry> + 'a,
) -> impl Iterator<Item = (Position, u64)> + 'a {
    let of = |entry: &LogEntry| {
        let (origin, position) = origin_of(entry);
        (entry.position, acked_in(state, origin, position, entry.messages))
    };
    entries.map(of).filter(|(_, mask)| *mask != 0)
}

impl World {
    /// Takes what consumers acknowledged into the states, applies what is known of new entries, and sends.
    pub(crate) fn gather(&mut self, region: Region) {
        let life = self.sites[region].life;
        let after_ms = self.rng.between(15, 50);
        self.queue.after(after_ms, Event::Gather(region, life));
        for sub in 0..self.plan.subscriptions {
            self.author(region, sub);
            self.look_at_arrived(region, sub);
        }
        self.send_parts(region);
        self.dispatch(region);
    }

    /// Entries that were acknowledged before they arrived.
    fn look_at_arrived(&mut self, region: Region, number: usize) {
        let site = &mut self.sites[region];
        let Some(sub) = site.live.as_mut().map(|live| &mut live.subs[number]) else { return };
        let new = after(&site.disk.log, sub.looked_to).map(|(_, entry)| entry);
        let acks: Vec<_> = acks_for(sub.acks.state(), new).collect();
        sub.looked_to = site.disk.last;
        sub.cursor.ack(acks, &site.disk.log);
    }

    pub(crate) fn author(&mut self, region: Region, number: usize) {
        let now_ms = self.now_ms();
        let own = Origin::new(id_of(region), incarnation_of(region));
        let site = &mut self.sites[region];
        let Some(sub) = site.live.as_mut().map(|live| &mut live.subs[number]) else { return };
        if !sub.applied || sub.cursor == sub.authored {
            return;
        }
        let mut part = AckState::new(sub.epoch());
        if sub.cursor.mark > Position::EARLIEST {
            part.raise_upto(own, sub.cursor.mark);
        }
        for (at, entry) in after(&site.disk.log, sub.authored.mark) {
            let (origin, position) = origin_of(entry);
            if sub.cursor.is_acked(*at) && !sub.authored.is_acked(*at) {
                part.ack(origin, position);
            } else if let Some(mask) = sub.cursor.partial.get(at)
                && sub.authored.partial.get(at) != Some(mask)
            {
                part.ack_partly(origin, position, &[*mask]);
            }
        }
        if let Ok(changed) = sub.acks.author(&part, now_ms) {
            sub.dirty |= changed;
            sub.authored = sub.cursor.clone();
        }
    }

    /// Sends what peers have not confirmed.
    pub(crate) fn send_parts(&mut self, region: Region) {
        let now_ms = self.now_ms();
        for peer in self.others(region) {
            if !self.way(region, peer).control_up {
                continue;
            }
            for number in 0..self.plan.subscriptions {
                while let Some((version, part)) =
                    self.live(region).and_then(|live| live.subs[number].acks.take(id_of(peer), now_ms))
                {
                    let bytes = encode(&part);
                    self.say(region, peer, Control::Acks { sub: number, version, bytes });
                }
            }
        }
    }

    /// A part comes from a peer.
    pub(crate) fn part_arrives(&mut self, from: Region, to: Region, number: usize, version: u64, bytes: &[u8]) {
        let now_ms = self.now_ms();
        self.coverage.ack_parts += 1;
        let part = match decode(bytes) {
            Ok(part) => part,
            Err(error) => return self.oracle.violated(now_ms, format!("acks: a part can't be read: {error}")),
        };
        let life = self.sites[to].life;
        let unstored = self.planted == Planted::AcksUnstored;
        let site = &mut self.sites[to];
        let Some(sub) = site.live.as_mut().map(|live| &mut live.subs[number]) else { return };
        let before = sub.epoch();
        let Ok(received) = sub.acks.receive(id_of(from), &part, now_ms) else { return };
        match &received {
            Received::Behind => {}
            Received::Known | Received::Outlived => sub.dirty |= received == Received::Outlived,
            Received::Learned(new) => {
                sub.dirty = true;
                if sub.applied {
                    let acks: Vec<_> = acks_for(new, site.disk.log.values()).collect();
                    sub.cursor.ack(acks, &site.disk.log);
                }
            }
            Received::Adopted => {
                (sub.applied, sub.dirty) = (false, true);
                sub.fence();
                self.coverage.epochs_adopted += 1;
                self.queue.after(self.rng.between(1, 5), Event::Follow { region: to, life, sub: number });
            }
        }
        if sub.dirty && !unstored {
            site.disk.subs[number].acks = Some(sub.stored());
            sub.dirty = false;
        }
        let after = sub.epoch();
        if part.epoch() == after {
            self.oracle.on_part(to, number, &part, after > before);
        }
        self.note(|| format!("{} acks of s{number} from {}: {received:?}", NAMES[to], NAMES[from]));
        self.say(to, from, Control::Confirmed { sub: number, version });
    }

    /// What counts as acknowledged if `to` is the first entry that does not.
    fn cut_at(&self, region: Region, to: Position) -> AckState {
        let mut cut = AckState::default();
        let own = Origin::new(id_of(region), incarnation_of(region));
        let before = self.before(region, to);
        if before > Position::EARLIEST {
            cut.raise_upto(own, before);
        }
        for (_, entry) in self.sites[region].disk.log.range(..to) {
            let (origin, position) = origin_of(entry);
            if origin != own {
                cut.raise_upto(origin, position);
            }
        }
        cut
    }

    /// Somebody moves a subscription: the new epoch is stored, then the cursor moves.
    pub(crate) fn seek(&mut self, region: Region, number: usize, to: Position) {
        let now_ms = self.now_ms();
        let life = self.sites[region].life;
        let cut = self.cut_at(region, to);
        let site = &mut self.sites[region];
        let Some(sub) = site.live.as_mut().map(|live| &mut live.subs[number]).filter(|sub| sub.applied) else {
            return;
        };
        sub.acks.raise(&cut, now_ms);
        sub.applied = false;
        sub.fence();
        site.disk.subs[number].acks = Some(sub.stored());
        let state = sub.acks.state().clone();
        self.oracle.on_part(region, number, &state, true);
        self.coverage.seeks += 1;
        self.note(|| format!("{} moves s{number} to {to}", NAMES[region]));
        let after_ms = self.rng.between(1, 4);
        self.queue.after(after_ms, Event::SeekDone { region, life, sub: number, to });
    }

    pub(crate) fn seek_done(&mut self, region: Region, number: usize, to: Position) {
        let mark = self.before(region, to);
        let site = &mut self.sites[region];
        let Some(sub) = site.live.as_mut().map(|live| &mut live.subs[number]) else { return };
        // Another epoch may have come meanwhile; then that one is followed.
        if sub.applied || sub.epoch().region != id_of(region) {
            return;
        }
        sub.cursor = Cursor::at(mark);
        settle_epoch(sub);
        site.disk.subs[number].cursor = sub.cursor.clone();
        site.disk.subs[number].acks = Some(sub.stored());
    }

    /// Another region moved it: everything begins anew with its state.
    pub(crate) fn follow(&mut self, region: Region, number: usize) {
        let site = &mut self.sites[region];
        let Some(sub) = site.live.as_mut().map(|live| &mut live.subs[number]).filter(|sub| !sub.applied) else {
            return;
        };
        let log = &site.disk.log;
        sub.cursor = Cursor::at(Position::EARLIEST);
        let acks: Vec<_> = acks_for(sub.acks.state(), log.values()).collect();
        sub.cursor.ack(acks, log);
        settle_epoch(sub);
        sub.looked_to = site.disk.last;
        site.disk.subs[number].cursor = sub.cursor.clone();
        site.disk.subs[number].acks = Some(sub.stored());
        let epoch = sub.epoch().number;
        self.note(|| format!("{} follows s{number} to epoch {epoch}", NAMES[region]));
        self.dispatch(region);
    }

    /// After a load: what the state knows and the cursor may have lost.
    pub(crate) fn reapply(&mut self, region: Region, number: usize) {
        let site = &mut self.sites[region];
        let Some(sub) = site.live.as_mut().map(|live| &mut live.subs[number]) else { return };
        let acks: Vec<_> = acks_for(sub.acks.state(), site.disk.log.values()).collect();
        sub.cursor.ack(acks, &site.disk.log);
    }
}

fn settle_epoch(sub: &mut Sub) {
    sub.authored = sub.cursor.clone();
    (sub.applied, sub.dirty) = (true, false);
}
