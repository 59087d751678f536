//! Which sessions have ended: a pure decision over what was seen of them.
//!
//! Role: a session is due when the store's clock is past its end and this process has itself watched it go unrenewed
//! for half its time to live. The second rule keeps sessions through a jump of the store's clock. Time in which the store
//! was away is not time in which a session could have been renewed: after it, and for a session that was over when it was
//! first seen, the watch begins anew and is longer.
//! Invariants: K5 being due ends nothing: the transaction that ends it checks that it was not renewed meanwhile.
//! Failure: none.
//! Must never know: keys, TiKV's interface.

use crate::format::SessionRecord;
use meridian_metadata::SessionId;
use std::collections::BTreeMap;

/// Looks that are further apart were parted by an absence of the store.
const LONGEST_PAUSE_MS: u64 = 3_000;
/// After an absence every owner has at least so long to come back.
const GRACE_MS: u64 = 6_000;

#[derive(Debug, Clone, Copy)]
struct Watched {
    renewals: u64,
    since_ms: u64,
    /// It was over already when the watch began, or the store was away.
    graced: bool,
}

/// What was seen of every session.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    watched: BTreeMap<SessionId, Watched>,
    looked_ms: u64,
}

/// A session to end if it still has this many renewals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) session: SessionId,
    pub(crate) renewals: u64,
    /// For how long it has been over.
    pub(crate) over_ms: u64,
}

impl Reaper {
    /// One look at all sessions at `store_ms` of the store's clock and `local_ms` of this process's.
    pub(crate) fn look(&mut self, sessions: &[(SessionId, SessionRecord)], store_ms: u64, local_ms: u64) -> Vec<Due> {
        let absent = local_ms.saturating_sub(self.looked_ms) > LONGEST_PAUSE_MS;
        let mut watched = BTreeMap::new();
        let mut due = Vec::new();
        for (session, record) in sessions {
            let over = record.expires_at_ms < store_ms;
            let before = self.watched.get(session).filter(|before| before.renewals == record.renewals && !absent);
            let now =
                before.copied().unwrap_or(Watched { renewals: record.renewals, since_ms: local_ms, graced: over });
            let needed_ms = if now.graced { record.ttl_ms.max(GRACE_MS) } else { record.ttl_ms / 2 };
            if over && before.is_some() && local_ms.saturating_sub(now.since_ms) >= needed_ms {
                let over_ms = store_ms - record.expires_at_ms;
                due.push(Due { session: *session, renewals: record.renewals, over_ms });
            }
            watched.insert(*session, now);
        }
        self.looked_ms = local_ms;
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
        assert_eq!(reaper.look(&[(ID, record(0, 3000))], 3100, 3000), [Due { session: ID, renewals: 0, over_ms: 100 }]);
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
    fn a_session_that_was_over_at_first_sight_is_watched_longer() {
        let mut reaper = Reaper::default();
        let dead = [(ID, record(7, 3000))];
        for local_ms in (0..6000).step_by(1000) {
            assert_eq!(reaper.look(&dead, 90_000 + local_ms, local_ms), [], "{local_ms}");
        }
        assert_eq!(reaper.look(&dead, 96_000, 6000).len(), 1);
    }

    #[test]
    fn an_absence_of_the_store_ends_no_session_that_comes_back() {
        let mut reaper = Reaper::default();
        let seen = |renewals, expires_at_ms| [(ID, record(renewals, expires_at_ms))];
        assert_eq!(reaper.look(&seen(0, 3000), 100, 0), []);
        assert_eq!(reaper.look(&seen(0, 3000), 1100, 1000), []);
        // Away for a minute; the owner needs some seconds to find the store again.
        for local_ms in (61_000..66_000).step_by(1000) {
            assert_eq!(reaper.look(&seen(0, 3000), local_ms, local_ms), [], "{local_ms}");
        }
        assert_eq!(reaper.look(&seen(1, 69_000), 66_500, 66_500), [], "it came back");
        // From here on it is a session as any other.
        assert_eq!(reaper.look(&seen(1, 69_000), 68_500, 68_500), []);
        assert_eq!(reaper.look(&seen(1, 69_000), 69_500, 69_500).len(), 1);
    }
}
