//! Properties of what a link writes into messages.
// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use bytes::{Bytes, BytesMut};
use meridian_types::Position;
use meridian_wire::metadata::MetadataSummary;
use meridian_wire::payload::{self, BrokerEntry, decode, split, verify_checksum};
use meridian_wire::proto::{EncryptionKeys, KeyValue, MessageMetadata};
use meridian_wire::replicate::{SOURCE_POSITION_PROPERTY, Stamp, source_position, stamp};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};

fn properties() -> impl Strategy<Value = Vec<KeyValue>> {
    let key = prop_oneof![4 => ".{0,6}".boxed(), 1 => Just(SOURCE_POSITION_PROPERTY.to_owned()).boxed()];
    vec((key, ".{0,6}").prop_map(|(key, value)| KeyValue { key, value }), 0..4)
}

fn metadata() -> impl Strategy<Value = MessageMetadata> {
    let who = (".{0,8}", any::<u64>(), any::<u64>(), properties(), of(".{0,4}"));
    let how = (of(any::<i32>()), vec(".{0,4}", 0..3), of(vec(any::<u8>(), 0..9)), of(any::<i64>()), any::<bool>());
    let txn = (of(any::<u64>()), of(any::<u64>()), of(any::<i32>()));
    (who, how, txn).prop_map(|(who, how, txn)| MessageMetadata {
        producer_name: who.0,
        sequence_id: who.1,
        publish_time: who.2,
        properties: who.3,
        replicated_from: who.4,
        num_messages_in_batch: how.0,
        replicate_to: how.1,
        schema_version: how.2.map(Bytes::from),
        deliver_at_time: how.3,
        encryption_keys: how
            .4
            .then(|| EncryptionKeys { key: "k".into(), value: vec![1].into(), ..Default::default() })
            .into_iter()
            .collect(),
        txnid_least_bits: txn.0,
        txnid_most_bits: txn.1,
        marker_type: txn.2,
        ..MessageMetadata::default()
    })
}

proptest! {
    /// R1, R2: the stamp sets its fields and changes nothing else.
    #[test]
    fn a_stamp_is_all_that_changes(
        client in metadata(),
        body in vec(any::<u8>(), 0..200),
        place in (0..i64::MAX, 0..i64::MAX),
        version in of(vec(any::<u8>(), 0..9)),
        with_broker_entry in any::<bool>(),
    ) {
        let mut entry = BytesMut::new();
        if with_broker_entry {
            BrokerEntry { broker_timestamp_ms: 5, index: 6 }.encode(&mut entry);
        }
        payload::encode(&client, &body, &mut entry);
        let entry = entry.freeze();
        let position = Position::new(place.0, place.1);
        let mut head = BytesMut::new();
        let rest = stamp(&entry, &Stamp { from: "west", position: Some(position), schema_version: version.as_deref() }, &mut head).unwrap();
        prop_assert!(rest.is_empty() || entry.as_ptr_range().contains(&rest.as_ptr()), "the payload is not copied");
        head.extend_from_slice(&rest);
        let stamped = head.freeze();
        prop_assert_eq!(verify_checksum(&stamped), Ok(true));
        let parts = split(&stamped).unwrap();
        prop_assert_eq!(source_position(parts.metadata), Some(position));
        let summary = MetadataSummary::decode(parts.metadata).unwrap();
        prop_assert_eq!(summary.replicated_from, Some("west"));
        prop_assert_eq!(summary.txnid, None);
        let mut expected = client;
        expected.properties.retain(|property| property.key != SOURCE_POSITION_PROPERTY);
        let value = format!("{}:{}", place.0, place.1);
        expected.properties.push(KeyValue { key: SOURCE_POSITION_PROPERTY.into(), value });
        expected.replicated_from = Some("west".into());
        expected.txnid_least_bits = None;
        expected.txnid_most_bits = None;
        expected.schema_version = version.map(Bytes::from).or(expected.schema_version);
        let (found, payload) = decode(&stamped).unwrap();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(payload, Bytes::from(body));
    }

    /// W1 and R3: whatever the bytes are, there is an answer, and an entry that was not whole gets no stamp.
    #[test]
    fn no_stamp_panics_on_damage(client in metadata(), at in any::<usize>(), flip in 1u8..) {
        let mut entry = BytesMut::new();
        payload::encode(&client, b"payload", &mut entry);
        let at = at % entry.len();
        entry[at] ^= flip;
        let entry = entry.freeze();
        let mut head = BytesMut::from(&b"before"[..]);
        let to = Stamp { from: "west", position: Some(Position::new(1, 2)), schema_version: None };
        match stamp(&entry, &to, &mut head) {
            // Only damage to the magic goes unseen: then there is no checksum.
            Ok(_) => prop_assert!(at < 2),
            Err(_) => prop_assert_eq!(&head[..], b"before"),
        }
        let _ = source_position(&entry);
    }
}
