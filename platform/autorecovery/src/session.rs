//! The session under which this process holds claims and the auditor's key.
//!
//! Invariants: E1 a session that may have ended is no longer told to anyone: it counts from the moment before it was
//! renewed. J3 of the crate makes anything beyond that harmless.
//! Failure: without a session nothing new is begun; a new one is opened when the store answers.
//! Must never know: what it is used for.

use meridian_metadata::{MetadataError, SessionId, SharedStore};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Holds a session until dropped; tells it through the channel.
pub(crate) async fn hold(store: SharedStore, ttl_ms: u64, told: watch::Sender<Option<SessionId>>) {
    let beat = Duration::from_millis((ttl_ms / 3).max(10));
    let limit = Duration::from_millis(ttl_ms.max(10));
    loop {
        let begun = Instant::now();
        let Ok(Ok(session)) = timeout(limit, store.open_session(ttl_ms)).await else {
            tokio::time::sleep(beat).await;
            continue;
        };
        told.send_replace(Some(session.id));
        keep(&store, session.id, beat, Duration::from_millis(session.ttl_ms), begun).await;
        told.send_replace(None);
        tracing::warn!("the session of autorecovery has ended; a new one is opened");
    }
}

/// Renews until the session has ended or may have.
async fn keep(store: &SharedStore, session: SessionId, beat: Duration, ttl: Duration, opened: Instant) {
    let mut good_until = opened + ttl;
    loop {
        tokio::time::sleep(beat).await;
        let begun = Instant::now();
        match tokio::time::timeout_at(good_until, store.renew_session(session)).await {
            Ok(Ok(())) => good_until = begun + ttl,
            Ok(Err(MetadataError::SessionExpired(_))) => return,
            Ok(Err(_)) | Err(_) => {}
        }
        if Instant::now() >= good_until {
            return;
        }
    }
}
