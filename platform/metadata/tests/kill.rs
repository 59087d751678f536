//! A process that is killed while it commits: whatever it said was committed is there afterwards (M4, M5).
//!
//! The test starts itself again as the process to be killed.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use meridian_metadata::{Condition, Operation, RocksStore, SharedStore};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

const CHILD_FOLDER: &str = "MERIDIAN_METADATA_KILL_TEST_DIR";
const ROUNDS: usize = 10;
const LINES_BEFORE_KILL: usize = 120;

/// Commits without end and says each number once it is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committing_process() {
    let Some(folder) = std::env::var_os(CHILD_FOLDER) else { return };
    let store: SharedStore = Arc::new(RocksStore::open(Path::new(&folder)).unwrap());
    let session = store.open_session(60_000).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = store.clone();
        tasks.spawn(async move {
            loop {
                let number = store.allocate("numbers", 1).await.unwrap();
                let value = number.to_string();
                let put = |key: String, ephemeral| Operation::Put {
                    key,
                    value: value.clone().into(),
                    condition: Condition::Absent,
                    ephemeral,
                };
                let pair = vec![
                    put(format!("left/{number}"), None),
                    put(format!("right/{number}"), None),
                    put(format!("session/{number}"), Some(session.id)),
                ];
                store.commit(pair).await.unwrap();
                println!("committed {number}");
            }
        });
    }
    tasks.join_all().await;
}

fn run_and_kill(folder: &Path) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "committing_process", "--nocapture"])
        .env(CHILD_FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let parse = |line: String| line.rsplit_once("committed ").and_then(|(_, number)| number.parse().ok());
    let mut said: Vec<u64> = lines.by_ref().filter_map(parse).take(LINES_BEFORE_KILL).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest: Vec<_> = lines.collect();
    rest.pop(); // may be cut
    said.extend(rest.into_iter().filter_map(parse));
    said
}

#[tokio::test]
async fn what_was_committed_survives_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut all = BTreeSet::new();
    for round in 0..ROUNDS {
        let said = run_and_kill(dir.path());
        assert!(said.len() >= LINES_BEFORE_KILL, "round {round}: {}", said.len());
        for number in said {
            assert!(all.insert(number), "round {round}: number {number} was given twice");
        }
        let store: SharedStore = Arc::new(RocksStore::open(dir.path()).unwrap());
        let numbers = |prefix| {
            let store = store.clone();
            async move {
                let entries = store.scan(prefix).await.unwrap();
                entries.iter().map(|entry| entry.key[prefix.len()..].parse().unwrap()).collect::<BTreeSet<u64>>()
            }
        };
        let left = numbers("left/").await;
        assert_eq!(left, numbers("right/").await, "round {round}: half a transaction");
        assert!(all.is_subset(&left), "round {round}: lost {:?}", all.difference(&left));
        assert!(numbers("session/").await.is_empty(), "round {round}: keys of a dead process's session");
        assert!(store.allocate("numbers", 1).await.unwrap() > left.last().copied().unwrap_or(0));
    }
}
