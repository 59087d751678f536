//! Waking those who follow the end of a log: replicators, tails.
//!
//! Invariants: W1 who waits is told of every confirmation that its look at the log did not see; W2 a confirmation that
//! nobody waits for costs one load.
//! W1 holds by the lock of the view: a follower counts itself *before* it looks, a confirmation looks at the count *after*
//! it has changed the view, so one of the two sees the other.
//! Failure: a log that has stopped answers why. Must never know: who follows.

use super::ManagedLedger;
use crate::api::LogError;
use meridian_types::Position;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts a follower for as long as it waits.
struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn new(followers: &'a AtomicU32) -> Self {
        followers.fetch_add(1, Ordering::SeqCst);
        Self(followers)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ManagedLedger {
    /// The log has grown or has stopped.
    pub(crate) fn tell_followers(&self) {
        if self.followers.load(Ordering::SeqCst) > 0 {
            self.grown.notify_waiters();
        }
    }

    /// Waits until an entry after `position` is confirmed; answers the last confirmed position. Costs the log nothing while
    /// nobody waits; dropping the future ends the wait.
    ///
    /// # Errors
    /// [`LogError::Closed`] or [`LogError::Fenced`] when the log has stopped and there is no such entry.
    pub async fn wait_beyond(&self, position: Position) -> Result<Position, LogError> {
        let _counted = Counted::new(&self.followers);
        loop {
            let told = self.grown.notified();
            tokio::pin!(told);
            // From here on nothing is missed.
            told.as_mut().enable();
            let last = self.last_confirmed();
            if last > position {
                return Ok(last);
            }
            self.check_running()?;
            told.await;
        }
    }
}
