//! What a process with open ledgers does when bookies leave: its writers replace them, also in idle ledgers.
//!
//! Role: reads the marks, follows them by watch, and tells the ledger client which bookies leave (J4).
//! Failure: while metadata is away nothing changes.
//! Must never know: who marks.

use crate::keys::LEAVING_PREFIX;
use crate::run::now_ms;
use crate::store;
use meridian_ledger::LedgerClient;
use meridian_metadata::SharedStore;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Every process has heard of a mark after so long, whatever became of its watch.
pub(crate) const HEAR_MS: u64 = 10_000;
/// The marks are read again after so long whatever the watch says.
const LOOK_AGAIN: Duration = Duration::from_millis(HEAR_MS / 2);
/// Pause after metadata did not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Follows the marks until `shutdown`.
pub async fn follow_leaving(store: SharedStore, ledgers: Arc<LedgerClient>, shutdown: impl Future<Output = ()> + Send) {
    tokio::select! {
        () = follow(store, ledgers) => {}
        () = shutdown => {}
    }
}

async fn follow(store: SharedStore, ledgers: Arc<LedgerClient>) {
    loop {
        // The watch first: what changes after the marks were read is not missed.
        let Ok(mut watch) = store.watch(LEAVING_PREFIX, None).await else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        while let Ok(marks) = store::leaving(&*store).await {
            let now_ms = now_ms();
            let (due, waiting): (Vec<_>, Vec<_>) = marks.into_iter().partition(|(_, mark)| mark.is_due(now_ms));
            let due: BTreeSet<_> = due.into_iter().map(|(bookie, _)| bookie).collect();
            let told = ledgers.set_leaving(due.clone());
            if told > 0 {
                tracing::info!(bookies = ?due, ledgers = told, "open ledgers replace bookies that leave");
            }
            let next = waiting.iter().map(|(_, mark)| Duration::from_millis(mark.due_ms - now_ms)).min();
            let pause = next.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
            if let Ok(None) = tokio::time::timeout(pause, watch.next()).await {
                break;
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}
