//! Frames out of a stream of bytes.
//!
//! ```text
//! u32 total_size   bytes behind this field, big-endian
//! u32 command_size
//! command          BaseCommand
//! payload          the rest; SEND and MESSAGE only (see `payload`)
//! ```
//!
//! Role: cuts the buffer of a connection into commands and payloads, which share the buffer's memory.
//! Invariants: W1; W2 as soon as four (eight) bytes are there the sizes are checked, so a peer cannot make the reader
//! buffer more than the limits; W3 the payload is the client's bytes; after an error nothing more may be decoded
//! from that stream, since the place of the next frame is unknown.
//! Failure: [`FrameError`]; the connection is to be closed with its text as the reason.
//! Must never know: which command is allowed when.

use crate::command::CommandFault;
use crate::field::{FieldError, Fields};
use crate::proto::BaseCommand;
use crate::proto::base_command::Type;
use crate::send::SendHeader;
use bytes::{Buf, Bytes, BytesMut};
use prost::Message;

/// What a frame may be larger than the largest message, for command and metadata.
pub const FRAME_PADDING_BYTES: usize = 10 * 1024;
/// The default of `maxMessageSize`.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 5 * 1024 * 1024;
/// The largest command that is taken from a peer that has not said CONNECT yet (tokens and certificates are below).
pub const MAX_FIRST_COMMAND_BYTES: usize = 256 * 1024;
/// The largest command that a broker takes from a connected peer: a redelivery of 100,000 messages is below it.
pub const MAX_COMMAND_BYTES: usize = 2 * 1024 * 1024;
/// The most fields in the body of one command. An empty list element takes two bytes on the wire and up to a hundred in
/// memory, so bytes alone bound nothing.
pub const MAX_COMMAND_FIELDS: usize = 128 * 1024;
/// Commands up to this size are read without counting their fields.
const UNCOUNTED_COMMAND_BYTES: usize = 64 * 1024;
/// Size fields in front of a command.
pub const FRAME_HEADER_BYTES: usize = 8;

/// How large frames may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    /// The whole frame with its size field.
    pub max_frame_bytes: usize,
    /// The command in it.
    pub max_command_bytes: usize,
}

impl FrameLimits {
    /// A broker's limits for a connected peer: a frame holds a message of `max_message_bytes` and the padding.
    pub fn for_messages(max_message_bytes: usize) -> Self {
        let max_frame_bytes = max_message_bytes.saturating_add(FRAME_PADDING_BYTES);
        Self { max_frame_bytes, max_command_bytes: MAX_COMMAND_BYTES }
    }

    /// A client's limits for a broker that it trusts: lists of topics may fill a whole frame.
    pub fn for_client(max_message_bytes: usize) -> Self {
        let max_frame_bytes = max_message_bytes.saturating_add(FRAME_PADDING_BYTES);
        Self { max_frame_bytes, max_command_bytes: max_frame_bytes }
    }

    /// Limits of a peer that has not authenticated: commands only, and small ones.
    pub fn before_connect() -> Self {
        let max_command_bytes = MAX_FIRST_COMMAND_BYTES;
        Self { max_frame_bytes: max_command_bytes + FRAME_HEADER_BYTES, max_command_bytes }
    }
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self::for_messages(DEFAULT_MAX_MESSAGE_BYTES)
    }
}

