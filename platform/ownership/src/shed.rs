//! Which bundles move from busy brokers to others.
//!
//! Invariants: S1 a broker sheds only after it was busy in several reports that follow each other, and goes on until it is
//! well below the mark (hysteresis); S2 a bundle that was moved stays for a while; S3 a move makes the busier of the two
//! brokers less busy than it was, so that a load that can't be parted is not sent round in circles; S4 a look moves a
//! bounded number of bundles.
//! Failure: none; what keeps a busy broker from shedding is said.
//! Must never know: tasks, the store.

use crate::assign::{Given, Groups, choose};
use crate::records::{BundleFigures, BundleId, LoadRecord};
use crate::table::{Holder, Table};
use meridian_types::NamespaceName;
use std::collections::{BTreeMap, HashMap};

/// When a broker is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShedLimits {
    /// Busy above this, in thousandths of what the machine has.
    pub overload_permille: u64,
    /// Busy if so much above the mean of all brokers.
    pub difference_permille: u64,
    /// No longer busy this much below the mark.
    pub hysteresis_permille: u64,
    /// Reports above the mark before the first move.
    pub looks: u32,
    /// Bundles moved in one look at most.
    pub moves: usize,
    /// A bundle stays so long after a move.
    pub stay_ms: u64,
    /// Messages per second, in and out, that fill a broker, 0 = not counted.
    pub messages: u64,
    /// Topics that fill a broker, 0 = not counted.
    pub topics: u64,
}

impl Default for ShedLimits {
    fn default() -> Self {
        Self {
            overload_permille: 850,
            difference_permille: 150,
            hysteresis_permille: 50,
            looks: 3,
            moves: 4,
            stay_ms: 30 * 60_000,
            messages: 0,
            topics: 50_000,
        }
    }
}

impl ShedLimits {
    /// How much a broker has to do: its busiest measure, in thousandths.
    pub fn pressure(&self, load: &LoadRecord) -> u64 {
        let total = load.total.unwrap_or_default();
        let share = |value: u64, limit: u64| value.saturating_mul(1000).checked_div(limit).unwrap_or(0);
        crate::assign::pressure(Some(load))
            .max(share(total.messages_in + total.messages_out, self.messages))
            .max(share(total.topics, self.topics))
    }
}

/// A bundle that moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The bundle.
    pub bundle: BundleId,
    /// From whom.
    pub from: String,
    /// To whom.
    pub to: String,
}

/// What a look came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Moves to make.
    pub moves: Vec<Move>,
    /// Busy brokers that move nothing, and why.
    pub stuck: Vec<(String, &'static str)>,
}

#[derive(Debug, Default)]
struct Watched {
    looks: u32,
    shedding: bool,
    report_ms: u64,
}

/// Remembers looks and moves.
#[derive(Debug, Default)]
pub struct Shedder {
    brokers: HashMap<String, Watched>,
    moved_ms: HashMap<BundleId, u64>,
}

/// A bundle's share of what its broker does, in thousandths of the broker's load.
fn share(figures: &BundleFigures, total: &BundleFigures) -> u64 {
    let weight = |one: &BundleFigures| {
        // A message costs about as much as a kilobyte; a topic costs something even when it is quiet.
        one.messages_in + one.messages_out + (one.bytes_in + one.bytes_out) / 1024 + one.topics / 10
    };
    (weight(figures) * 1000).checked_div(weight(total)).unwrap_or(0).min(1000)
}

impl Shedder {
    /// One look.
    pub fn look(&mut self, limits: &ShedLimits, now_ms: u64, table: &Table, groups: &dyn Groups) -> Look {
        let mut look = Look::default();
        self.moved_ms.retain(|_, at_ms| now_ms < *at_ms + limits.stay_ms);
        let loads: BTreeMap<&str, (&LoadRecord, u64)> = table
            .brokers()
            .keys()
            .filter_map(|id| table.load(id).map(|load| (id.as_str(), (load, limits.pressure(load)))))
            .collect();
        self.brokers.retain(|id, _| loads.contains_key(id.as_str()));
        if loads.len() < 2 {
            return look;
        }
        let mean = loads.values().map(|(_, pressure)| pressure).sum::<u64>() / loads.len() as u64;
        let mut pressures: BTreeMap<String, u64> =
            loads.iter().map(|(id, (_, pressure))| ((*id).to_owned(), *pressure)).collect();
        let mut order: Vec<&str> = loads.keys().copied().collect();
        order.sort_by_key(|id| std::cmp::Reverse(loads[id].1));
        for id in order {
            let (load, pressure) = loads[id];
            if !self.is_shedding(id, load, pressure, mean, limits) {
                continue;
            }
            let left = limits.moves.saturating_sub(look.moves.len());
            let excess = pressure.saturating_sub(mean);
            match self.part(now_ms, table, groups, (id, load, excess), left, &mut pressures) {
                Ok(moves) => look.moves.extend(moves),
                Err(why) => look.stuck.push((id.to_owned(), why)),
            }
        }
        look
    }

