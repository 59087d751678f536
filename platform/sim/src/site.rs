//! One region: what is on its disk and what is only in memory.
//!
//! Invariants: a crash keeps [`Disk`] and nothing of [`Live`]; what is in [`Live`] gets to the disk only where the code
//! says so (a stored entry, a flush, a saved record).

use crate::reign::SwitchRun;
use meridian_cursors::exact::{Epoch as AckEpoch, SharedAcks, StoredAcks};
use meridian_failover::{Epoch, NamespaceState};
use meridian_managed_ledger::{AppendRequest, LogEntry};
use meridian_replicator::machine::Machine;
use meridian_topic::sim::ProducerCore;
use meridian_types::{Incarnation, Position, RegionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A region by its number.
pub(crate) type Region = usize;

/// Names of the regions.
pub(crate) const NAMES: [&str; 3] = ["west", "east", "north"];
/// Entries of one ledger.
const LEDGER_ENTRIES: i64 = 13;

pub(crate) fn id_of(region: Region) -> RegionId {
    RegionId::of(NAMES[region])
}

pub(crate) fn region_of(id: RegionId) -> Option<Region> {
    NAMES.iter().position(|name| RegionId::of(name) == id)
}

pub(crate) fn named(name: &str) -> Region {
    NAMES.iter().position(|known| *known == name).unwrap_or(0)
}

pub(crate) fn incarnation_of(region: Region) -> Incarnation {
    Incarnation(region as u64 + 100)
}

/// Where an entry was first stored: region and position.
pub(crate) type Origin = (Region, Position);

/// All messages of a batch.
pub(crate) fn all_of(messages: u32) -> u64 {
    (1 << messages.min(63)) - 1
}

pub(crate) type Log = BTreeMap<Position, LogEntry>;

/// Which entries are acknowledged.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cursor {
    pub(crate) mark: Position,
    pub(crate) above: BTreeSet<Position>,
    /// Batches acknowledged in part: 1 = acknowledged.
    pub(crate) partial: BTreeMap<Position, u64>,
}

impl Cursor {
    pub(crate) fn at(mark: Position) -> Self {
        Self { mark, above: BTreeSet::new(), partial: BTreeMap::new() }
    }

    pub(crate) fn is_acked(&self, position: Position) -> bool {
        position <= self.mark || self.above.contains(&position)
    }

    /// Acknowledges messages of entries.
    pub(crate) fn ack(&mut self, acks: impl IntoIterator<Item = (Position, u64)>, log: &Log) {
        for (position, mask) in acks {
            let Some(entry) = log.get(&position).filter(|_| !self.is_acked(position)) else { continue };
            let known = self.partial.get(&position).copied().unwrap_or(0) | mask;
            if known & all_of(entry.messages) == all_of(entry.messages) {
                self.partial.remove(&position);
                self.above.insert(position);
            } else {
                self.partial.insert(position, known);
            }
        }
        self.settle(log);
    }

    /// Everything up to a position.
    pub(crate) fn ack_to(&mut self, to: Position, log: &Log) {
        self.mark = self.mark.max(to);
        self.above = self.above.split_off(&to);
        self.above.remove(&to);
        self.partial.retain(|at, _| *at > to);
        self.settle(log);
    }

    fn settle(&mut self, log: &Log) {
        while let Some((&next, _)) = after(log, self.mark).next().filter(|(next, _)| self.above.contains(next)) {
            self.above.remove(&next);
            self.mark = next;
        }
    }

    /// The first entry that is not acknowledged.
    pub(crate) fn first_open(&self, log: &Log) -> Option<Position> {
        after(log, self.mark).map(|(at, _)| *at).find(|at| !self.is_acked(*at))
    }

    pub(crate) fn open_entries<'a>(&'a self, log: &'a Log) -> impl Iterator<Item = &'a LogEntry> {
        after(log, self.mark).filter(|(at, _)| !self.is_acked(**at)).map(|(_, entry)| entry)
    }
}

/// Entries behind a position.
pub(crate) fn after(log: &Log, position: Position) -> impl DoubleEndedIterator<Item = (&Position, &LogEntry)> {
    log.range((std::ops::Bound::Excluded(position), std::ops::Bound::Unbounded))
}

/// A subscription on disk.
#[derive(Debug, Clone)]
pub(crate) struct SubDisk {
    pub(crate) cursor: Cursor,
    pub(crate) acks: Option<Vec<u8>>,
}