/// Why a stream of bytes is not the protocol.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FrameError {
    /// The frame is larger than allowed.
    #[error("a frame of {bytes} bytes is above the limit of {limit_bytes} bytes")]
    TooLarge {
        /// Size of the whole frame as its header says.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The command is larger than allowed.
    #[error("a command of {bytes} bytes is above the limit of {limit_bytes} bytes")]
    CommandTooLarge {
        /// Size of the command as its header says.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The size fields contradict each other.
    #[error("a frame of {total_bytes} bytes cannot hold a command of {command_bytes} bytes")]
    BadSizes {
        /// The first size field.
        total_bytes: usize,
        /// The second size field; 0 if the frame has no room for one.
        command_bytes: usize,
    },
    /// A command with an endless list in it.
    #[error("a command has more than {limit} fields")]
    TooManyFields {
        /// [`MAX_COMMAND_FIELDS`].
        limit: usize,
    },
    /// The command is not protobuf of this protocol.
    #[error("the command cannot be read: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// The command is not protobuf.
    #[error("the command cannot be read: {0}")]
    MalformedFields(#[from] FieldError),
    /// Unknown type, or type and body do not fit.
    #[error(transparent)]
    Command(#[from] CommandFault),
    /// A SEND without a message behind it.
    #[error("a SEND command without a message behind it")]
    NoPayload,
}

impl meridian_types::Classify for FrameError {
    fn class(&self) -> meridian_types::ErrorClass {
        meridian_types::ErrorClass::Caller
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The command; type and body fit together.
    pub command: BaseCommand,
    /// Everything behind the command, if there is anything.
    pub payload: Option<Bytes>,
}

/// One frame as a broker wants it: SEND apart, since it comes once per entry.
#[derive(Debug, Clone, PartialEq)]
// A box would cost an allocation for each command, to save moving a few hundred bytes once.
#[allow(clippy::large_enum_variant)]
pub enum Incoming {
    /// A SEND, read without allocation, and the message behind it.
    Send(SendHeader, Bytes),
    /// Any other command.
    Other(Frame),
}

/// Cuts a byte stream into frames.
#[derive(Debug, Clone, Copy, Default)]
pub struct FrameDecoder {
    limits: FrameLimits,
}

/// Sizes of the frame at the start of a buffer.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    frame: usize,
    command: usize,
}

impl FrameDecoder {
    /// A decoder with these limits.
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits }
    }

    /// Changes the limits from the next frame on (after CONNECT, or by a new setting).
    pub fn set_limits(&mut self, limits: FrameLimits) {
        self.limits = limits;
    }

    /// How many bytes are missing until the frame at the start of `src` is complete, as far as can be seen. Never above
    /// the frame limit. A reader that reserves space by this should still do so in steps: the peer may never send them.
    pub fn missing_bytes(&self, src: &BytesMut) -> usize {
        let known = read_u32(src, 0).map_or(FRAME_HEADER_BYTES, |total| total.saturating_add(4));
        known.min(self.limits.max_frame_bytes).saturating_sub(src.len())
    }

    /// Takes one frame off the front of `src`, or answers `None` if it is not complete yet.
    ///
    /// # Errors
    /// [`FrameError`]; `src` is then of no use any more.
    pub fn decode(&self, src: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(sizes) = self.sizes(src)? else { return Ok(None) };
        take_frame(src, sizes).map(Some)
    }

    /// As [`decode`](Self::decode), with a SEND read by the short way.
    ///
    /// # Errors
    /// [`FrameError`]; `src` is then of no use any more.
    pub fn decode_incoming(&self, src: &mut BytesMut) -> Result<Option<Incoming>, FrameError> {
        let Some(sizes) = self.sizes(src)? else { return Ok(None) };
        let command = &src[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + sizes.command];
        let Some(body) = send_body(command)? else {
            return take_frame(src, sizes).map(|frame| Some(Incoming::Other(frame)));
        };
        let header = SendHeader::decode(body)?;
        let payload = take_payload(src, sizes).ok_or(FrameError::NoPayload)?;
        Ok(Some(Incoming::Send(header, payload)))
    }

    /// Checks the size fields as soon as they are there; `None` until the whole frame is.
    fn sizes(&self, src: &BytesMut) -> Result<Option<Sizes>, FrameError> {
        let Some(total) = read_u32(src, 0) else { return Ok(None) };
        let frame = total.saturating_add(4);
        if frame > self.limits.max_frame_bytes {
            return Err(FrameError::TooLarge { bytes: frame, limit_bytes: self.limits.max_frame_bytes });
        }
        if total < 4 {
            return Err(FrameError::BadSizes { total_bytes: total, command_bytes: 0 });
        }
        let Some(command) = read_u32(src, 4) else { return Ok(None) };
        if command > total - 4 {
            return Err(FrameError::BadSizes { total_bytes: total, command_bytes: command });
        }
        if command > self.limits.max_command_bytes {
            return Err(FrameError::CommandTooLarge { bytes: command, limit_bytes: self.limits.max_command_bytes });
        }
        Ok((src.len() >= frame).then_some(Sizes { frame, command }))
    }
}

fn read_u32(src: &[u8], at: usize) -> Option<usize> {
    let bytes = src.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*bytes) as usize)
}

