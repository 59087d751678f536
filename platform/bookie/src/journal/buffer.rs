//! A byte buffer whose start is aligned to a block, as direct I/O wants it.
//!
//! Invariants: F1 the slice starts on a [`BLOCK_BYTES`] boundary of memory; F2 it never reallocates.

use super::record::BLOCK_BYTES;

/// Fixed-size aligned buffer.
#[derive(Debug)]
pub struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    capacity_bytes: usize,
    len: usize,
}

impl AlignedBuffer {
    /// Room for `capacity_bytes` (rounded up to whole blocks).
    pub fn new(capacity_bytes: usize) -> Self {
        let capacity_bytes = capacity_bytes.max(1).next_multiple_of(BLOCK_BYTES);
        let memory = vec![0; capacity_bytes + BLOCK_BYTES];
        let address = memory.as_ptr().addr();
        let start = address.next_multiple_of(BLOCK_BYTES) - address;
        Self { memory, start, capacity_bytes, len: 0 }
    }

    /// Copies as much of `bytes` as there is room for and tells how much.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let take = bytes.len().min(self.capacity_bytes - self.len);
        let at = self.start + self.len;
        self.memory[at..at + take].copy_from_slice(&bytes[..take]);
        self.len += take;
        take
    }

    /// Fills up with zeros to a whole block.
    pub fn pad(&mut self) {
        let padded = self.len.next_multiple_of(BLOCK_BYTES);
        self.memory[self.start + self.len..self.start + padded].fill(0);
        self.len = padded;
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no room left.
    pub fn is_full(&self) -> bool {
        self.len == self.capacity_bytes
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_pads_with_zeros() {
        let mut buffer = AlignedBuffer::new(5000);
        assert_eq!(buffer.fill(&[9; 10_000]), 8192);
        assert!(buffer.is_full());
        buffer.clear();
        assert_eq!(buffer.fill(b"abc"), 3);
        buffer.pad();
        assert_eq!(buffer.len(), BLOCK_BYTES);
        assert!(buffer.as_slice()[3..].iter().all(|byte| *byte == 0));
        assert_eq!(buffer.as_slice().as_ptr().addr() % BLOCK_BYTES, 0);
    }
}
