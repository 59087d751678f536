//! A message's metadata as headers, and times as text.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meridian_types::Position;
use meridian_wire::proto::{CompressionType, MessageMetadata};
use std::collections::BTreeMap;

/// Headers by name; what can't stand in a header is left out.
struct Headers(HeaderMap);

impl Headers {
    fn put(&mut self, name: &'static str, value: impl ToString) {
        if let Ok(value) = HeaderValue::from_bytes(value.to_string().as_bytes()) {
            self.0.insert(HeaderName::from_static(name), value);
        }
    }

    fn put_some(&mut self, name: &'static str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }
}

/// Headers of an entry whose payload has `payload_bytes` bytes after decompression.
pub fn message_headers(position: Position, metadata: &MessageMetadata, payload_bytes: usize) -> HeaderMap {
    let mut headers = Headers(HeaderMap::new());
    headers.put("x-pulsar-message-id", position);
    headers.put("x-pulsar-producer-name", &metadata.producer_name);
    headers.put("x-pulsar-sequence-id", metadata.sequence_id);
    headers.put("x-pulsar-publish-time", iso_time(metadata.publish_time));
    headers.put_some("x-pulsar-event-time", metadata.event_time.filter(|time| *time > 0).map(iso_time));
    let deliver_at = metadata.deliver_at_time.and_then(|time| u64::try_from(time).ok());
    headers.put_some("x-pulsar-deliver-at-time", deliver_at.map(iso_time));
    let properties: BTreeMap<&str, &str> =
        metadata.properties.iter().map(|pair| (pair.key.as_str(), pair.value.as_str())).collect();
    if !properties.is_empty() {
        headers.put_some("x-pulsar-property", serde_json::to_string(&properties).ok());
    }
    if let Some(count) = metadata.num_messages_in_batch {
        headers.put("x-pulsar-num-batch-message", count);
        headers.put("x-pulsar-batch-size", payload_bytes);
    }
    headers.put_some("x-pulsar-replicated-from", metadata.replicated_from.as_ref());
    if !metadata.replicate_to.is_empty() {
        headers.put("x-pulsar-replicated-to", metadata.replicate_to.join(","));
    }
    headers.put_some("x-pulsar-partition-key", metadata.partition_key.as_ref());
    headers.put_some("x-pulsar-partition-key-b64-encoded", metadata.partition_key_b64_encoded);
    headers.put_some("x-pulsar-null-partition-key", metadata.null_partition_key);
    headers.put_some("x-pulsar-null-value", metadata.null_value);
    if metadata.compression() != CompressionType::None {
        headers.put("x-pulsar-compression", metadata.compression().as_str_name());
    }
    headers.put_some("x-pulsar-uncompressed-size", metadata.uncompressed_size);
    headers.put("x-pulsar-is-encrypted", !metadata.encryption_keys.is_empty());
    headers.put_some("x-pulsar-encryption-algo", metadata.encryption_algo.as_ref());
    let encoded = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| STANDARD.encode(bytes));
    headers.put_some("x-pulsar-base64-encryption-param", encoded(&to_vec(&metadata.encryption_param)));
    headers.put_some("x-pulsar-base64-schema-version", encoded(&to_vec(&metadata.schema_version)));
    headers.put_some("x-pulsar-base64-ordering-key", encoded(&to_vec(&metadata.ordering_key)));
    headers.put_some("x-pulsar-marker-type", metadata.marker_type);
    headers.put_some("x-pulsar-txnid-least-bits", metadata.txnid_least_bits);
    headers.put_some("x-pulsar-txnid-most-bits", metadata.txnid_most_bits);
    headers.put_some("x-pulsar-highest-sequence-id", metadata.highest_sequence_id);
    headers.put_some("x-pulsar-uuid", metadata.uuid.as_ref());
    headers.put_some("x-pulsar-num-chunks-from-msg", metadata.num_chunks_from_msg);
    headers.put_some("x-pulsar-total-chunk-msg-size", metadata.total_chunk_msg_size);
    headers.put_some("x-pulsar-chunk-id", metadata.chunk_id);
    headers.0
}

fn to_vec(bytes: &Option<impl AsRef<[u8]>>) -> Option<Vec<u8>> {
    bytes.as_ref().map(|bytes| bytes.as_ref().to_vec())
}

/// ms since 1970 as `2024-02-29T12:34:56.789Z`.
pub fn iso_time(ms: u64) -> String {
    let (days, rest_ms) = (ms / 86_400_000, ms % 86_400_000);
    let (year, month, day) = civil(days);
    let (seconds, millis) = (rest_ms / 1000, rest_ms % 1000);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{millis:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Year, month and day of a number of days since 1970, in years that begin in March so that leap days come last.
fn civil(days: u64) -> (u64, u64, u64) {
    let since = days + 719_468;
    let era = since / 146_097;
    let of_era = since % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        assert_eq!(iso_time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(iso_time(951_827_696_789), "2000-02-29T12:34:56.789Z");
        assert_eq!(iso_time(1_709_251_199_999), "2024-02-29T23:59:59.999Z");
        assert_eq!(iso_time(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn metadata_stands_in_headers() {
        let metadata = MessageMetadata {
            producer_name: "p".into(),
            sequence_id: 7,
            num_messages_in_batch: Some(3),
            partition_key: Some("a\nb".into()),
            properties: vec![meridian_wire::proto::KeyValue { key: "k".into(), value: "v\n".into() }],
            ..Default::default()
        };
        let headers = message_headers(Position::new(1, 2), &metadata, 10);
        assert_eq!(headers["x-pulsar-message-id"], "1:2");
        assert_eq!(headers["x-pulsar-num-batch-message"], "3");
        assert_eq!(headers["x-pulsar-property"], r#"{"k":"v\n"}"#);
        assert!(!headers.contains_key("x-pulsar-partition-key"), "a line break can't stand in a header");
    }
}