/// Takes the frame off `src` and answers what stands behind its command.
fn take_payload(src: &mut BytesMut, sizes: Sizes) -> Option<Bytes> {
    src.advance(FRAME_HEADER_BYTES + sizes.command);
    let payload = src.split_to(sizes.frame - FRAME_HEADER_BYTES - sizes.command);
    (!payload.is_empty()).then(|| payload.freeze())
}

fn take_frame(src: &mut BytesMut, sizes: Sizes) -> Result<Frame, FrameError> {
    src.advance(FRAME_HEADER_BYTES);
    if sizes.command > UNCOUNTED_COMMAND_BYTES {
        count_fields(&src[..sizes.command])?;
    }
    let mut body = src.split_to(sizes.frame - FRAME_HEADER_BYTES).freeze();
    let command = BaseCommand::decode(body.split_to(sizes.command))?;
    command.check()?;
    Ok(Frame { command, payload: (!body.is_empty()).then_some(body) })
}

/// Refuses a command whose bodies have more than [`MAX_COMMAND_FIELDS`] fields.
fn count_fields(command: &[u8]) -> Result<(), FrameError> {
    let mut count = 0usize;
    let mut fields = Fields::new(command);
    while let Some(field) = fields.next()? {
        count += 1;
        let Ok(body) = field.bytes() else { continue };
        let mut inner = Fields::new(body);
        while count <= MAX_COMMAND_FIELDS && inner.next()?.is_some() {
            count += 1;
        }
        if count > MAX_COMMAND_FIELDS {
            return Err(FrameError::TooManyFields { limit: MAX_COMMAND_FIELDS });
        }
    }
    Ok(())
}

