//! What is kept of a log's entries in memory.
//!
//! Role: [`tail`] holds the newest entries, filled by writes, for everyone who follows the end; [`catch_up`] holds blocks
//! read ahead from storage for those who lag. Invariants: H1 the two have separate bounds, so a lagging reader never
//! evicts the tail; H2 each is bounded in bytes over all logs of the process, oldest out first; H3 a block is read from
//! storage once, however many readers ask for it at the same time.
//! Must never know: cursors, subscriptions.

pub mod catch_up;
pub mod tail;
