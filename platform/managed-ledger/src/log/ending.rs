//! Ending a log: terminated, closed, deleted.
//!
//! Invariants: Z1 a close answers everything that was appended before it, then writes what a load needs, so that the next
//! opening recovers nothing; Z2 a deletion marks first: once the mark is durable nobody opens the log, and whoever comes
//! next finishes it.

use super::ManagedLedger;
use super::append::Retiring;
use crate::api::LogError;
use crate::keys;
use crate::registry::Shared;
use meridian_metadata::{Condition, MetadataError, Operation};
use meridian_types::{LedgerId, Position};

/// Keys per transaction.
pub(crate) const TRANSACTION_KEYS: usize = 64;

impl ManagedLedger {
    /// Takes no more entries, for ever. Answers the last position.
    ///
    /// # Errors
    /// [`LogError::Fenced`], or storage failed; then the log takes entries again.
    pub async fn terminate(&self) -> Result<Position, LogError> {
        self.check_running()?;
        {
            let mut order = self.order.lock();
            if order.terminated.is_none() {
                order.terminated = Some(self.view.lock().layout.last_confirmed());
            }
        }
        let outcome = self.terminate_drained().await;
        let mut order = self.order.lock();
        match &outcome {
            Ok(position) => order.terminated = Some(*position),
            Err(_) => order.terminated = None,
        }
        outcome
    }

    async fn terminate_drained(&self) -> Result<Position, LogError> {
        if !self.drain().await {
            return Err(LogError::Busy { bytes: 0, max_bytes: 0 });
        }
        self.roll().await;
        let mut meta = self.meta.lock().await;
        let position = match meta.head.terminated {
            Some(position) => return Ok(position.into()),
            None => self.last_confirmed(),
        };
        let mut head = meta.head.clone();
        head.terminated = Some(position.into());
        self.commit_head(&mut meta, head, Vec::new()).await?;
        Ok(position)
    }

    /// Answers what waits, flushes the cursors, closes the ledger and forgets the log here. Idempotent.
    ///
    /// # Errors
    /// Storage or metadata failed: acks since the last persist may be lost; the log can be opened again in any case.
    pub async fn close(&self) -> Result<(), LogError> {
        {
            let mut order = self.order.lock();
            if order.stopped.is_some() {
                drop(order);
                self.end_cursors();
                return Ok(());
            }
            order.stopped = Some(LogError::Closed(self.name.to_string()));
        }
        self.finish_writing().await;
        self.tell_followers();
        let outcome = self.write_closed().await;
        self.end_cursors();
        self.shared.forget(&self.name, &self.me);
        outcome
    }

    /// Closes the writers, so that everything appended is answered; fails what never got to a ledger.
    async fn finish_writing(&self) {
        let (current, next) = {
            let mut order = self.order.lock();
            let current = ManagedLedger::take_current(&mut order, true);
            (current, order.next.take())
        };
        if let (Some(Retiring { current, end_index }), Some(log)) = (current, self.me.upgrade()) {
            log.retire(Retiring { current, end_index }).await;
        }
        if let Some((writer, _)) = next
            && let Err(error) = writer.close().await
        {
            tracing::warn!(log = %self.name, %error, "closing a prepared ledger failed; the next opening recovers it");
        }
        let claimed = {
            let mut order = self.order.lock();
            self.fail_waiting(&mut order, &LogError::Closed(self.name.to_string()))
        };
        if claimed {
            self.deliver();
        }
    }

    async fn write_closed(&self) -> Result<(), LogError> {
        let Some(log) = self.me.upgrade() else { return Ok(()) };
        let mut writes = Vec::new();
        let mut failed = None;
        for cursor in self.cursors() {
            cursor.hold_flushes(self).await;
            match cursor.closing_operation(self) {
                Some((write, before)) => writes.push((write, before)),
                None => failed = cursor.close_large(&log).await.err().or(failed),
            }
        }
        let mut meta = self.meta.lock().await;
        let unused = self.unused();
        let mut head = meta.head.clone();
        head.ledgers.retain(|record| !unused.contains(&LedgerId(record.ledger_id)));
        head.doomed.extend(unused.iter().map(|id| id.0));
        head.doomed.extend(writes.iter().filter_map(|(_, before)| before.map(|id| id.0)));
        let changed = head != meta.head || head.ledgers.iter().any(|record| record.closed_ms.is_none());
        // Cursors first: doomed ledgers may go only when no record names them.
        let mut operations: Vec<Operation> = writes.into_iter().map(|(write, _)| write).collect();
        while operations.len() > TRANSACTION_KEYS {
            let mut batch = operations.split_off(operations.len() - TRANSACTION_KEYS);
            let owned = Condition::Is(meta.version);
            batch.push(Operation::Check { key: keys::head(&self.name), condition: owned });
            self.shared.metadata.commit(batch).await.map_err(|error| self.owned_error(error))?;
        }
        if changed || !operations.is_empty() {
            self.commit_head(&mut meta, head, operations).await?;
            self.sweep(&mut meta).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// A conflict on what only the owner writes: the log is lost.
    pub(crate) fn owned_error(&self, error: MetadataError) -> LogError {
        match error {
            MetadataError::Conflict { .. } => {
                let error = LogError::Fenced(self.name.to_string());
                self.stop(error.clone());
                error
            }
            error => error.into(),
        }
    }

    fn end_cursors(&self) {
        for cursor in self.cursors() {
            cursor.end();
        }
    }

    /// Deletes the log and everything in it. Idempotent: what is left by a failure is done by the next deletion or opening.
    ///
    /// # Errors
    /// [`LogError::Fenced`], or metadata failed before (nothing is deleted) or after the mark (the log is gone for all, its
    /// storage not yet freed).
    pub async fn delete(&self) -> Result<(), LogError> {
        let cursors = self.cursors();
        for cursor in &cursors {
            // Before the lock: a flush in flight may need it to see who owns the log.
            cursor.hold_flushes(self).await;
        }
        let mut meta = self.meta.lock().await;
        let mut head = meta.head.clone();
        head.deleting = true;
        head.doomed.extend(meta.ledgers().map(|ledger| ledger.ledger_id));
        head.doomed.extend(cursors.iter().filter_map(|cursor| cursor.state.lock().record_ledger).map(|id| id.0));
        let unname = Operation::Delete { key: keys::name(&self.name), condition: Condition::Any };
        if let Err(error) = self.commit_head(&mut meta, head, vec![unname]).await {
            cursors.iter().for_each(|cursor| cursor.state.lock().flushing = false);
            self.drained.notify_waiters();
            return Err(error);
        }
        self.stop(LogError::Closed(self.name.to_string()));
        self.end_cursors();
        self.shared.forget(&self.name, &self.me);
        erase(&self.shared, &self.name, &meta.head.doomed).await
    }
}

/// Finishes the deletion of a marked log: ledgers, then records, the mark last (Z2).
pub(crate) async fn erase(shared: &Shared, name: &str, doomed: &[i64]) -> Result<(), LogError> {
    for id in doomed {
        shared.ledgers.delete(LedgerId(*id)).await?;
    }
    let head = keys::head(name);
    let entries = shared.metadata.scan(&keys::log(name)).await?;
    let rest: Vec<String> = entries.into_iter().map(|entry| entry.key).filter(|key| *key != head).collect();
    let delete = |key: String| Operation::Delete { key, condition: Condition::Any };
    for batch in rest.chunks(TRANSACTION_KEYS) {
        shared.metadata.commit(batch.iter().cloned().map(delete).collect()).await?;
    }
    shared.metadata.commit(vec![delete(head)]).await?;
    Ok(())
}
