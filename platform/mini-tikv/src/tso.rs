//! Time stamps: 46 bits of milliseconds and 18 bits of a counter.
//!
//! Invariants: T1 a block of stamps is above every earlier one, also when the wall clock goes back; what was given is
//! below [`Oracle::limit_ms`] of the moment, which the journal keeps for the next start.
//! Failure: none.
//! Must never know: the clock itself, transactions.

/// Bits of the counter within a millisecond.
pub(crate) const LOGICAL_BITS: u32 = 18;
/// How far ahead the limit is moved at a time.
const WINDOW_MS: u64 = 3000;

/// Gives time stamps.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    physical_ms: u64,
    logical: u64,
    limit_ms: u64,
    jump_ms: u64,
}

impl Oracle {
    /// An oracle whose stamps are all above `limit_ms`.
    pub(crate) fn after(limit_ms: u64) -> Self {
        Self { physical_ms: limit_ms, limit_ms, ..Self::default() }
    }

    /// Shifts the clock ahead for good.
    pub(crate) fn jump(&mut self, by_ms: u64) {
        self.jump_ms += by_ms;
    }

    /// A block of `count` stamps at wall clock `now_ms`: physical part and the highest logical part of the block.
    pub(crate) fn take(&mut self, count: u64, now_ms: u64) -> (u64, u64) {
        let now_ms = now_ms + self.jump_ms;
        if now_ms > self.physical_ms {
            self.physical_ms = now_ms;
            self.logical = 0;
        }
        if self.logical + count >= 1 << LOGICAL_BITS {
            self.physical_ms += 1;
            self.logical = 0;
        }
        self.logical += count;
        (self.physical_ms, self.logical)
    }

    /// The new limit if the journal must be told one before the latest stamps may leave.
    pub(crate) fn new_limit_ms(&mut self) -> Option<u64> {
        if self.physical_ms < self.limit_ms {
            return None;
        }
        self.limit_ms = self.physical_ms + WINDOW_MS;
        Some(self.limit_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_grow_through_jumps_full_milliseconds_and_restarts() {
        let mut oracle = Oracle::after(100);
        let mut last = (100, 0);
        for (now_ms, count) in [(50, 3), (101, 1), (90, (1 << LOGICAL_BITS) - 1), (90, 5), (200, 1)] {
            let stamp = oracle.take(count, now_ms);
            assert!(stamp > last, "{stamp:?} after {last:?}");
            last = stamp;
        }
        oracle.jump(60_000);
        assert_eq!(oracle.take(1, 200).0, 60_200);
        assert_eq!(oracle.new_limit_ms(), Some(63_200));
        assert_eq!(oracle.new_limit_ms(), None);
        assert!(Oracle::after(63_200).take(1, 0) > oracle.take(1, 200));
    }
}
