//! How one limit is divided among brokers: pure arithmetic.
//!
//! A [`Division`] is what everybody holds of one limit. A broker renews its grant with what it would use (its demand); it
//! gets its fair share (everybody's demand met as far as it goes, what is left divided equally, so that an idle broker can
//! begin at once), but never more than the others leave.
//!
//! Invariants: L1 the grants that have not ended add up to at most the limit, from the time on at which every holder has
//! renewed under it; before, a renewal never makes the sum greater than it was, unless it stays within the limit; L2 what
//! is in use is never taken away: a grant of a count is at least what its holder uses of it; L3 a grant that ended is free
//! only [`DRIFT_MS`] later, and its holder stops [`DRIFT_MS`] before, so that clocks may differ; L4 nothing but a renewal
//! makes budget: a holder that crashed leaves its grant behind until it ends.
//! Must never know: clocks, stores, what is limited.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Clocks of brokers may differ by so much.
pub const DRIFT_MS: u64 = 1_000;

/// What one broker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Grant {
    /// How much.
    pub amount: u64,
    /// How much it would use.
    pub demand: u64,
    /// Until when, ms since 1970.
    pub until_ms: u64,
}

/// What everybody holds of one limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Division {
    /// By broker.
    pub grants: BTreeMap<String, Grant>,
}

/// A broker's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The limit.
    pub total: u64,
    /// How much it would use.
    pub demand: u64,
    /// How much of a count it uses already; 0 for rates.
    pub in_use: u64,
    /// The time.
    pub now_ms: u64,
    /// How long the grant shall last.
    pub ttl_ms: u64,
}

impl Division {
    /// Forgets grants that ended long enough ago (L3).
    pub fn expire(&mut self, now_ms: u64) {
        self.grants.retain(|_, grant| grant.until_ms.saturating_add(DRIFT_MS) > now_ms);
    }

    /// Everything that is held.
    pub fn held(&self) -> u64 {
        self.grants.values().fold(0, |sum, grant| sum.saturating_add(grant.amount))
    }

    /// Renews a broker's grant, or gives it its first one.
    pub fn renew(&mut self, holder: &str, request: Request) -> Grant {
        self.expire(request.now_ms);
        let others = self.grants.iter().filter(|(name, _)| *name != holder);
        let taken = others.fold(0, |sum: u64, (_, grant)| sum.saturating_add(grant.amount));
        let mut demands: BTreeMap<&str, u64> =
            self.grants.iter().map(|(name, grant)| (name.as_str(), grant.demand)).collect();
        let demand = request.demand.max(request.in_use);
        demands.insert(holder, demand);
        let fair = fair_share(request.total, &demands, holder);
        // L1 and L2: within what the others leave, but for what is in use already.
        let amount = fair.min(request.total.saturating_sub(taken)).max(request.in_use);
        let grant = Grant { amount, demand, until_ms: request.now_ms.saturating_add(request.ttl_ms) };
        self.grants.insert(holder.to_owned(), grant);
        grant
    }

    /// Gives a broker's grant back; what it still uses is gone with it.
    pub fn release(&mut self, holder: &str) {
        self.grants.remove(holder);
    }
}

