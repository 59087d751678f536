//! What the audit log says of a topic that does not take its records. The only test here: it listens to the process's log.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic")]

use bytes::Bytes;
use meridian_audit::{AuditConfig, AuditLog, AuditTopic, BoxFuture};
use std::future::ready;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn read(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// Refuses some times, for one reason and then for another.
struct Refusing {
    attempts: AtomicU64,
}

impl AuditTopic for Refusing {
    fn append(&self, _lines: Vec<Bytes>) -> BoxFuture<'_, Result<(), String>> {
        let answer = match self.attempts.fetch_add(1, Ordering::SeqCst) {
            0..3 => Err("its owner has gone".to_owned()),
            3..5 => Err("no bookie answers".to_owned()),
            _ => Ok(()),
        };
        Box::pin(ready(answer))
    }
}

#[tokio::test]
async fn a_topic_that_does_not_take_records_is_told_by_change_and_counted() {
    let lines = Lines::default();
    let written = lines.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || written.clone()).init();
    let dir = tempfile::tempdir().unwrap();
    let config = AuditConfig {
        region: "west".into(),
        node: "n".into(),
        file: Some(dir.path().join("audit.log")),
        file_bytes: 1 << 20,
        queue: 8,
    };
    let log = AuditLog::start(config, &prometheus::Registry::new()).unwrap();
    log.set_topic(Arc::new(Refusing { attempts: AtomicU64::new(0) }));
    log.reserve().unwrap().end(204, None);
    let told = async {
        while !lines.read().iter().any(|line| line.contains("takes records again")) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), told).await.unwrap();
    let told = lines.read();
    assert_eq!(told.len(), 3, "{told:#?}");
    assert!(told[0].contains("WARN") && told[0].contains("its owner has gone"), "{told:#?}");
    assert!(
        told[1].contains("WARN") && told[1].contains("no bookie answers") && told[1].contains("times=3"),
        "{told:#?}"
    );
    assert!(told[2].contains("INFO") && told[2].contains("failures=5"), "{told:#?}");
}