    /// Whether a broker sheds, after this report (S1).
    fn is_shedding(&mut self, id: &str, load: &LoadRecord, pressure: u64, mean: u64, limits: &ShedLimits) -> bool {
        let watched = self.brokers.entry(id.to_owned()).or_default();
        let mark = limits.overload_permille.min(mean + limits.difference_permille).max(1);
        // Everybody is busy: nobody is better off elsewhere.
        let alone = pressure > mean + limits.hysteresis_permille;
        if watched.shedding {
            watched.shedding = pressure + limits.hysteresis_permille > mark && alone;
        }
        if load.at_ms == watched.report_ms {
            return false;
        }
        watched.report_ms = load.at_ms;
        watched.looks = if pressure > mark && alone { watched.looks + 1 } else { 0 };
        watched.shedding |= watched.looks >= limits.looks;
        watched.shedding
    }

    fn part(
        &mut self,
        now_ms: u64,
        table: &Table,
        groups: &dyn Groups,
        (id, load, excess): (&str, &LoadRecord, u64),
        left: usize,
        pressures: &mut BTreeMap<String, u64>,
    ) -> Result<Vec<Move>, &'static str> {
        let total = load.total.unwrap_or_default();
        let own = pressures.get(id).copied().unwrap_or(0);
        let (mut moves, mut shed, mut why) = (Vec::new(), 0, "no_bundles");
        for bundle in &load.bundles {
            if moves.len() >= left || shed >= excess / 2 {
                break;
            }
            let Ok(namespace) = NamespaceName::parse(&bundle.namespace) else { continue };
            let range = crate::BundleRange { start: bundle.start, end: bundle.end };
            let bundle_id = BundleId { namespace, range };
            let its = matches!(table.holder(&bundle_id), Holder::Held { owner, .. } if owner.record.broker == id);
            if !its || self.moved_ms.contains_key(&bundle_id) {
                why = if its { "moved_lately" } else { why };
                continue;
            }
            let weight = own * share(&bundle.figures.unwrap_or_default(), &total) / 1000;
            let Some(to) = choose(table, &bundle_id, &[id], &Given::new(), groups) else {
                why = "no_other_broker_may";
                continue;
            };
            let there = pressures.get(&to.id).copied().unwrap_or(0);
            if weight == 0 || there + weight >= own.saturating_sub(shed) {
                why = "can_not_be_parted";
                continue;
            }
            shed += weight;
            *pressures.entry(to.id.clone()).or_default() += weight;
            self.moved_ms.insert(bundle_id.clone(), now_ms);
            moves.push(Move { bundle: bundle_id, from: id.to_owned(), to: to.id });
        }
        if moves.is_empty() { Err(why) } else { Ok(moves) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assign::NoGroups;
    use crate::bundles::BundleRange;
    use crate::records::{BrokerRecord, BundleLoad, OwnerRecord, broker_key, encode, load_key, owner_key};
    use meridian_metadata::Version;

    fn bundle(start: u32) -> BundleId {
        BundleId { namespace: NamespaceName::parse("t/n").unwrap(), range: BundleRange { start, end: start + 100 } }
    }

    /// A broker's id, its CPU, and the messages per second of its bundles by their start.
    type Loaded<'a> = (&'a str, u32, &'a [(u32, u64)]);

    fn table(version: u64, brokers: &[Loaded<'_>]) -> Table {
        let mut table = Table::default();
        for (id, cpu_permille, bundles) in brokers {
            let broker = BrokerRecord { id: (*id).into(), incarnation: 1, ..BrokerRecord::default() };
            table.put(&broker_key(id), &encode(&broker), Version(version)).unwrap();
            let figures = |messages_in| BundleFigures { topics: 2, messages_in, ..BundleFigures::default() };
            let total = figures(bundles.iter().map(|(_, messages)| messages).sum());
            let load = |(start, messages): &(u32, u64)| BundleLoad {
                namespace: "t/n".into(),
                start: *start,
                end: *start + 100,
                figures: Some(figures(*messages)),
            };
            let record = LoadRecord {
                incarnation: 1,
                at_ms: version,
                cpu_permille: *cpu_permille,
                total: Some(total),
                bundles: bundles.iter().map(load).collect(),
                ..LoadRecord::default()
            };
            table.put(&load_key(id), &encode(&record), Version(version)).unwrap();
            for (start, _) in *bundles {
                let owner = OwnerRecord { broker: (*id).into(), incarnation: 1, epoch: 1, ..OwnerRecord::default() };
                table.put(&owner_key(&bundle(*start)), &encode(&owner), Version(version)).unwrap();
            }
        }
        table
    }

    const LIMITS: ShedLimits = ShedLimits {
        overload_permille: 850,
        difference_permille: 150,
        hysteresis_permille: 50,
        looks: 2,
        moves: 2,
        stay_ms: 1_000,
        messages: 0,
        topics: 0,
    };

    fn look(shedder: &mut Shedder, now_ms: u64, table: &Table) -> Look {
        shedder.look(&LIMITS, now_ms, table, &NoGroups)
    }

    #[test]
    fn a_lasting_load_is_shared_and_then_left_alone() {
        let mut shedder = Shedder::default();
        let busy: &[(u32, u64)] = &[(0, 100), (100, 100), (200, 100), (300, 100)];
        let first = table(1, &[("a", 900, busy), ("b", 100, &[])]);
        assert_eq!(look(&mut shedder, 0, &first), Look::default(), "one report is none");
        assert_eq!(look(&mut shedder, 1, &first), Look::default(), "nor is the same one again");
        let again = table(2, &[("a", 900, busy), ("b", 100, &[])]);
        let moves = look(&mut shedder, 2, &again).moves;
        assert_eq!(moves.len(), 1, "half of what is too much");
        assert_eq!((moves[0].bundle.clone(), moves[0].to.as_str()), (bundle(0), "b"));
        let shared = table(3, &[("a", 675, &busy[1..]), ("b", 325, &busy[..1])]);
        let moves = look(&mut shedder, 3, &shared).moves;
        assert_eq!(moves.len(), 1, "still above the mark less the hysteresis");
        let even = table(4, &[("a", 500, &busy[2..]), ("b", 500, &busy[..2])]);
        assert_eq!(look(&mut shedder, 4, &even), Look::default());
    }

    #[test]
    fn b129_one_hot_bundle_is_not_sent_round() {
        let mut shedder = Shedder::default();
        let hot: &[(u32, u64)] = &[(0, 1_000)];
        for version in 1..20 {
            let table = table(version, &[("a", 950, hot), ("b", 20, &[])]);
            let look = look(&mut shedder, version * 10, &table);
            assert_eq!(look.moves, []);
            if version > 2 {
                assert_eq!(look.stuck, [("a".to_owned(), "can_not_be_parted")]);
            }
        }
    }

    #[test]
    fn a_moved_bundle_stays_for_a_while() {
        let mut shedder = Shedder::default();
        let busy: &[(u32, u64)] = &[(0, 500), (100, 300)];
        let at = |version| table(version, &[("a", 900, busy), ("b", 100, &[])]);
        assert_eq!(look(&mut shedder, 0, &at(1)).moves, []);
        assert_eq!(look(&mut shedder, 1, &at(2)).moves.len(), 1);
        // It was moved back by hand.
        let next = look(&mut shedder, 2, &at(3));
        assert!(next.moves.iter().all(|one| one.bundle != bundle(0)), "{next:?}");
        assert_eq!(look(&mut shedder, 1_100, &at(4)).moves.len(), 1);
    }

    #[test]
    fn where_everybody_is_busy_nothing_moves() {
        let mut shedder = Shedder::default();
        let busy: &[(u32, u64)] = &[(0, 500), (100, 300)];
        for version in 1..5 {
            let table = table(version, &[("a", 950, busy), ("b", 940, &[])]);
            assert_eq!(look(&mut shedder, version, &table), Look::default());
        }
    }
}
