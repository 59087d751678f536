//! Data frames between a ledger client and a bookie.
//!
//! Layout: `[u32 length][u16 header length][header][payload]`, numbers little-endian; `length` counts what is behind
//! it. The header is a protobuf [`Header`]; unknown fields are skipped, so it can grow. The client's first frame is a
//! [`Hello`], the bookie answers with its own; versions that do not understand each other part there.
//!
//! | frame | payload |
//! |---|---|
//! | add | the entry, head first |
//! | read answer | the entries, one behind the other |
//! | all others | none |
//!
//! Invariants: T1 decoding never panics and buffers at most one frame of [`FRAME_BYTES_MAX`]; T2 a frame that is larger
//! than allowed is refused by its length, before its bytes are read.
//! Failure: [`FrameError`] ends the connection.
//! Must never know: sockets.

use crate::bookie::BookieError;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use meridian_types::{Classify, ErrorClass};
use prost::Message;

/// The version spoken.
pub const PROTOCOL_VERSION: u32 = 1;
/// Largest frame taken, everything behind the length.
pub const FRAME_BYTES_MAX: usize = (64 << 20) + (128 << 10);
/// Largest header.
pub const HEADER_BYTES_MAX: usize = u16::MAX as usize;
/// Entries in one read answer, so that its header stays below [`HEADER_BYTES_MAX`].
pub const READ_ENTRIES_PER_FRAME: u32 = 1024;
/// Length of the two numbers in front.
const PREFIX_BYTES: usize = 6;

/// First frame of either side.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// From the client: the bookie it wants; from the bookie: the one it is.
    #[prost(string, tag = "2")]
    pub bookie: String,
}

/// Stores one entry.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Add {
    /// Ledger.
    #[prost(int64, tag = "1")]
    pub ledger: i64,
    /// Entry.
    #[prost(int64, tag = "2")]
    pub entry: i64,
    /// Last-add-confirmed, plus one (so that none is the default).
    #[prost(uint64, tag = "3")]
    pub lac_plus_one: u64,
    /// Digest over ids and payload.
    #[prost(fixed32, tag = "4")]
    pub digest: u32,
    /// Written by recovery.
    #[prost(bool, tag = "5")]
    pub recovery: bool,
}

/// The same answer for consecutive entries of one ledger.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AddAnswer {
    /// Ledger.
    #[prost(int64, tag = "1")]
    pub ledger: i64,
    /// First entry.
    #[prost(int64, tag = "2")]
    pub first_entry: i64,
    /// How many.
    #[prost(uint32, tag = "3")]
    pub count: u32,
    /// Absent = durable.
    #[prost(message, optional, tag = "4")]
    pub failure: Option<Failure>,
}

/// Answers of adds, in the order of the adds.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AddAnswers {
    /// The answers.
    #[prost(message, repeated, tag = "1")]
    pub answers: Vec<AddAnswer>,
}

/// Reads entries.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Read {
    /// Ledger.
    #[prost(int64, tag = "1")]
    pub ledger: i64,
    /// First entry.
    #[prost(int64, tag = "2")]
    pub first_entry: i64,
    /// Entries at most.
    #[prost(uint32, tag = "3")]
    pub max_entries: u32,
    /// Bytes at most.
    #[prost(uint64, tag = "4")]
    pub max_bytes: u64,
    /// Leave out what is missing.
    #[prost(bool, tag = "5")]
    pub gaps_allowed: bool,
    /// Fence too.
    #[prost(bool, tag = "6")]
    pub fence: bool,
}

/// One entry of a read answer; its bytes are in the payload.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadItem {
    /// Entry.
    #[prost(int64, tag = "1")]
    pub entry: i64,
    /// Last-add-confirmed, plus one.
    #[prost(uint64, tag = "2")]
    pub lac_plus_one: u64,
    /// Digest.
    #[prost(fixed32, tag = "3")]
    pub digest: u32,
    /// Bytes of payload.
    #[prost(uint32, tag = "4")]
    pub bytes: u32,
}

/// Entries read.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadAnswer {
    /// The entries, in order.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<ReadItem>,
}

/// A call about a ledger.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LedgerCall {
    /// Ledger.
    #[prost(int64, tag = "1")]
    pub ledger: i64,
    /// An explicit last-add-confirmed, plus one.
    #[prost(uint64, tag = "2")]
    pub lac_plus_one: u64,
}

/// What a bookie knows of a ledger.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LedgerAnswer {
    /// Last-add-confirmed, plus one.
    #[prost(uint64, tag = "1")]
    pub lac_plus_one: u64,
    /// Last entry, plus one.
    #[prost(uint64, tag = "2")]
    pub last_entry_plus_one: u64,
}

/// Why something was refused.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failure {
    /// Kind, see [`Failure::from_error`].
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// In words.
    #[prost(string, tag = "2")]
    pub detail: String,
    /// Size and limit of what was too large, or milliseconds waited.
    #[prost(uint64, repeated, tag = "3")]
    pub numbers: Vec<u64>,
}

