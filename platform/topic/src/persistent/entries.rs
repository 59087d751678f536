//! From log entries to what dispatch needs to know of them.
//!
//! Role: leaves out markers and what is acked, reads the metadata only where the subscription type needs it.
//! Failure: an entry whose metadata can't be read is delivered as one without key, delay or chunks: the client decides.

use crate::api::SubscriptionType;
use crate::dispatch::{Candidate, Chunk};
use meridian_managed_ledger::{AckPosition, Cursor, LogEntry};
use meridian_types::Position;
use meridian_wire::key::sticky_hash;
use meridian_wire::payload::summarize;

/// Entries of one read, sorted out.
pub(super) struct Sorted {
    pub(super) candidates: Vec<Candidate>,
    /// Entries that no client may see: acked at once.
    pub(super) markers: Vec<Position>,
    /// Entries that are acked already.
    pub(super) acked: Vec<Position>,
    /// What other regions acked: to be acked here, too.
    pub(super) elsewhere: Vec<AckPosition>,
}

/// What other regions acked of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// Nothing.
    Open,
    /// Some of its messages: words, 1 = unacked.
    Partly(Vec<u64>),
    /// All of it.
    Acked,
}

/// How a subscription looks at entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) sub_type: SubscriptionType,
    /// Nothing above it was ever acked.
    pub(super) highest_acked: Position,
    /// What stands before it is in the compacted view only: no ack touches it.
    pub(super) first_kept: Position,
}

/// Bits that are set.
pub(super) fn count_unacked(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

/// Sorts entries out for a subscription.
pub(super) fn sort_out(
    entries: Vec<LogEntry>,
    view: View,
    cursor: &Cursor,
    elsewhere: Option<&dyn Fn(&LogEntry) -> Elsewhere>,
) -> Sorted {
    let mut sorted = Sorted {
        candidates: Vec::with_capacity(entries.len()),
        markers: Vec::new(),
        acked: Vec::new(),
        elsewhere: Vec::new(),
    };
    for entry in entries {
        if entry.marker {
            sorted.markers.push(entry.position);
            continue;
        }
        let mut ack_set = Vec::new();
        if entry.position <= view.highest_acked && entry.position >= view.first_kept {
            if cursor.is_acked(entry.position) {
                sorted.acked.push(entry.position);
                continue;
            }
            ack_set = cursor.unacked_batch_indexes(entry.position).unwrap_or_default();
        }
        match elsewhere.map_or(Elsewhere::Open, |ask| ask(&entry)) {
            Elsewhere::Open => {}
            Elsewhere::Acked => {
                sorted.elsewhere.push(ack_of(&entry, None));
                continue;
            }
            Elsewhere::Partly(words) => {
                sorted.elsewhere.push(ack_of(&entry, Some(words.clone())));
                ack_set = both(ack_set, words);
                if count_unacked(&ack_set) == 0 {
                    continue;
                }
            }
        }
        sorted.candidates.push(candidate(entry, ack_set, view.sub_type));
    }
    sorted
}

fn ack_of(entry: &LogEntry, unacked_batch_indexes: Option<Vec<u64>>) -> AckPosition {
    AckPosition { position: entry.position, unacked_batch_indexes, messages: entry.messages }
}

/// Unacked both here (empty = all) and elsewhere.
fn both(here: Vec<u64>, elsewhere: Vec<u64>) -> Vec<u64> {
    if here.is_empty() {
        return elsewhere;
    }
    here.iter().enumerate().map(|(index, word)| word & elsewhere.get(index).copied().unwrap_or(0)).collect()
}

fn candidate(entry: LogEntry, ack_set: Vec<u64>, sub_type: SubscriptionType) -> Candidate {
    let unacked = if ack_set.is_empty() { entry.messages.max(1) } else { count_unacked(&ack_set) };
    let mut candidate = Candidate { unacked, ack_set, key_hash: 0, deliver_at_ms: 0, chunk: None, entry };
    if !matches!(sub_type, SubscriptionType::Shared | SubscriptionType::KeyShared) {
        return candidate;
    }
    if let Ok(summary) = summarize(&candidate.entry.payload) {
        candidate.deliver_at_ms = summary.deliver_at_time_ms.map_or(0, |at| u64::try_from(at).unwrap_or(0));
        if sub_type == SubscriptionType::KeyShared {
            candidate.key_hash = known(sticky_hash(&summary));
        } else if summary.is_chunk() {
            candidate.chunk = summary.uuid.map(|uuid| Chunk {
                uuid: uuid.into(),
                id: summary.chunk_id.map_or(0, |id| id.max(0) as u32),
                count: summary.num_chunks_from_msg.map_or(0, |count| count.max(0) as u32),
            });
        }
    } else if sub_type == SubscriptionType::KeyShared {
        candidate.key_hash = known(meridian_wire::key::key_hash(meridian_wire::key::NO_KEY));
    }
    candidate
}

/// Hash 0 means "not known" to dispatch: a key that has it is taken for its neighbour, always the same one.
fn known(hash: u32) -> u32 {
    hash.max(1)
}

/// When the client says that it published the entry, ms since 1970; the broker's time if it does not say.
pub(super) fn publish_time_ms(entry: &LogEntry) -> u64 {
    summarize(&entry.payload).map_or(entry.broker_time_ms, |summary| summary.publish_time_ms)
}

/// Last index of the entry's batch, -1 if it is no batch.
pub(super) fn last_batch_index(entry: &LogEntry) -> i32 {
    summarize(&entry.payload)
        .ok()
        .filter(|summary| summary.is_batch())
        .map_or(-1, |summary| summary.messages() as i32 - 1)
}
