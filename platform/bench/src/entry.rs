//! What is sent: entries of one or many equal messages, each stamped with the time at which it was due.
//!
//! ```text
//! message   8 bytes "mrdnperf", u64 due time (ns since 1970, big-endian), filler     from 16 bytes on; else filler only
//! ```
//!
//! Role: builds a SEND frame with one copy of the payload, and reads the stamp back.
//! Invariants: only the first message of a batch carries a true stamp; a stranger's message has none.
//! Must never know: sockets, pacing.

use bytes::{Bytes, BytesMut};
use meridian_wire::encode::encode_with_payload;
use meridian_wire::payload::{self, CHECKSUM_HEADER_BYTES};
use meridian_wire::prost::Message;
use meridian_wire::proto::{CommandSend, MessageMetadata, SingleMessageMetadata};
use meridian_wire::{batch, metadata::MetadataSummary};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const MAGIC: [u8; 8] = *b"mrdnperf";
const STAMP_BYTES: usize = 16;

/// Turns this process's monotonic time into time since 1970.
#[derive(Debug, Clone, Copy)]
pub struct WallClock {
    unix: Duration,
    at: Instant,
}

impl Default for WallClock {
    fn default() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { unix, at: Instant::now() }
    }
}

impl WallClock {
    /// Time since 1970.
    pub fn unix(&self, instant: Instant) -> Duration {
        match instant.checked_duration_since(self.at) {
            Some(later) => self.unix + later,
            None => self.unix.saturating_sub(self.at.duration_since(instant)),
        }
    }
}

/// How an entry looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryShape {
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Messages of a batch; `None`: one message that is no batch.
    pub batch_messages: Option<u32>,
    /// Different keys that the entries go through; 0: no key.
    pub keys: u32,
}

impl EntryShape {
    /// Messages in an entry.
    pub fn messages(&self) -> u32 {
        self.batch_messages.unwrap_or(1)
    }
}

/// Entries of one producer.
#[derive(Debug)]
pub struct EntryTemplate {
    shape: EntryShape,
    metadata: MessageMetadata,
    body: BytesMut,
    stamp_at: Option<usize>,
    clock: WallClock,
}

/// Bytes that do not compress.
fn filler(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

impl EntryTemplate {
    /// A template for the producer that the broker calls `producer_name`.
    pub fn new(shape: EntryShape, producer_name: &str) -> Self {
        let message = filler(shape.message_bytes);
        let mut body = BytesMut::new();
        let mut stamp_at = (shape.message_bytes >= STAMP_BYTES).then_some(0);
        match shape.batch_messages {
            None => body.extend_from_slice(&message),
            Some(count) => {
                for index in 0..count {
                    batch::put_message(SingleMessageMetadata::default(), &message, &mut body);
                    if index == 0 {
                        stamp_at = stamp_at.map(|_| body.len() - message.len());
                    }
                }
            }
        }
        if let Some(at) = stamp_at {
            body[at..at + MAGIC.len()].copy_from_slice(&MAGIC);
        }
        let metadata = MessageMetadata {
            producer_name: producer_name.to_owned(),
            num_messages_in_batch: shape.batch_messages.map(|count| count as i32),
            uncompressed_size: Some(body.len() as u32),
            ..Default::default()
        };
        Self { shape, metadata, body, stamp_at, clock: WallClock::default() }
    }

    /// Messages in an entry.
    pub fn messages(&self) -> u32 {
        self.shape.messages()
    }

    /// The whole frame of one SEND.
    pub fn frame(&mut self, producer_id: u64, sequence_id: u64, due: Instant) -> Bytes {
        let unix = self.clock.unix(due);
        if let Some(at) = self.stamp_at {
            let ns = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
            self.body[at + MAGIC.len()..at + STAMP_BYTES].copy_from_slice(&ns.to_be_bytes());
        }
        let messages = u64::from(self.messages());
        self.metadata.sequence_id = sequence_id;
        self.metadata.publish_time = u64::try_from(unix.as_millis()).unwrap_or(u64::MAX);
        if self.shape.keys > 0 {
            let key = (sequence_id / messages) % u64::from(self.shape.keys);
            self.metadata.partition_key = Some(format!("key-{key}"));
        }
        let in_batch = self.shape.batch_messages;
        let command = CommandSend {
            producer_id,
            sequence_id,
            num_messages: in_batch.map(|count| count as i32),
            highest_sequence_id: in_batch.map(|_| sequence_id + messages - 1),
            ..Default::default()
        };
        let payload_bytes = CHECKSUM_HEADER_BYTES + 4 + self.metadata.encoded_len() + self.body.len();
        let mut frame = BytesMut::with_capacity(payload_bytes + 64);
        encode_with_payload(&command.into(), payload_bytes, &mut frame);
        payload::encode(&self.metadata, &self.body, &mut frame);
        frame.freeze()
    }
}

/// What a consumer learns from an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFacts {
    /// Messages in it.
    pub messages: u32,
    /// When it was due, since 1970: to the ns by the stamp, or to the ms by the publish time of another client.
    pub due_unix: Duration,
}

