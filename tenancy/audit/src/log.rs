//! The queue, and the task that writes what is in it.
//!
//! Invariants: U1, U2, U3, U5 of the crate; a batch is written whole before the next one is taken.
//! Failure: see the crate.

use crate::file::AuditFile;
use crate::metrics::Metrics;
use crate::record::{Record, VERSION};
use bytes::Bytes;
use meridian_types::{Classify, ErrorClass, Repeats};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;

/// Records that are written at once.
const BATCH: usize = 256;
/// Pause before the file is tried again.
const FILE_PAUSE: Duration = Duration::from_millis(500);
/// Pause before the topic is tried again.
const TOPIC_PAUSE: Duration = Duration::from_millis(500);
/// A topic that does not take records for so long is passed over for this batch.
const TOPIC_PATIENCE: Duration = Duration::from_secs(20);

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Takes records as messages.
pub trait AuditTopic: Send + Sync {
    /// Appends lines, in order; they are durable when it answers.
    ///
    /// # Errors
    /// What is in the way, in words; the lines may come again.
    fn append(&self, lines: Vec<Bytes>) -> BoxFuture<'_, Result<(), String>>;
}

/// What an audit log is run with.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    /// The region.
    pub region: String,
    /// The process.
    pub node: String,
    /// The file; without one the topic alone has the records, and they wait for it.
    pub file: Option<PathBuf>,
    /// A file of this size is renamed and a new one begun.
    pub file_bytes: u64,
    /// Places of the queue.
    pub queue: usize,
}

/// There is no place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the audit log is {limit} records behind (auditQueueSize): no change is made that would not be recorded")]
pub struct AuditFull {
    /// Places.
    pub limit: usize,
}

impl Classify for AuditFull {
    fn class(&self) -> ErrorClass {
        ErrorClass::Retry
    }
}

/// Takes records.
pub struct AuditLog {
    config: AuditConfig,
    started_ms: u64,
    number: AtomicU64,
    queue: mpsc::Sender<Record>,
    metrics: Arc<Metrics>,
    topic: watch::Sender<Option<Arc<dyn AuditTopic>>>,
    task: Mutex<Option<JoinHandle<()>>>,
    ending: watch::Sender<bool>,
}

/// A place in the queue: becomes a record, whatever happens (U2).
pub struct Place {
    permit: Option<mpsc::OwnedPermit<Record>>,
    record: Record,
    begun: Instant,
}

impl Place {
    /// What is recorded so far.
    pub fn record(&mut self) -> &mut Record {
        &mut self.record
    }

    /// The change has ended with this status.
    pub fn end(mut self, status: u16, reason: Option<&str>) {
        self.put(status, reason);
    }

