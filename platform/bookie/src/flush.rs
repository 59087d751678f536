//! Checkpoints: what is in the caches goes to entry logs and the index, then the journal is trimmed.
//!
//! Role: one thread that waits for a full cache, for the interval, or for the disk check.
//! Invariants: H1 the journal mark is taken before the caches are swapped, so that every entry in front of it is in
//! the flushed cache or already stored; H2 logs are synced before the index knows their places, the index is flushed
//! before a journal file is released; H3 a flush that failed keeps its cache and is tried again, at growing pauses.
//! Failure: counted, tried again at the next turn; told when it begins, when the cause is another, once a minute, and when
//! it is over.
//! Must never know: sockets.

use crate::cache::Half;
use crate::core::Core;
use crate::disk::{self, DiskState};
use crate::entrylog::format::{LogRecord, LogRecordKind};
use crate::entrylog::writer::LogWriter;
use crate::error::StorageError;
use crate::index::{Changes, LogBytes, Place};
use crate::journal::{Journal, JournalMark};
use crate::ledgers::Dirty;
use meridian_types::LedgerId;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Index changes applied at a time.
const CHANGES_AT_A_TIME: usize = 4096;
/// Pause before a failed flush is tried again; doubles up to [`RETRY_PAUSE_MAX`].
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause: a disk that has room again is used so soon.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct Signal {
    requested: bool,
    closed: bool,
}

/// Wakes the flush thread.
#[derive(Debug, Default)]
pub(crate) struct FlushSignal {
    signal: Mutex<Signal>,
    wake: Condvar,
}

impl FlushSignal {
    /// Asks for a flush.
    pub fn request(&self) {
        let mut signal = self.signal.lock();
        if !signal.requested {
            signal.requested = true;
            self.wake.notify_all();
        }
    }

    pub fn close(&self) {
        self.signal.lock().closed = true;
        self.wake.notify_all();
    }

    /// Waits; `None` at the end, else whether a flush was asked for.
    fn wait(&self, until: Instant) -> Option<bool> {
        let mut signal = self.signal.lock();
        while !signal.closed && !signal.requested {
            if self.wake.wait_until(&mut signal, until).timed_out() {
                break;
            }
        }
        if signal.closed {
            return None;
        }
        Some(std::mem::take(&mut signal.requested))
    }
}

/// The flush thread.
pub(crate) fn run(core: &Core) {
    let mut next_flush = Instant::now() + core.config.flush_interval;
    if core.flush_failure.lock().is_some() {
        // The replay could not store what it found.
        core.flush.request();
    }
    let mut next_check = Instant::now() + core.config.disk.check_interval;
    let mut pause = RETRY_PAUSE;
    while let Some(requested) = core.flush.wait(next_flush.min(next_check)) {
        let now = Instant::now();
        // What fails is not tried faster because more is asked for.
        let failing = pause > RETRY_PAUSE;
        if (requested && !failing) || now >= next_flush {
            next_flush = now + core.config.flush_interval;
            if core.checkpoint().is_ok() {
                pause = RETRY_PAUSE;
            } else {
                next_flush = now + pause.min(core.config.flush_interval);
                pause = (pause * 2).min(RETRY_PAUSE_MAX);
            }
            core.check_disk();
        }
        if now >= next_check {
            next_check = now + core.config.disk.check_interval;
            core.check_disk();
        }
    }
}

impl Core {
    /// One checkpoint. Nothing to store is no work.
    pub fn checkpoint(&self) -> Result<(), StorageError> {
        let mut writer = self.log_writer.lock();
        let timer = self.metrics.flush_seconds.start_timer();
        // H1: marks first.
        let journals = self.journals.get().map_or(&[][..], Vec::as_slice);
        let marks: Vec<JournalMark> = journals.iter().map(Journal::mark).collect();
        let half = self.cache.begin_flush();
        let dirty = self.ledgers.take_dirty();
        if half.bytes() == 0 && dirty.is_empty() {
            self.cache.end_flush();
            timer.stop_and_discard();
            return Ok(());
        }
        let stored = self.store(&mut writer, &half, &dirty, &marks);
        if let Err(error) = stored {
            timer.stop_and_discard();
            writer.abandon();
            self.ledgers.put_back(&dirty);
            self.metrics.flush_failures.inc();
            let cause = error.cause();
            if let Some(line) = self.flush_trouble.lock().note(Instant::now(), &cause) {
                let (times, lasted_ms) = (line.times, line.lasted_ms());
                tracing::error!(bookie = %self.id, %error, times, lasted_ms, "checkpoints fail; they are tried again");
            }
            *self.flush_failure.lock() = Some(cause);
            return Err(error);
        }
        self.cache.end_flush();
        *self.flush_failure.lock() = None;
        if let Some(line) = self.flush_trouble.lock().end(Instant::now()) {
            tracing::info!(bookie = %self.id, lasted_ms = line.lasted_ms(), "checkpoints succeed again");
        }
        self.ledgers.forget_idle(|ledger_id| self.cache.holds(ledger_id));
        self.metrics.flushes.inc();
        timer.observe_duration();
        for (journal, mark) in journals.iter().zip(&marks) {
            if let Err(error) = journal.trim(*mark) {
                tracing::warn!(bookie = %self.id, %error, "journal files in front of the checkpoint stay for now");
            }
        }
        let sealed = writer.seal_filled(|log| self.ledgers_of(log));
        if let Err(error) = sealed {
            tracing::warn!(bookie = %self.id, %error, "a filled entry log has no ledger map yet");
        }
        Ok(())
    }

