//! Whole regions in one process from a seed, with faults and checkers. Test only.
//!
//! Role: two or three regions of one replicated topic, their clients and everything between them as events on a simulated
//! clock. The decisions are those of the real cores: the link's machine, the topic's producers with their marks and gates,
//! the lattice of acknowledgements with its wire and stored forms, the records and switches of fail-over. Logs, cursors and
//! stores are simple ones that say what is on disk and what is only in memory ([`site`]).
//! Invariants: D1 a seed is a run: nothing here reads a clock, a random source or the order of a hash map; D2 the checkers
//! ([`oracle`]) hear of every store, receipt, delivery and acknowledgement and keep their own books; D3 every checker is
//! proven by a bug that can be planted ([`Planted`]).
//! A second world ([`storage`]) is one region's storage: bookies, owners of a log, autorecovery, metadata.
//! Failure: a run ends with its violations; the seed plays it again.
//! Must never know: sockets, real time.
#![forbid(unsafe_code)]

mod acks;
mod chaos;
mod clients;
mod control;
mod coverage;
mod dispatch;
mod events;
mod links;
mod oracle;
mod plan;
mod planted;
mod receive;
mod reign;
mod run;
mod settle;
mod site;
pub mod storage;
mod world;

pub use coverage::Coverage;
pub use plan::Plan;
pub use planted::Planted;
pub use run::{Outcome, Report, run, run_many};
