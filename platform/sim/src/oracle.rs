//! The checkers: books of their own about everything that was stored, receipted, delivered and acknowledged.
//!
//! What is checked, and the word with which a violation begins:
//! - `lost` every entry that its region stored is, in the end, in every region, but for those that time to live, retention
//!   or a tail took, and these are counted; a link acknowledges only what the other side has or what a rule keeps here.
//! - `acks` nothing is delivered after its acknowledgement reached the region.
//! - `dedup` an entry is called a duplicate, or stored, only if that is so.
//! - `twice` an entry is stored in a region at most once per origin and never comes back; a message is stored twice only if
//!   its producer could not know better, and never where producers are the same in all regions.
//! - `order` the messages of a producer (and so of its key) stand in a region in the order in which they were written.
//! - `diverged` in the end all regions know the same acknowledgements and the same active region, and cursors follow them.
//! - `epochs` at most one region is active in an epoch; a planned switch loses nothing and shows nothing again.
//!
//! Invariants: D2.

use crate::acks::{acked_in, origin_of};
use crate::plan::Plan;
use crate::site::{NAMES, Origin, Region, id_of, incarnation_of, region_of};
use meridian_cursors::exact::{AckState, Epoch as AckEpoch, Origin as AckOrigin};
use meridian_failover::{ActiveRecord, Epoch};
use meridian_managed_ledger::LogEntry;
use meridian_types::Position;
use meridian_wire::payload;
use std::collections::{BTreeMap, BTreeSet};

/// One SEND of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MessageId {
    pub(crate) client: usize,
    pub(crate) sequence: u64,
    pub(crate) attempt: u32,
}

impl MessageId {
    pub(crate) fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&(self.client as u32).to_le_bytes());
        bytes[4..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..].copy_from_slice(&self.attempt.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            client: u32::from_le_bytes(*bytes.get(..4)?.first_chunk()?) as usize,
            sequence: u64::from_le_bytes(*bytes.get(4..12)?.first_chunk()?),
            attempt: u32::from_le_bytes(*bytes.get(12..16)?.first_chunk()?),
        })
    }
}

/// A message whichever SEND brought it: producer and sequence id.
type Name = (usize, u64);

/// What is stored in one region, ever.
#[derive(Default)]
struct Held {
    origins: BTreeMap<Origin, Position>,
    positions: BTreeMap<Position, Origin>,
    ids: BTreeSet<MessageId>,
    /// By the region that they came from.
    names: BTreeMap<Name, BTreeSet<Region>>,
    highest: BTreeMap<(usize, Region), u64>,
}

/// Acknowledgements that reached a region, of one subscription.
#[derive(Default, Clone)]
struct Reach {
    epoch: AckEpoch,
    live: BTreeMap<Origin, u64>,
    durable: BTreeMap<Origin, u64>,
}

type Drained = Vec<(AckEpoch, BTreeMap<Origin, u64>)>;

/// See the head of the file.
pub(crate) struct Oracle {
    pub(crate) violations: Vec<String>,
    dedup: bool,
    global: bool,
    held: Vec<Held>,
    /// Every entry where it was first stored: messages in it, and which.
    first: BTreeMap<Origin, (u32, Name)>,
    acked: BTreeSet<Origin>,
    uncertain: BTreeSet<Name>,
    expired: BTreeSet<(Origin, Region)>,
    removed: BTreeSet<(Origin, Region)>,
    unseen: BTreeSet<(Origin, Region)>,
    tails: BTreeSet<Origin>,
    /// By link: messages that it counted as expired, and as removed.
    counted: BTreeMap<(Region, Region), (u64, u64)>,
    reach: Vec<Vec<Reach>>,
    active: BTreeMap<Epoch, Region>,
    drained: Vec<Option<Drained>>,
    /// With what the region that handed over had given receipts for by then.
    handed: BTreeMap<Epoch, (Region, Drained, Vec<Origin>)>,
}

impl Oracle {
    pub(crate) fn new(plan: &Plan) -> Self {
        let reach = Reach { epoch: AckEpoch::creation(1, id_of(0)), ..Reach::default() };
        Self {
            violations: Vec::new(),
            dedup: plan.dedup,
            global: plan.global,
            held: (0..plan.regions).map(|_| Held::default()).collect(),
            first: BTreeMap::new(),
            acked: BTreeSet::new(),
            uncertain: BTreeSet::new(),
            expired: BTreeSet::new(),
            removed: BTreeSet::new(),
            unseen: BTreeSet::new(),
            tails: BTreeSet::new(),
            counted: BTreeMap::new(),
            reach: vec![vec![reach; plan.subscriptions]; plan.regions],
            active: BTreeMap::new(),
            drained: vec![None; plan.regions],
            handed: BTreeMap::new(),
        }
    }

