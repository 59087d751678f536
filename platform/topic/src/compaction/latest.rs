//! First pass: which message is the latest of its key.
//!
//! Invariants:
//! - C3 a key's latest message is the last one by position and batch index; a tombstone (null or empty value) takes the
//!   key away until a later message brings it back.
//! - C4 a chunked message counts when its last part is there; parts whose last part was not seen stay.
//! - C5 what cannot be opened (encrypted batches, unknown compression, damaged bytes) has no keys and stays as it is.

use bytes::Bytes;
use meridian_types::Position;
use meridian_wire::batch::Messages;
use meridian_wire::compression::decompress;
use meridian_wire::metadata::MetadataSummary;
use meridian_wire::payload::{split, summarize};
use meridian_wire::proto::{CompressionType, SingleMessageMetadata};
use std::collections::{HashMap, HashSet};

/// A batch that is larger uncompressed is not opened.
pub const UNCOMPRESSED_MAX_BYTES: usize = 128 << 20;

/// What an entry is to compaction.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Content {
    /// Cannot be opened (C5).
    Closed,
    /// One message.
    Single { key: Option<String>, is_tombstone: bool },
    /// One part of a chunked message.
    Part { key: Option<String>, uuid: String, is_last: bool },
    /// A batch, opened.
    Batch(Vec<(SingleMessageMetadata, Bytes)>),
}

/// Opens an entry's payload.
pub(super) fn open(payload: &Bytes) -> Content {
    let (Ok(summary), Ok(parts)) = (summarize(payload), split(payload)) else { return Content::Closed };
    let key = summary.partition_key.map(str::to_owned);
    if summary.is_chunk() {
        let uuid = summary.uuid.unwrap_or_default().to_owned();
        return Content::Part { key, uuid, is_last: summary.is_last_chunk() };
    }
    let body = parts.payload_of(payload);
    if !summary.is_batch() {
        return Content::Single { key, is_tombstone: is_tombstone(&summary, &body) };
    }
    if summary.is_encrypted() {
        return Content::Closed;
    }
    open_batch(&summary, &body).map_or(Content::Closed, Content::Batch)
}

/// Null, or nothing: also where compression made some bytes of nothing.
fn is_tombstone(summary: &MetadataSummary<'_>, body: &Bytes) -> bool {
    let is_compressed = summary.compression_type() != Some(CompressionType::None);
    let is_nothing = body.is_empty() || (is_compressed && !summary.is_encrypted() && summary.uncompressed_bytes == 0);
    summary.null_value || is_nothing
}

fn open_batch(summary: &MetadataSummary<'_>, body: &Bytes) -> Option<Vec<(SingleMessageMetadata, Bytes)>> {
    let kind = summary.compression_type()?;
    let plain = match kind {
        CompressionType::None => body.clone(),
        _ => decompress(kind, body, summary.uncompressed_bytes as usize, UNCOMPRESSED_MAX_BYTES).ok()?,
    };
    Messages::new(plain, summary.messages()).collect::<Result<_, _>>().ok()
}

/// Whether a message of a batch takes its key away.
fn is_batched_tombstone(metadata: &SingleMessageMetadata, value: &Bytes) -> bool {
    metadata.null_value() || value.is_empty()
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Latest {
    Message(Position, u32),
    Chunked(String),
    Tombstone,
}

/// The latest message of each key.
#[derive(Debug, Default)]
pub(super) struct LatestByKey {
    by_key: HashMap<String, Latest>,
    /// Chunked messages whose last part was not seen.
    open_uuids: HashSet<String>,
}

impl LatestByKey {
    /// Takes in the next entry; entries come in order.
    pub(super) fn observe(&mut self, position: Position, content: Content) {
        match content {
            Content::Closed => {}
            Content::Single { key: Some(key), is_tombstone } => {
                let latest = if is_tombstone { Latest::Tombstone } else { Latest::Message(position, 0) };
                self.by_key.insert(key, latest);
            }
            Content::Part { key, uuid, is_last } => {
                if is_last {
                    self.open_uuids.remove(&uuid);
                } else {
                    self.open_uuids.insert(uuid.clone());
                }
                if let Some(key) = key.filter(|_| is_last) {
                    self.by_key.insert(key, Latest::Chunked(uuid));
                }
            }
            Content::Batch(messages) => {
                for (index, (metadata, value)) in messages.into_iter().enumerate() {
                    let is_tombstone = is_batched_tombstone(&metadata, &value);
                    if metadata.compacted_out() {
                        continue;
                    }
                    if let Some(key) = metadata.partition_key {
                        let at = Latest::Message(position, index as u32);
                        self.by_key.insert(key, if is_tombstone { Latest::Tombstone } else { at });
                    }
                }
            }
            Content::Single { key: None, .. } => {}
        }
    }

    /// Whether a message of a key, alone in its entry or at an index of a batch, is the key's latest.
    pub(super) fn is_latest(&self, key: &str, position: Position, batch_index: u32) -> bool {
        self.by_key.get(key) == Some(&Latest::Message(position, batch_index))
    }

    /// Whether the part of a chunked message stays (C4).
    pub(super) fn keeps_part(&self, key: &str, uuid: &str) -> bool {
        self.open_uuids.contains(uuid)
            || matches!(self.by_key.get(key), Some(Latest::Chunked(latest)) if latest == uuid)
    }

    /// Whether a chunked message without a key is still incomplete.
    pub(super) fn is_open(&self, uuid: &str) -> bool {
        self.open_uuids.contains(uuid)
    }

    /// Keys with a latest message.
    pub(super) fn live_keys(&self) -> u64 {
        self.by_key.values().filter(|latest| **latest != Latest::Tombstone).count() as u64
    }
}