    fn put(&mut self, status: u16, reason: Option<&str>) {
        let Some(permit) = self.permit.take() else { return };
        let mut record = self.record.clone();
        record.ended(status, reason, self.begun.elapsed().as_millis() as u64);
        permit.send(record);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.put(0, Some("the caller went away before the answer"));
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl AuditLog {
    /// Starts the task that writes. Within a tokio runtime.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn start(config: AuditConfig, registry: &prometheus::Registry) -> io::Result<Arc<Self>> {
        let file = config.file.as_deref().map(|path| AuditFile::new(path, config.file_bytes));
        file.as_ref().map_or(Ok(()), AuditFile::check)?;
        let in_file = file.is_some();
        let (queue, records) = mpsc::channel(config.queue.max(1));
        let metrics = Arc::new(Metrics::new(registry));
        let (topic, ending) = (watch::channel(None).0, watch::channel(false).0);
        let (lines, published) = mpsc::channel(config.queue.max(1));
        let writer = Writer {
            records,
            in_file,
            file,
            metrics: metrics.clone(),
            topic: topic.subscribe(),
            lines,
            ending: ending.subscribe(),
            trouble: Repeats::by_minute(),
        };
        let publisher = Publisher {
            lines: published,
            patience: in_file.then_some(TOPIC_PATIENCE),
            metrics: metrics.clone(),
            topic: topic.subscribe(),
            ending: ending.subscribe(),
            trouble: Trouble { repeats: Repeats::by_minute(), failures: 0, passed_over: 0 },
        };
        // The file never waits for the topic.
        let task = Mutex::new(Some(tokio::spawn(async move {
            tokio::join!(writer.run(), publisher.run());
        })));
        let started_ms = now_ms();
        Ok(Arc::new(Self { config, started_ms, number: AtomicU64::new(0), queue, metrics, topic, task, ending }))
    }

    /// Hands records to a topic, too, from now on.
    pub fn set_topic(&self, topic: Arc<dyn AuditTopic>) {
        self.topic.send_replace(Some(topic));
    }

    /// Takes a place for a change that is about to begin (U1).
    ///
    /// # Errors
    /// [`AuditFull`]: the change must not be made.
    pub fn reserve(&self) -> Result<Place, AuditFull> {
        let Ok(permit) = self.queue.clone().try_reserve_owned() else {
            self.metrics.refused.inc();
            return Err(AuditFull { limit: self.config.queue });
        };
        self.metrics.queued.set((self.queue.max_capacity() - self.queue.capacity()) as i64);
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let record = Record {
            version: VERSION,
            id: format!("{}-{number}", self.started_ms),
            at_ms: now_ms(),
            region: self.config.region.clone(),
            node: self.config.node.clone(),
            principal: None,
            original_principal: None,
            method: String::new(),
            source: String::new(),
            action: String::new(),
            path: String::new(),
            query: Default::default(),
            request: None,
            before: None,
            after: None,
            status: 0,
            result: crate::Outcome::Unknown,
            reason: None,
            took_ms: 0,
        };
        Ok(Place { permit: Some(permit), record, begun: Instant::now() })
    }

    /// Writes what is there and ends; what takes longer than `limit` is left, and said so. No place is taken afterwards.
    pub async fn close(&self, limit: Duration) {
        self.ending.send_replace(true);
        let Some(task) = self.task.lock().await.take() else { return };
        if tokio::time::timeout(limit, task).await.is_err() {
            tracing::error!("the audit log could not be written to its end");
        }
    }
}

/// Ends when the process does.
async fn told(ending: &mut watch::Receiver<bool>) {
    if ending.wait_for(|ending| *ending).await.is_err() {
        std::future::pending().await
    }
}

struct Writer {
    records: mpsc::Receiver<Record>,
    /// There is a file.
    in_file: bool,
    /// Away while a blocking task has it.
    file: Option<AuditFile>,
    metrics: Arc<Metrics>,
    topic: watch::Receiver<Option<Arc<dyn AuditTopic>>>,
    /// What is to be in the topic, too, or there alone.
    lines: mpsc::Sender<Bytes>,
    ending: watch::Receiver<bool>,
    trouble: Repeats,
}

/// Hands to the topic what the file holds, or all that is held anywhere.
struct Publisher {
    lines: mpsc::Receiver<Bytes>,
    /// How long one batch is tried; `None` = until the topic takes it, as nobody else has it.
    patience: Option<Duration>,
    metrics: Arc<Metrics>,
    topic: watch::Receiver<Option<Arc<dyn AuditTopic>>>,
    ending: watch::Receiver<bool>,
    trouble: Trouble,
}

/// A topic that takes no records: told when it begins, when the reason is another, once a minute, and at its end.
struct Trouble {
    repeats: Repeats,
    /// Attempts that failed, and records that the topic will never have, since it began.
    failures: u64,
    passed_over: u64,
}

impl Trouble {
    fn failed(&mut self, now: Instant, reason: &str) {
        self.failures += 1;
        if let Some(line) = self.repeats.note(now, reason) {
            let (times, lasted_ms) = (line.times, line.lasted_ms());
            tracing::warn!(reason, times, lasted_ms, "the audit topic does not take records");
        }
    }

    fn over(&mut self, now: Instant) {
        if let Some(line) = self.repeats.end(now) {
            let Self { failures, passed_over, .. } = *self;
            tracing::info!(failures, passed_over, lasted_ms = line.lasted_ms(), "the audit topic takes records again");
        }
        (self.failures, self.passed_over) = (0, 0);
    }
}

impl Writer {
    async fn run(mut self) {
        let mut batch = Vec::new();
        loop {
            let taken = tokio::select! {
                biased;
                count = self.records.recv_many(&mut batch, BATCH) => Some(count),
                () = told(&mut self.ending) => None,
            };
            let count = match taken {
                Some(count) => count,
                None => {
                    // What has been taken is still written; nothing new comes in.
                    self.records.close();
                    self.records.recv_many(&mut batch, BATCH).await
                }
            };
            if count == 0 {
                return;
            }
            let lines: Vec<Bytes> = batch.drain(..).map(|record| Bytes::from(record.line())).collect();
            if self.in_file && !self.write_lines(&lines).await {
                return;
            }
            let count = lines.len() as u64;
            self.hand_on(lines).await;
            self.metrics.recorded.inc_by(count);
            let taken = self.records.max_capacity() - self.records.capacity();
            self.metrics.queued.set(taken as i64);
        }
    }

