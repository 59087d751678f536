//! The node's answers to the control service. What touches the disk runs on the read threads.

use crate::bookie::LocalBookie;
use crate::core::Core;
use crate::disk::DiskState;
use crate::error::StorageError;
use meridian_bookie_api::control::{BookieControl, BookieInfo};
use meridian_bookie_api::{Bookie, BookieError, BoxFuture, FenceState};
use meridian_types::LedgerId;
use std::sync::Arc;

impl LocalBookie {
    async fn on_read_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, BookieError> {
        let (done, waiting) = tokio::sync::oneshot::channel();
        let core = Arc::clone(self.core());
        self.core().pool.run(move || {
            let _ = done.send(work(&core));
        })?;
        let outcome = waiting.await.map_err(|_| BookieError::Unavailable("the bookie has closed".to_owned()))?;
        outcome.map_err(|error| error.to_bookie_error())
    }
}

impl BookieControl for LocalBookie {
    fn info(&self) -> BookieInfo {
        let disk = self.disk_state();
        BookieInfo {
            id: self.id().clone(),
            cookie: self.cookie(),
            writable: self.refuses_adds().is_none(),
            recovery_writable: disk != DiskState::Full,
        }
    }

    fn list_ledgers(&self) -> BoxFuture<'_, Result<Vec<LedgerId>, BookieError>> {
        Box::pin(self.on_read_thread(|core| core.ledgers.list()))
    }

    fn request_checkpoint(&self) -> BoxFuture<'_, Result<(), BookieError>> {
        Box::pin(self.on_read_thread(Core::checkpoint))
    }

    fn fence_ledger(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<FenceState, BookieError>> {
        self.fence(ledger_id)
    }
}
