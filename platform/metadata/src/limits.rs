//! The bounds of the stores, by name, and the checks of sizes.
//!
//! Role: one place for every limit, the same for all stores of this crate.
//! Invariants: M6 what is stored, queued or answered at once is bounded.
//! Failure: [`MetadataError::TooLarge`] names what was too large.
//! Must never know: what keys mean.

use crate::store::{MetadataError, Operation};
use std::collections::HashSet;

/// Longest key.
pub const MAX_KEY_BYTES: usize = 4 * 1024;
/// Largest value. Larger state is split by its owner over several keys.
pub const MAX_VALUE_BYTES: usize = 1024 * 1024;
/// Largest transaction: keys, values and [`OPERATION_OVERHEAD_BYTES`] for each operation.
pub const MAX_TRANSACTION_BYTES: usize = 4 * 1024 * 1024;
/// What an operation counts for in [`MAX_TRANSACTION_BYTES`] besides its key and value.
pub const OPERATION_OVERHEAD_BYTES: usize = 32;
/// Most entries of a page of a range.
pub const MAX_PAGE_ENTRIES: usize = 10_000;
/// A page ends with the entry that reaches this size.
pub const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Changes kept for watches that are resumed.
pub const CHANGE_LOG_EVENTS: usize = 8192;
/// Bytes of keys and values kept for watches that are resumed.
pub const CHANGE_LOG_BYTES: usize = 1024 * 1024;
/// Changes that may wait in a watch before it is told to rescan.
pub const WATCH_QUEUE_EVENTS: usize = 4096;
/// Bytes of keys and values that may wait in a watch before it is told to rescan.
pub const WATCH_QUEUE_BYTES: usize = 2 * 1024 * 1024;
/// Sessions open at once.
pub const MAX_SESSIONS: usize = 100_000;
/// Shortest time to live of a session; shorter ones are raised to it.
pub const MIN_SESSION_TTL_MS: u64 = 10;
/// Longest time to live of a session; longer ones are cut to it.
pub const MAX_SESSION_TTL_MS: u64 = 3_600_000;

/// Checks the size of a key.
///
/// # Errors
/// [`MetadataError::TooLarge`].
pub fn check_key(key: &str) -> Result<(), MetadataError> {
    check("key", key.len(), MAX_KEY_BYTES)
}

/// Checks sizes and that no key occurs twice; answers what the transaction counts for.
///
/// # Errors
/// [`MetadataError::TooLarge`] or [`MetadataError::Invalid`].
pub fn check_transaction(operations: &[Operation]) -> Result<usize, MetadataError> {
    let mut keys = HashSet::with_capacity(operations.len());
    let mut total_bytes = 0;
    for operation in operations {
        let (key, value_bytes) = match operation {
            Operation::Put { key, value, .. } => (key, value.len()),
            Operation::Delete { key, .. } | Operation::Check { key, .. } => (key, 0),
        };
        check_key(key)?;
        check("value", value_bytes, MAX_VALUE_BYTES)?;
        if !keys.insert(key.as_str()) {
            return Err(MetadataError::Invalid(format!("key {key} occurs twice in one transaction")));
        }
        total_bytes += key.len() + value_bytes + OPERATION_OVERHEAD_BYTES;
    }
    check("transaction", total_bytes, MAX_TRANSACTION_BYTES)?;
    Ok(total_bytes)
}

fn check(what: &'static str, bytes: usize, max_bytes: usize) -> Result<(), MetadataError> {
    if bytes <= max_bytes {
        return Ok(());
    }
    Err(MetadataError::TooLarge { what, bytes: bytes as u64, max_bytes: max_bytes as u64 })
}
