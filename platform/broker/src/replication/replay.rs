//! Publishes entries that were set aside in another region, as they are, as an ordinary producer.
//!
//! Invariants: Y1 a run is answered "stored" only if every entry of it was receipted; Y2 entries go in order, one run at a
//! time. Failure: a sentence; entries of the run may be stored then.
//! Must never know: why they were set aside.

use bytes::Bytes;
use meridian_client::{LinkEvent, LinkOptions, LinkProducer, OutgoingEntry, PeerPool};
use meridian_types::TopicName;
use meridian_wire::payload::summarize;
use std::time::Duration;

/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(30);
/// Entries sent before their receipts are waited for.
const RUN: usize = 64;

/// Publishes a run; ends when everything is stored there.
pub(super) async fn publish(pool: &PeerPool, topic: &TopicName, entries: Vec<Bytes>) -> Result<(), String> {
    let work = async {
        let connection = pool.owner(topic).await.map_err(|error| error.to_string())?;
        let options = LinkOptions { user_provided_name: false, ..LinkOptions::new(topic.clone()) };
        let (mut producer, mut events) =
            LinkProducer::open(&connection, &options).await.map_err(|error| error.to_string())?;
        let mut next = 0;
        for run in entries.chunks(RUN) {
            let first = next;
            let outgoing = run.iter().map(|entry| outgoing(entry, &mut next)).collect::<Result<Vec<_>, _>>()?;
            producer.send(outgoing).await.map_err(|error| error.to_string())?;
            let mut stored = first;
            while stored < next {
                for event in events.recv().await.unwrap_or_default() {
                    match event {
                        LinkEvent::Receipt { .. } => stored += 1,
                        LinkEvent::SendError { text, .. } => return Err(text),
                        LinkEvent::TopicMigrated { url } => return Err(format!("the topic has moved to {url}")),
                        LinkEvent::Closed { reason, .. } => return Err(reason),
                    }
                }
            }
        }
        if let Err(error) = producer.close().await {
            // Everything is stored: that the connection ended instead changes nothing.
            tracing::debug!(%topic, %error, "the producer of a replay did not close");
        }
        Ok(())
    };
    tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| Err(format!("not stored within {LIMIT:?}")))
}

fn outgoing(entry: &Bytes, next: &mut u64) -> Result<OutgoingEntry, String> {
    let summary = summarize(entry).map_err(|error| error.to_string())?;
    let sequence_id = *next;
    *next += 1;
    Ok(OutgoingEntry {
        sequence_id,
        highest_sequence_id: None,
        num_messages: summary.messages(),
        marker: false,
        is_chunk: summary.is_chunk(),
        source: None,
        entry: entry.clone(),
    })
}
