//! Pauses between repetitions: growing, bounded, and different for every caller.
//!
//! Invariants: no pause reaches past the deadline; two callers that failed together do not come back together.
//! Failure: none.
//! Must never know: what is repeated.

use std::time::Duration;
use tokio::time::Instant;

const FIRST_MS: u64 = 4;
const LONGEST_MS: u64 = 500;

/// The pauses of one call.
#[derive(Debug)]
pub(crate) struct Backoff {
    next_ms: u64,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next_ms: FIRST_MS }
    }

    /// The next pause: between half and all of a doubling time.
    fn next_pause(&mut self) -> Duration {
        let whole_ms = self.next_ms;
        self.next_ms = (whole_ms * 2).min(LONGEST_MS);
        Duration::from_millis(rand::random_range(whole_ms / 2..=whole_ms))
    }

    /// Waits; false when there is no time left for another try.
    pub(crate) async fn wait(&mut self, deadline: Instant) -> bool {
        let until = Instant::now() + self.next_pause();
        if until >= deadline {
            return false;
        }
        tokio::time::sleep_until(until).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut backoff = Backoff::new();
        for whole_ms in [4, 8, 16, 32, 64, 128, 256, 500, 500, 500] {
            let pause_ms = backoff.next_pause().as_millis() as u64;
            assert!((whole_ms / 2..=whole_ms).contains(&pause_ms), "{pause_ms} of {whole_ms}");
        }
    }

    #[tokio::test]
    async fn no_pause_reaches_past_the_deadline() {
        assert!(!Backoff::new().wait(Instant::now()).await);
        assert!(Backoff::new().wait(Instant::now() + Duration::from_secs(1)).await);
    }
}