/// What a frame says.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Body {
    /// First frame.
    #[prost(message, tag = "2")]
    Hello(Hello),
    /// Store an entry.
    #[prost(message, tag = "3")]
    Add(Add),
    /// Answers of adds.
    #[prost(message, tag = "4")]
    AddAnswers(AddAnswers),
    /// Read entries.
    #[prost(message, tag = "5")]
    Read(Read),
    /// Entries read.
    #[prost(message, tag = "6")]
    ReadAnswer(ReadAnswer),
    /// Fence a ledger.
    #[prost(message, tag = "7")]
    Fence(LedgerCall),
    /// What is known of a ledger?
    #[prost(message, tag = "8")]
    LastAddConfirmed(LedgerCall),
    /// Note an explicit last-add-confirmed.
    #[prost(message, tag = "9")]
    WriteLac(LedgerCall),
    /// Answer to the three above.
    #[prost(message, tag = "10")]
    LedgerAnswer(LedgerAnswer),
    /// The call failed.
    #[prost(message, tag = "11")]
    Failure(Failure),
}

/// A frame's header.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Header {
    /// Pairs a call with its answer; 0 for adds, their answers and hellos.
    #[prost(uint64, tag = "1")]
    pub call: u64,
    /// What it says; absent if it is of a later version.
    #[prost(oneof = "Body", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11")]
    pub body: Option<Body>,
}

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Larger than allowed.
    #[error("frame of {0} bytes is over the limit of {FRAME_BYTES_MAX}")]
    TooLarge(usize),
    /// The header does not fit into the frame.
    #[error("header of {header_bytes} bytes in a frame of {frame_bytes}")]
    Lengths {
        /// Header length.
        header_bytes: usize,
        /// Frame length.
        frame_bytes: usize,
    },
    /// The header is no protobuf of this protocol.
    #[error("header: {0}")]
    Header(String),
    /// The header does not fit its length field.
    #[error("header of {0} bytes is over the limit of {HEADER_BYTES_MAX}")]
    HeaderTooLarge(usize),
}

impl Classify for FrameError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Caller
    }
}

/// Appends everything but the payload of a frame.
///
/// # Errors
/// [`FrameError`] if the header or the frame would be too large.
pub fn put_header(out: &mut BytesMut, header: &Header, payload_bytes: usize) -> Result<(), FrameError> {
    let header_bytes = header.encoded_len();
    if header_bytes > HEADER_BYTES_MAX {
        return Err(FrameError::HeaderTooLarge(header_bytes));
    }
    let length = 2 + header_bytes + payload_bytes;
    if length > FRAME_BYTES_MAX {
        return Err(FrameError::TooLarge(length));
    }
    out.reserve(PREFIX_BYTES + header_bytes);
    out.put_u32_le(length as u32);
    out.put_u16_le(header_bytes as u16);
    header.encode(out).map_err(|error| FrameError::Header(error.to_string()))
}

/// Takes one frame off the front of `input`; `None` if it has not come whole yet.
///
/// # Errors
/// [`FrameError`] if what comes cannot be a frame.
pub fn take_frame(input: &mut BytesMut) -> Result<Option<(Header, Bytes)>, FrameError> {
    let Some(prefix) = input.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let frame_bytes = u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]) as usize;
    let header_bytes = usize::from(u16::from_le_bytes([prefix[4], prefix[5]]));
    if frame_bytes > FRAME_BYTES_MAX {
        return Err(FrameError::TooLarge(frame_bytes));
    }
    if header_bytes + 2 > frame_bytes {
        return Err(FrameError::Lengths { header_bytes, frame_bytes });
    }
    if input.len() < 4 + frame_bytes {
        return Ok(None);
    }
    let mut frame = input.split_to(4 + frame_bytes).freeze();
    frame.advance(PREFIX_BYTES);
    let header = Header::decode(frame.split_to(header_bytes)).map_err(|error| FrameError::Header(error.to_string()))?;
    Ok(Some((header, frame)))
}

const DETAIL_BYTES_MAX: usize = 256;

impl Failure {
    /// For the wire. Codes: 1 no such ledger, 2 no such entry, 3 fenced, 4 read-only, 5 busy, 6 too large, 7 corrupt,
    /// 8 I/O, 9 time-out, 10 unavailable.
    pub fn from_error(error: &BookieError) -> Self {
        let (code, detail, numbers) = match error {
            BookieError::NoSuchLedger => (1, "", vec![]),
            BookieError::NoSuchEntry => (2, "", vec![]),
            BookieError::Fenced => (3, "", vec![]),
            BookieError::ReadOnly(detail) => (4, detail.as_str(), vec![]),
            BookieError::Busy(detail) => (5, detail.as_str(), vec![]),
            BookieError::TooLarge { bytes, max_bytes } => (6, "", vec![*bytes, *max_bytes]),
            BookieError::Corrupt(detail) => (7, detail.as_str(), vec![]),
            BookieError::Io(detail) => (8, detail.as_str(), vec![]),
            BookieError::Timeout(waited_ms) => (9, "", vec![*waited_ms]),
            BookieError::Unavailable(detail) => (10, detail.as_str(), vec![]),
        };
        let end = (0..=detail.len().min(DETAIL_BYTES_MAX)).rev().find(|at| detail.is_char_boundary(*at)).unwrap_or(0);
        Self { code, detail: detail[..end].to_owned(), numbers }
    }

