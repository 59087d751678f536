//! Time as topics need it.
//!
//! Role: the one place where the crate reads a clock; simulations put their own in.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Wall clock and monotonic time.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
    /// Microseconds since some moment, never going back.
    fn monotonic_us(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
    }

    fn monotonic_us(&self) -> u64 {
        START.elapsed().as_micros() as u64
    }
}