/// Each demand is met up to a level that is the same for all; what is left is divided equally.
fn fair_share(total: u64, demands: &BTreeMap<&str, u64>, holder: &str) -> u64 {
    let mut sorted: Vec<(u64, &str)> = demands.iter().map(|(name, demand)| (*demand, *name)).collect();
    sorted.sort_unstable();
    let own = demands.get(holder).copied().unwrap_or(0);
    let mut left = total;
    let mut waiting = sorted.len() as u64;
    for (demand, name) in &sorted {
        let level = left / waiting.max(1);
        if *demand > level {
            // This one and all after it get the level; the first of them by name take what division leaves.
            let behind: Vec<&str> =
                sorted.iter().skip(sorted.len() - waiting as usize).map(|(_, name)| *name).collect();
            let rank = behind.iter().filter(|other| **other < holder).count() as u64;
            let extra = u64::from(rank < left % waiting.max(1));
            return if own >= *demand { level + extra } else { own };
        }
        left -= demand;
        waiting -= 1;
        let _ = name;
    }
    let holders = sorted.len().max(1) as u64;
    let rank = demands.keys().filter(|name| **name < holder).count() as u64;
    own + left / holders + u64::from(rank < left % holders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(total: u64, demand: u64, now_ms: u64) -> Request {
        Request { total, demand, in_use: 0, now_ms, ttl_ms: 10_000 }
    }

    #[test]
    fn one_broker_has_everything_and_two_share_fairly() {
        let mut division = Division::default();
        assert_eq!(division.renew("a", request(1000, 10, 0)).amount, 1000);
        assert_eq!(division.renew("b", request(1000, 900, 1)).amount, 0, "a holds everything until it renews");
        assert_eq!(division.renew("a", request(1000, 10, 2)).amount, 55, "its demand and half of what is left");
        assert_eq!(division.renew("b", request(1000, 900, 3)).amount, 945);
        assert_eq!(division.held(), 1000);
        // Both want more than half.
        division.renew("a", request(1000, 800, 4));
        assert_eq!(division.renew("b", request(1000, 900, 5)).amount, 500);
        assert_eq!(division.renew("a", request(1000, 800, 6)).amount, 500);
    }

    #[test]
    fn a_crash_leaves_its_grant_until_it_ends() {
        let mut division = Division::default();
        division.renew("a", request(100, 100, 0));
        assert_eq!(division.renew("b", request(100, 100, 10_999)).amount, 0);
        assert_eq!(division.renew("b", request(100, 100, 11_000)).amount, 100);
        assert_eq!(division.renew("a", request(100, 100, 11_001)).amount, 0, "who comes back waits for its turn");
    }

    #[test]
    fn what_is_in_use_is_not_taken_away() {
        let mut division = Division::default();
        let using = |in_use, now_ms| Request { total: 10, demand: in_use, in_use, now_ms, ttl_ms: 10_000 };
        assert_eq!(division.renew("a", using(8, 0)).amount, 10);
        assert_eq!(division.renew("b", using(0, 1)).amount, 0);
        assert_eq!(division.renew("a", using(8, 2)).amount, 9);
        assert_eq!(division.renew("b", using(0, 3)).amount, 1);
        // The limit is lowered below what is used.
        let lowered = Request { total: 5, ..using(8, 4) };
        assert_eq!(division.renew("a", lowered).amount, 8);
        assert_eq!(division.renew("b", Request { total: 5, ..using(0, 5) }).amount, 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Renew { broker: usize, demand: u64, pause_ms: u64 },
        Crash { broker: usize },
        Release { broker: usize },
        Limit { total: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (0usize..5, 0u64..2_000, 0u64..4_000)
                .prop_map(|(broker, demand, pause_ms)| Step::Renew { broker, demand, pause_ms }),
            1 => (0usize..5).prop_map(|broker| Step::Crash { broker }),
            1 => (0usize..5).prop_map(|broker| Step::Release { broker }),
            1 => (1u64..2_000).prop_map(|total| Step::Limit { total }),
        ];
        proptest::collection::vec(step, 1..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

        /// L1, L3, L4: what brokers act on never adds up to more than the limit, whoever crashes, wherever limits move.
        #[test]
        fn grants_never_exceed_the_limit(steps in steps()) {
            let names = ["a", "b", "c", "d", "e"];
            let mut division = Division::default();
            // What a live broker believes to hold, and until when it acts on it.
            let mut believes: [Option<Grant>; 5] = [None; 5];
            let (mut total, mut now_ms) = (1_000u64, 0u64);
            // The greatest limit that a grant which may still be acted on was given under.
            let mut bound = total;
            for step in steps {
                match step {
                    Step::Renew { broker, demand, pause_ms } => {
                        now_ms += pause_ms;
                        let before = division.held();
                        let request = Request { total, demand, in_use: 0, now_ms, ttl_ms: 10_000 };
                        let grant = division.renew(names[broker], request);
                        believes[broker] = Some(grant);
                        prop_assert!(division.held() <= total.max(before));
                        prop_assert!(grant.amount <= total);
                    }
                    Step::Crash { broker } => believes[broker] = None,
                    Step::Release { broker } => {
                        division.release(names[broker]);
                        believes[broker] = None;
                    }
                    Step::Limit { total: other } => {
                        total = other;
                        bound = bound.max(total);
                    }
                }
                let acting: u64 = believes
                    .iter()
                    .flatten()
                    .filter(|grant| grant.until_ms.saturating_sub(DRIFT_MS) > now_ms)
                    .map(|grant| grant.amount)
                    .sum();
                prop_assert!(acting <= bound, "{acting} of {bound}");
            }
        }

        /// After two rounds in which everybody renews, everything is given out, within the limit, and fairly.
        #[test]
        fn divisions_settle(total in 1u64..10_000, demands in proptest::collection::vec(0u64..5_000, 1..6)) {
            let mut division = Division::default();
            let mut amounts = vec![0; demands.len()];
            for round in 0..3u64 {
                for (at, demand) in demands.iter().enumerate() {
                    let name = format!("b{at}");
                    amounts[at] = division.renew(&name, request(total, *demand, round)).amount;
                }
            }
            prop_assert_eq!(division.held(), total);
            let wanted: u64 = demands.iter().sum();
            for (amount, demand) in amounts.iter().zip(&demands) {
                if wanted <= total {
                    prop_assert!(amount >= demand);
                } else {
                    let level = total / demands.len() as u64;
                    prop_assert!(*amount >= (*demand).min(level), "{amount} of {demand}");
                }
            }
        }

        /// L2 with counts: what was in use when the limit allowed it stays held.
        #[test]
        fn counts_stay_within_the_limit(total in 1u64..50, moves in proptest::collection::vec((0usize..3, any::<bool>()), 1..300)) {
            let mut division = Division::default();
            let (mut used, mut held) = ([0u64; 3], [0u64; 3]);
            for (at, (broker, more)) in moves.into_iter().enumerate() {
                if more && used[broker] < held[broker] {
                    used[broker] += 1;
                } else if !more {
                    used[broker] = used[broker].saturating_sub(1);
                }
                let in_use = used[broker];
                let request = Request { total, demand: in_use + 1, in_use, now_ms: at as u64, ttl_ms: 10_000 };
                held[broker] = division.renew(["a", "b", "c"][broker], request).amount;
                prop_assert!(held[broker] >= used[broker]);
                prop_assert!(used.iter().sum::<u64>() <= total && division.held() <= total);
            }
        }
    }
}
