//! Ranges of keys, page by page.
//!
//! Invariants: M6 a page is bounded in entries and bytes, and so is each request to TiKV: the next one asks for as many
//! entries as the largest of the last suggests.
//! Failure: as every read.
//! Must never know: what keys mean.

use crate::calls::{Pairs, Shared, Step, View, entry};
use crate::format::{after, decode_data, end_of};
use meridian_metadata::limits::{MAX_PAGE_BYTES, MAX_PAGE_ENTRIES};
use meridian_metadata::{MetadataError, Page};
use tokio::time::Instant;

/// Entries of the first request of a page.
const FIRST_ENTRIES: usize = 64;
/// Entries of a request at most.
const MAX_ENTRIES: usize = 1024;
/// What a request should bring at most.
const TARGET_BYTES: usize = 4 * 1024 * 1024;

/// How many entries to ask for after a request that brought `pairs`.
fn next_entries(pairs: &Pairs, last_entries: usize) -> usize {
    let largest = pairs.iter().map(|(key, record)| key.len() + record.len()).max().unwrap_or(1).max(1);
    (TARGET_BYTES / largest).clamp(1, MAX_ENTRIES).min(last_entries * 4)
}

impl Shared {
    /// One page of the keys under `prefix`, behind `after`.
    pub(crate) async fn range(&self, prefix: &str, behind: Option<&str>, limit: usize) -> Result<Page, MetadataError> {
        let from = match behind {
            Some(behind) if behind >= prefix => after(self.keys.data(behind)),
            _ => self.keys.data(prefix),
        };
        let to = end_of(&self.keys.data(prefix));
        let limit = limit.clamp(1, MAX_PAGE_ENTRIES);
        let mut tries = self.tries();
        let _slot = self.slot(&tries).await?;
        loop {
            match self.page((from.clone(), to.clone()), limit, tries.deadline).await {
                Ok(page) => return Ok(page),
                Err(step) => self.again(&mut tries, step).await?,
            }
        }
    }

    async fn page(&self, (mut from, to): (Vec<u8>, Vec<u8>), limit: usize, deadline: Instant) -> Result<Page, Step> {
        let mut page = Page { entries: Vec::new(), next: None };
        if from >= to {
            return Ok(page);
        }
        let (mut snapshot, _) = self.link.snapshot(deadline).await?;
        let (mut bytes, mut ask) = (0, FIRST_ENTRIES);
        loop {
            let wanted = ask.min(limit + 1 - page.entries.len());
            let mut view = View::At(&mut snapshot);
            let pairs = self.scan(&mut view, (from.clone(), to.clone()), wanted as u32, deadline).await?;
            let complete = pairs.len() < wanted;
            ask = next_entries(&pairs, ask);
            for (data_key, record) in pairs {
                if page.entries.len() >= limit || bytes >= MAX_PAGE_BYTES {
                    page.next = page.entries.last().map(|entry| entry.key.clone());
                    return Ok(page);
                }
                bytes += data_key.len() + record.len();
                let key = self.keys.key_of_data(&data_key)?;
                page.entries.push(entry(key, decode_data(&data_key, &record)?));
                from = data_key;
            }
            if complete {
                return Ok(page);
            }
            from = after(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_entries_make_small_requests() {
        let pairs = |bytes: usize| vec![(vec![0; 10], vec![0; bytes])];
        assert_eq!(next_entries(&pairs(100), 64), 256);
        assert_eq!(next_entries(&pairs(100), 1024), 1024);
        assert_eq!(next_entries(&pairs(1024 * 1024), 256), 3);
        assert_eq!(next_entries(&Vec::new(), 64), 256);
    }
}