/// Reads an entry as delivered; `None` if it is none.
pub fn read(entry: &Bytes) -> Option<EntryFacts> {
    let parts = payload::split(entry).ok()?;
    let summary = MetadataSummary::decode(parts.metadata).ok()?;
    let messages = u32::try_from(summary.num_messages_in_batch.unwrap_or(1)).unwrap_or(1).max(1);
    let first = match summary.num_messages_in_batch {
        None => parts.payload_of(entry),
        // A compressed batch of another client cannot be taken apart here; then its publish time counts.
        Some(_) => match batch::Messages::new(parts.payload_of(entry), 1).next() {
            Some(Ok((_, first))) => first,
            _ => Bytes::new(),
        },
    };
    let stamp = first.strip_prefix(&MAGIC).and_then(|rest| rest.first_chunk::<8>());
    let due_unix = match stamp {
        Some(stamp) => Duration::from_nanos(u64::from_be_bytes(*stamp)),
        None => Duration::from_millis(summary.publish_time_ms),
    };
    Some(EntryFacts { messages, due_unix })
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_wire::frame::{FrameDecoder, Incoming};

    fn sent(shape: EntryShape, sequence_id: u64, due: Instant) -> (meridian_wire::send::SendHeader, Bytes, WallClock) {
        let mut template = EntryTemplate::new(shape, "p");
        let mut bytes = BytesMut::from(&template.frame(3, sequence_id, due)[..]);
        match FrameDecoder::default().decode_incoming(&mut bytes).unwrap() {
            Some(Incoming::Send(header, entry)) if bytes.is_empty() => (header, entry, template.clock),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_batch_is_one_the_protocol_knows_and_carries_its_stamp() {
        let due = Instant::now();
        let shape = EntryShape { message_bytes: 100, batch_messages: Some(7), keys: 0 };
        let (header, entry, clock) = sent(shape, 70, due);
        assert_eq!((header.producer_id, header.sequence_id, header.highest_sequence_id), (3, 70, Some(76)));
        assert_eq!(header.num_messages, 7);
        assert_eq!(payload::verify_checksum(&entry), Ok(true));
        assert_eq!(read(&entry), Some(EntryFacts { messages: 7, due_unix: clock.unix(due) }));
        let (metadata, body) = payload::decode(&entry).unwrap();
        assert_eq!(metadata.uncompressed_size, Some(body.len() as u32));
        let messages: Vec<_> = batch::Messages::new(body, 7).map(|message| message.unwrap().1.len()).collect();
        assert_eq!(messages, [100; 7]);
    }

    #[test]
    fn keys_go_round_by_entry() {
        for (sequence_id, key) in [(0, "key-0"), (4, "key-4"), (5, "key-0")] {
            let shape = EntryShape { message_bytes: 16, batch_messages: None, keys: 5 };
            let (_, entry, _) = sent(shape, sequence_id, Instant::now());
            assert_eq!(payload::summarize(&entry).unwrap().partition_key, Some(key));
        }
    }

    #[test]
    fn a_message_without_a_stamp_counts_from_its_publish_time() {
        let shape = EntryShape { message_bytes: 15, batch_messages: None, keys: 0 };
        let due = Instant::now();
        let (_, entry, clock) = sent(shape, 0, due);
        let ms = clock.unix(due).as_millis() as u64;
        assert_eq!(read(&entry), Some(EntryFacts { messages: 1, due_unix: Duration::from_millis(ms) }));
        assert_eq!(read(&Bytes::from_static(b"\0\0")), None);
    }
}
