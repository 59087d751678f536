//! The journal thread: gather, write, sync, hand over.

use super::buffer::AlignedBuffer;
use super::completion::{Completion, Group};
use super::files::{JournalFile, JournalFiles};
use super::record::{BLOCK_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind, round_up_to_block};
use super::{Control, Gate, Item, JournalMark, JournalParts, Shared};
use crate::error::StorageError;
use meridian_bookie_api::{AddEntry, BookieError};
use meridian_types::{EntryId, Repeats};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Writer {
    shared: Arc<Shared>,
    completion: Arc<Completion>,
    gate: Arc<dyn Gate>,
    group_bytes: u64,
    nice: Option<i32>,
    out: Output,
    /// Groups that found no file.
    no_file: Repeats,
}

/// Why a group failed.
enum Failure {
    /// No next file: nothing was written, the next group may try again.
    NoFile(StorageError),
    /// Write or sync failed: what the disk holds is unknown (J5).
    Broken(StorageError),
}

impl Writer {
    pub fn new(shared: Arc<Shared>, parts: JournalParts) -> Result<Self, StorageError> {
        let file = match parts.files.take(0) {
            Ok(file) => Some(file),
            // A node without room serves reads: the first group that finds room takes the file.
            Err(full) if full.is_full() => None,
            Err(error) => return Err(error),
        };
        // Everything that was replayed is in files in front of this one.
        let sequence = file.as_ref().map_or_else(|| parts.files.next_sequence(), |file| file.header.sequence);
        *shared.mark.lock() = JournalMark { sequence, offset_bytes: file.as_ref().map_or(0, |_| BLOCK_BYTES as u64) };
        let out = Output {
            files: parts.files,
            file,
            offset_bytes: BLOCK_BYTES as u64,
            buffer: AlignedBuffer::new(parts.buffer_bytes),
            records: 0,
            bytes: 0,
        };
        Ok(Self {
            shared,
            completion: parts.completion,
            gate: parts.gate,
            group_bytes: parts.group_bytes,
            nice: parts.nice,
            out,
            no_file: Repeats::by_minute(),
        })
    }

    pub fn run(mut self) {
        if let Some(nice) = self.nice
            && let Err(error) = rustix::process::setpriority_process(None, nice)
        {
            tracing::warn!(%error, nice, "the journal thread keeps its ordinary priority");
        }
        while let Some(items) = self.take_group() {
            let outcome = self.commit(&items);
            let idle = self.shared.queue.lock().items.is_empty();
            self.completion.deliver(Group { items, outcome }, idle);
        }
    }

    /// Waits for work and for room in the write cache; `None` at the end.
    fn take_group(&mut self) -> Option<Vec<Item>> {
        {
            let mut queue = self.shared.queue.lock();
            while queue.items.is_empty() {
                if queue.closed {
                    return None;
                }
                self.shared.wake.wait(&mut queue);
            }
        }
        if self.gate.wait_for_room() {
            self.shared.metrics.journal_holds.inc();
        }
        let mut queue = self.shared.queue.lock();
        let mut items = Vec::with_capacity(queue.items.len());
        let mut bytes = 0;
        while bytes < self.group_bytes
            && let Some((item, item_bytes)) = queue.items.pop_front()
        {
            bytes += item_bytes;
            items.push(item);
        }
        let batches = items.len() as i64;
        for (ledger_id, last_add_confirmed) in queue.lazy_lac.drain() {
            let kind = RecordKind::LastAddConfirmed;
            items.push(Item::Control(Control { kind, ledger_id, last_add_confirmed, done: None }));
        }
        queue.bytes -= bytes;
        drop(queue);
        self.shared.metrics.journal_queue_bytes.sub(bytes as i64);
        self.shared.metrics.journal_queue_batches.sub(batches);
        Some(items)
    }

    fn commit(&mut self, items: &[Item]) -> Result<(), BookieError> {
        if let Some(reason) = &self.shared.queue.lock().failed {
            return Err(BookieError::Io(format!("the journal has failed: {reason}")));
        }
        let timer = self.shared.metrics.journal_sync_seconds.start_timer();
        match self.out.write_group(items) {
            Ok(0) => {
                timer.stop_and_discard();
                Ok(())
            }
            Ok(syncs) => {
                timer.observe_duration();
                if let Some(line) = self.no_file.end(Instant::now()) {
                    tracing::info!(lasted_ms = line.lasted_ms(), "the journal has a file to write to again");
                }
                let metrics = &self.shared.metrics;
                metrics.journal_syncs.inc_by(syncs);
                metrics.journal_records.inc_by(std::mem::take(&mut self.out.records));
                metrics.journal_write_bytes.inc_by(std::mem::take(&mut self.out.bytes));
                if let Some(mark) = self.out.mark() {
                    *self.shared.mark.lock() = mark;
                }
                Ok(())
            }
            Err(Failure::NoFile(error)) => {
                if let Some(line) = self.no_file.note(Instant::now(), &error.cause()) {
                    tracing::error!(%error, times = line.times, "the journal has no file to write to");
                }
                Err(error.to_bookie_error())
            }
            Err(Failure::Broken(error)) => {
                tracing::error!(%error, "the journal has failed; this bookie takes no more entries until a restart");
                self.shared.metrics.server_status.set(-1);
                self.shared.queue.lock().failed = Some(error.to_string());
                Err(BookieError::Io(error.to_string()))
            }
        }
    }
}

