//! Which calls go wrong and how, as a test asks for it.
//!
//! Role: a list of rules, each for some calls and a number of times; the services ask before they act.
//! Invariants: a rule is used up exactly as often as it was asked for; rules are used in the order they were added.
//! Failure: none.
//! Must never know: what the calls do.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A call of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names of the protocol")]
pub enum Rpc {
    Get,
    BatchGet,
    Scan,
    Prewrite,
    Commit,
    BatchRollback,
    TxnHeartBeat,
    CheckTxnStatus,
    ScanLock,
    ResolveLock,
    Tso,
    GetMembers,
    GetRegion,
    GetStore,
}

/// All calls that can be told to fail.
const ALL: [Rpc; 14] = [
    Rpc::Get,
    Rpc::BatchGet,
    Rpc::Scan,
    Rpc::Prewrite,
    Rpc::Commit,
    Rpc::BatchRollback,
    Rpc::TxnHeartBeat,
    Rpc::CheckTxnStatus,
    Rpc::ScanLock,
    Rpc::ResolveLock,
    Rpc::Tso,
    Rpc::GetMembers,
    Rpc::GetRegion,
    Rpc::GetStore,
];

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Refused before anything was done.
    Before,
    /// Done, but the reply is lost.
    After,
    /// Done, the reply is lost, and the server freezes until it is thawed.
    Freeze,
    /// Done, and never answered.
    Hang,
    /// Never done and never answered.
    HangBefore,
    /// The region has no leader that is known.
    NotLeader,
    /// The store is overloaded.
    ServerIsBusy,
    /// The region has changed under the client.
    EpochNotMatch,
}

impl std::str::FromStr for Rpc {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = || ALL.map(|rpc| format!("{rpc:?}")).join(", ");
        ALL.into_iter().find(|rpc| format!("{rpc:?}") == name).ok_or_else(|| format!("no call {name}: {}", all()))
    }
}

impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [
            Fault::Before,
            Fault::After,
            Fault::Freeze,
            Fault::Hang,
            Fault::HangBefore,
            Fault::NotLeader,
            Fault::ServerIsBusy,
            Fault::EpochNotMatch,
        ];
        all.into_iter().find(|fault| format!("{fault:?}") == name).ok_or_else(|| format!("no fault {name}"))
    }
}

#[derive(Debug)]
struct Rule {
    rpc: Rpc,
    fault: Fault,
    /// Calls to let pass before each one that goes wrong.
    every: u64,
    seen: u64,
    left: u64,
}

#[derive(Debug, Default)]
struct Plan {
    rules: Vec<Rule>,
    counts: BTreeMap<Rpc, u64>,
    injected: u64,
}

/// The faults of a server; clones are the same list.
#[derive(Debug, Clone)]
pub struct Faults {
    plan: Arc<Mutex<Plan>>,
    frozen: Arc<tokio::sync::watch::Sender<bool>>,
    held: Arc<AtomicU64>,
}

impl Default for Faults {
    fn default() -> Self {
        let frozen = Arc::new(tokio::sync::watch::Sender::new(false));
        Self { plan: Arc::default(), frozen, held: Arc::default() }
    }
}

impl Faults {
    /// The next `times` calls of `rpc` go wrong.
    pub fn inject(&self, rpc: Rpc, fault: Fault, times: u64) {
        self.inject_every(rpc, fault, 1, times);
    }

    /// Each `every`-th call of `rpc` goes wrong, `times` times.
    pub fn inject_every(&self, rpc: Rpc, fault: Fault, every: u64, times: u64) {
        self.plan.lock().rules.push(Rule { rpc, fault, every: every.max(1), seen: 0, left: times });
    }

    /// Ends all faults. Calls that hang keep hanging.
    pub fn clear(&self) {
        self.plan.lock().rules.clear();
    }

    /// Freezes the server: calls are taken and wait, as in a stopped process, until it is thawed.
    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// How many calls arrived while it was frozen.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Waits while the server is frozen.
    pub(crate) async fn thawed(&self) {
        let mut frozen = self.frozen.subscribe();
        if *frozen.borrow() {
            self.held.fetch_add(1, Ordering::Relaxed);
        }
        // An error means that the sender is gone, which holds nothing back.
        let _ = frozen.wait_for(|frozen| !frozen).await;
    }

    /// How often a call came.
    pub fn count(&self, rpc: Rpc) -> u64 {
        self.plan.lock().counts.get(&rpc).copied().unwrap_or_default()
    }

    /// How many calls of all kinds came.
    pub fn total(&self) -> u64 {
        self.plan.lock().counts.values().sum()
    }

    /// How many faults were injected.
    pub fn injected(&self) -> u64 {
        self.plan.lock().injected
    }

    /// Counts a call and answers how it goes wrong.
    pub(crate) fn next(&self, rpc: Rpc) -> Option<Fault> {
        let mut plan = self.plan.lock();
        *plan.counts.entry(rpc).or_default() += 1;
        let fault = plan.rules.iter_mut().filter(|rule| rule.rpc == rpc && rule.left > 0).find_map(|rule| {
            rule.seen += 1;
            if !rule.seen.is_multiple_of(rule.every) {
                return None;
            }
            rule.left -= 1;
            Some(rule.fault)
        });
        plan.injected += u64::from(fault.is_some());
        if fault == Some(Fault::Freeze) {
            self.freeze(true);
            return Some(Fault::After);
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_used_up_in_order() {
        let faults = Faults::default();
        faults.inject_every(Rpc::Commit, Fault::After, 2, 2);
        faults.inject(Rpc::Get, Fault::Hang, 1);
        let next = || faults.next(Rpc::Commit);
        assert_eq!(
            [next(), next(), next(), next(), next(), next()],
            [None, Some(Fault::After), None, Some(Fault::After), None, None]
        );
        assert_eq!(faults.next(Rpc::Get), Some(Fault::Hang));
        assert_eq!(faults.next(Rpc::Get), None);
        assert_eq!((faults.count(Rpc::Commit), faults.injected(), faults.total()), (6, 3, 8));
        faults.inject(Rpc::Get, Fault::Freeze, 1);
        assert_eq!((faults.next(Rpc::Get), *faults.frozen.borrow()), (Some(Fault::After), true));
    }

    #[test]
    fn names_are_those_of_the_protocol() {
        for rpc in ALL {
            assert_eq!(format!("{rpc:?}").parse(), Ok(rpc));
        }
        assert_eq!("HangBefore".parse(), Ok(Fault::HangBefore));
        assert!("Nothing".parse::<Fault>().is_err() && "Nothing".parse::<Rpc>().is_err());
    }
}
