//! From a subscription to its consumer and back.
//!
//! Invariants: what is acknowledged elsewhere is asked before each delivery.

use crate::acks::{acked_in, origin_of};
use crate::events::Event;
use crate::planted::Planted;
use crate::site::{NAMES, Region, after, all_of, region_of};
use crate::world::World;
use meridian_failover::PublishRule;
use meridian_types::Position;

/// Entries that a consumer may hold.
const OUTSTANDING: usize = 6;
/// Of entries one in so many is never acknowledged on its own.
const HOLES: u64 = 11;

impl World {
    /// Delivers what there is.
    pub(crate) fn dispatch(&mut self, region: Region) {
        if !matches!(self.rule(region), PublishRule::Accept) {
            return;
        }
        for sub in 0..self.plan.subscriptions {
            while self.deliver_one(region, sub) {}
        }
    }

    fn deliver_one(&mut self, region: Region, number: usize) -> bool {
        let now_ms = self.now_ms();
        let unasked = self.planted == Planted::AcksUnasked;
        let site = &mut self.sites[region];
        let Some(sub) = site.live.as_mut().map(|live| &mut live.subs[number]) else { return false };
        if sub.attached == 0 || !sub.applied || sub.outstanding.len() >= OUTSTANDING {
            return false;
        }
        let from = sub.read_at.max(sub.cursor.mark);
        let Some((&position, entry)) = after(&site.disk.log, from).find(|(at, _)| !sub.cursor.is_acked(**at)) else {
            return false;
        };
        sub.read_at = position;
        let (origin, first) = origin_of(entry);
        let all = all_of(entry.messages);
        let known = if unasked { 0 } else { acked_in(sub.acks.state(), origin, first, entry.messages) };
        if known == all {
            self.coverage.acked_before_arrival += 1;
            sub.cursor.ack([(position, all)], &site.disk.log);
            return true;
        }
        let mask = all & !known & !sub.cursor.partial.get(&position).copied().unwrap_or(0);
        sub.outstanding.insert(position, mask);
        let attached = sub.attached;
        self.coverage.deliveries += 1;
        if let Some(from) = region_of(origin.region) {
            self.oracle.on_delivery(now_ms, region, number, (from, first), mask);
        }
        self.note(|| format!("{} delivers {position} to s{number}, {mask:b}", NAMES[region]));
        self.consume(region, number, attached, position, mask);
        true
    }

    /// What the consumer does with an entry.
    fn consume(&mut self, region: Region, sub: usize, attached: u64, position: Position, mask: u64) {
        let after_ms = self.rng.between(1, 40);
        let hole = (position.entry_id.0 as u64 * 7 + position.ledger_id.0 as u64 * 3).is_multiple_of(HOLES);
        let choice = self.rng.below(100);
        let (acks, cumulative) = match choice {
            0..3 => (vec![(position, u64::MAX)], true),
            3..80 if !hole => (vec![(position, mask)], false),
            80..92 => (vec![(position, mask & self.rng.next())], false),
            _ if self.healed => (vec![(position, mask)], false),
            _ => (Vec::new(), false),
        };
        self.queue.after(after_ms, Event::ReaderAcks { sub, region, attached, acks, cumulative });
    }

    /// Acks arrive at the region.
    pub(crate) fn reader_acks(
        &mut self,
        number: usize,
        region: Region,
        attached: u64,
        acks: Vec<(Position, u64)>,
        cumulative: bool,
    ) {
        let site = &mut self.sites[region];
        let Some(sub) = site.live.as_mut().map(|live| &mut live.subs[number]) else { return };
        if sub.attached != attached || !sub.applied {
            return;
        }
        let log = &site.disk.log;
        let acks: Vec<(Position, u64)> = match cumulative {
            true => acks.iter().flat_map(|(to, _)| log.range(..=*to).map(|(at, _)| (*at, u64::MAX))).collect(),
            false => acks,
        };
        sub.cursor.ack(acks.iter().copied(), log);
        for (position, mask) in &acks {
            let Some(entry) = log.get(position) else { continue };
            if sub.cursor.is_acked(*position) || !cumulative {
                sub.outstanding.remove(position);
            }
            let (origin, first) = origin_of(entry);
            if let Some(from) = region_of(origin.region) {
                self.oracle.on_ack(region, number, (from, first), *mask & all_of(entry.messages));
            }
        }
        self.dispatch(region);
    }
}