/// The body of a SEND, or `None` if the command is another one or is written in an unusual order.
fn send_body(command: &[u8]) -> Result<Option<&[u8]>, FieldError> {
    let mut fields = Fields::new(command);
    match fields.next()? {
        Some(field) if field.number == 1 && field.int32() == Ok(Type::Send as i32) => {}
        _ => return Ok(None),
    }
    match fields.next()? {
        Some(field) if field.number == Type::Send as u32 => {
            let body = field.bytes()?;
            Ok(fields.next()?.is_none().then_some(body))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::{encode_command, encode_with_payload};
    use crate::proto::{CommandAck, CommandPing, CommandSend, MessageIdData};

    fn error(bytes: &[u8]) -> FrameError {
        FrameDecoder::default().decode(&mut BytesMut::from(bytes)).unwrap_err()
    }

    #[test]
    fn sizes_are_refused_before_anything_is_buffered() {
        let limit_bytes = DEFAULT_MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES;
        assert_eq!(error(&[0xff; 4]), FrameError::TooLarge { bytes: u32::MAX as usize + 4, limit_bytes });
        assert_eq!(error(&[0, 0, 0, 3]), FrameError::BadSizes { total_bytes: 3, command_bytes: 0 });
        assert_eq!(error(&[0, 0, 0, 9, 0, 0, 0, 6]), FrameError::BadSizes { total_bytes: 9, command_bytes: 6 });
        let exact = (limit_bytes as u32 - 4).to_be_bytes();
        let mut src = BytesMut::from(&exact[..]);
        assert_eq!(FrameDecoder::default().decode(&mut src), Ok(None));
        assert_eq!(FrameDecoder::default().missing_bytes(&src), limit_bytes - 4);
        let above = (limit_bytes as u32 - 3).to_be_bytes();
        assert_eq!(error(&above), FrameError::TooLarge { bytes: limit_bytes + 1, limit_bytes });
    }

    #[test]
    fn an_unknown_peer_may_send_small_commands_only() {
        let decoder = FrameDecoder::new(FrameLimits::before_connect());
        let mut src = BytesMut::from(&[0, 0x10, 0, 0][..]);
        assert!(matches!(decoder.decode(&mut src), Err(FrameError::TooLarge { .. })));
    }

    #[test]
    fn endless_lists_are_refused() {
        let read = |ids: usize, bytes: u64| {
            let message_id = vec![MessageIdData { ledger_id: bytes, ..Default::default() }; ids];
            let mut src = BytesMut::new();
            encode_command(&CommandAck { message_id, ..Default::default() }.into(), &mut src);
            FrameDecoder::default().decode(&mut src).map(|frame| frame.is_some())
        };
        assert_eq!(read(100_000, u64::MAX), Ok(true));
        assert_eq!(read(MAX_COMMAND_FIELDS + 1, 0), Err(FrameError::TooManyFields { limit: MAX_COMMAND_FIELDS }));
        assert!(matches!(read(2 * MAX_COMMAND_FIELDS, u64::MAX), Err(FrameError::CommandTooLarge { .. })));
    }

    #[test]
    fn a_command_stays_small_in_memory() {
        assert!(size_of::<BaseCommand>() <= 512, "{}", size_of::<BaseCommand>());
        assert!(size_of::<SendHeader>() <= 128, "{}", size_of::<SendHeader>());
    }

    #[test]
    fn garbage_says_what_is_wrong() {
        let http = error(b"GET / HTTP/1.1\r\n\r\n").to_string();
        assert!(http.starts_with("a frame of 1195725860 bytes is above the limit"), "{http}");
        let unknown = error(&[0, 0, 0, 7, 0, 0, 0, 3, 0x08, 0xe7, 0x07]);
        assert_eq!(unknown.to_string(), "unknown command type 999");
        assert_eq!(error(&[0, 0, 0, 4, 0, 0, 0, 0]).to_string(), "command CONNECT has no body");
        assert!(matches!(error(&[0, 0, 0, 5, 0, 0, 0, 1, 0x0b]), FrameError::Malformed(_)));
    }

    #[test]
    fn a_send_is_read_both_ways() {
        let send = CommandSend { producer_id: 3, sequence_id: 9, num_messages: Some(10), ..Default::default() };
        let mut src = BytesMut::new();
        encode_with_payload(&send.clone().into(), 5, &mut src);
        src.extend_from_slice(b"bytes");
        encode_command(&CommandPing {}.into(), &mut src);
        let mut again = src.clone();
        let decoder = FrameDecoder::default();
        let Some(Incoming::Send(header, payload)) = decoder.decode_incoming(&mut src).unwrap() else {
            panic!("no SEND")
        };
        assert_eq!(header, SendHeader::from(&send));
        assert_eq!(&payload[..], b"bytes");
        let frame = decoder.decode(&mut again).unwrap().unwrap();
        assert_eq!(frame.command, send.into());
        assert_eq!(frame.payload, Some(payload));
        let ping = decoder.decode_incoming(&mut src).unwrap();
        assert_eq!(ping, Some(Incoming::Other(Frame { command: CommandPing {}.into(), payload: None })));
        assert!(src.is_empty());
    }

    #[test]
    fn a_send_needs_a_payload() {
        let mut src = BytesMut::new();
        encode_command(&CommandSend::default().into(), &mut src);
        assert_eq!(FrameDecoder::default().decode_incoming(&mut src), Err(FrameError::NoPayload));
    }
}
