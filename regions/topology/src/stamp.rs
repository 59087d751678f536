//! Stamps by which changes in different regions are ordered: a hybrid logical clock and the region.
//!
//! A stamp is `(milliseconds << 16 | counter, region id)`, written as `TTTTTTTTTTTTTTTT-RRRRRRRR` (hexadecimal), so that
//! the order of the text is the order of the stamps.
//! Invariants: G2 a clock's stamps grow strictly, also over what it observed and when the time of day goes back; the clock
//! follows a stamp from elsewhere only if it is at most the limit ahead of the time of day here.
//! Failure: [`ClockError`]; nothing is taken over.
//! Must never know: where the time comes from.

use meridian_types::{Classify, ErrorClass, RegionId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Bits of the counter beside the milliseconds.
const COUNTER_BITS: u32 = 16;

/// When a change was made, and in which region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Stamp {
    /// Milliseconds since 1970, shifted, and a counter.
    pub time: u64,
    /// The region; decides between equal times.
    pub region: RegionId,
}

impl Stamp {
    /// Before every stamp that a clock gives.
    pub const ZERO: Self = Self { time: 0, region: RegionId(0) };

    /// The stamp of what was there before there were stamps: older than all others, yet different in each region.
    pub fn unstamped(region: RegionId) -> Self {
        Self { time: 0, region }
    }

    /// Its time of day, in ms since 1970.
    pub fn wall_ms(self) -> u64 {
        self.time >> COUNTER_BITS
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:08x}", self.time, self.region.0)
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stamp({self})")
    }
}

impl From<Stamp> for String {
    fn from(stamp: Stamp) -> Self {
        stamp.to_string()
    }
}

impl FromStr for Stamp {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rule = "a stamp is 16 hexadecimal digits, '-' and 8 more";
        let digits = |part: &str, len: usize| {
            (part.len() == len && part.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(()).ok_or(rule)
        };
        let (time, region) = text.split_once('-').ok_or(rule)?;
        digits(time, 16)?;
        digits(region, 8)?;
        let time = u64::from_str_radix(time, 16).map_err(|_| rule)?;
        let region = u32::from_str_radix(region, 16).map_err(|_| rule)?;
        Ok(Self { time, region: RegionId(region) })
    }
}

impl TryFrom<String> for Stamp {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Why a stamp from elsewhere is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClockError {
    /// Its region's clock, or the one here, is wrong.
    #[error(
        "stamp {stamp} is {ahead_ms} ms in the future ({limit_ms} ms are allowed): the clock here or that of the region \
         that wrote it is wrong"
    )]
    Ahead {
        /// The stamp.
        stamp: Stamp,
        /// How far.
        ahead_ms: u64,
        /// How far it might be.
        limit_ms: u64,
    },
}

impl Classify for ClockError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Retry
    }
}

/// Gives stamps.
#[derive(Debug, Clone)]
pub struct Clock {
    region: RegionId,
    last: u64,
    max_ahead_ms: u64,
}

impl Clock {
    /// The clock of a region; stamps from elsewhere may be so far ahead of the time of day.
    pub fn new(region: RegionId, max_ahead_ms: u64) -> Self {
        Self { region, last: 0, max_ahead_ms }
    }

    /// The region whose stamps it gives.
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// A stamp after all that were given or observed.
    pub fn tick(&mut self, now_ms: u64) -> Stamp {
        self.last = self.last.saturating_add(1).max(now_ms << COUNTER_BITS);
        Stamp { time: self.last, region: self.region }
    }

    /// Takes note of a stamp from elsewhere: later ones given here are greater.
    ///
    /// # Errors
    /// [`ClockError::Ahead`], and it is not taken note of.
    pub fn observe(&mut self, stamp: Stamp, now_ms: u64) -> Result<(), ClockError> {
        let ahead_ms = stamp.wall_ms().saturating_sub(now_ms);
        if ahead_ms > self.max_ahead_ms {
            return Err(ClockError::Ahead { stamp, ahead_ms, limit_ms: self.max_ahead_ms });
        }
        self.recover(stamp);
        Ok(())
    }

    /// Takes note of a stamp that is stored here, whatever the time of day.
    pub fn recover(&mut self, stamp: Stamp) {
        self.last = self.last.max(stamp.time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_text() {
        let stamp = Stamp { time: 0x0197_1234_5678_0003, region: RegionId(0xe306_9283) };
        assert_eq!(stamp.to_string(), "0197123456780003-e3069283");
        assert_eq!("0197123456780003-e3069283".parse(), Ok(stamp));
        assert_eq!(stamp.wall_ms(), 0x0197_1234_5678);
        for bad in ["", "1-2", "0197123456780003e3069283", "0197123456780003-e306928", "+197123456780003-e3069283"] {
            assert!(bad.parse::<Stamp>().is_err(), "{bad}");
        }
    }

    #[test]
    fn time_that_goes_back_does_not_matter() {
        let mut clock = Clock::new(RegionId(1), 1000);
        let first = clock.tick(5000);
        let second = clock.tick(10);
        assert!(second > first);
        assert_eq!(second.time, first.time + 1);
    }

    #[test]
    fn a_stamp_from_the_far_future_is_refused_and_not_followed() {
        let mut clock = Clock::new(RegionId(1), 1000);
        let near = Stamp { time: 6000 << 16, region: RegionId(2) };
        clock.observe(near, 5000).unwrap();
        assert!(clock.tick(5000) > near);
        let far = Stamp { time: 6001 << 16, region: RegionId(2) };
        assert_eq!(clock.observe(far, 5000), Err(ClockError::Ahead { stamp: far, ahead_ms: 1001, limit_ms: 1000 }));
        assert!(clock.tick(5000) < far);
        clock.recover(far);
        assert!(clock.tick(5000) > far);
    }

    proptest! {
        #[test]
        fn stamps_grow_over_everything_seen(steps in proptest::collection::vec((any::<bool>(), 0u64..1_000_000), 1..60)) {
            let mut clock = Clock::new(RegionId(1), u64::MAX);
            let mut seen = Stamp::ZERO;
            for (own, ms) in steps {
                if own {
                    let stamp = clock.tick(ms);
                    prop_assert!(stamp > seen);
                    seen = stamp;
                } else {
                    let stamp = Stamp { time: ms << 16, region: RegionId(2) };
                    clock.observe(stamp, ms).unwrap();
                    seen = seen.max(stamp);
                }
            }
        }

        #[test]
        fn text_orders_as_stamps_do(a: (u64, u32), b: (u64, u32)) {
            let (a, b) = (Stamp { time: a.0, region: RegionId(a.1) }, Stamp { time: b.0, region: RegionId(b.1) });
            prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
            prop_assert_eq!(a.to_string().parse::<Stamp>().unwrap(), a);
        }
    }
}
