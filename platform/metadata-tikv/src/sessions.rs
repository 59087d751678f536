//! Sessions: opened, renewed and ended by transactions on the store's clock.
//!
//! Role: its calls do not wait for the store's return with all others: a session that is renewed late is a session that
//! is lost. A session lives while its record is there. Its end on the store's clock only says when others may delete it;
//! until one does, its owner may still renew it, so a jump of the clock alone ends nothing.
//! Invariants: K5; ids are start time stamps and never repeat.
//! Failure: [`MetadataError::SessionExpired`] once the record is gone.
//! Must never know: what ephemeral keys mean.

use crate::calls::{Shared, Step, View};
use crate::commit::Job;
use crate::failure::Failure;
use crate::format::{SessionRecord, decode_session, encode_session};
use crate::reap::Due;
use meridian_metadata::limits::{MAX_SESSION_TTL_MS, MAX_SESSIONS, MIN_SESSION_TTL_MS};
use meridian_metadata::{MetadataError, Session, SessionId};
use std::sync::Arc;
use tikv_client::{TimestampExt, Transaction};
use tokio::time::Instant;

impl Shared {
    /// Writes one session's record and commits.
    async fn put_session(
        &self,
        transaction: &mut Transaction,
        session: SessionId,
        record: SessionRecord,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let key = self.keys.session(session);
        let put = transaction.put(key.clone(), encode_session(&key, record)).await;
        put.map_err(|error| Failure::of("a write", &error))?;
        let outcome = self.link.step("a commit", deadline, transaction.commit()).await;
        if outcome.is_err() {
            // Leaves no lock in the way of the next try. With one key it does nothing to what was committed.
            drop(self.link.step("a rollback", deadline, transaction.rollback()).await);
        }
        outcome.map(drop)
    }

    /// Opens a session. A try whose outcome is not known leaves at most a session that nobody renews.
    pub(crate) async fn open_session(&self, ttl_ms: u64) -> Result<Session, MetadataError> {
        if self.counters.sessions.get() >= MAX_SESSIONS as u64 {
            return Err(self.unavailable("too many sessions are open"));
        }
        let ttl_ms = ttl_ms.clamp(MIN_SESSION_TTL_MS, MAX_SESSION_TTL_MS);
        let mut tries = self.urgent_tries();
        loop {
            match self.try_open(ttl_ms, tries.deadline).await {
                Ok(session) => return Ok(session),
                Err(step) => self.again(&mut tries, step).await?,
            }
        }
    }

    async fn try_open(&self, ttl_ms: u64, deadline: Instant) -> Result<Session, Step> {
        let mut transaction = self.link.begin(deadline).await?;
        let start = transaction.start_timestamp();
        let id = SessionId(start.version());
        let record = SessionRecord { ttl_ms, renewals: 0, expires_at_ms: start.physical.unsigned_abs() + ttl_ms };
        self.put_session(&mut transaction, id, record, deadline).await?;
        Ok(Session { id, ttl_ms })
    }

    /// Gives a session its whole time again. Doing it twice is harmless, so an unknown outcome is a next try.
    pub(crate) async fn renew_session(&self, session: SessionId) -> Result<(), MetadataError> {
        let mut tries = self.urgent_tries();
        loop {
            match self.try_renew(session, tries.deadline).await {
                Ok(()) => return Ok(()),
                Err(step) => self.again(&mut tries, step).await?,
            }
        }
    }

    async fn try_renew(&self, session: SessionId, deadline: Instant) -> Result<(), Step> {
        let key = self.keys.session(session);
        let mut transaction = self.link.begin(deadline).await?;
        let now_ms = transaction.start_timestamp().physical.unsigned_abs();
        let found = self.batch_get(&mut View::Of(&mut transaction), vec![key.clone()], deadline).await?;
        let Some((_, record)) = found.into_iter().next() else {
            return Err(MetadataError::SessionExpired(session).into());
        };
        let mut record = decode_session(&key, &record)?;
        record.renewals += 1;
        record.expires_at_ms = now_ms + record.ttl_ms;
        self.put_session(&mut transaction, session, record, deadline).await?;
        Ok(())
    }

    /// Ends a session and deletes its keys, in as many transactions as they need; the last one deletes the session.
    pub(crate) async fn close_session(self: &Arc<Self>, session: SessionId) -> Result<(), MetadataError> {
        let mut job = Job::EndSession { session, renewals: None };
        while self.write(&mut job).await?.more {}
        Ok(())
    }

    /// Ends a session that was not renewed in time, unless it was meanwhile.
    pub(crate) async fn reap(self: &Arc<Self>, due: Due) -> Result<(), MetadataError> {
        let mut job = Job::EndSession { session: due.session, renewals: Some(due.renewals) };
        while self.write(&mut job).await?.more {}
        self.counters.reaped_sessions.add(1);
        tracing::info!(session = due.session.0, "a session that was not renewed has ended");
        Ok(())
    }
}
