//! Golden bytes and properties of keys and records.

use super::*;
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_keys() {
    let keys = Keys::new("p/");
    let session = SessionId(0x0102);
    assert_eq!(keys.data("a/b"), b"p/da/b");
    assert_eq!(keys.binding(session, "a"), b"p/e\0\0\0\0\0\0\x01\x02a");
    assert_eq!(keys.log(1, 2), b"p/l\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02");
    assert_eq!(keys.sequence("s"), b"p/ns");
    assert_eq!(keys.head(1), b"p/p\0\0\0\0\0\0\0\x01");
    assert_eq!(keys.session(session), b"p/q\0\0\0\0\0\0\x01\x02");
    assert_eq!((keys.store(), keys.garbage()), (b"p/m".to_vec(), b"p/g".to_vec()));
    assert_eq!(keys.heads_and_sessions(), (b"p/p".to_vec(), b"p/r".to_vec()));
}

#[test]
fn golden_records() {
    let key = b"p/da";
    let plain = Held { version: Version(0x0102), ephemeral: None };
    let ephemeral = Held { version: Version(3), ephemeral: Some(SessionId(4)) };
    let records = [
        encode_data(key, plain, b"xyz"),
        encode_data(key, ephemeral, b""),
        encode_mark(b"p/e"),
        encode_head(b"p/p", Head { last: 3, version: 2, first: 1 }),
        encode_session(b"p/q", SessionRecord { ttl_ms: 1, renewals: 2, expires_at_ms: 3 }),
        encode_sequence(b"p/n", SequenceRecord { next: 1, version: 2 }),
        encode_number(b"p/m", 9),
    ];
    let golden = [
        "017667d9cb00020100000000000078797a",
        "01504c43280103000000000000000400000000000000",
        "01bccb22fa",
        "015a20eec5030000000000000002000000000000000100000000000000",
        "0164e2d108010000000000000002000000000000000300000000000000",
        "0122ac122a01000000000000000200000000000000",
        "016acdb8be0900000000000000",
    ];
    assert_eq!(records.map(|record| hex(&record)), golden);
}

#[test]
fn other_formats_keys_and_damage_are_refused() {
    let keys = Keys::new("p/");
    let key = keys.data("a");
    let record = encode_data(&key, Held { version: Version(1), ephemeral: None }, b"v");
    let mut newer = record.clone();
    newer[0] = 2;
    assert!(matches!(decode_data(&key, &newer), Err(MetadataError::Corrupt(why)) if why.contains("format 2")));
    assert!(decode_data(&keys.data("b"), &record).is_err(), "a record under another key");
    for at in 0..record.len() {
        let mut damaged = record.clone();
        damaged[at] ^= 1;
        assert!(decode_data(&key, &damaged).is_err(), "byte {at}");
        assert!(decode_data(&key, &record[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn ranges_end_behind_their_prefix() {
    assert_eq!(end_of(b"p/da"), b"p/db");
    assert_eq!(end_of(b"p/d\xff\xff"), b"p/e");
    assert_eq!(after(b"a".to_vec()), b"a\0");
}

proptest! {
    #[test]
    fn records_come_back(name in ".{0,40}", version: u64, session in any::<Option<u64>>(), value: Vec<u8>) {
        let keys = Keys::new("cluster/");
        let key = keys.data(&name);
        prop_assert_eq!(keys.key_of_data(&key), Ok(name.as_str()));
        let held = Held { version: Version(version), ephemeral: session.map(SessionId) };
        let record = encode_data(&key, held, &value);
        prop_assert_eq!(decode_data(&key, &record), Ok((held, Bytes::from(value))));
        let session = SessionId(version);
        let binding = keys.binding(session, &name);
        prop_assert_eq!(keys.key_of_binding(&binding), Ok(name.as_str()));
        prop_assert_eq!(keys.session_of(&keys.session(session)), Some(session));
        prop_assert_eq!(keys.lane_of_head(&keys.head(version)), Some(version));
    }

    #[test]
    fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
        let keys = Keys::new("p");
        prop_assert!(decode_data(b"k", &bytes).is_err() || bytes.len() >= 14);
        let _ = (decode_head(b"k", &bytes), decode_session(b"k", &bytes), decode_number(b"k", &bytes));
        let _ = (decode_sequence(b"k", &bytes), keys.key_of_data(&bytes), keys.key_of_binding(&bytes));
        let _ = (keys.lane_of_head(&bytes), keys.session_of(&bytes));
    }
}
