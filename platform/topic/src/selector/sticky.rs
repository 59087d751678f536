//! Ranges named by the clients.
//!
//! Invariants: H5 ranges never overlap; a consumer whose ranges are refused leaves no trace.

use super::LAST_SLOT;
use crate::api::{ConsumerKey, TopicError, TopicErrorKind};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Sticky {
    by_start: BTreeMap<u32, (u32, ConsumerKey)>,
}

fn refuse(message: String) -> TopicError {
    TopicError::new(TopicErrorKind::ConsumerAssign, message)
}

impl Sticky {
    pub(super) fn add(&mut self, key: ConsumerKey, ranges: &[(u32, u32)]) -> Result<(), TopicError> {
        if ranges.is_empty() {
            return Err(refuse("A sticky Key_Shared consumer has to name at least one hash range".to_owned()));
        }
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable();
        for (start, end) in &sorted {
            if start > end || *end > LAST_SLOT {
                return Err(refuse(format!("Hash range [{start}, {end}] is not within [0, {LAST_SLOT}]")));
            }
            if let Some((taken_start, (taken_end, _))) = self.by_start.range(..=*end).next_back()
                && taken_end >= start
            {
                let taken = format!("range [{taken_start}, {taken_end}] of a connected consumer");
                return Err(refuse(format!("Hash range [{start}, {end}] conflicts with {taken}")));
            }
        }
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].1 >= pair[1].0) {
            return Err(refuse(format!("Hash ranges {:?} and {:?} of one consumer overlap", pair[0], pair[1])));
        }
        self.by_start.extend(sorted.into_iter().map(|(start, end)| (start, (end, key))));
        Ok(())
    }

    pub(super) fn remove(&mut self, key: ConsumerKey) {
        self.by_start.retain(|_, (_, owner)| *owner != key);
    }

    pub(super) fn lay_out(&self, push: &mut impl FnMut(u32, Option<ConsumerKey>)) {
        let mut next = 0;
        for (start, (end, owner)) in &self.by_start {
            if *start > next {
                push(*start - 1, None);
            }
            push(*end, Some(*owner));
            next = *end + 1;
        }
    }
}
