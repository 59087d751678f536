//! Every decoder on the same bytes; shared by the property tests and the fuzz target.

use bytes::{Bytes, BytesMut};
use meridian_wire::batch::Messages;
use meridian_wire::compression::decompress;
use meridian_wire::frame::{FrameDecoder, FrameLimits};
use meridian_wire::key::sticky_hash;
use meridian_wire::metadata::{MetadataSummary, replicate_to};
use meridian_wire::payload;
use meridian_wire::proto::CompressionType;
use meridian_wire::send::SendHeader;

/// Lets every decoder read the bytes; answers and errors are both fine.
pub fn read_everything(bytes: &Bytes, stated: usize, count: u32) {
    for decoder in [
        FrameDecoder::default(),
        FrameDecoder::new(FrameLimits::before_connect()),
        FrameDecoder::new(FrameLimits::for_client(1000)),
    ] {
        let mut src = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = decoder.decode_incoming(&mut src) {}
        let mut src = BytesMut::from(&bytes[..]);
        while let Ok(Some(frame)) = decoder.decode(&mut src) {
            assert!(frame.command.check().is_ok());
        }
    }
    let _ = SendHeader::decode(bytes);
    assert!(replicate_to(bytes).count() <= bytes.len());
    let _ = payload::verify_checksum(bytes);
    let _ = payload::decode(bytes);
    let _ = payload::strip_broker_entry(bytes);
    let _ = payload::without_checksum(bytes);
    if let Ok(summary) = payload::summarize(bytes) {
        sticky_hash(&summary);
    }
    if let Ok(summary) = MetadataSummary::decode(bytes) {
        sticky_hash(&summary);
    }
    assert!(Messages::new(bytes.clone(), count).count() <= bytes.len() / 4 + 1);
    for kind in (1..5).map(|kind| CompressionType::try_from(kind).unwrap()) {
        if let Ok(plain) = decompress(kind, bytes, stated, 4000) {
            assert_eq!(plain.len(), stated);
        }
    }
}