    /// Until it is done (U5); false = the process ends and the file can't be written.
    async fn write_lines(&mut self, lines: &[Bytes]) -> bool {
        let text: String =
            lines.iter().flat_map(|line| [std::str::from_utf8(line).unwrap_or_default(), "\n"]).collect();
        let text = Arc::new(text);
        loop {
            let Some(mut file) = self.file.take() else { return false };
            let held = text.clone();
            let written = tokio::task::spawn_blocking(move || {
                let outcome = file.append(&held, now_ms());
                (file, outcome)
            });
            let Ok((file, outcome)) = written.await else { return false };
            self.file = Some(file);
            let Err(error) = outcome else {
                if let Some(line) = self.trouble.end(Instant::now()) {
                    tracing::info!(lasted_ms = line.lasted_ms(), "the audit log is written again");
                }
                return true;
            };
            self.metrics.file_failures.inc();
            if let Some(line) = self.trouble.note(Instant::now(), &error.kind().to_string()) {
                let times = line.times;
                tracing::error!(%error, times, "the audit log can't be written; changes are refused once its queue is full");
            }
            if *self.ending.borrow() {
                return false;
            }
            tokio::time::sleep(FILE_PAUSE).await;
        }
    }

    /// To the topic, if there is one and it keeps up; what stands in no file waits for it (U5).
    async fn hand_on(&self, lines: Vec<Bytes>) {
        if self.in_file && self.topic.borrow().is_none() {
            return;
        }
        for line in lines {
            let handed = match self.in_file {
                true => self.lines.try_send(line).is_ok(),
                false => self.lines.send(line).await.is_ok(),
            };
            if !handed {
                self.metrics.topic_passed_over.inc();
            }
        }
    }
}

impl Publisher {
    /// Until the writer has ended and everything was handed on or passed over.
    async fn run(mut self) {
        let mut batch = Vec::new();
        while self.lines.recv_many(&mut batch, BATCH).await > 0 {
            let lines = std::mem::take(&mut batch);
            self.publish(lines).await;
        }
    }

