//! The laws of the lattice, and convergence of regions over a network that loses, repeats and reorders.

use meridian_cursors::exact::{
    AckState, Ackedness, Epoch, Limits, Origin, Received, SharedAcks, StoredAcks, decode, encode,
};
use meridian_types::{Incarnation, LedgerId, Position, RegionId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const REGIONS: u32 = 4;
const LEDGERS: i64 = 3;
const ENTRIES: u32 = 24;

fn origin(region: u32) -> Origin {
    Origin::new(RegionId(region), Incarnation(9))
}

/// One change of a state.
#[derive(Debug, Clone)]
enum Step {
    Upto(u32, i64, u32),
    Ack(u32, i64, u32, u32),
    Part(u32, i64, u32, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let place = (1..=REGIONS, 0..LEDGERS, 0..ENTRIES);
    prop_oneof![
        1 => place.clone().prop_map(|(region, ledger, entry)| Step::Upto(region, ledger, entry)),
        5 => (place.clone(), 0..4u32).prop_map(|((region, ledger, entry), more)| Step::Ack(region, ledger, entry, more)),
        3 => (place, 1..15u64).prop_map(|((region, ledger, entry), words)| Step::Part(region, ledger, entry, words)),
    ]
}

fn apply(state: &mut AckState, step: &Step) {
    match step {
        Step::Upto(region, ledger, entry) => {
            state.raise_upto(origin(*region), Position::new(*ledger, i64::from(*entry)));
        }
        Step::Ack(region, ledger, entry, more) => {
            state.ack_run(origin(*region), LedgerId(*ledger), *entry..=*entry + more);
        }
        Step::Part(region, ledger, entry, words) => {
            state.ack_partly(origin(*region), Position::new(*ledger, i64::from(*entry)), &[*words]);
        }
    }
}

fn state() -> impl Strategy<Value = AckState> {
    (1..4u64, 0..3u64, 1..=REGIONS, proptest::collection::vec(step(), 0..25)).prop_map(
        |(number, at_ms, region, steps)| {
            let epoch = Epoch { number, at_ms, region: RegionId(region) };
            // One event makes an epoch: what it is deletes or does not.
            let deleted = number == 3 && (at_ms + u64::from(region)) % 2 == 0;
            let mut state = if deleted { AckState::tombstone(epoch) } else { AckState::new(epoch) };
            steps.iter().for_each(|step| apply(&mut state, step));
            state
        },
    )
}

fn joined(a: &AckState, b: &AckState) -> AckState {
    let mut sum = a.clone();
    sum.merge(b);
    sum
}

/// Every bit that a state says, by brute force.
fn members(state: &AckState) -> BTreeSet<(u32, i64, u32, u32)> {
    let mut all = BTreeSet::new();
    for region in 1..=REGIONS {
        for ledger in 0..LEDGERS {
            for entry in 0..ENTRIES + 8 {
                let words = match state.ackedness(origin(region), Position::new(ledger, i64::from(entry))) {
                    Ackedness::No => 0,
                    Ackedness::Partly(words) => words[0],
                    Ackedness::Whole => u64::MAX,
                };
                all.extend((0..64).filter(|bit| words >> bit & 1 == 1).map(|bit| (region, ledger, entry, bit)));
            }
        }
    }
    all
}

proptest! {
    #[test]
    fn merging_is_commutative(a in state(), b in state()) {
        prop_assert_eq!(joined(&a, &b), joined(&b, &a));
    }

    #[test]
    fn merging_is_associative(a in state(), b in state(), c in state()) {
        prop_assert_eq!(joined(&joined(&a, &b), &c), joined(&a, &joined(&b, &c)));
    }

    #[test]
    fn merging_is_idempotent(a in state(), b in state()) {
        let sum = joined(&a, &b);
        prop_assert_eq!(joined(&a, &a), a.clone());
        prop_assert_eq!(joined(&sum, &b), sum.clone());
        prop_assert_eq!(joined(&sum, &a), sum);
    }

    /// X2, and the union is a union.
    #[test]
    fn merging_is_the_union_of_what_was_known(mut a in state(), b in state()) {
        let (before, other) = (members(&a), members(&b));
        let epochs = (a.epoch(), b.epoch());
        let new = a.merge(&b);
        let after = members(&a);
        if epochs.0 == epochs.1 {
            prop_assert_eq!(&after, &before.union(&other).copied().collect::<BTreeSet<_>>());
            // What was new is enough to bring another one there, and says nothing of what was not said.
            prop_assert!(members(&new).is_subset(&other));
        } else if epochs.0 > epochs.1 {
            prop_assert_eq!(after, before);
            prop_assert!(new.is_empty());
        } else {
            prop_assert_eq!(after, other);
        }
    }

    #[test]
    fn what_was_new_brings_another_one_there(a in state(), b in state()) {
        let mut sum = a.clone();
        let new = sum.merge(&b);
        prop_assert_eq!(joined(&a, &new), sum);
    }

    #[test]
    fn stored_states_come_back(state in state(), applied in any::<bool>(), ledger in -1..9i64, entry in -1..9i64) {
        prop_assert_eq!(decode(&encode(&state)), Ok(state.clone()));
        let stored = StoredAcks { state, applied, authored_to: Position::new(ledger, entry) };
        prop_assert_eq!(StoredAcks::decode(&stored.encode()), Ok(stored));
    }
}

/// What happens in a world of regions.
#[derive(Debug, Clone)]
enum Event {
    Author(usize, Vec<Step>),
    Seek(usize, Vec<Step>),
    Delete(usize),
    Send(usize, usize),
    /// Delivers the nth message on the way, or repeats it, or loses it.
    Deliver(usize),
    Repeat(usize),
    Lose(usize),
    /// The link between two breaks: what is on the way is lost, both start over.
    Break(usize, usize),
    Crash(usize),
}

fn event(regions: usize) -> impl Strategy<Value = Event> {
    let acks = || proptest::collection::vec(step(), 1..6);
    prop_oneof![
        12 => (0..regions, acks()).prop_map(|(region, steps)| Event::Author(region, steps)),
        1 => (0..regions, acks()).prop_map(|(region, steps)| Event::Seek(region, steps)),
        1 => (0..regions).prop_map(Event::Delete),
        20 => (0..regions, 0..regions).prop_map(|(from, to)| Event::Send(from, to)),
        20 => any::<usize>().prop_map(Event::Deliver),
        4 => any::<usize>().prop_map(Event::Repeat),
        4 => any::<usize>().prop_map(Event::Lose),
        2 => (0..regions, 0..regions).prop_map(|(one, other)| Event::Break(one, other)),
        1 => (0..regions).prop_map(Event::Crash),
    ]
}

struct Message {
    from: usize,
    to: usize,
    version: u64,
    bytes: Vec<u8>,
}

struct World {
    regions: Vec<SharedAcks>,
    /// What each region has stored: it starts from that after a crash.
    stored: Vec<AckState>,
    messages: Vec<Message>,
    now_ms: u64,
}

fn id(region: usize) -> RegionId {
    RegionId(region as u32 + 1)
}

impl World {
    fn new(count: usize) -> Self {
        let state = AckState::new(Epoch::creation(1, id(0)));
        let mut world = Self { regions: Vec::new(), stored: vec![state; count], messages: Vec::new(), now_ms: 1000 };
        for region in 0..count {
            let loaded = world.load(region);
            world.regions.push(loaded);
        }
        world
    }

    fn load(&self, region: usize) -> SharedAcks {
        // Small parts and few in flight: more orders.
        let limits = Limits { max_delta_bytes: 120, max_in_flight: 2, relay_after_ms: 40, ..Limits::default() };
        let mut shared = SharedAcks::new(id(region), self.stored[region].clone(), limits);
        (0..self.stored.len()).filter(|peer| *peer != region).for_each(|peer| shared.add_peer(id(peer), self.now_ms));
        shared
    }

    fn store(&mut self, region: usize) {
        self.stored[region] = self.regions[region].state().clone();
    }

    fn send(&mut self, from: usize, to: usize) -> bool {
        let Some((version, part)) = self.regions[from].take(id(to), self.now_ms) else { return false };
        self.messages.push(Message { from, to, version, bytes: encode(&part) });
        true
    }

    fn deliver(&mut self, index: usize) {
        let Message { from, to, version, bytes } = &self.messages[index];
        let (from, to, version) = (*from, *to, *version);
        let part = decode(bytes).expect("what was encoded");
        let before = self.regions[to].state().clone();
        let received = self.regions[to].receive(id(from), &part, self.now_ms).expect("there is room");
        let after = self.regions[to].state();
        match received {
            Received::Known | Received::Behind => assert_eq!(&before, after),
            Received::Learned(_) => {
                assert_eq!(before.epoch(), after.epoch());
                assert!(after.clone().merge(&before).is_empty(), "X2");
            }
            Received::Adopted | Received::Outlived => assert!(before.epoch() < after.epoch()),
        }
        self.store(to);
        self.regions[from].confirm(id(to), version);
    }

    fn happen(&mut self, event: &Event) {
        self.now_ms += 7;
        let epoch = |world: &World, region: usize| world.regions[region].state().epoch();
        match event {
            Event::Author(region, steps) => {
                let mut part = AckState::new(epoch(self, *region));
                steps.iter().for_each(|step| apply(&mut part, step));
                let before = self.regions[*region].state().clone();
                self.regions[*region].author(&part, self.now_ms).expect("there is room");
                assert!(self.regions[*region].state().clone().merge(&before).is_empty(), "X2");
                self.store(*region);
            }
            Event::Seek(region, steps) => {
                let mut cut = AckState::default();
                steps.iter().for_each(|step| apply(&mut cut, step));
                self.regions[*region].raise(&cut, self.now_ms);
                self.store(*region);
            }
            Event::Delete(region) => {
                self.regions[*region].delete(self.now_ms);
                self.store(*region);
            }
            Event::Send(from, to) if from != to => drop(self.send(*from, *to)),
            Event::Send(..) => {}
            Event::Deliver(nth) if !self.messages.is_empty() => {
                let index = nth % self.messages.len();
                self.deliver(index);
                self.messages.remove(index);
            }
            Event::Repeat(nth) if !self.messages.is_empty() => self.deliver(nth % self.messages.len()),
            Event::Lose(nth) if !self.messages.is_empty() => {
                let lost = self.messages.remove(nth % self.messages.len());
                self.regions[lost.from].lost(id(lost.to));
            }
            Event::Deliver(_) | Event::Repeat(_) | Event::Lose(_) => {}
            Event::Break(one, other) => {
                self.messages.retain(|message| !(message.from == *one && message.to == *other));
                self.regions[*one].lost(id(*other));
            }
            Event::Crash(region) => {
                self.messages.retain(|message| message.from != *region);
                self.regions[*region] = self.load(*region);
            }
        }
    }

    /// Everybody talks until nobody has anything to say.
    fn settle(&mut self) {
        for index in (0..self.messages.len()).rev() {
            let lost = self.messages.remove(index);
            self.regions[lost.from].lost(id(lost.to));
        }
        for _ in 0..200 {
            self.now_ms += 100;
            let mut said = false;
            for from in 0..self.regions.len() {
                for to in (0..self.regions.len()).filter(|to| *to != from) {
                    said |= self.send(from, to);
                }
            }
            while !self.messages.is_empty() {
                self.deliver(0);
                self.messages.remove(0);
            }
            if !said {
                return;
            }
        }
        panic!("the regions never come to rest");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Two to four regions, any order, loss, repetition, breaks and crashes: all end up with the same, and it holds
    /// everything that was authored under the epoch that won.
    #[test]
    fn regions_converge(
        (count, events) in (2..=4usize).prop_flat_map(|count| {
            (Just(count), proptest::collection::vec(event(count), 0..120))
        })
    ) {
        let mut world = World::new(count);
        let mut authored: BTreeMap<Epoch, AckState> = BTreeMap::new();
        for event in &events {
            if let Event::Author(region, steps) = event {
                let epoch = world.regions[*region].state().epoch();
                let part = authored.entry(epoch).or_insert_with(|| AckState::new(epoch));
                if !world.regions[*region].state().is_deleted() {
                    steps.iter().for_each(|step| apply(part, step));
                }
            }
            world.happen(event);
        }
        world.settle();
        let first = world.regions[0].state().clone();
        for region in &world.regions {
            prop_assert_eq!(region.state(), &first);
            prop_assert!(region.is_settled());
        }
        if let Some(part) = authored.get(&first.epoch()) {
            prop_assert!(members(part).is_subset(&members(&first)));
        }
    }
}
