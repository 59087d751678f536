//! Second pass: what stays of an entry.
//!
//! Invariants:
//! - C6 an entry that stays whole stays byte for byte.
//! - C7 a batch that loses messages keeps its count: the lost ones stay as empty messages marked as compacted out, so
//!   that batch indexes mean the same as before; it is compressed as it was.

use super::latest::{Content, LatestByKey, open};
use bytes::{Bytes, BytesMut};
use meridian_types::Position;
use meridian_wire::batch::put_message;
use meridian_wire::compression::compress;
use meridian_wire::payload::{decode, encode};
use meridian_wire::proto::{CompressionType, SingleMessageMetadata};

/// What stays of an entry.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Remains {
    /// Nothing.
    Nothing,
    /// All of it.
    Whole,
    /// These bytes.
    Part(Bytes),
}

/// What stays of an entry once the latest of every key is known.
pub(super) fn rewrite(position: Position, payload: &Bytes, latest: &LatestByKey, keep_keyless: bool) -> Remains {
    let whole_if = |stays| if stays { Remains::Whole } else { Remains::Nothing };
    match open(payload) {
        Content::Closed => Remains::Whole,
        Content::Single { key: None, .. } => whole_if(keep_keyless),
        Content::Single { key: Some(key), .. } => whole_if(latest.is_latest(&key, position, 0)),
        Content::Part { key: None, uuid, .. } => whole_if(keep_keyless || latest.is_open(&uuid)),
        Content::Part { key: Some(key), uuid, .. } => whole_if(latest.keeps_part(&key, &uuid)),
        Content::Batch(messages) => rewrite_batch(position, payload, messages, latest, keep_keyless),
    }
}

fn rewrite_batch(
    position: Position,
    payload: &Bytes,
    messages: Vec<(SingleMessageMetadata, Bytes)>,
    latest: &LatestByKey,
    keep_keyless: bool,
) -> Remains {
    let stays = |index: usize, metadata: &SingleMessageMetadata| {
        !metadata.compacted_out()
            && metadata.partition_key.as_ref().map_or(keep_keyless, |key| latest.is_latest(key, position, index as u32))
    };
    let staying = messages.iter().enumerate().filter(|(index, (metadata, _))| stays(*index, metadata)).count();
    let gone_before = messages.iter().filter(|(metadata, _)| metadata.compacted_out()).count();
    if staying == 0 {
        return Remains::Nothing;
    }
    if staying + gone_before == messages.len() {
        return Remains::Whole;
    }
    let mut batch = BytesMut::new();
    for (index, (metadata, value)) in messages.into_iter().enumerate() {
        if stays(index, &metadata) {
            put_message(metadata, &value, &mut batch);
        } else {
            let gone = SingleMessageMetadata { compacted_out: Some(true), ..SingleMessageMetadata::default() };
            put_message(gone, &[], &mut batch);
        }
    }
    repack(payload, batch.freeze()).map_or(Remains::Whole, Remains::Part)
}

/// The entry with another batch in it.
fn repack(entry: &Bytes, batch: Bytes) -> Option<Bytes> {
    let (mut metadata, _) = decode(entry).ok()?;
    let kind = metadata.compression();
    let packed = match kind {
        CompressionType::None => batch.clone(),
        _ => compress(kind, &batch).ok()?,
    };
    metadata.uncompressed_size = Some(u32::try_from(batch.len()).ok()?);
    let mut out = BytesMut::with_capacity(packed.len() + 256);
    encode(&metadata, &packed, &mut out);
    Some(out.freeze())
}