    async fn publish(&mut self, lines: Vec<Bytes>) {
        let Some(topic) = self.topic.borrow().clone() else {
            self.metrics.topic_passed_over.inc_by(lines.len() as u64);
            return;
        };
        let begun = Instant::now();
        loop {
            let one_try = self.patience.map_or(TOPIC_PATIENCE, |patience| patience.saturating_sub(begun.elapsed()));
            let appended = tokio::time::timeout(one_try, topic.append(lines.clone())).await;
            let reason = match appended {
                Ok(Ok(())) => return self.trouble.over(Instant::now()),
                Ok(Err(reason)) => reason,
                Err(_) => "it did not answer".to_owned(),
            };
            self.metrics.topic_failures.inc();
            self.trouble.failed(Instant::now(), &reason);
            let is_over = self.patience.is_some_and(|patience| begun.elapsed() >= patience);
            if is_over || *self.ending.borrow() {
                self.metrics.topic_passed_over.inc_by(lines.len() as u64);
                self.trouble.passed_over += lines.len() as u64;
                return;
            }
            tokio::time::sleep(TOPIC_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex as StdMutex;

    #[derive(Default)]
    struct Kept {
        lines: StdMutex<Vec<Bytes>>,
        refuses: AtomicU64,
    }

    impl AuditTopic for Kept {
        fn append(&self, lines: Vec<Bytes>) -> BoxFuture<'_, Result<(), String>> {
            let refused =
                self.refuses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if !refused {
                self.lines.lock().unwrap().extend(lines);
            }
            Box::pin(std::future::ready(if refused { Err("not now".to_owned()) } else { Ok(()) }))
        }
    }

    fn config(dir: &tempfile::TempDir, queue: usize) -> AuditConfig {
        AuditConfig {
            region: "west".into(),
            node: "n".into(),
            file: Some(dir.path().join("audit.log")),
            file_bytes: 1 << 20,
            queue,
        }
    }

    fn written(dir: &tempfile::TempDir) -> Vec<Record> {
        let text = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn a_place_becomes_one_record_in_file_and_topic() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::start(config(&dir, 8), &prometheus::Registry::new()).unwrap();
        let topic = Arc::new(Kept { refuses: AtomicU64::new(1), ..Kept::default() });
        log.set_topic(topic.clone());
        let mut place = log.reserve().unwrap();
        place.record().action = "PUT /x".into();
        place.end(204, None);
        drop(log.reserve().unwrap());
        while topic.lines.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        log.close(Duration::from_secs(20)).await;
        let records = written(&dir);
        assert_eq!(records.len(), 2);
        assert_eq!((records[0].action.as_str(), records[0].status), ("PUT /x", 204));
        assert_eq!((records[1].result, records[1].status), (crate::Outcome::Unknown, 0));
        assert_eq!(records[0].id.replace("-1", "-2"), records[1].id);
        let lines = topic.lines.lock().unwrap();
        assert_eq!(lines.len(), 2, "the topic that refused once has them too");
        assert_eq!(serde_json::from_slice::<Record>(&lines[0]).unwrap(), records[0]);
        assert!(log.reserve().is_err(), "after the end nothing is changed");
    }

    #[tokio::test]
    async fn without_a_place_there_is_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::start(config(&dir, 2), &prometheus::Registry::new()).unwrap();
        let (first, second) = (log.reserve().unwrap(), log.reserve().unwrap());
        let full = log.reserve().err().unwrap();
        assert!(full.to_string().contains("auditQueueSize"), "{full}");
        first.end(200, None);
        second.end(500, Some("broken"));
        log.close(Duration::from_secs(20)).await;
        assert_eq!(written(&dir)[1].reason.as_deref(), Some("broken"));
    }

    #[tokio::test]
    async fn a_file_that_can_not_be_written_holds_changes_up_and_loses_none() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::start(config(&dir, 2), &prometheus::Registry::new()).unwrap();
        std::fs::remove_file(dir.path().join("audit.log")).unwrap();
        std::fs::create_dir(dir.path().join("audit.log")).unwrap();
        assert!(AuditLog::start(config(&dir, 2), &prometheus::Registry::new()).is_err(), "it would be no start");
        for _ in 0..2 {
            log.reserve().unwrap().end(200, None);
        }
        while log.metrics.file_failures.get() == 0 {
            tokio::task::yield_now().await;
        }
        std::fs::remove_dir(dir.path().join("audit.log")).unwrap();
        while log.metrics.recorded.get() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        log.close(Duration::from_secs(20)).await;
        assert_eq!(written(&dir).len(), 2);
    }

    #[tokio::test]
    async fn without_a_file_records_wait_for_the_topic_and_hold_changes_up() {
        let dir = tempfile::tempdir().unwrap();
        let config = AuditConfig { file: None, ..config(&dir, 2) };
        let log = AuditLog::start(config, &prometheus::Registry::new()).unwrap();
        let topic = Arc::new(Kept { refuses: AtomicU64::new(u64::MAX), ..Kept::default() });
        log.set_topic(topic.clone());
        // One batch is being tried, some wait behind it, and then there is no place.
        let mut made = 0;
        let begun = Instant::now();
        while let Ok(mut place) = log.reserve() {
            place.record().action = format!("PUT /{made}");
            place.end(204, None);
            made += 1;
            assert!(begun.elapsed() < Duration::from_secs(20), "{made} records are nowhere");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(log.metrics.topic_passed_over.get(), 0);
        topic.refuses.store(0, Ordering::SeqCst);
        while topic.lines.lock().unwrap().len() < made {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        log.close(Duration::from_secs(20)).await;
        let lines = topic.lines.lock().unwrap();
        let actions: Vec<_> = lines.iter().map(|line| serde_json::from_slice::<Record>(line).unwrap().action).collect();
        assert_eq!(actions, (0..made).map(|number| format!("PUT /{number}")).collect::<Vec<_>>());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "there is no file");
    }
}
