//! Keys and records as they stand in TiKV.
//!
//! Every key begins with the store's prefix; the byte after it says what it is:
//!
//! | key | record |
//! |---|---|
//! | `d` + key | a key's value: `[flags u8][version u64][session u64 if flags & 1][value…]` |
//! | `e` + session u64 big endian + key | the key is bound to the session: nothing |
//! | `g` | collection of garbage: `[safe point u64]` |
//! | `l` + lane u64 big endian + number u64 big endian | an entry of the log of changes, see `log` |
//! | `m` | the store itself: `[cluster u64]`, made once |
//! | `n` + name | a sequence: `[next number u64][version u64]` |
//! | `p` + lane u64 big endian | head of a lane: `[last number u64][version u64][first number kept u64]` |
//! | `q` + session u64 big endian | a session: `[ttl ms u64][renewals u64][expires at ms u64]` |
//!
//! Every record begins with `[format u8 = 1][crc32c u32]`; the CRC32C is over the whole key and the bytes after the CRC,
//! so that a record under a wrong key is found too. Numbers are little endian where nothing else is said. A lane's or
//! session's number is the start time stamp of the transaction that made it.
//! Invariants: a format byte that is not known here is refused, never guessed; decoders never panic.
//! Failure: [`MetadataError::Corrupt`] with the key.
//! Must never know: TiKV's interface.

use bytes::Bytes;
use meridian_metadata::plan::Held;
use meridian_metadata::{MetadataError, SessionId, Version};

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 5;
const FLAG_EPHEMERAL: u8 = 1;

/// The keys of one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    prefix: Vec<u8>,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.as_bytes().to_vec() }
    }

    fn key(&self, kind: u8, parts: &[&[u8]]) -> Vec<u8> {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut key = Vec::with_capacity(self.prefix.len() + 1 + bytes);
        key.extend_from_slice(&self.prefix);
        key.push(kind);
        parts.iter().for_each(|part| key.extend_from_slice(part));
        key
    }

    pub(crate) fn data(&self, key: &str) -> Vec<u8> {
        self.key(b'd', &[key.as_bytes()])
    }

    pub(crate) fn bindings(&self, session: SessionId) -> Vec<u8> {
        self.key(b'e', &[&session.0.to_be_bytes()])
    }

    pub(crate) fn binding(&self, session: SessionId, key: &str) -> Vec<u8> {
        self.key(b'e', &[&session.0.to_be_bytes(), key.as_bytes()])
    }

    pub(crate) fn garbage(&self) -> Vec<u8> {
        self.key(b'g', &[])
    }

    pub(crate) fn log(&self, lane: u64, number: u64) -> Vec<u8> {
        self.key(b'l', &[&lane.to_be_bytes(), &number.to_be_bytes()])
    }

    pub(crate) fn store(&self) -> Vec<u8> {
        self.key(b'm', &[])
    }

    pub(crate) fn sequence(&self, name: &str) -> Vec<u8> {
        self.key(b'n', &[name.as_bytes()])
    }

    pub(crate) fn head(&self, lane: u64) -> Vec<u8> {
        self.key(b'p', &[&lane.to_be_bytes()])
    }

    pub(crate) fn session(&self, session: SessionId) -> Vec<u8> {
        self.key(b'q', &[&session.0.to_be_bytes()])
    }

    /// From the first head to behind the last session, in one range.
    pub(crate) fn heads_and_sessions(&self) -> (Vec<u8>, Vec<u8>) {
        (self.key(b'p', &[]), self.key(b'r', &[]))
    }

    /// What is behind the prefix and the kind.
    fn rest<'a>(&self, kind: u8, key: &'a [u8]) -> Option<&'a [u8]> {
        key.strip_prefix(self.prefix.as_slice())?.strip_prefix(&[kind])
    }

    fn number(&self, kind: u8, key: &[u8]) -> Option<u64> {
        Some(u64::from_be_bytes(self.rest(kind, key)?.try_into().ok()?))
    }

    /// The key again, from a data key.
    pub(crate) fn key_of_data<'a>(&self, key: &'a [u8]) -> Result<&'a str, MetadataError> {
        let text = self.rest(b'd', key).and_then(|rest| std::str::from_utf8(rest).ok());
        text.ok_or_else(|| corrupt(key, "is not a data key"))
    }

    /// The bound key, from a binding.
    pub(crate) fn key_of_binding<'a>(&self, key: &'a [u8]) -> Result<&'a str, MetadataError> {
        let rest = self.rest(b'e', key).and_then(|rest| rest.split_first_chunk::<8>());
        let text = rest.and_then(|(_, rest)| std::str::from_utf8(rest).ok());
        text.ok_or_else(|| corrupt(key, "is not a binding"))
    }

    /// The lane of a head.
    pub(crate) fn lane_of_head(&self, key: &[u8]) -> Option<u64> {
        self.number(b'p', key)
    }

    /// The session of a session's key.
    pub(crate) fn session_of(&self, key: &[u8]) -> Option<SessionId> {
        self.number(b'q', key).map(SessionId)
    }
}

