//! The bytes of one entry: a short head written by the broker and the body as it came from the socket.
//!
//! Role: lets a header stand in front of the client's bytes without copying them. On disk and on the wire both are one
//! run of bytes, head first; a reader gets it back as one [`Bytes`].
//! Invariants: E1 the digest covers ledger id, entry id, head and body, so that an entry in the wrong place is found.

use bytes::{Bytes, BytesMut};
use meridian_types::{EntryId, LedgerId};

/// Room for the head in bytes.
pub const HEAD_MAX_BYTES: usize = 63;

/// Up to [`HEAD_MAX_BYTES`] bytes, held inline.
#[derive(Clone, Copy)]
pub struct Head {
    len: u8,
    bytes: [u8; HEAD_MAX_BYTES],
}

impl Head {
    /// No head.
    pub const EMPTY: Head = Head { len: 0, bytes: [0; HEAD_MAX_BYTES] };

    /// Copies `bytes`.
    ///
    /// # Panics
    /// If there are more than [`HEAD_MAX_BYTES`] (a programming error: heads are fixed layouts).
    pub fn new(bytes: &[u8]) -> Self {
        let mut head = Self::EMPTY;
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head.len = bytes.len() as u8;
        head
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Head({} bytes)", self.len)
    }
}

/// An entry on its way down: head, then body.
#[derive(Debug, Clone)]
pub struct EntryBytes {
    /// Written by the broker (the envelope), or empty.
    pub head: Head,
    /// The bytes behind it, shared with the socket buffer and the caches.
    pub body: Bytes,
}

impl EntryBytes {
    /// An entry without a head.
    pub fn plain(body: Bytes) -> Self {
        Self { head: Head::EMPTY, body }
    }

    /// Length of both in bytes.
    pub fn len(&self) -> usize {
        self.head.as_slice().len() + self.body.len()
    }

    /// Whether there is not one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// CRC32C over ledger id and entry id (both i64 little-endian), head and body (E1).
    pub fn digest(&self, ledger_id: LedgerId, entry_id: EntryId) -> u32 {
        let crc = digest_seed(ledger_id, entry_id);
        let crc = crc32c::crc32c_append(crc, self.head.as_slice());
        crc32c::crc32c_append(crc, &self.body)
    }

    /// One contiguous run; copies only if there is a head.
    pub fn to_bytes(&self) -> Bytes {
        if self.head.as_slice().is_empty() {
            return self.body.clone();
        }
        let mut all = BytesMut::with_capacity(self.len());
        all.extend_from_slice(self.head.as_slice());
        all.extend_from_slice(&self.body);
        all.freeze()
    }
}

fn digest_seed(ledger_id: LedgerId, entry_id: EntryId) -> u32 {
    let mut ids = [0; 16];
    ids[..8].copy_from_slice(&ledger_id.0.to_le_bytes());
    ids[8..].copy_from_slice(&entry_id.0.to_le_bytes());
    crc32c::crc32c(&ids)
}

/// The digest of an entry read back as one run of bytes (E1).
pub fn digest_of(ledger_id: LedgerId, entry_id: EntryId, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(digest_seed(ledger_id, entry_id), payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_does_not_depend_on_where_the_head_ends() {
        let entry = EntryBytes { head: Head::new(b"abc"), body: Bytes::from_static(b"defg") };
        let (ledger, at) = (LedgerId(7), EntryId(9));
        assert_eq!(entry.digest(ledger, at), digest_of(ledger, at, b"abcdefg"));
        assert_ne!(entry.digest(ledger, EntryId(10)), digest_of(ledger, at, b"abcdefg"));
        assert_eq!(&entry.to_bytes()[..], b"abcdefg");
    }
}
