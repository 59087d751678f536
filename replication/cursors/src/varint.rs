//! Numbers of variable length, seven bits a byte, as both formats of this crate use them.
//!
//! Failure: [`None`] if the bytes end early or the number has more than 64 bits; nothing here panics.

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that a number takes.
pub(crate) fn len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Takes a number from the front.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            if index == 9 && byte > 1 {
                return None;
            }
            *bytes = &bytes[index + 1..];
            return Some(value);
        }
    }
    None
}

/// Takes so many bytes from the front.
pub(crate) fn take_bytes<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::{len, put, take};

    #[test]
    fn numbers_go_both_ways() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), i64::MAX as u64, u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(out.len(), len(value), "{value}");
            let mut rest = out.as_slice();
            assert_eq!(take(&mut rest), Some(value));
            assert!(rest.is_empty());
        }
        assert_eq!(take(&mut [0x80].as_slice()), None);
        assert_eq!(take(&mut [255, 255, 255, 255, 255, 255, 255, 255, 255, 2].as_slice()), None);
    }
}
