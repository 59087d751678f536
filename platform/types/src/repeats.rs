//! Which lines are written of something that happens again and again.
//!
//! Role: a trouble is told when it begins, when it is of a new kind, and then once per pause with how often it came; its
//! end is told once. A pure decision: the caller writes.
//! Invariants: P1 a trouble of any length writes at most [`KINDS`] lines and one per pause, and one at its end; P2 every
//! occurrence is counted in exactly one line, or in that of the end.
//! Failure: none.
//! Must never know: logs, clocks.

use std::time::{Duration, Instant};

/// Kinds of one trouble that are told at once; more are told with the next line.
pub const KINDS: usize = 8;

/// What a line says beside what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Occurrences since the last line, this one included.
    pub times: u64,
    /// How long it has lasted.
    pub lasted: Duration,
}

impl Line {
    /// How long it has lasted, for a field of a line.
    pub fn lasted_ms(&self) -> u64 {
        u64::try_from(self.lasted.as_millis()).unwrap_or(u64::MAX)
    }
}

#[derive(Debug)]
struct Trouble {
    begun: Instant,
    written: Instant,
    kinds: Vec<String>,
    times: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Repeats {
    pause: Duration,
    trouble: Option<Trouble>,
}

impl Repeats {
    /// With at least `pause` between two lines of the same.
    pub const fn new(pause: Duration) -> Self {
        Self { pause, trouble: None }
    }

    /// At most one line a minute of the same.
    pub const fn by_minute() -> Self {
        Self::new(Duration::from_secs(60))
    }

    /// It happened; the line to be written, if one is.
    pub fn note(&mut self, now: Instant, kind: &str) -> Option<Line> {
        let begin = || Trouble { begun: now, written: now, kinds: Vec::new(), times: 0 };
        let trouble = self.trouble.get_or_insert_with(begin);
        trouble.times += 1;
        let new = trouble.kinds.len() < KINDS && !trouble.kinds.iter().any(|known| known == kind);
        if new {
            trouble.kinds.push(kind.to_owned());
        } else if now.saturating_duration_since(trouble.written) < self.pause {
            return None;
        }
        trouble.written = now;
        Some(Line { times: std::mem::take(&mut trouble.times), lasted: now.saturating_duration_since(trouble.begun) })
    }

    /// It is over; `None` if there was nothing. The count is of what no line has told.
    pub fn end(&mut self, now: Instant) -> Option<Line> {
        let trouble = self.trouble.take()?;
        Some(Line { times: trouble.times, lasted: now.saturating_duration_since(trouble.begun) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_told_at_its_begin_its_changes_once_a_pause_and_at_its_end() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut repeats = Repeats::by_minute();
        assert_eq!(repeats.end(begun), None);
        let line = |times, ms| Some(Line { times, lasted: Duration::from_millis(ms) });
        assert_eq!(repeats.note(at(0), "full"), line(1, 0));
        for turn in 1..300 {
            assert_eq!(repeats.note(at(turn * 200), "full"), None, "turn {turn}");
        }
        assert_eq!(repeats.note(at(60_000), "full"), line(300, 60_000));
        assert_eq!(repeats.note(at(60_200), "broken"), line(1, 60_200), "a change is told at once");
        assert_eq!(repeats.note(at(60_400), "full"), None, "but not that it is again what it was");
        assert_eq!(repeats.end(at(61_000)), line(1, 61_000));
        assert_eq!(repeats.note(at(62_000), "full"), line(1, 0), "a new trouble");
    }

    #[test]
    fn kinds_that_never_end_write_no_lines_without_end() {
        let now = Instant::now();
        let mut repeats = Repeats::by_minute();
        let told = (0..1000).filter(|turn| repeats.note(now, &format!("file {turn}")).is_some()).count();
        assert_eq!(told, KINDS);
        assert_eq!(repeats.end(now).map(|line| line.times), Some(1000 - KINDS as u64));
    }
}