    pub(crate) fn violated(&mut self, now_ms: u64, text: String) {
        self.violations.push(format!("at {now_ms}: {text}"));
    }

    /// An entry is on a region's disk.
    pub(crate) fn on_stored(&mut self, now_ms: u64, region: Region, entry: &LogEntry) {
        let place = NAMES[region];
        let position = entry.position;
        let decoded = payload::decode(&entry.payload).ok().and_then(|(_, body)| MessageId::decode(&body));
        let from = region_of(entry.origin.0);
        let (Some(id), Some(from)) = (decoded, from) else {
            return self.violated(now_ms, format!("lost: {place} stores {position}, which can't be read"));
        };
        let origin = (from, entry.origin.2);
        let name = (id.client, id.sequence);
        if from == region {
            if entry.origin.2 != position {
                self.violated(now_ms, format!("twice: {id:?} comes back to {place} as {position}"));
            }
            self.first.insert(origin, (entry.messages, name));
        } else if self.first.get(&origin).is_none_or(|(_, first)| *first != name) {
            self.violated(now_ms, format!("dedup: {place} stores {id:?} as {origin:?}, which is another one"));
        }
        let held = &mut self.held[region];
        held.positions.insert(position, origin);
        let again = held.origins.insert(origin, position).is_some();
        if again || !held.ids.insert(id) {
            self.violated(now_ms, format!("twice: {place} stores {id:?} of {} again", NAMES[from]));
        }
        self.check_name(now_ms, region, from, name);
    }

    fn check_name(&mut self, now_ms: u64, region: Region, from: Region, name: Name) {
        let place = NAMES[region];
        // Of a message that was sent twice the first copy may have been taken before it was brought over.
        let resent = self.uncertain.contains(&name) && !self.dedup;
        let held = &mut self.held[region];
        let sources = held.names.entry(name).or_default();
        let known = !sources.is_empty();
        let first = sources.insert(from);
        if first {
            let highest = held.highest.entry((name.0, from)).or_insert(0);
            if *highest > name.1 && !resent {
                let behind = *highest;
                self.violated(now_ms, format!("order: {place} stores {name:?} of {} behind {behind}", NAMES[from]));
                return;
            }
            *highest = name.1.max(*highest);
        }
        if known && self.global {
            self.violated(now_ms, format!("twice: {place} stores {name:?} again, though producers are global"));
        } else if !first && self.dedup {
            self.violated(now_ms, format!("twice: {place} stores {name:?} again, though it deduplicates"));
        } else if known && !self.uncertain.contains(&name) {
            self.violated(now_ms, format!("twice: {place} stores {name:?} again, sent once"));
        }
    }

    /// A client gets a receipt.
    pub(crate) fn on_receipt(&mut self, now_ms: u64, region: Region, name: Name, position: Position, duplicate: bool) {
        let place = NAMES[region];
        if duplicate {
            if !self.held[region].names.contains_key(&name) {
                self.violated(now_ms, format!("dedup: {place} calls {name:?} a duplicate, which it has not"));
            }
            return;
        }
        match self.held[region].positions.get(&position) {
            Some(origin) => _ = self.acked.insert(*origin),
            None => self.violated(now_ms, format!("lost: {place} gives a receipt for {position} before it is durable")),
        }
    }

    /// A receipt that nobody hears.
    pub(crate) fn on_unheard(&mut self, now_ms: u64, region: Region, position: Position) {
        self.on_receipt(now_ms, region, (usize::MAX, 0), position, false);
    }

    /// A message may be stored without its producer knowing it.
    pub(crate) fn uncertain(&mut self, name: Name) {
        self.uncertain.insert(name);
    }

    fn has(&self, region: Region, origin: Origin) -> bool {
        let held = &self.held[region];
        let by_name = || self.first.get(&origin).is_some_and(|(_, name)| held.names.contains_key(name));
        held.origins.contains_key(&origin) || (self.global && by_name())
    }