    fn store(
        &self,
        writer: &mut LogWriter,
        half: &Arc<Half>,
        dirty: &[Dirty],
        marks: &[JournalMark],
    ) -> Result<(), StorageError> {
        let (places, log_bytes) = append_all(writer, half, dirty)?;
        writer.sync()?;
        let mut changes = Changes::default();
        let mut places = places.into_iter();
        for (ledger_id, entries) in half.sorted() {
            for (entry, place) in entries.iter().zip(places.by_ref()) {
                changes.put_place(ledger_id, entry.entry_id, place);
                if changes.len() >= CHANGES_AT_A_TIME {
                    self.index.apply(std::mem::take(&mut changes))?;
                }
            }
        }
        for ((log, ledger_id), bytes) in log_bytes {
            let total = self.index.log_row(log, ledger_id)? + bytes;
            changes.put_log_bytes(log, ledger_id, total);
        }
        for one in dirty {
            changes.put_ledger(one.ledger_id, one.stored);
        }
        for (at, mark) in marks.iter().enumerate() {
            changes.put_mark(at as u32, *mark);
        }
        self.index.apply(changes)?;
        self.index.flush()
    }

    pub(crate) fn ledgers_of(&self, log: u32) -> Result<Vec<(LedgerId, u64)>, StorageError> {
        let range = (log, LedgerId(i64::MIN))..=(log, LedgerId(i64::MAX));
        Ok(self.index.log_bytes()?.range(range).map(|((_, ledger_id), bytes)| (*ledger_id, *bytes)).collect())
    }

    /// Measures the folders and decides what is taken (S10).
    pub fn check_disk(&self) {
        let mut folders = Vec::new();
        for dir in self.config.ledger_dirs.iter().chain(&self.config.journal_dirs) {
            match disk::measure(dir, self.config.disk.quota_bytes) {
                Ok(used) => {
                    let percent = (used.part() * 100.0) as i64;
                    self.metrics.ledger_dir_usage.with_label_values(&[&dir.display().to_string()]).set(percent);
                    folders.push(used);
                }
                Err(error) => {
                    tracing::warn!(bookie = %self.id, dir = %dir.display(), %error, "cannot measure disk use")
                }
            }
        }
        if let Some(free) = folders.iter().map(disk::DiskUse::free_bytes).min() {
            self.metrics.free_space_bytes.set(free as i64);
        }
        let before = *self.disk.read();
        let now = disk::decide(&self.config.disk, before, &folders);
        if now != before {
            *self.disk.write() = now;
            tracing::warn!(bookie = %self.id, ?before, ?now, "disk use has passed a limit");
        }
        let journals = self.journals.get().map_or(&[][..], Vec::as_slice);
        let mut status = i64::from(now == DiskState::Writable);
        for journal in journals {
            journal.hold_fill(now != DiskState::Writable);
            if journal.failure().is_some() {
                status = -1;
            }
        }
        if self.flush_failure.lock().is_some() {
            status = -1;
        }
        self.metrics.server_status.set(status);
        if now != DiskState::Writable && before == DiskState::Writable && !self.closed.load(Ordering::Relaxed) {
            // A checkpoint gives journal files back.
            self.flush.request();
        }
    }
}

/// Appends the caches' entries in order, then fences not logged yet; answers the places in that order.
fn append_all(writer: &mut LogWriter, half: &Half, dirty: &[Dirty]) -> Result<(Vec<Place>, LogBytes), StorageError> {
    let mut places = Vec::new();
    let mut log_bytes = LogBytes::new();
    for (ledger_id, entries) in half.sorted() {
        for entry in entries {
            let record = LogRecord {
                kind: LogRecordKind::Entry,
                payload_bytes: entry.entry.len() as u32,
                digest: entry.digest,
                ledger_id,
                entry_id: entry.entry_id,
                last_add_confirmed: entry.last_add_confirmed,
            };
            let place = writer.append(&record, &[entry.entry.head.as_slice(), &entry.entry.body])?;
            *log_bytes.entry((place.log, ledger_id)).or_default() += record.disk_bytes();
            places.push(place);
        }
    }
    for one in dirty.iter().filter(|one| one.log_fence) {
        let record = LogRecord::fence(one.ledger_id, one.stored.last_add_confirmed);
        let place = writer.append(&record, &[])?;
        *log_bytes.entry((place.log, one.ledger_id)).or_default() += record.disk_bytes();
    }
    Ok((places, log_bytes))
}
