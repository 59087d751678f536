//! Pauses between attempts: doubled each time, jittered, bounded.

/// See the module.
#[derive(Debug)]
pub(crate) struct Backoff {
    min_ms: u64,
    max_ms: u64,
    next_ms: u64,
}

impl Backoff {
    pub(crate) fn new(min_ms: u64, max_ms: u64) -> Self {
        let min_ms = min_ms.max(1);
        Self { min_ms, max_ms: max_ms.max(min_ms), next_ms: min_ms }
    }

    /// The connection was good.
    pub(crate) fn reset(&mut self) {
        self.next_ms = self.min_ms;
    }

    /// The next pause: between half and all of what is due.
    pub(crate) fn pause_ms(&mut self, random: u64) -> u64 {
        let due = self.next_ms;
        self.next_ms = (due * 2).min(self.max_ms);
        let half = due / 2;
        half + random % (due - half + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_within_bounds() {
        let mut backoff = Backoff::new(100, 1_000);
        for due in [100, 200, 400, 800, 1_000, 1_000] {
            let pause = backoff.pause_ms(u64::MAX / 3 + due);
            assert!((due / 2..=due).contains(&pause), "{pause} of {due}");
        }
        backoff.reset();
        assert!(backoff.pause_ms(7) <= 100);
    }
}
