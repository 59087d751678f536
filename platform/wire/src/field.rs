//! Protobuf fields read and written one by one, without building messages.
//!
//! Role: the base of the scanners and fast encoders of the hot path.
//! Invariants: W1; a varint has at most ten bytes; every step of [`Fields`] consumes at least one byte, so a scan ends.
//! Failure: [`FieldError`]. Groups, which no client writes, are refused.
//! Must never know: what a field means.

use bytes::{BufMut, BytesMut};

/// Why bytes are not a list of protobuf fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The bytes end inside a field.
    #[error("the bytes end inside a field")]
    Truncated,
    /// A variable-length integer longer than ten bytes or above 64 bits.
    #[error("a variable-length integer has more than 64 bits")]
    LongVarint,
    /// Field number zero or above 2^29 - 1.
    #[error("the field number {0} is outside 1..2^29")]
    BadNumber(u64),
    /// A group or an unassigned wire type.
    #[error("wire type {0} is not used by this protocol")]
    BadWireType(u8),
    /// A known field with another wire type than its own.
    #[error("field {0} has the wrong wire type")]
    WrongType(u32),
    /// A text field that is not UTF-8.
    #[error("field {0} is not UTF-8")]
    NotUtf8(u32),
    /// A required field is missing.
    #[error("the required field {0} is missing")]
    Missing(&'static str),
}

impl meridian_types::Classify for FieldError {
    fn class(&self) -> meridian_types::ErrorClass {
        meridian_types::ErrorClass::Caller
    }
}

/// One value as it stands on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value<'a> {
    Varint(u64),
    Fixed,
    Bytes(&'a [u8]),
}

/// One field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'a> {
    pub(crate) number: u32,
    value: Value<'a>,
}

impl<'a> Field<'a> {
    pub(crate) fn varint(self) -> Result<u64, FieldError> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(FieldError::WrongType(self.number)),
        }
    }

    /// An `int32` or an enum: the low 32 bits.
    pub(crate) fn int32(self) -> Result<i32, FieldError> {
        self.varint().map(|value| value as i32)
    }

    pub(crate) fn bool(self) -> Result<bool, FieldError> {
        self.varint().map(|value| value != 0)
    }

    pub(crate) fn bytes(self) -> Result<&'a [u8], FieldError> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(FieldError::WrongType(self.number)),
        }
    }

    pub(crate) fn text(self) -> Result<&'a str, FieldError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| FieldError::NotUtf8(self.number))
    }
}

/// The fields of a message, in the order of the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What is not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next field, or `None` at the end.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Field<'a>>, FieldError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.take_varint()?;
        let number = tag >> 3;
        if number == 0 || number >= 1 << 29 {
            return Err(FieldError::BadNumber(number));
        }
        let value = match (tag & 7) as u8 {
            0 => Value::Varint(self.take_varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let size = usize::try_from(self.take_varint()?).map_err(|_| FieldError::Truncated)?;
                Value::Bytes(self.take(size)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            other => return Err(FieldError::BadWireType(other)),
        };
        Ok(Some(Field { number: number as u32, value }))
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], FieldError> {
        let (taken, rest) = self.rest.split_at_checked(size).ok_or(FieldError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn take_varint(&mut self) -> Result<u64, FieldError> {
        let mut value = 0u64;
        for (index, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                if index == 9 && byte > 1 {
                    return Err(FieldError::LongVarint);
                }
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        Err(if self.rest.len() < 10 { FieldError::Truncated } else { FieldError::LongVarint })
    }
}

/// Bytes of `value` as a varint.
#[inline]
pub(crate) fn varint_len(value: u64) -> usize {
    // Seven bits a byte; zero takes one.
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

#[inline]
pub(crate) fn put_varint(mut value: u64, dst: &mut BytesMut) {
    while value >= 0x80 {
        dst.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    dst.put_u8(value as u8);
}

/// Bytes of an integer field with a number below 16.
#[inline]
pub(crate) fn small_field_len(value: u64) -> usize {
    1 + varint_len(value)
}

/// Writes an integer field with a number below 16.
#[inline]
pub(crate) fn put_small_field(number: u8, value: u64, dst: &mut BytesMut) {
    debug_assert!(number > 0 && number < 16);
    dst.put_u8(number << 3);
    put_varint(value, dst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_the_length_they_say() {
        for value in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), i64::MAX as u64, u64::MAX] {
            let mut dst = BytesMut::new();
            put_varint(value, &mut dst);
            assert_eq!(dst.len(), varint_len(value), "{value}");
            let mut fields = Fields::new(&dst);
            assert_eq!(fields.take_varint(), Ok(value));
            assert!(fields.rest.is_empty());
        }
    }

    #[test]
    fn each_fault_has_its_own_error() {
        let next = |bytes: &'static [u8]| Fields::new(bytes).next().map(|field| field.map(|f| f.number));
        assert_eq!(next(&[]), Ok(None));
        assert_eq!(next(&[0x08]), Err(FieldError::Truncated));
        assert_eq!(next(&[0x08, 0x80]), Err(FieldError::Truncated));
        assert_eq!(next(&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2]), Err(FieldError::LongVarint));
        assert_eq!(next(&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]), Err(FieldError::LongVarint));
        assert_eq!(next(&[0x00, 0x01]), Err(FieldError::BadNumber(0)));
        assert_eq!(next(&[0x0b]), Err(FieldError::BadWireType(3)));
        assert_eq!(next(&[0x0a, 0x02, 0x00]), Err(FieldError::Truncated));
        assert_eq!(
            next(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
            Err(FieldError::Truncated)
        );
        assert_eq!(next(&[0x09, 0, 0, 0, 0, 0, 0, 0, 0]), Ok(Some(1)));
        let text = Fields::new(&[0x0a, 0x01, 0xff]).next().unwrap().unwrap();
        assert_eq!(text.text(), Err(FieldError::NotUtf8(1)));
        assert_eq!(text.varint(), Err(FieldError::WrongType(1)));
    }
}
