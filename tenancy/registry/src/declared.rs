//! What is kept of declarative documents, by owner: bytes that this crate does not look into.
//!
//! | key | value |
//! |---|---|
//! | `declared/head/OWNER` | `{"v":1,"generation":…,"pieces":…}` |
//! | `declared/piece/OWNER/GENERATION/NUMBER` | a piece of at most 256 KiB |
//!
//! Invariants: head and pieces change in one transaction; a write holds only if nobody wrote since what it was made from
//! was read. Documents are a region's own and not shared with others.
//! Failure: [`RegistryError::Busy`] if somebody did.

use crate::{Registry, RegistryError};
use bytes::Bytes;
use meridian_metadata::{Condition, MetadataError, Operation, Version};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
const HEADS: &str = "declared/head/";
const PIECES: &str = "declared/piece/";
/// Largest piece.
const PIECE_BYTES: usize = 256 << 10;
/// How often reading is tried while somebody else writes.
const READ_TRIES: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    v: u32,
    generation: u64,
    pieces: usize,
}

/// What is kept, and when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The bytes.
    pub value: Vec<u8>,
    head: Head,
    version: Version,
}

fn head_key(owner: &str) -> String {
    format!("{HEADS}{owner}")
}

fn piece_key(owner: &str, generation: u64, number: usize) -> String {
    format!("{PIECES}{owner}/{generation:016x}/{number:04}")
}

fn busy(owner: &str) -> RegistryError {
    RegistryError::Busy { kind: "document", name: owner.to_owned() }
}

fn parse(key: &str, bytes: &[u8]) -> Result<Head, MetadataError> {
    let head: Head =
        serde_json::from_slice(bytes).map_err(|error| MetadataError::Corrupt(format!("record {key}: {error}")))?;
    if head.v != VERSION {
        return Err(MetadataError::Corrupt(format!("record {key} has version {}, known is {VERSION}", head.v)));
    }
    Ok(head)
}

impl Registry {
    /// The owners of documents, in order.
    ///
    /// # Errors
    /// [`RegistryError::Store`].
    pub async fn declared_owners(&self) -> Result<Vec<String>, RegistryError> {
        let heads = self.store.scan(HEADS).await?;
        Ok(heads.into_iter().filter_map(|entry| entry.key.strip_prefix(HEADS).map(str::to_owned)).collect())
    }

    /// What is kept of an owner's document.
    ///
    /// # Errors
    /// [`RegistryError::Store`]; [`RegistryError::Busy`] if it was written again and again meanwhile.
    pub async fn declared(&self, owner: &str) -> Result<Option<Declared>, RegistryError> {
        let key = head_key(owner);
        'again: for _ in 0..READ_TRIES {
            let Some(entry) = self.store.get(&key).await? else { return Ok(None) };
            let head = parse(&key, &entry.value)?;
            let mut value = Vec::new();
            for number in 0..head.pieces {
                // A piece that is gone belongs to a head that is gone.
                let Some(piece) = self.store.get(&piece_key(owner, head.generation, number)).await? else {
                    continue 'again;
                };
                value.extend_from_slice(&piece.value);
            }
            return Ok(Some(Declared { value, head, version: entry.version }));
        }
        Err(busy(owner))
    }

    /// Keeps bytes for an owner, if what is kept is still what was read before.
    ///
    /// # Errors
    /// [`RegistryError::Busy`] if somebody else wrote in between, [`RegistryError::Store`] for too many bytes.
    pub async fn set_declared(
        &self,
        owner: &str,
        value: &[u8],
        before: Option<&Declared>,
    ) -> Result<Declared, RegistryError> {
        let generation = before.map_or(1, |before| before.head.generation + 1);
        let pieces: Vec<_> = value.chunks(PIECE_BYTES).collect();
        let head = Head { v: VERSION, generation, pieces: pieces.len() };
        let condition = before.map_or(Condition::Absent, |before| Condition::Is(before.version));
        let put = |key, value, condition| Operation::Put { key, value, condition, ephemeral: None };
        let written = serde_json::to_vec(&head).map_err(|error| MetadataError::Invalid(error.to_string()))?;
        let mut operations = vec![put(head_key(owner), Bytes::from(written), condition)];
        for (number, piece) in pieces.iter().enumerate() {
            let key = piece_key(owner, generation, number);
            operations.push(put(key, Bytes::copy_from_slice(piece), Condition::Any));
        }
        operations.extend(before.into_iter().flat_map(|before| old_pieces(owner, before)));
        self.commit_declared(owner, operations).await?;
        self.declared(owner)
            .await?
            .filter(|found| found.head == head && found.value == value)
            .ok_or_else(|| busy(owner))
    }

    /// Forgets what is kept of an owner, if it is still what was read before.
    ///
    /// # Errors
    /// As [`Registry::set_declared`].
    pub async fn forget_declared(&self, owner: &str, before: &Declared) -> Result<(), RegistryError> {
        let mut operations = vec![Operation::Delete { key: head_key(owner), condition: Condition::Is(before.version) }];
        operations.extend(old_pieces(owner, before));
        self.commit_declared(owner, operations).await
    }

    async fn commit_declared(&self, owner: &str, operations: Vec<Operation>) -> Result<(), RegistryError> {
        match self.store.commit(operations).await {
            // An unknown outcome is read back by the caller, or by whoever looks next.
            Ok(_) | Err(MetadataError::UnknownOutcome(_)) => Ok(()),
            Err(MetadataError::Conflict { .. }) => Err(busy(owner)),
            Err(error) => Err(error.into()),
        }
    }
}

fn old_pieces(owner: &str, before: &Declared) -> impl Iterator<Item = Operation> {
    let (owner, generation) = (owner.to_owned(), before.head.generation);
    (0..before.head.pieces)
        .map(move |number| Operation::Delete { key: piece_key(&owner, generation, number), condition: Condition::Any })
}