/// Where records go: the file, and the buffer in front of it.
struct Output {
    files: Arc<JournalFiles>,
    /// `None` until there is room for one.
    file: Option<JournalFile>,
    /// Where the buffer's first byte belongs.
    offset_bytes: u64,
    buffer: AlignedBuffer,
    records: u64,
    bytes: u64,
}

impl Output {
    fn mark(&self) -> Option<JournalMark> {
        let sequence = self.file.as_ref()?.header.sequence;
        Some(JournalMark { sequence, offset_bytes: self.offset_bytes })
    }

    /// The file, which [`Output::make_room`] has made sure of.
    fn file(&self) -> Result<&JournalFile, Failure> {
        let none = || StorageError::Io { what: "write the journal".to_owned(), source: ErrorKind::NotFound.into() };
        self.file.as_ref().ok_or_else(|| Failure::NoFile(none()))
    }

    /// Writes and syncs the group; answers how many syncs it took (0 if there was nothing to write).
    fn write_group(&mut self, items: &[Item]) -> Result<u64, Failure> {
        let mut syncs = 0;
        let mut dirty = false;
        for item in items {
            match item {
                Item::Control(control) => {
                    syncs += self.make_room(0)?;
                    self.put_control(control)?;
                    dirty = true;
                }
                Item::Adds(batch) => {
                    let mut refused = batch.refused.iter().map(|(at, _)| *at).peekable();
                    for (at, add) in batch.entries.iter().enumerate() {
                        if refused.next_if_eq(&at).is_some() {
                            continue;
                        }
                        syncs += self.make_room(add.entry.len())?;
                        self.put_add(add)?;
                        dirty = true;
                    }
                }
            }
        }
        if dirty {
            self.sync()?;
            syncs += 1;
        }
        Ok(syncs)
    }

    /// Goes to the next file if the record does not fit into this one. The old one is synced first.
    fn make_room(&mut self, payload_bytes: usize) -> Result<u64, Failure> {
        let record_bytes = (RECORD_HEADER_BYTES + payload_bytes) as u64;
        let end = self.offset_bytes + round_up_to_block(self.buffer.len() as u64 + record_bytes);
        if self.file.as_ref().is_some_and(|file| end <= file.len_bytes) {
            return Ok(0);
        }
        let dirty = self.file.is_some() && (self.buffer.len() > 0 || self.offset_bytes > BLOCK_BYTES as u64);
        if dirty {
            self.sync()?;
        }
        self.file = Some(self.files.take(record_bytes).map_err(Failure::NoFile)?);
        self.offset_bytes = BLOCK_BYTES as u64;
        Ok(u64::from(dirty))
    }

    fn put_control(&mut self, control: &Control) -> Result<(), Failure> {
        let header = RecordHeader {
            kind: control.kind,
            recovery: false,
            payload_bytes: 0,
            digest: 0,
            epoch: self.file()?.header.epoch,
            ledger_id: control.ledger_id,
            entry_id: EntryId::NONE,
            last_add_confirmed: control.last_add_confirmed,
        };
        self.records += 1;
        self.put(&header.encode())
    }

    fn put_add(&mut self, add: &AddEntry) -> Result<(), Failure> {
        let header = RecordHeader {
            kind: RecordKind::Add,
            recovery: add.recovery,
            payload_bytes: add.entry.len() as u32,
            digest: add.digest,
            epoch: self.file()?.header.epoch,
            ledger_id: add.ledger_id,
            entry_id: add.entry_id,
            last_add_confirmed: add.last_add_confirmed,
        };
        self.records += 1;
        self.put(&header.encode())?;
        self.put(add.entry.head.as_slice())?;
        self.put(&add.entry.body)
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let taken = self.buffer.fill(bytes);
            bytes = &bytes[taken..];
            if self.buffer.is_full() {
                self.write()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), Failure> {
        let JournalFile { file, header, .. } = self.file()?;
        file.write_all_at(self.buffer.as_slice(), self.offset_bytes).map_err(|source| {
            Failure::Broken(StorageError::Io { what: format!("write {}", header.file_name()), source })
        })?;
        self.offset_bytes += self.buffer.len() as u64;
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Failure> {
        if self.buffer.len() > 0 {
            self.buffer.pad();
            self.write()?;
        }
        let JournalFile { file, header, len_bytes } = self.file()?;
        file.sync_data().map_err(|source| {
            Failure::Broken(StorageError::Io { what: format!("sync {}", header.file_name()), source })
        })?;
        // Late, so that the checkpoint that gives the file before this one back comes first: then nothing is filled.
        if self.offset_bytes > len_bytes / 4 * 3 {
            self.files.fill_ahead();
        }
        Ok(())
    }
}
