//! Which versions of the topic's schema the remote has, and under which number.
//!
//! Invariants: S1 one version is brought over at a time and nothing behind its first entry is sent meanwhile; S2 what is
//! known holds for one session: the remote's topic may have been made anew.
//! Must never know: what a schema is.

use super::limit::Backoff;
use super::words::Now;
use bytes::Bytes;
use std::collections::HashMap;

/// Versions remembered at most; above, all are asked again.
const MAX_KNOWN: usize = 1024;

/// The answer for one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// Send, with this version instead if there is one.
    Yes(Option<Bytes>),
    /// It is being brought over, or waits to be tried again.
    Wait,
    /// Bring it over.
    Bring,
}

/// See the head of the file.
pub struct Schemas {
    known: HashMap<Bytes, Option<Bytes>>,
    asked: Option<Bytes>,
    failure: Option<String>,
    retry_at_ms: u64,
    backoff: Backoff,
}

impl Schemas {
    /// Nothing is known.
    pub fn new(backoff: Backoff) -> Self {
        Self { known: HashMap::new(), asked: None, failure: None, retry_at_ms: 0, backoff }
    }

    /// A new session (S2). A failure stays shown until it is overcome.
    pub fn session(&mut self) {
        self.known.clear();
        self.asked = None;
        self.retry_at_ms = 0;
    }

    /// Whether entries of that version may go.
    pub fn ask(&mut self, version: &Bytes, now: Now) -> Known {
        if let Some(remote) = self.known.get(version) {
            return Known::Yes(remote.clone());
        }
        if self.asked.is_some() || (self.failure.is_some() && now.ms < self.retry_at_ms) {
            return Known::Wait;
        }
        self.asked = Some(version.clone());
        Known::Bring
    }

    /// The answer to [`Known::Bring`].
    pub fn answer(&mut self, version: Bytes, outcome: Result<Option<Bytes>, String>, now: Now) {
        if self.asked.as_ref() != Some(&version) {
            return;
        }
        self.asked = None;
        match outcome {
            Ok(remote) => {
                if self.known.len() >= MAX_KNOWN {
                    self.known.clear();
                }
                self.failure = None;
                self.backoff.reset();
                self.known.insert(version, remote);
            }
            Err(why) => {
                self.failure = Some(why);
                self.retry_at_ms = now.ms + self.backoff.next_ms(now);
            }
        }
    }

    /// The entry that waited for a schema has gone, one way or the other.
    pub fn passed(&mut self) {
        self.failure = None;
    }

    /// Why a schema can't be brought over, if it can't.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// When it is tried again.
    pub fn wake_at_ms(&self) -> Option<u64> {
        (self.failure.is_some() && self.asked.is_none()).then_some(self.retry_at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Now {
        Now { ms, jitter_permille: 0 }
    }

    #[test]
    fn one_version_at_a_time_and_failures_are_tried_again() {
        let (one, two) = (Bytes::from_static(&[1]), Bytes::from_static(&[2]));
        let mut schemas = Schemas::new(Backoff::new(100, 1000));
        assert_eq!(schemas.ask(&one, at(0)), Known::Bring);
        assert_eq!(schemas.ask(&one, at(0)), Known::Wait);
        assert_eq!(schemas.ask(&two, at(0)), Known::Wait);
        schemas.answer(one.clone(), Err("incompatible".into()), at(5));
        assert_eq!((schemas.failure(), schemas.wake_at_ms()), (Some("incompatible"), Some(105)));
        assert_eq!(schemas.ask(&one, at(104)), Known::Wait);
        assert_eq!(schemas.ask(&one, at(105)), Known::Bring);
        schemas.answer(one.clone(), Ok(Some(two.clone())), at(106));
        assert_eq!((schemas.ask(&one, at(106)), schemas.failure()), (Known::Yes(Some(two)), None));
        schemas.session();
        assert_eq!(schemas.ask(&one, at(107)), Known::Bring);
    }
}