    /// From the wire. A code of a later version is an I/O error: the outcome is unknown, nothing is claimed (B3).
    pub fn into_error(self) -> BookieError {
        let number = |at: usize| self.numbers.get(at).copied().unwrap_or_default();
        match self.code {
            1 => BookieError::NoSuchLedger,
            2 => BookieError::NoSuchEntry,
            3 => BookieError::Fenced,
            4 => BookieError::ReadOnly(self.detail),
            5 => BookieError::Busy(self.detail),
            6 => BookieError::TooLarge { bytes: number(0), max_bytes: number(1) },
            7 => BookieError::Corrupt(self.detail),
            9 => BookieError::Timeout(number(0)),
            10 => BookieError::Unavailable(self.detail),
            code => BookieError::Io(if code == 8 { self.detail } else { format!("code {code}: {}", self.detail) }),
        }
    }
}

/// -1 and up to 0 and up.
pub(crate) fn plus_one(number: i64) -> u64 {
    number.wrapping_add(1) as u64
}

/// 0 and up to -1 and up.
pub(crate) fn minus_one(number: u64) -> i64 {
    (number as i64).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop, proptest};

    fn add() -> Header {
        let add = Add { ledger: 7, entry: 8, lac_plus_one: 3, digest: 0x0403_0201, recovery: true };
        Header { call: 0, body: Some(Body::Add(add)) }
    }

    #[test]
    fn golden_bytes() {
        let mut out = BytesMut::new();
        put_header(&mut out, &add(), 3).unwrap();
        out.extend_from_slice(b"abc");
        let expected =
            [&[20, 0, 0, 0, 15, 0][..], &[0x1a, 13], &[0x08, 7, 0x10, 8, 0x18, 3, 0x25, 1, 2, 3, 4, 0x28, 1], b"abc"];
        assert_eq!(out[..], expected.concat()[..]);
        assert_eq!(take_frame(&mut out), Ok(Some((add(), Bytes::from_static(b"abc")))));
        assert!(out.is_empty());
    }

    #[test]
    fn lengths_are_checked_before_bytes_come() {
        let mut huge = BytesMut::from(&[255, 255, 255, 255, 1, 0][..]);
        assert_eq!(take_frame(&mut huge), Err(FrameError::TooLarge(u32::MAX as usize)));
        let mut odd = BytesMut::from(&[4, 0, 0, 0, 9, 0][..]);
        assert_eq!(take_frame(&mut odd), Err(FrameError::Lengths { header_bytes: 9, frame_bytes: 4 }));
        assert!(put_header(&mut BytesMut::new(), &add(), FRAME_BYTES_MAX).is_err());
    }

    #[test]
    fn errors_come_back_as_they_were() {
        let text = || "word".to_owned();
        let all = [
            BookieError::NoSuchLedger,
            BookieError::NoSuchEntry,
            BookieError::Fenced,
            BookieError::ReadOnly(text()),
            BookieError::Busy(text()),
            BookieError::TooLarge { bytes: 2, max_bytes: 1 },
            BookieError::Corrupt(text()),
            BookieError::Io(text()),
            BookieError::Timeout(5),
            BookieError::Unavailable(text()),
        ];
        for error in all {
            assert_eq!(Failure::from_error(&error).into_error(), error);
        }
        let later = Failure { code: 99, detail: text(), numbers: vec![] }.into_error();
        assert!(matches!(later, BookieError::Io(_)));
        let long = BookieError::Io("ö".repeat(1000));
        assert!(Failure::from_error(&long).detail.len() <= DETAIL_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn frames_come_whole_however_they_are_cut(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..8),
            cut in 1..50usize,
        ) {
            let mut wire = BytesMut::new();
            for (at, payload) in payloads.iter().enumerate() {
                let header = Header { call: at as u64, ..add() };
                put_header(&mut wire, &header, payload.len()).unwrap();
                wire.extend_from_slice(payload);
            }
            let (mut input, mut found) = (BytesMut::new(), Vec::new());
            for piece in wire.chunks(cut) {
                input.extend_from_slice(piece);
                while let Some((header, payload)) = take_frame(&mut input).unwrap() {
                    assert_eq!(header.call, found.len() as u64);
                    found.push(payload.to_vec());
                }
            }
            assert_eq!(found, payloads);
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes: Vec<u8>) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take_frame(&mut input) {}
        }
    }
}
