//! Keys and records as they stand in RocksDB.
//!
//! One column family. The first byte of a key says what it is:
//!
//! | key | record |
//! |---|---|
//! | `d` + key | a key's value: `[1][crc32c u32][flags u8][version u64][session u64 if flags & 1][value…]` |
//! | `e` + session u64 big endian + key | the key is bound to the session: `[1][crc32c u32]` |
//! | `m` + `state` | the store itself: `[1][crc32c u32][latest version u64][opens u64]` |
//! | `s` + name | a sequence: `[1][crc32c u32][no number from here on was given u64]` |
//!
//! Numbers are little endian where nothing else is said. The CRC32C is over the RocksDB key and the record's bytes after
//! the CRC, so that a record under a wrong key is found too.
//! Invariants: a format byte that is not known here is refused, never guessed; decoders never panic.
//! Failure: [`MetadataError::Corrupt`] with the key.
//! Must never know: RocksDB's interface.

use crate::plan::Held;
use crate::store::{MetadataError, SessionId, Version};
use bytes::Bytes;

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 5;
const FLAG_EPHEMERAL: u8 = 1;

/// Key of the store's own state.
pub(super) const STATE_KEY: &[u8] = b"mstate";

pub(super) fn data_key(key: &str) -> Vec<u8> {
    tagged(b'd', key.as_bytes())
}

/// The key again, from a data key.
pub(super) fn key_of_data(data_key: &[u8]) -> Result<&str, MetadataError> {
    match data_key.split_first() {
        Some((b'd', key)) => std::str::from_utf8(key).map_err(|_| corrupt(data_key, "is not UTF-8")),
        _ => Err(corrupt(data_key, "is not a data key")),
    }
}

pub(super) fn sequence_key(name: &str) -> Vec<u8> {
    tagged(b's', name.as_bytes())
}

/// All bindings of all sessions start with this.
pub(super) const BINDINGS_PREFIX: &[u8] = b"e";

pub(super) fn bindings_prefix(session: SessionId) -> Vec<u8> {
    tagged(b'e', &session.0.to_be_bytes())
}

pub(super) fn binding_key(session: SessionId, key: &str) -> Vec<u8> {
    let mut bytes = bindings_prefix(session);
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

/// The session and key of a binding.
pub(super) fn parse_binding_key(bytes: &[u8]) -> Result<(SessionId, String), MetadataError> {
    let parsed = bytes.strip_prefix(b"e").and_then(|rest| rest.split_first_chunk::<8>());
    let (session, key) = parsed.ok_or_else(|| corrupt(bytes, "is not a binding"))?;
    let key = std::str::from_utf8(key).map_err(|_| corrupt(bytes, "is not UTF-8"))?;
    Ok((SessionId(u64::from_be_bytes(*session)), key.to_owned()))
}

/// The first key after all keys with this prefix, `None` = no bound.
pub(super) fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    Some(end)
}

fn tagged(tag: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + 8 + rest.len());
    bytes.push(tag);
    bytes.extend_from_slice(rest);
    bytes
}

pub(super) fn encode_data(data_key: &[u8], held: Held, value: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(17 + value.len());
    body.push(if held.ephemeral.is_some() { FLAG_EPHEMERAL } else { 0 });
    body.extend_from_slice(&held.version.0.to_le_bytes());
    if let Some(session) = held.ephemeral {
        body.extend_from_slice(&session.0.to_le_bytes());
    }
    body.extend_from_slice(value);
    seal(data_key, &body)
}

