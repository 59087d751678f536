//! The answering side of one peer's objects: one answer per message, in order.
//!
//! Failure: a message that is none is refused and ends the stream; an object that can't be read is refused by itself.
//! Must never know: what objects mean.

use crate::api::{Applied, ObjectStore};
use crate::convert::{object, outcome, summary};
use crate::proto::{self, sync_down, sync_up};
use meridian_topology::Digests;
use std::time::Duration;
use tonic::Status;

/// How long one object may take; above, it is sent again.
const APPLY_DEADLINE: Duration = Duration::from_secs(10);

/// What a message changed, for the figures.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Took {
    pub(crate) taken: u64,
    pub(crate) refused: u64,
}

/// Answers one message.
///
/// # Errors
/// A message that is none.
pub(crate) async fn answer(
    store: &dyn ObjectStore,
    from: &str,
    message: proto::SyncUp,
) -> Result<(proto::SyncDown, Took), Status> {
    let mut took = Took::default();
    let kind = match message.kind {
        Some(sync_up::Kind::Digests(digests)) => {
            let theirs = Digests::from_figures(digests.figures)
                .ok_or_else(|| Status::invalid_argument("digests of another number of buckets"))?;
            let buckets = store.digests(from).differing(&theirs).into_iter().map(u32::from).collect();
            sync_down::Kind::Differ(proto::Differ { round: digests.round, buckets })
        }
        Some(sync_up::Kind::Listing(listing)) => {
            let offered: Vec<_> = listing.items.into_iter().map(summary).collect();
            sync_down::Kind::Wanted(proto::Wanted { round: listing.round, keys: store.wanted(from, &offered) })
        }
        Some(sync_up::Kind::Objects(objects)) => {
            let mut outcomes = Vec::with_capacity(objects.objects.len());
            for sent in objects.objects {
                let object = object(sent);
                let key = object.key.clone();
                let applied = match tokio::time::timeout(APPLY_DEADLINE, store.apply(from, object)).await {
                    Ok(applied) => applied,
                    Err(_) => Applied::Later(format!("not stored within {} s", APPLY_DEADLINE.as_secs())),
                };
                took.taken += u64::from(applied == Applied::Taken);
                took.refused += u64::from(matches!(applied, Applied::Refused(_)));
                if let Applied::Refused(reason) = &applied {
                    tracing::warn!(from, key, reason, "an object of another region is refused");
                }
                outcomes.push(outcome(key, applied));
            }
            sync_down::Kind::Applied(proto::Applied { id: objects.id, outcomes })
        }
        None => return Err(Status::invalid_argument("an empty message")),
    };
    Ok((proto::SyncDown { kind: Some(kind) }, took))
}