    /// A link gets a receipt from `region`.
    pub(crate) fn on_link_receipt(&mut self, now_ms: u64, region: Region, origin: Origin, duplicate: bool) {
        if self.has(region, origin) {
            return;
        }
        let place = NAMES[region];
        let (from, position) = (NAMES[origin.0], origin.1);
        let what = if duplicate { "a duplicate" } else { "stored" };
        self.violated(now_ms, format!("dedup: {place} calls {position} of {from} {what}, which it has not"));
    }

    /// A link takes an entry as through.
    pub(crate) fn on_link_ack(&mut self, now_ms: u64, origin: Origin, to: Region, messages: u32, expired: bool) {
        if self.has(to, origin) || self.tails.contains(&origin) {
            return;
        }
        let (from, position) = (NAMES[origin.0], origin.1);
        match expired {
            true => _ = self.expired.insert((origin, to)),
            false => self.violated(
                now_ms,
                format!("lost: the link {from} {} takes {position} ({messages}) as copied", NAMES[to]),
            ),
        }
    }

    /// An entry was taken that a link had not copied; `seen` = the link knows what comes next, so it has to count it.
    pub(crate) fn on_removed(&mut self, origin: Origin, to: Region, seen: bool) {
        self.removed.insert((origin, to));
        if !seen {
            self.unseen.insert((origin, to));
        }
    }

    /// A link begins anew: what was taken before it can't see. Answers how many entries those are.
    pub(crate) fn on_link_start(&mut self, from: Region, to: Region) -> u64 {
        let before = self.unseen.len();
        let of_link = self.removed.iter().filter(|(origin, remote)| origin.0 == from && *remote == to);
        self.unseen.extend(of_link.copied());
        (self.unseen.len() - before) as u64
    }

    /// A deposed region set an entry aside.
    pub(crate) fn on_tail(&mut self, origin: Origin) {
        self.tails.insert(origin);
    }

    /// A link counted messages that it did not copy.
    pub(crate) fn counted(&mut self, from: Region, to: Region, expired: u64, removed: u64) {
        let counted = self.counted.entry((from, to)).or_default();
        counted.0 += expired;
        counted.1 += removed;
    }

    /// A part reached a region; `anew` = it began an epoch there.
    pub(crate) fn on_part(&mut self, region: Region, sub: usize, part: &AckState, anew: bool) {
        let reach = &mut self.reach[region][sub];
        if anew {
            *reach = Reach { epoch: part.epoch(), ..Reach::default() };
        }
        if part.is_empty() {
            return;
        }
        for (origin, (messages, _)) in &self.first {
            let of = AckOrigin::new(id_of(origin.0), incarnation_of(origin.0));
            let mask = acked_in(part, of, origin.1, *messages);
            if mask != 0 {
                *reach.live.entry(*origin).or_default() |= mask;
                *reach.durable.entry(*origin).or_default() |= mask;
            }
        }
    }

    /// A consumer's ack reached a region.
    pub(crate) fn on_ack(&mut self, region: Region, sub: usize, origin: Origin, mask: u64) {
        *self.reach[region][sub].live.entry(origin).or_default() |= mask;
    }

    pub(crate) fn on_flush(&mut self, region: Region) {
        self.reach[region].iter_mut().for_each(|reach| reach.durable = reach.live.clone());
    }

    pub(crate) fn on_crash(&mut self, region: Region) {
        self.reach[region].iter_mut().for_each(|reach| reach.live = reach.durable.clone());
    }

    pub(crate) fn on_delivery(&mut self, now_ms: u64, region: Region, sub: usize, origin: Origin, mask: u64) {
        let known = self.reach[region][sub].live.get(&origin).copied().unwrap_or(0);
        if known & mask != 0 {
            let (place, from) = (NAMES[region], NAMES[origin.0]);
            let text = format!("acks: {place} delivers {} of {from} to s{sub}, {mask:b} of {known:b} acked", origin.1);
            self.violated(now_ms, text);
        }
    }

    /// Everything is drained, as a switch away from a region believes.
    pub(crate) fn on_drained(&mut self, region: Region) {
        let of = |reach: &Reach| (reach.epoch, reach.live.clone());
        self.drained[region] = Some(self.reach[region].iter().map(of).collect());
    }

    pub(crate) fn on_handed_over(&mut self, now_ms: u64, from: Region, to: Region, epoch: Epoch) {
        let acked = self.acked.iter().filter(|origin| origin.0 == from).copied().collect();
        match self.drained[from].take() {
            Some(drained) => _ = self.handed.insert(epoch, (from, drained, acked)),
            None => self.violated(now_ms, format!("epochs: {} hands over to {} undrained", NAMES[from], NAMES[to])),
        }
    }