/// Behind all keys that begin with `prefix`, which is never all `0xff` here: the kind byte is not.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while end.pop_if(|last| *last == 0xff).is_some() {}
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// The first key behind `key`.
pub(crate) fn after(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

/// The head of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Number of the last entry.
    pub(crate) last: u64,
    /// Version of the transaction that wrote it.
    pub(crate) version: u64,
    /// Entries from here on are kept.
    pub(crate) first: u64,
}

/// A session's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionRecord {
    pub(crate) ttl_ms: u64,
    pub(crate) renewals: u64,
    /// On the clock of time stamps.
    pub(crate) expires_at_ms: u64,
}

/// A sequence's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SequenceRecord {
    pub(crate) next: u64,
    pub(crate) version: u64,
}

pub(crate) fn encode_data(key: &[u8], held: Held, value: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(17 + value.len());
    body.push(if held.ephemeral.is_some() { FLAG_EPHEMERAL } else { 0 });
    body.extend_from_slice(&held.version.0.to_le_bytes());
    if let Some(session) = held.ephemeral {
        body.extend_from_slice(&session.0.to_le_bytes());
    }
    body.extend_from_slice(value);
    seal(key, &body)
}

pub(crate) fn decode_data(key: &[u8], record: &[u8]) -> Result<(Held, Bytes), MetadataError> {
    let short = || corrupt(key, "is too short");
    let (flags, rest) = open(key, record)?.split_first().ok_or_else(short)?;
    if flags & !FLAG_EPHEMERAL != 0 {
        return Err(corrupt(key, "has unknown flags"));
    }
    let (version, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    let version = Version(u64::from_le_bytes(*version));
    if flags & FLAG_EPHEMERAL == 0 {
        return Ok((Held { version, ephemeral: None }, Bytes::copy_from_slice(rest)));
    }
    let (session, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    let ephemeral = Some(SessionId(u64::from_le_bytes(*session)));
    Ok((Held { version, ephemeral }, Bytes::copy_from_slice(rest)))
}

/// A record that says nothing but that it is there.
pub(crate) fn encode_mark(key: &[u8]) -> Vec<u8> {
    seal(key, &[])
}

fn encode_numbers<const N: usize>(key: &[u8], numbers: [u64; N]) -> Vec<u8> {
    let body: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    seal(key, &body)
}

fn decode_numbers<const N: usize>(key: &[u8], record: &[u8]) -> Result<[u64; N], MetadataError> {
    let body = open(key, record)?;
    let (chunks, rest) = body.as_chunks::<8>();
    if chunks.len() != N || !rest.is_empty() {
        return Err(corrupt(key, "has a wrong length"));
    }
    let mut numbers = [0; N];
    for (number, chunk) in numbers.iter_mut().zip(chunks) {
        *number = u64::from_le_bytes(*chunk);
    }
    Ok(numbers)
}

pub(crate) fn encode_head(key: &[u8], head: Head) -> Vec<u8> {
    encode_numbers(key, [head.last, head.version, head.first])
}

pub(crate) fn decode_head(key: &[u8], record: &[u8]) -> Result<Head, MetadataError> {
    let [last, version, first] = decode_numbers(key, record)?;
    Ok(Head { last, version, first })
}

pub(crate) fn encode_session(key: &[u8], session: SessionRecord) -> Vec<u8> {
    encode_numbers(key, [session.ttl_ms, session.renewals, session.expires_at_ms])
}

pub(crate) fn decode_session(key: &[u8], record: &[u8]) -> Result<SessionRecord, MetadataError> {
    let [ttl_ms, renewals, expires_at_ms] = decode_numbers(key, record)?;
    Ok(SessionRecord { ttl_ms, renewals, expires_at_ms })
}

pub(crate) fn encode_sequence(key: &[u8], sequence: SequenceRecord) -> Vec<u8> {
    encode_numbers(key, [sequence.next, sequence.version])
}

pub(crate) fn decode_sequence(key: &[u8], record: &[u8]) -> Result<SequenceRecord, MetadataError> {
    let [next, version] = decode_numbers(key, record)?;
    Ok(SequenceRecord { next, version })
}

/// The store's own record or the collection's: one number.
pub(crate) fn encode_number(key: &[u8], number: u64) -> Vec<u8> {
    encode_numbers(key, [number])
}

pub(crate) fn decode_number(key: &[u8], record: &[u8]) -> Result<u64, MetadataError> {
    let [number] = decode_numbers(key, record)?;
    Ok(number)
}

pub(crate) fn seal(key: &[u8], body: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD_BYTES + body.len());
    record.push(FORMAT);
    record.extend_from_slice(&checksum(key, body).to_le_bytes());
    record.extend_from_slice(body);
    record
}

pub(crate) fn open<'a>(key: &[u8], record: &'a [u8]) -> Result<&'a [u8], MetadataError> {
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

pub(crate) fn corrupt(key: &[u8], what: &str) -> MetadataError {
    MetadataError::Corrupt(format!("record {} {what}", key.escape_ascii()))
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