/// What a crash leaves.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) log: Log,
    pub(crate) last: Position,
    pub(crate) next_index: u64,
    pub(crate) next_ledger: i64,
    pub(crate) links: BTreeMap<Region, Cursor>,
    pub(crate) subs: Vec<SubDisk>,
    pub(crate) origins: Option<Vec<u8>>,
    pub(crate) dedup: Option<Vec<u8>>,
    /// The last entries that those two know of.
    pub(crate) covered: (Position, Position),
    pub(crate) state: Option<Vec<u8>>,
    pub(crate) tails: BTreeMap<Epoch, Vec<Position>>,
}

impl Disk {
    pub(crate) fn new(subscriptions: usize) -> Self {
        let sub = SubDisk { cursor: Cursor::at(Position::EARLIEST), acks: None };
        Self {
            log: Log::new(),
            last: Position::EARLIEST,
            next_index: 0,
            next_ledger: 1,
            links: BTreeMap::new(),
            subs: vec![sub; subscriptions],
            origins: None,
            dedup: None,
            covered: (Position::EARLIEST, Position::EARLIEST),
            state: None,
            tails: BTreeMap::new(),
        }
    }
}

/// An append under way.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) position: Position,
    pub(crate) request: AppendRequest,
    pub(crate) at_ms: u64,
    /// Its receipt was given already (a planted bug).
    pub(crate) confirmed: bool,
}

/// The sending side of a link.
pub(crate) struct Link {
    /// Of this life of the link.
    pub(crate) number: u64,
    pub(crate) machine: Machine,
    pub(crate) cursor: Cursor,
    pub(crate) tick_ms: u64,
    /// Wants to hear of entries at or after a position.
    pub(crate) waits: Option<(u64, Position)>,
    /// It has read, so it knows what comes next.
    pub(crate) has_read: bool,
    pub(crate) expired: u64,
    pub(crate) removed: u64,
}

/// A subscription in memory.
pub(crate) struct Sub {
    pub(crate) cursor: Cursor,
    pub(crate) acks: SharedAcks,
    /// The cursor's acks that are in the state.
    pub(crate) authored: Cursor,
    pub(crate) applied: bool,
    pub(crate) dirty: bool,
    /// Entries up to here were held against the state.
    pub(crate) looked_to: Position,
    /// The consumer's attachment; 0 = none.
    pub(crate) attached: u64,
    pub(crate) read_at: Position,
    pub(crate) outstanding: BTreeMap<Position, u64>,
}

impl Sub {
    pub(crate) fn stored(&self) -> Vec<u8> {
        let state = self.acks.state().clone();
        StoredAcks { state, applied: self.applied, authored_to: self.authored.mark }.encode()
    }

    pub(crate) fn epoch(&self) -> AckEpoch {
        self.acks.state().epoch()
    }

    /// The consumer is thrown out.
    pub(crate) fn fence(&mut self) {
        self.attached = 0;
        self.outstanding.clear();
    }
}

/// What a crash takes.
pub(crate) struct Live {
    pub(crate) topic: ProducerCore,
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) ledger: i64,
    pub(crate) next_entry: i64,
    pub(crate) store_ms: u64,
    pub(crate) links: BTreeMap<Region, Link>,
    pub(crate) subs: Vec<Sub>,
    pub(crate) state: Option<NamespaceState>,
    /// The epoch that sessions which are open were held against.
    pub(crate) gate_epoch: Option<Epoch>,
    pub(crate) state_since_ms: u64,
    pub(crate) switch: Option<SwitchRun>,
    pub(crate) refusing_until_ms: u64,
    /// Peers that have heard that this region may have lost something.
    pub(crate) greeted: BTreeSet<Region>,
}

impl Live {
    /// The place of the next append.
    pub(crate) fn next_place(&mut self, disk: &mut Disk) -> Position {
        if self.next_entry >= LEDGER_ENTRIES {
            self.roll(disk);
        }
        let position = Position::new(self.ledger, self.next_entry);
        self.next_entry += 1;
        position
    }

    /// A new ledger.
    pub(crate) fn roll(&mut self, disk: &mut Disk) {
        self.ledger = disk.next_ledger;
        self.next_entry = 0;
        disk.next_ledger += 1;
    }
}

/// A region.
pub(crate) struct Site {
    pub(crate) disk: Disk,
    /// `None` = it is down.
    pub(crate) live: Option<Live>,
    /// Number of the process.
    pub(crate) life: u64,
}
