//! Batches: several messages in the payload of one entry.
//!
//! ```text
//! { u32 metadata_size, SingleMessageMetadata, payload of payload_size bytes } …   after decompression
//! ```
//!
//! Invariants: W1; W3 payloads are slices of the batch; a batch yields at most the number of messages that was named.
//! Failure: [`BatchError`], after which the iteration ends.
//! Must never know: compression, encryption.

use crate::proto::SingleMessageMetadata;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Why a batch cannot be taken apart.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BatchError {
    /// Fewer messages than the metadata named, or a size that points behind the end.
    #[error("the batch ends inside message {index}")]
    Truncated {
        /// Which message, from 0.
        index: u32,
    },
    /// A negative payload size.
    #[error("message {index} of the batch has a payload of {size} bytes")]
    BadSize {
        /// Which message, from 0.
        index: u32,
        /// What its metadata says.
        size: i32,
    },
    /// Metadata that is not protobuf of this protocol.
    #[error("the metadata of message {index} of the batch cannot be read: {source}")]
    Metadata {
        /// Which message, from 0.
        index: u32,
        /// The reason.
        source: prost::DecodeError,
    },
}

impl meridian_types::Classify for BatchError {
    fn class(&self) -> meridian_types::ErrorClass {
        meridian_types::ErrorClass::Caller
    }
}

/// The messages of a batch, in order.
#[derive(Debug, Clone)]
pub struct Messages {
    rest: Bytes,
    index: u32,
    count: u32,
}

impl Messages {
    /// The `count` messages of a decompressed batch.
    pub fn new(batch: Bytes, count: u32) -> Self {
        Self { rest: batch, index: 0, count }
    }

    fn take(&mut self) -> Result<(SingleMessageMetadata, Bytes), BatchError> {
        let index = self.index;
        let truncated = BatchError::Truncated { index };
        let size = self.rest.try_get_u32().map_err(|_| truncated.clone())? as usize;
        if size > self.rest.len() {
            return Err(truncated);
        }
        let metadata = SingleMessageMetadata::decode(self.rest.split_to(size))
            .map_err(|source| BatchError::Metadata { index, source })?;
        let size = usize::try_from(metadata.payload_size)
            .map_err(|_| BatchError::BadSize { index, size: metadata.payload_size })?;
        if size > self.rest.len() {
            return Err(truncated);
        }
        Ok((metadata, self.rest.split_to(size)))
    }
}

impl Iterator for Messages {
    type Item = Result<(SingleMessageMetadata, Bytes), BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.count {
            return None;
        }
        let message = self.take();
        self.index = if message.is_ok() { self.index + 1 } else { self.count };
        Some(message)
    }
}

/// Appends a message to a batch; `payload_size` in the metadata is set to the payload's.
pub fn put_message(mut metadata: SingleMessageMetadata, payload: &[u8], dst: &mut BytesMut) {
    debug_assert!(payload.len() <= i32::MAX as usize, "a message stays below 2 GiB");
    metadata.payload_size = payload.len() as i32;
    let metadata_bytes = metadata.encoded_len();
    dst.reserve(4 + metadata_bytes + payload.len());
    dst.put_u32(metadata_bytes as u32);
    metadata.encode_raw(dst);
    dst.put_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Bytes {
        let mut dst = BytesMut::new();
        for key in ["a", "b"] {
            let metadata = SingleMessageMetadata { partition_key: Some(key.into()), ..Default::default() };
            put_message(metadata, key.as_bytes(), &mut dst);
        }
        dst.freeze()
    }

    #[test]
    fn a_batch_has_golden_bytes() {
        let expected = [0, 0, 0, 5, 0x12, 1, b'a', 0x18, 1, b'a', 0, 0, 0, 5, 0x12, 1, b'b', 0x18, 1, b'b'];
        assert_eq!(batch()[..], expected);
    }

    #[test]
    fn messages_come_back_in_order() {
        let batch = batch();
        let messages: Vec<_> = Messages::new(batch.clone(), 2).map(Result::unwrap).collect();
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[1].0.partition_key(), "b");
        assert_eq!(messages[1].1.as_ptr(), batch[batch.len() - 1..].as_ptr());
    }

    #[test]
    fn a_fault_ends_the_batch() {
        let mut more = Messages::new(batch(), 3).skip(2);
        assert_eq!(more.next(), Some(Err(BatchError::Truncated { index: 2 })));
        assert_eq!(more.next(), None);
        let mut cut = Messages::new(batch().slice(..9), u32::MAX);
        assert_eq!(cut.next(), Some(Err(BatchError::Truncated { index: 0 })));
        assert_eq!(cut.next(), None);
        let negative = SingleMessageMetadata { payload_size: -1, ..Default::default() }.encode_to_vec();
        let mut dst = BytesMut::new();
        dst.put_u32(negative.len() as u32);
        dst.put_slice(&negative);
        let mut bad = Messages::new(dst.freeze(), 1);
        assert_eq!(bad.next(), Some(Err(BatchError::BadSize { index: 0, size: -1 })));
    }
}