/// What is held and where the value begins.
fn decode_held<'a>(data_key: &[u8], record: &'a [u8]) -> Result<(Held, &'a [u8]), MetadataError> {
    let body = open(data_key, record)?;
    let short = || corrupt(data_key, "is too short");
    let (flags, rest) = body.split_first().ok_or_else(short)?;
    if flags & !FLAG_EPHEMERAL != 0 {
        return Err(corrupt(data_key, "has unknown flags"));
    }
    let (version, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    let version = Version(u64::from_le_bytes(*version));
    if flags & FLAG_EPHEMERAL == 0 {
        return Ok((Held { version, ephemeral: None }, rest));
    }
    let (session, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    Ok((Held { version, ephemeral: Some(SessionId(u64::from_le_bytes(*session))) }, rest))
}

pub(super) fn decode_data(data_key: &[u8], record: &[u8]) -> Result<(Held, Bytes), MetadataError> {
    let (held, value) = decode_held(data_key, record)?;
    Ok((held, Bytes::copy_from_slice(value)))
}

/// As [`decode_data`], without copying the value.
pub(super) fn decode_data_held(data_key: &[u8], record: &[u8]) -> Result<Held, MetadataError> {
    decode_held(data_key, record).map(|(held, _)| held)
}

pub(super) fn encode_binding(binding_key: &[u8]) -> Vec<u8> {
    seal(binding_key, &[])
}

/// The store's own state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StoreState {
    /// The latest version given to a write.
    pub(super) version: u64,
    /// How often the store was opened: the upper half of session ids.
    pub(super) opens: u64,
}

pub(super) fn encode_state(state: StoreState) -> Vec<u8> {
    let mut body = [0; 16];
    body[..8].copy_from_slice(&state.version.to_le_bytes());
    body[8..].copy_from_slice(&state.opens.to_le_bytes());
    seal(STATE_KEY, &body)
}

pub(super) fn decode_state(record: &[u8]) -> Result<StoreState, MetadataError> {
    let body = open(STATE_KEY, record)?;
    let short = || corrupt(STATE_KEY, "has a wrong length");
    let (version, rest) = body.split_first_chunk::<8>().ok_or_else(short)?;
    let opens: [u8; 8] = rest.try_into().map_err(|_| short())?;
    Ok(StoreState { version: u64::from_le_bytes(*version), opens: u64::from_le_bytes(opens) })
}

pub(super) fn encode_sequence(sequence_key: &[u8], bound: u64) -> Vec<u8> {
    seal(sequence_key, &bound.to_le_bytes())
}

pub(super) fn decode_sequence(sequence_key: &[u8], record: &[u8]) -> Result<u64, MetadataError> {
    let body = open(sequence_key, record)?;
    let bound: [u8; 8] = body.try_into().map_err(|_| corrupt(sequence_key, "has a wrong length"))?;
    Ok(u64::from_le_bytes(bound))
}

fn seal(key: &[u8], body: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD_BYTES + body.len());
    record.push(FORMAT);
    record.extend_from_slice(&checksum(key, body).to_le_bytes());
    record.extend_from_slice(body);
    record
}

fn open<'a>(key: &[u8], record: &'a [u8]) -> Result<&'a [u8], MetadataError> {
    let Some((head, body)) = record.split_first_chunk::<HEAD_BYTES>() else {
        return Err(corrupt(key, "is too short"));
    };
    let [format, crc @ ..] = *head;
    if format != FORMAT {
        return Err(corrupt(key, &format!("has format {format}, this program knows {FORMAT}")));
    }
    if u32::from_le_bytes(crc) != checksum(key, body) {
        return Err(corrupt(key, "fails its checksum"));
    }
    Ok(body)
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), body)
}

fn corrupt(key: &[u8], what: &str) -> MetadataError {
    MetadataError::Corrupt(format!("record {} {what}", key.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_bytes() {
        let key = data_key("a/b");
        assert_eq!(hex(&key), "64612f62");
        let plain = Held { version: Version(0x0102), ephemeral: None };
        assert_eq!(hex(&encode_data(&key, plain, b"xyz")), "01f56557a100020100000000000078797a");
        let ephemeral = Held { version: Version(3), ephemeral: Some(SessionId(0x0100_0002)) };
        assert_eq!(hex(&encode_data(&key, ephemeral, b"")), "013774cb620103000000000000000200000100000000");
        let binding = binding_key(SessionId(0x0100_0002), "a/b");
        assert_eq!(hex(&binding), "650000000001000002612f62");
        assert_eq!(hex(&encode_binding(&binding)), "01570d29c5");
        assert_eq!(
            hex(&encode_state(StoreState { version: 9, opens: 2 })),
            "016ec063c109000000000000000200000000000000"
        );
        assert_eq!(hex(&encode_sequence(&sequence_key("ledgers"), 100)), "01941e97706400000000000000");
    }

    #[test]
    fn other_formats_keys_and_damage_are_refused() {
        let key = data_key("a");
        let record = encode_data(&key, Held { version: Version(1), ephemeral: None }, b"v");
        let mut newer = record.clone();
        newer[0] = 2;
        assert!(matches!(decode_data(&key, &newer), Err(MetadataError::Corrupt(why)) if why.contains("format 2")));
        assert!(decode_data(&data_key("b"), &record).is_err(), "a record under another key");
        for at in 0..record.len() {
            let mut damaged = record.clone();
            damaged[at] ^= 1;
            assert!(decode_data(&key, &damaged).is_err(), "byte {at}");
            assert!(decode_data(&key, &record[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn prefixes_end_where_the_next_begins() {
        assert_eq!(end_of_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(end_of_prefix(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(end_of_prefix(b"\xff"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn records_come_back(key in ".{0,40}", version: u64, session in any::<Option<u64>>(), value: Vec<u8>) {
            let key = data_key(&key);
            let held = Held { version: Version(version), ephemeral: session.map(SessionId) };
            let record = encode_data(&key, held, &value);
            prop_assert_eq!(decode_data(&key, &record), Ok((held, Bytes::from(value))));
            prop_assert_eq!(decode_data_held(&key, &record), Ok(held));
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            prop_assert!(decode_data(b"dk", &bytes).is_err() || bytes.len() >= 14);
            let _ = (decode_state(&bytes), decode_sequence(b"sk", &bytes), parse_binding_key(&bytes));
            let _ = key_of_data(&bytes);
        }
    }
}
