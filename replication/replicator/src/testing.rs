//! Entries as clients and brokers write them, for tests.

use bytes::{Bytes, BytesMut};
use meridian_managed_ledger::LogEntry;
use meridian_types::{Incarnation, Position, RegionId};
use meridian_wire::payload;
use meridian_wire::proto::MessageMetadata;

/// Where the tests' logs are.
pub const LOCAL: &str = "west";

/// One entry to be.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// Of the metadata.
    pub replicated_from: Option<&'static str>,
    /// Of the envelope; `None` = here.
    pub origin: Option<&'static str>,
    /// Of the metadata.
    pub replicate_to: &'static [&'static str],
    /// Of the metadata and the envelope.
    pub marker: Option<i32>,
    /// Of the metadata.
    pub schema: Option<&'static [u8]>,
    /// Of the envelope.
    pub broker_time_ms: u64,
    /// Of the payload.
    pub bytes: usize,
    /// Of the metadata; 0 = the entry's number.
    pub sequence_id: u64,
}

impl Written {
    /// As it stands in the log at that place. Index = entry number, one message each.
    pub fn at(&self, ledger: i64, entry: i64) -> LogEntry {
        let metadata = MessageMetadata {
            producer_name: "p".into(),
            sequence_id: if self.sequence_id > 0 { self.sequence_id } else { entry as u64 },
            publish_time: self.broker_time_ms,
            replicated_from: self.replicated_from.map(str::to_owned),
            replicate_to: self.replicate_to.iter().map(|&target| target.to_owned()).collect(),
            marker_type: self.marker,
            schema_version: self.schema.map(Bytes::from_static),
            ..MessageMetadata::default()
        };
        let mut encoded = BytesMut::new();
        payload::encode(&metadata, &vec![b'x'; self.bytes], &mut encoded);
        let position = Position::new(ledger, entry);
        LogEntry {
            position,
            index: entry as u64,
            messages: 1,
            marker: self.marker.is_some(),
            broker_time_ms: self.broker_time_ms,
            origin: (RegionId::of(self.origin.unwrap_or(LOCAL)), Incarnation(1), position),
            payload: encoded.freeze(),
        }
    }
}