    /// A region takes publishes under a record.
    pub(crate) fn on_accept(&mut self, now_ms: u64, region: Region, record: &ActiveRecord) {
        let (place, epoch) = (NAMES[region], record.epoch);
        if epoch.region != id_of(region) || record.active != place {
            self.violated(now_ms, format!("epochs: {place} takes publishes in {epoch}, which is {}'s", record.active));
        }
        match self.active.insert(epoch, region) {
            Some(other) if other != region => {
                self.violated(now_ms, format!("epochs: {place} and {} are active in {epoch}", NAMES[other]));
            }
            Some(_) => {}
            None => self.check_handed(now_ms, region, epoch),
        }
    }

    /// What a planned switch brought over, when the new region takes its first publish.
    fn check_handed(&mut self, now_ms: u64, region: Region, epoch: Epoch) {
        let Some((from, drained, acked)) = self.handed.remove(&epoch) else { return };
        let (place, before) = (NAMES[region], NAMES[from]);
        let missing: Vec<Origin> =
            acked.into_iter().filter(|origin| !self.has(region, *origin) && !self.excused(*origin, region)).collect();
        if let Some(origin) = missing.first() {
            let text = format!("epochs: the switch {before} {place} lost {} and {} more", origin.1, missing.len() - 1);
            self.violated(now_ms, text);
        }
        for (sub, (of, acks)) in drained.iter().enumerate() {
            let reach = &self.reach[region][sub];
            let known = |origin: &Origin| reach.live.get(origin).copied().unwrap_or(0);
            let again = acks.iter().find(|(origin, mask)| *mask & !known(origin) != 0);
            if let Some((origin, _)) = again.filter(|_| reach.epoch == *of) {
                let text = format!("epochs: the switch {before} {place} forgot the ack of {origin:?} for s{sub}");
                self.violated(now_ms, text);
            }
        }
    }

    fn excused(&self, origin: Origin, to: Region) -> bool {
        let (expired, removed) = (self.expired.contains(&(origin, to)), self.removed.contains(&(origin, to)));
        expired || removed || self.tails.contains(&origin)
    }

    /// When everything is settled: nothing is missing that is not accounted for.
    pub(crate) fn check_copies(&mut self, now_ms: u64) {
        let mut uncounted: BTreeMap<(Region, Region), (u64, u64)> = BTreeMap::new();
        let mut lost = Vec::new();
        for (origin, (messages, name)) in &self.first {
            for to in (0..self.held.len()).filter(|to| *to != origin.0 && !self.has(*to, *origin)) {
                let due = uncounted.entry((origin.0, to)).or_default();
                if self.tails.contains(origin) || self.unseen.contains(&(*origin, to)) {
                    continue;
                } else if self.removed.contains(&(*origin, to)) {
                    due.1 += u64::from(*messages);
                } else if self.expired.contains(&(*origin, to)) {
                    due.0 += u64::from(*messages);
                } else {
                    let acked = if self.acked.contains(origin) { "acked" } else { "stored" };
                    let (from, place) = (NAMES[origin.0], NAMES[to]);
                    lost.push(format!("lost: {} of {from} ({name:?}, {acked}) is not in {place}", origin.1));
                }
            }
        }
        for ((from, to), (expired, removed)) in uncounted {
            let counted = self.counted.get(&(from, to)).copied().unwrap_or_default();
            // What expired while it was being removed may be counted as either.
            if expired + removed > counted.0 + counted.1 {
                lost.push(format!(
                    "lost: {} to {}: {expired} messages expired and {removed} were removed, {counted:?} were counted",
                    NAMES[from], NAMES[to]
                ));
            }
        }
        lost.into_iter().for_each(|text| self.violated(now_ms, text));
    }

    /// When everything is settled: an entry's ack in a cursor is one in the state, and the other way round.
    pub(crate) fn check_cursor(&mut self, now_ms: u64, region: Region, entry: &LogEntry, state: &AckState, acked: u64) {
        let (origin, position) = origin_of(entry);
        let known = acked_in(state, origin, position, entry.messages);
        if known != acked {
            let place = NAMES[region];
            let text = format!("diverged: {} in {place}: cursor {acked:b}, state {known:b}", entry.position);
            self.violated(now_ms, text);
        }
    }
}
