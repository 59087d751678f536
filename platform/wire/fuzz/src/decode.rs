//! Fuzz target: whatever bytes come from outside, no decoder panics or allocates without bound.
#![no_main]

#[path = "../../tests/everything/mod.rs"]
mod everything;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The stated size of a payload and the number of messages come from the same bytes.
    let stated = data.first().map_or(0, |&byte| usize::from(byte) * 16);
    let count = data.last().map_or(0, |&byte| u32::from(byte));
    everything::read_everything(&Bytes::copy_from_slice(data), stated, count);
});
