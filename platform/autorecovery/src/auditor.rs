//! Which bookies are lost: a pure decision over what is registered, what holds ledgers, and what is marked already.
//!
//! Invariants: J1 of the crate; A1 what it decides depends on nothing but the scene: another auditor goes on where this
//! one was; A2 an operator's mark is never taken away.
//! Must never know: clocks, stores.

use crate::records::{Leaving, Reason};
use meridian_types::BookieId;
use std::collections::{BTreeMap, BTreeSet};

/// What the auditor sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scene {
    /// Bookies that hold ledgers.
    pub holders: BTreeSet<BookieId>,
    /// Bookies that are registered; `None` = not known.
    pub registered: Option<BTreeSet<BookieId>>,
    /// Marks.
    pub leaving: BTreeMap<BookieId, Leaving>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Mark a bookie, or mark it anew.
    Mark(BookieId, Leaving),
    /// Take the mark of a bookie away: it is back, or nothing is left of it.
    Unmark(BookieId),
    /// More than half of the bookies that hold ledgers are missing: nobody is marked.
    Held {
        /// So many are missing
        missing: usize,
        /// of so many.
        holders: usize,
    },
}

/// Looks once. `grace_ms` is how long a bookie may be missing.
pub fn look(now_ms: u64, grace_ms: u64, scene: &Scene) -> Vec<Decision> {
    let Some(registered) = &scene.registered else { return Vec::new() };
    let missing: BTreeSet<&BookieId> = scene.holders.difference(registered).collect();
    let held = missing.len() > 1 && missing.len() * 2 > scene.holders.len();
    let due_ms = now_ms + grace_ms;
    let mut decisions = Vec::new();
    if held {
        decisions.push(Decision::Held { missing: missing.len(), holders: scene.holders.len() });
    }
    for (bookie, leaving) in scene.leaving.iter().filter(|(_, leaving)| leaving.reason == Reason::Lost) {
        if !missing.contains(bookie) {
            decisions.push(Decision::Unmark(bookie.clone()));
        } else if held || leaving.due_ms > due_ms {
            // The grace begins anew; a mark from a clock that went wrong is cut to it.
            decisions.push(Decision::Mark(bookie.clone(), Leaving { due_ms, ..*leaving }));
        }
    }
    if !held {
        let fresh = missing.into_iter().filter(|bookie| !scene.leaving.contains_key(*bookie));
        let mark = Leaving { reason: Reason::Lost, since_ms: now_ms, due_ms };
        decisions.extend(fresh.map(|bookie| Decision::Mark(bookie.clone(), mark)));
    }
    decisions
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert, proptest};

    fn ids(names: &str) -> BTreeSet<BookieId> {
        names.split_whitespace().map(BookieId::new).collect()
    }

    fn scene(holders: &str, registered: &str, leaving: &[(&str, Leaving)]) -> Scene {
        let leaving = leaving.iter().map(|(id, leaving)| (BookieId::new(*id), *leaving)).collect();
        Scene { holders: ids(holders), registered: Some(ids(registered)), leaving }
    }

    const LOST: Leaving = Leaving { reason: Reason::Lost, since_ms: 100, due_ms: 160 };
    const ORDERED: Leaving = Leaving { reason: Reason::Ordered, since_ms: 100, due_ms: 100 };

    fn told(decisions: &[Decision]) -> Vec<String> {
        let word = |decision: &Decision| match decision {
            Decision::Mark(id, leaving) => format!("mark {id} {}..{}", leaving.since_ms, leaving.due_ms),
            Decision::Unmark(id) => format!("unmark {id}"),
            Decision::Held { missing, holders } => format!("held {missing}/{holders}"),
        };
        decisions.iter().map(word).collect()
    }

    /// The script: what is seen, and what is decided.
    #[test]
    fn golden_script() {
        let script: [(&str, Scene, &[&str]); 9] = [
            ("all there", scene("a b c", "a b c d", &[]), &[]),
            ("one is missing", scene("a b c", "a b d", &[]), &["mark c 120..180"]),
            ("it is still missing", scene("a b c", "a b", &[("c", LOST)]), &[]),
            ("it is back", scene("a b c", "a b c", &[("c", LOST)]), &["unmark c"]),
            ("nothing is left of it", scene("a b", "a b", &[("c", LOST)]), &["unmark c"]),
            ("an order stays", scene("a b", "a b c", &[("c", ORDERED)]), &[]),
            ("one by order goes away", scene("a b c", "a b", &[("c", ORDERED)]), &[]),
            ("most are missing", scene("a b c d e", "a b", &[("c", LOST)]), &["held 3/5", "mark c 100..180"]),
            ("the only two, one missing", scene("a b", "a", &[]), &["mark b 120..180"]),
        ];
        for (name, scene, expected) in script {
            assert_eq!(told(&look(120, 60, &scene)), expected, "{name}");
        }
    }

    #[test]
    fn a_listing_that_is_not_known_proves_nothing() {
        let unknown = Scene { registered: None, ..scene("a b c", "", &[("c", LOST)]) };
        assert!(look(1_000, 60, &unknown).is_empty());
    }

    #[test]
    fn a_mark_from_a_wrong_clock_is_cut_to_the_grace() {
        let far = Leaving { due_ms: 1_000_000, ..LOST };
        assert_eq!(told(&look(120, 60, &scene("a b c", "a b", &[("c", far)]))), ["mark c 100..180"]);
    }

    proptest! {
        /// J1 and A2 for any scene, and looking again at what came of it changes nothing.
        #[test]
        fn rules_hold(holders in prop::collection::btree_set(0..9u8, 0..9), registered in prop::collection::btree_set(0..9u8, 0..9),
                      lost in prop::collection::btree_set(0..9u8, 0..4), ordered in prop::collection::btree_set(0..9u8, 0..3)) {
            let set = |of: &BTreeSet<u8>| of.iter().map(|n| BookieId::new(format!("b{n}"))).collect::<BTreeSet<_>>();
            let mut leaving: BTreeMap<_, _> = set(&lost).into_iter().map(|id| (id, LOST)).collect();
            leaving.extend(set(&ordered).into_iter().map(|id| (id, ORDERED)));
            let mut scene = Scene { holders: set(&holders), registered: Some(set(&registered)), leaving };
            let decisions = look(120, 60, &scene);
            let missing = scene.holders.difference(&set(&registered)).count();
            for decision in &decisions {
                match decision {
                    Decision::Mark(id, mark) => {
                        prop_assert!(mark.due_ms == 180 && mark.reason == Reason::Lost);
                        prop_assert!(!set(&registered).contains(id) && scene.holders.contains(id));
                        let fresh = !scene.leaving.contains_key(id);
                        prop_assert!(!fresh || missing <= 1 || missing * 2 <= scene.holders.len());
                        scene.leaving.insert(id.clone(), *mark);
                    }
                    Decision::Unmark(id) => {
                        let mark = scene.leaving.remove(id);
                        prop_assert!(mark.is_some_and(|mark| mark.reason == Reason::Lost));
                    }
                    Decision::Held { .. } => {}
                }
            }
            let again = look(120, 60, &scene);
            let held = again.iter().any(|d| matches!(d, Decision::Held { .. }));
            prop_assert!(held || again.is_empty(), "{:?}", again);
        }
    }
}
