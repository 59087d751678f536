//! Which key a message is routed by, and its hash.
//!
//! Role: the sticky key of Key_Shared and the hash that clients and brokers agree on.
//! Invariants: K1 the key is the ordering key, else the partition key (decoded if it is base64), else producer name and
//! sequence id, else [`NO_KEY`]; K2 the hash is murmur3 (32 bit, seed 0) without its highest bit; no allocation for
//! keys up to [`STACK_KEY_BYTES`].
//! Must never know: consumers, hash ranges.

use crate::metadata::MetadataSummary;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use std::borrow::Cow;
use std::io::Write;

/// The key of a message whose own key cannot be read.
pub const NO_KEY: &[u8] = b"NONE_KEY";
/// Keys up to this size are put together on the stack.
pub const STACK_KEY_BYTES: usize = 256;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The key that decides which consumer of a Key_Shared subscription gets the message.
pub fn sticky_key<'a>(summary: &MetadataSummary<'a>) -> Cow<'a, [u8]> {
    if let Some(key) = summary.ordering_key {
        return Cow::Borrowed(key);
    }
    match summary.partition_key {
        Some(key) if summary.partition_key_b64_encoded => BASE64.decode(key).map_or(Cow::Borrowed(NO_KEY), Cow::Owned),
        Some(key) => Cow::Borrowed(key.as_bytes()),
        None => Cow::Owned(format!("{}-{}", summary.producer_name, summary.sequence_id as i64).into_bytes()),
    }
}

/// The hash of the [`sticky_key`], 0 to 2^31 - 1.
pub fn sticky_hash(summary: &MetadataSummary<'_>) -> u32 {
    let mut space = [0u8; STACK_KEY_BYTES];
    on_stack(summary, &mut space).map_or_else(|| key_hash(&sticky_key(summary)), key_hash)
}

/// The sticky key without allocation, if it is plain or fits into `space`.
fn on_stack<'a>(summary: &MetadataSummary<'a>, space: &'a mut [u8; STACK_KEY_BYTES]) -> Option<&'a [u8]> {
    if let Some(key) = summary.ordering_key {
        return Some(key);
    }
    let size = match summary.partition_key {
        Some(key) if !summary.partition_key_b64_encoded => return Some(key.as_bytes()),
        Some(key) => BASE64.decode_slice(key, space).ok()?,
        None => {
            let mut rest = &mut space[..];
            write!(rest, "{}-{}", summary.producer_name, summary.sequence_id as i64).ok()?;
            STACK_KEY_BYTES - rest.len()
        }
    };
    space.get(..size)
}

/// The hash of a key as Pulsar's clients and brokers use it, 0 to 2^31 - 1.
pub fn key_hash(key: &[u8]) -> u32 {
    murmur3_32(key) & 0x7fff_ffff
}

/// murmur3, 32 bit, seed 0.
pub fn murmur3_32(key: &[u8]) -> u32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let scramble = |block: u32| block.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);
    let (blocks, tail) = key.as_chunks::<4>();
    let mut hash = 0u32;
    for block in blocks {
        hash ^= scramble(u32::from_le_bytes(*block));
        hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    if !tail.is_empty() {
        let block = tail.iter().rev().fold(0u32, |block, &byte| block << 8 | u32::from(byte));
        hash ^= scramble(block);
    }
    hash ^= key.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur_has_its_known_vectors() {
        let vectors: [(&str, u32); 6] = [
            ("", 0),
            ("test", 0xba6b_d213),
            ("hello", 0x248b_fa47),
            ("hello, world", 0x149b_bb7f),
            ("Hello, world!", 0xc036_3e43),
            ("The quick brown fox jumps over the lazy dog", 0x2e4f_f723),
        ];
        for (text, hash) in vectors {
            assert_eq!(murmur3_32(text.as_bytes()), hash, "{text}");
        }
        assert_eq!(murmur3_32(&[0, 0, 0, 0]), 0x2362_f9de);
        assert_eq!(murmur3_32(&[0xff, 0xff, 0xff, 0xff]), 0x7629_3b50);
        assert_eq!(murmur3_32(&[0x21, 0x43, 0x65]), 0x7e4a_8634);
        assert_eq!(key_hash(b"test"), 0x3a6b_d213);
    }

    fn check(summary: &MetadataSummary<'_>, key: &[u8]) {
        assert_eq!(&sticky_key(summary)[..], key);
        assert_eq!(sticky_hash(summary), key_hash(key));
    }

    #[test]
    fn the_key_is_found_in_order() {
        let mut summary = MetadataSummary { producer_name: "p", sequence_id: 42, ..MetadataSummary::default() };
        check(&summary, b"p-42");
        summary.sequence_id = u64::MAX;
        check(&summary, b"p--1");
        summary.partition_key = Some("a2V5");
        check(&summary, b"a2V5");
        summary.partition_key_b64_encoded = true;
        check(&summary, b"key");
        summary.partition_key = Some("a2U");
        check(&summary, b"ke");
        summary.partition_key = Some("*");
        check(&summary, NO_KEY);
        summary.ordering_key = Some(b"");
        check(&summary, b"");
    }

    #[test]
    fn long_keys_have_the_same_hash() {
        let name = "n".repeat(STACK_KEY_BYTES);
        let summary = MetadataSummary { producer_name: &name, sequence_id: 1, ..MetadataSummary::default() };
        check(&summary, format!("{name}-1").as_bytes());
        let coded = BASE64.encode(vec![7; STACK_KEY_BYTES * 2]);
        let summary = MetadataSummary {
            partition_key: Some(&coded),
            partition_key_b64_encoded: true,
            ..MetadataSummary::default()
        };
        check(&summary, &vec![7; STACK_KEY_BYTES * 2]);
    }
}
