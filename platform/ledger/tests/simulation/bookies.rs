//! A bookie as the protocol sees it: entries, a fence, a last-add-confirmed.

use bytes::Bytes;
use meridian_bookie_api::{AddEntry, AddResult, BookieError, FenceState, ReadEntry, ReadRequest};
use meridian_types::{BookieId, EntryId};
use std::collections::BTreeMap;

/// Bytes and digest.
pub type Content = (Bytes, u32);

/// What it holds is durable; being down loses only answers and requests.
pub struct SimBookie {
    pub id: BookieId,
    pub up: bool,
    pub fenced: bool,
    pub heard: i64,
    pub entries: BTreeMap<i64, Content>,
    /// The next batch of ordinary adds is refused with this.
    pub refuse: Option<BookieError>,
}

impl SimBookie {
    pub fn new(id: BookieId) -> Self {
        Self { id, up: true, fenced: false, heard: -1, entries: BTreeMap::new(), refuse: None }
    }

    pub fn add(&mut self, adds: Vec<AddEntry>) -> Vec<AddResult> {
        let refuse = if adds.iter().any(|a| a.recovery) { None } else { self.refuse.take() };
        adds.into_iter()
            .map(|add| AddResult {
                ledger_id: add.ledger_id,
                entry_id: add.entry_id,
                result: refuse.clone().map_or_else(|| self.store(add), Err),
            })
            .collect()
    }

    fn store(&mut self, add: AddEntry) -> Result<(), BookieError> {
        if self.fenced && !add.recovery {
            return Err(BookieError::Fenced);
        }
        self.heard = self.heard.max(add.last_add_confirmed.0);
        let content = (add.entry.to_bytes(), add.digest);
        let there = self.entries.insert(add.entry_id.0, content.clone());
        assert!(there.is_none_or(|there| there == content), "an entry has one content for ever");
        Ok(())
    }

    pub fn fence(&mut self) -> FenceState {
        self.fenced = true;
        let last_entry = self.entries.last_key_value().map_or(EntryId::NONE, |(id, _)| EntryId(*id));
        FenceState { last_add_confirmed: EntryId(self.heard), last_entry }
    }

    pub fn read(&mut self, request: ReadRequest) -> Result<Vec<ReadEntry>, BookieError> {
        self.fenced |= request.fence;
        let mut read = Vec::new();
        for (next, (id, (payload, digest))) in
            (request.first_entry_id.0..).zip(self.entries.range(request.first_entry_id.0..))
        {
            if *id != next || read.len() >= request.max_entries as usize {
                break;
            }
            read.push(ReadEntry {
                entry_id: EntryId(*id),
                last_add_confirmed: EntryId::NONE,
                digest: *digest,
                payload: payload.clone(),
            });
        }
        if read.is_empty() { Err(BookieError::NoSuchEntry) } else { Ok(read) }
    }
}
