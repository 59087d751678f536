//! Time to live: which entries of a subscription have expired.
//!
//! Invariants: X1 an entry expires `ttl` after it was stored, a delayed one `ttl` after it is due: the clock that runs is
//! the one of the reader's chance to read it.
//! Must never know: clocks, logs, cursors.

/// X1: whether an entry stored at `stored_ms` and perhaps delayed has outlived `ttl_ms`.
pub fn is_expired(stored_ms: u64, deliver_at_ms: Option<u64>, ttl_ms: u64, now_ms: u64) -> bool {
    let from_ms = deliver_at_ms.map_or(stored_ms, |due_ms| due_ms.max(stored_ms));
    now_ms.saturating_sub(from_ms) >= ttl_ms && now_ms >= from_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_starts_when_an_entry_is_due() {
        assert!(is_expired(1000, None, 500, 1500));
        assert!(!is_expired(1000, None, 500, 1499));
        assert!(!is_expired(1000, Some(1400), 500, 1899));
        assert!(is_expired(1000, Some(1400), 500, 1900));
        assert!(is_expired(1000, Some(3), 500, 1500), "a due time in the past changes nothing");
        assert!(!is_expired(2000, None, 0, 1000), "stored by a clock ahead of ours");
        assert!(!is_expired(u64::MAX, Some(u64::MAX), u64::MAX, 5));
    }
}
