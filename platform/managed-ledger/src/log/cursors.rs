//! The cursors of a log: opened, listed, deleted.

use super::ManagedLedger;
use super::meta::put;
use crate::api::{CursorOptions, InitialPosition, LogError};
use crate::cursor::ack_set::{AckSet, AckState};
use crate::cursor::codec::encode_state;
use crate::cursor::{Cursor, CursorStart};
use crate::keys;
use crate::records::{CursorRecord, encode};
use meridian_metadata::{Condition, Operation};
use meridian_types::Position;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ManagedLedger {
    /// The named cursor; created where `initial` says if there is none. An existing one stays as it is.
    ///
    /// # Errors
    /// [`LogError::Fenced`], [`LogError::Closed`] or a metadata error.
    pub async fn open_cursor(
        &self,
        name: &str,
        initial: InitialPosition,
        options: CursorOptions,
    ) -> Result<Arc<Cursor>, LogError> {
        if let Some(cursor) = self.cursor(name) {
            return Ok(cursor);
        }
        if !options.durable {
            self.check_running()?;
            return Ok(self.add_cursor(self.start_cursor(name, initial, options)));
        }
        let meta = self.meta.lock().await;
        self.check_running()?;
        if let Some(cursor) = self.cursor(name) {
            return Ok(cursor);
        }
        let start = self.start_cursor(name, initial, options);
        let mark_delete = start.acks.mark_delete();
        let state = AckState { mark_delete, acked: Default::default(), partial: Default::default() };
        let record = CursorRecord {
            internal: start.internal,
            properties: start.properties.clone(),
            state: encode_state(&state).into(),
            ledger_id: None,
            doomed: Vec::new(),
            created_ms: start.created_ms,
        };
        let owned = Operation::Check { key: keys::head(&self.name), condition: Condition::Is(meta.version) };
        let write = put(keys::cursor(&self.name, name), encode(&record), Condition::Any);
        self.shared.metadata.commit(vec![write, owned]).await.map_err(|error| self.owned_error(error))?;
        Ok(self.add_cursor(start))
    }

    fn start_cursor(&self, name: &str, initial: InitialPosition, options: CursorOptions) -> CursorStart {
        let mark_delete = {
            let view = self.view.lock();
            match initial {
                InitialPosition::Earliest => view.layout.before_first(),
                InitialPosition::Latest => view.layout.last_confirmed(),
                InitialPosition::At(position) => view.layout.previous(view.layout.next_valid(position)),
            }
        };
        CursorStart {
            name: name.into(),
            durable: options.durable,
            internal: options.internal,
            created_ms: self.shared.now_ms(),
            acks: AckSet::new(mark_delete, options.durable),
            record_ledger: None,
            properties: options.properties,
        }
    }

    pub(crate) fn add_cursor(&self, start: CursorStart) -> Arc<Cursor> {
        let name = start.name.clone();
        let mut cursors = self.cursors.lock();
        let cursor = cursors.entry(name).or_insert_with(|| Cursor::new(self.me.clone(), start)).clone();
        self.cursor_count.store(cursors.len() as u32, Ordering::Relaxed);
        cursor
    }

    /// The named cursor, if there is one.
    pub fn cursor(&self, name: &str) -> Option<Arc<Cursor>> {
        self.cursors.lock().get(name).cloned()
    }

    /// All cursors.
    pub fn cursors(&self) -> Vec<Arc<Cursor>> {
        self.cursors.lock().values().cloned().collect()
    }

    /// How many cursors there are.
    pub fn cursor_count(&self) -> usize {
        self.cursor_count.load(Ordering::Relaxed) as usize
    }

    /// The durable cursor that holds back trimming most.
    pub fn slowest_cursor(&self) -> Option<(Arc<Cursor>, Position)> {
        let cursors = self.cursors();
        let durable = cursors.into_iter().filter(|cursor| cursor.is_durable());
        durable.map(|cursor| (cursor.clone(), cursor.mark_delete())).min_by_key(|(_, at)| *at)
    }

    /// Deletes a cursor. Who waits for its acks to be durable is told that it is closed.
    ///
    /// # Errors
    /// [`LogError::NoSuchCursor`], or metadata failed and it is still there.
    pub async fn delete_cursor(&self, name: &str) -> Result<(), LogError> {
        let cursor = self.cursor(name).ok_or_else(|| LogError::NoSuchCursor(name.to_owned()))?;
        if !cursor.is_durable() {
            cursor.end();
            self.remove_cursor(name, &cursor);
            return Ok(());
        }
        cursor.hold_flushes(self).await;
        let mut meta = self.meta.lock().await;
        let ledger = cursor.state.lock().record_ledger;
        let mut head = meta.head.clone();
        head.doomed.extend(ledger.map(|id| id.0));
        let delete = Operation::Delete { key: keys::cursor(&self.name, name), condition: Condition::Any };
        let deleted = self.commit_head(&mut meta, head, vec![delete]).await;
        if let Err(error) = deleted {
            cursor.state.lock().flushing = false;
            self.drained.notify_waiters();
            return Err(error);
        }
        cursor.end();
        self.remove_cursor(name, &cursor);
        self.drained.notify_waiters();
        self.check_soon();
        if let Err(error) = self.sweep(&mut meta).await {
            tracing::warn!(log = %self.name, cursor = name, %error, "deleting a cursor ledger failed; done later");
        }
        Ok(())
    }

    fn remove_cursor(&self, name: &str, cursor: &Arc<Cursor>) {
        let mut cursors = self.cursors.lock();
        if cursors.get(name).is_some_and(|there| Arc::ptr_eq(there, cursor)) {
            cursors.remove(name);
        }
        self.cursor_count.store(cursors.len() as u32, Ordering::Relaxed);
    }
}
