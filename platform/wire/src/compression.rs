//! Payload compression as Pulsar's clients use it: LZ4 and Snappy as bare blocks, ZLIB with its header, ZSTD frames.
//!
//! Role: for the few places that open a payload (compaction of batches, peek). Messages pass through compressed.
//! Invariants: W1 the stated size is checked against the caller's limit before anything is allocated, and never
//! exceeded; what comes out has exactly the stated size.
//! Failure: [`CompressionError`].
//! Must never know: what is in the payload.

use crate::proto::CompressionType;
use bytes::Bytes;
use std::io::{Read, Write};

/// The level that Pulsar's clients use for ZSTD.
const ZSTD_LEVEL: i32 = 3;

/// Why a payload was not (de)compressed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// The stated size is above the caller's limit.
    #[error("a payload of {bytes} bytes is above the limit of {limit_bytes} bytes")]
    TooLarge {
        /// The stated size.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The payload has another size than the metadata states.
    #[error("the metadata states {stated_bytes} uncompressed bytes, the payload has {found_bytes} or more")]
    WrongSize {
        /// The stated size.
        stated_bytes: usize,
        /// The size that was found.
        found_bytes: usize,
    },
    /// The bytes are not of that kind of compression.
    #[error("the payload is not {}: {reason}", .kind.as_str_name())]
    Damaged {
        /// The kind.
        kind: CompressionType,
        /// What the decoder says.
        reason: String,
    },
    /// The encoder failed.
    #[error("the payload could not be compressed by {}: {reason}", .kind.as_str_name())]
    Encode {
        /// The kind.
        kind: CompressionType,
        /// What the encoder says.
        reason: String,
    },
}

impl meridian_types::Classify for CompressionError {
    fn class(&self) -> meridian_types::ErrorClass {
        match self {
            CompressionError::Damaged { .. } | CompressionError::WrongSize { .. } => {
                meridian_types::ErrorClass::Corrupt
            }
            _ => meridian_types::ErrorClass::Caller,
        }
    }
}

/// Decompresses a payload of stated size `uncompressed_bytes`, refusing more than `limit_bytes`.
///
/// # Errors
/// [`CompressionError`] if the size is above the limit or not the true one, or the bytes are damaged.
pub fn decompress(
    kind: CompressionType,
    payload: &Bytes,
    uncompressed_bytes: usize,
    limit_bytes: usize,
) -> Result<Bytes, CompressionError> {
    if kind == CompressionType::None {
        return Ok(payload.clone());
    }
    if uncompressed_bytes > limit_bytes {
        return Err(CompressionError::TooLarge { bytes: uncompressed_bytes, limit_bytes });
    }
    let found = match kind {
        CompressionType::None => return Ok(payload.clone()),
        CompressionType::Lz4 => lz4_flex::block::decompress(payload, uncompressed_bytes).map_err(damaged(kind))?,
        CompressionType::Zlib => read_at_most(flate2::read::ZlibDecoder::new(&payload[..]), kind, uncompressed_bytes)?,
        CompressionType::Zstd => {
            let decoder = zstd::stream::read::Decoder::new(&payload[..]).map_err(damaged(kind))?;
            read_at_most(decoder, kind, uncompressed_bytes)?
        }
        CompressionType::Snappy => unsnap(payload, uncompressed_bytes)?,
    };
    check_size(uncompressed_bytes, found.len())?;
    Ok(found.into())
}

fn damaged<E: ToString>(kind: CompressionType) -> impl Fn(E) -> CompressionError {
    move |error| CompressionError::Damaged { kind, reason: error.to_string() }
}

fn check_size(stated_bytes: usize, found_bytes: usize) -> Result<(), CompressionError> {
    if stated_bytes == found_bytes { Ok(()) } else { Err(CompressionError::WrongSize { stated_bytes, found_bytes }) }
}

/// Reads one byte more than stated, so that a longer payload is seen and not unpacked.
fn read_at_most(decoder: impl Read, kind: CompressionType, stated: usize) -> Result<Vec<u8>, CompressionError> {
    let mut found = Vec::with_capacity(stated.saturating_add(1));
    decoder.take(stated as u64 + 1).read_to_end(&mut found).map_err(damaged(kind))?;
    Ok(found)
}

fn unsnap(payload: &[u8], stated: usize) -> Result<Vec<u8>, CompressionError> {
    let found = snap::raw::decompress_len(payload).map_err(damaged(CompressionType::Snappy))?;
    check_size(stated, found)?;
    snap::raw::Decoder::new().decompress_vec(payload).map_err(damaged(CompressionType::Snappy))
}

/// Compresses a payload.
///
/// # Errors
/// [`CompressionError::Encode`] with the encoder's reason.
pub fn compress(kind: CompressionType, payload: &Bytes) -> Result<Bytes, CompressionError> {
    let failed = |reason: String| CompressionError::Encode { kind, reason };
    let packed = match kind {
        CompressionType::None => return Ok(payload.clone()),
        CompressionType::Lz4 => lz4_flex::block::compress(payload),
        CompressionType::Zlib => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(payload).and_then(|()| encoder.finish()).map_err(|error| failed(error.to_string()))?
        }
        CompressionType::Zstd => {
            zstd::bulk::compress(payload, ZSTD_LEVEL).map_err(|error| failed(error.to_string()))?
        }
        CompressionType::Snappy => {
            snap::raw::Encoder::new().compress_vec(payload).map_err(|error| failed(error.to_string()))?
        }
    };
    Ok(packed.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [CompressionType; 5] = [
        CompressionType::None,
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ];

    #[test]
    fn each_kind_goes_both_ways() {
        for plain in [Bytes::new(), Bytes::from_static(b"x"), Bytes::from(b"pulsar".repeat(5000))] {
            for kind in KINDS {
                let packed = compress(kind, &plain).unwrap();
                assert_eq!(decompress(kind, &packed, plain.len(), plain.len()).unwrap(), plain, "{kind:?}");
            }
        }
    }

    #[test]
    fn a_wrong_size_is_refused_before_it_costs() {
        let plain = Bytes::from(vec![0; 100_000]);
        for kind in &KINDS[1..] {
            let packed = compress(*kind, &plain).unwrap();
            let above = decompress(*kind, &packed, 100_000, 99_999);
            assert_eq!(above, Err(CompressionError::TooLarge { bytes: 100_000, limit_bytes: 99_999 }));
            assert!(decompress(*kind, &packed, 1000, 100_000).is_err(), "{kind:?}");
            assert!(decompress(*kind, &packed, 200_000, 200_000).is_err(), "{kind:?}");
            assert!(decompress(*kind, &Bytes::from_static(b"\xfegarbage"), 1000, 1000).is_err(), "{kind:?}");
        }
    }
}
