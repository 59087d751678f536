//! Errors of the node's own storage.

use meridian_bookie_api::BookieError;
use meridian_types::{Classify, ErrorClass};
use std::io;
use std::path::Path;

/// Why a disk operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The disk refused.
    #[error("{what}: {source}")]
    Io {
        /// Operation and path.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The index refused.
    #[error("index: {0}")]
    Index(#[from] rocksdb::Error),
    /// Stored bytes are not what was written.
    #[error("damaged: {0}")]
    Corrupt(String),
    /// Stored bytes are of a later version.
    #[error("{what} has version {version}, this build knows {known}")]
    Version {
        /// Which file.
        what: String,
        /// Its version.
        version: u32,
        /// The version known.
        known: u32,
    },
    /// The node is shutting down.
    #[error("the bookie is closed")]
    Closed,
}

impl StorageError {
    pub(crate) fn io(action: &str, path: &Path, source: io::Error) -> Self {
        Self::Io { what: format!("{action} {}", path.display()), source }
    }

    /// Whether the disk has no room left.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            // RocksDB passes on the system's text alone.
            Self::Index(error) => {
                ["No space left on device", "quota exceeded"].iter().any(|text| error.as_ref().contains(text))
            }
            _ => false,
        }
    }

    /// The cause without what it happened to: the same however often it happens, whatever file it meets.
    pub fn cause(&self) -> String {
        match self {
            full if full.is_full() => "no space left on the disk".to_owned(),
            Self::Io { source, .. } => source.to_string(),
            Self::Index(error) => format!("index: {:?}", error.kind()),
            other => other.to_string(),
        }
    }

    pub(crate) fn to_bookie_error(&self) -> BookieError {
        match self {
            Self::Corrupt(what) => BookieError::Corrupt(what.clone()),
            full if full.is_full() => BookieError::ReadOnly(full.to_string()),
            Self::Closed => BookieError::Unavailable(self.to_string()),
            other => BookieError::Io(other.to_string()),
        }
    }
}

impl Classify for StorageError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Corrupt(_) | Self::Version { .. } => ErrorClass::Corrupt,
            Self::Io { .. } | Self::Index(_) | Self::Closed => ErrorClass::Retry,
        }
    }
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting makes no sense.
    #[error("{setting}: {expected}")]
    Setting {
        /// Which one.
        setting: &'static str,
        /// What was expected.
        expected: String,
    },
    /// The folders belong to another node, or some of their data is gone (S8).
    #[error("identity of the folders: {0}")]
    Identity(String),
    /// The disk or what is on it.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Classify for OpenError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Setting { .. } => ErrorClass::Caller,
            Self::Identity(_) => ErrorClass::Corrupt,
            Self::Storage(error) => error.class(),
        }
    }
}
