//! Which sessions live: a pure table over a monotonic clock.
//!
//! Invariants: a session that has reached its deadline is dead for every call, whether or not its end was collected
//! yet; a dead session never lives again.
//! Failure: a full table refuses new sessions.
//! Must never know: keys, stores, the clock itself.

use crate::limits::{MAX_SESSION_TTL_MS, MAX_SESSIONS, MIN_SESSION_TTL_MS};
use crate::store::{Session, SessionId};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy)]
struct Lease {
    ttl_ms: u64,
    deadline_ms: u64,
}

/// All sessions that have not ended.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    leases: BTreeMap<SessionId, Lease>,
}

impl SessionTable {
    /// Opens a session with an id that its caller has never used; `None` when the table is full.
    pub(crate) fn open(&mut self, id: SessionId, ttl_ms: u64, now_ms: u64) -> Option<Session> {
        if self.leases.len() >= MAX_SESSIONS {
            return None;
        }
        let ttl_ms = ttl_ms.clamp(MIN_SESSION_TTL_MS, MAX_SESSION_TTL_MS);
        self.leases.insert(id, Lease { ttl_ms, deadline_ms: now_ms + ttl_ms });
        Some(Session { id, ttl_ms })
    }

    /// Gives a live session its whole time again.
    pub(crate) fn renew(&mut self, id: SessionId, now_ms: u64) -> bool {
        match self.leases.get_mut(&id) {
            Some(lease) if now_ms < lease.deadline_ms => {
                lease.deadline_ms = now_ms + lease.ttl_ms;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn lives(&self, id: SessionId, now_ms: u64) -> bool {
        self.leases.get(&id).is_some_and(|lease| now_ms < lease.deadline_ms)
    }

    /// Ends a session; false if it had ended.
    pub(crate) fn end(&mut self, id: SessionId) -> bool {
        self.leases.remove(&id).is_some()
    }

    /// Takes out the sessions whose deadline has come.
    pub(crate) fn take_due(&mut self, now_ms: u64) -> Vec<SessionId> {
        let due: Vec<_> =
            self.leases.iter().filter(|(_, lease)| lease.deadline_ms <= now_ms).map(|(id, _)| *id).collect();
        for id in &due {
            self.leases.remove(id);
        }
        due
    }

    /// When the next session dies unless it is renewed.
    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        self.leases.values().map(|lease| lease.deadline_ms).min()
    }

    /// When this session dies unless it is renewed; `None` if it has ended.
    pub(crate) fn deadline_ms(&self, id: SessionId) -> Option<u64> {
        self.leases.get(&id).map(|lease| lease.deadline_ms)
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_dead_at_its_deadline_and_stays_dead() {
        let mut table = SessionTable::default();
        let id = SessionId(1);
        assert_eq!(table.open(id, 100, 1000), Some(Session { id, ttl_ms: 100 }));
        assert!(table.lives(id, 1099));
        assert!(table.renew(id, 1099));
        assert_eq!(table.next_deadline_ms(), Some(1199));
        assert!(!table.lives(id, 1199));
        assert!(!table.renew(id, 1199), "not collected yet, dead all the same");
        assert_eq!(table.take_due(1199), vec![id]);
        assert!(!table.end(id));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn time_to_live_is_kept_in_bounds() {
        let mut table = SessionTable::default();
        assert_eq!(table.open(SessionId(1), 0, 0).unwrap().ttl_ms, MIN_SESSION_TTL_MS);
        assert_eq!(table.open(SessionId(2), u64::MAX, 0).unwrap().ttl_ms, MAX_SESSION_TTL_MS);
    }
}
