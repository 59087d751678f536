//! Which sessions have ended: a pure decision over what was seen of them.
//!
//! Role: a session is due when the store's clock is past its end and this process has itself watched it go unrenewed
//! for half its time to live. The second rule keeps sessions through a jump of the store's clock.
//! Invariants: K5 being due ends nothing: the transaction that ends it checks that it was not renewed meanwhile.
//! Failure: none.
//! Must never know: keys, TiKV's interface.

use crate::format::SessionRecord;
use meridian_metadata::SessionId;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy)]
struct Watched {
    renewals: u64,
    since_ms: u64,
}

/// What was seen of every session.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    watched: BTreeMap<SessionId, Watched>,
}

/// A session to end if it still has this many renewals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) session: SessionId,
    pub(crate) renewals: u64,
}

impl Reaper {
    /// One look at all sessions at `store_ms` of the store's clock and `local_ms` of this process's.
    pub(crate) fn look(&mut self, sessions: &[(SessionId, SessionRecord)], store_ms: u64, local_ms: u64) -> Vec<Due> {
        let mut watched = BTreeMap::new();
        let mut due = Vec::new();
        for (session, record) in sessions {
            let before = self.watched.get(session).filter(|before| before.renewals == record.renewals);
            let since_ms = before.map_or(local_ms, |before| before.since_ms);
            watched.insert(*session, Watched { renewals: record.renewals, since_ms });
            let unrenewed_ms = local_ms.saturating_sub(since_ms);
            if record.expires_at_ms < store_ms && before.is_some() && unrenewed_ms >= record.ttl_ms / 2 {
                due.push(Due { session: *session, renewals: record.renewals });
            }
        }
        self.watched = watched;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SessionId = SessionId(1);

    fn record(renewals: u64, expires_at_ms: u64) -> SessionRecord {
        SessionRecord { ttl_ms: 3000, renewals, expires_at_ms }
    }

    #[test]
    fn a_session_that_is_not_renewed_is_due_after_its_end() {
        let mut reaper = Reaper::default();
        assert_eq!(reaper.look(&[(ID, record(0, 3000))], 100, 0), []);
        assert_eq!(reaper.look(&[(ID, record(0, 3000))], 2900, 2800), []);
        assert_eq!(reaper.look(&[(ID, record(0, 3000))], 3100, 3000), [Due { session: ID, renewals: 0 }]);
        assert_eq!(reaper.look(&[], 3200, 3100), []);
    }

    #[test]
    fn a_jump_of_the_clock_ends_no_session_that_is_renewed() {
        let mut reaper = Reaper::default();
        for round in 0..20 {
            let seen = [(ID, record(round, 3000 + 1000 * round))];
            let jump_ms = if round > 5 { 3_600_000 } else { 0 };
            assert_eq!(reaper.look(&seen, 1000 * round + jump_ms, 1000 * round), [], "{round}");
        }
    }

    #[test]
    fn a_process_that_has_just_started_watches_first() {
        let mut reaper = Reaper::default();
        let dead = [(ID, record(7, 3000))];
        assert_eq!(reaper.look(&dead, 90_000, 0), []);
        assert_eq!(reaper.look(&dead, 91_000, 1000), []);
        assert_eq!(reaper.look(&dead, 91_600, 1600).len(), 1);
    }
}
