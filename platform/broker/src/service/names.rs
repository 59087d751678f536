//! Names for producers that bring none: `<cluster>-<instance>-<counter>`.
//!
//! The instance number is taken from a sequence of the metadata store at each start, so a name is never given twice.

use meridian_metadata::{MetadataError, SharedStore};
use std::sync::atomic::{AtomicU64, Ordering};

const SEQUENCE: &str = "broker/producer-name-instance";

pub struct ProducerNames {
    prefix: String,
    next: AtomicU64,
}

impl ProducerNames {
    pub async fn claim(cluster: &str, store: &SharedStore) -> Result<Self, MetadataError> {
        let instance = store.allocate(SEQUENCE, 1).await?;
        Ok(Self { prefix: format!("{cluster}-{instance}-"), next: AtomicU64::new(0) })
    }

    pub fn next(&self) -> String {
        format!("{}{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed))
    }
}
