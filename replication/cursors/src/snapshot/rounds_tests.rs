//! Scripts: what happens, what is written.

use super::*;

fn at(ledger: i64, entry: i64) -> Position {
    Position::new(ledger, entry)
}

fn of(cluster: &str, ledger: i64, entry: i64) -> ClusterPosition {
    ClusterPosition { cluster: cluster.to_owned(), position: at(ledger, entry) }
}

struct Script {
    rounds: SnapshotRounds,
    remotes: BTreeSet<String>,
    connected: bool,
    next_id: u32,
}

impl Script {
    fn new(remotes: &[&str]) -> Self {
        let remotes = remotes.iter().map(|name| (*name).to_owned()).collect();
        Self { rounds: SnapshotRounds::new("a", RoundsConfig::default()), remotes, connected: true, next_id: 0 }
    }

    fn tick(&mut self, now_ms: u64, last_message: Position) -> Option<String> {
        let tick = Tick { now_ms, last_message, remotes: &self.remotes, connected: self.connected };
        let (id, next) = (format!("s{}", self.next_id), self.next_id + 1);
        let written = self.rounds.tick(tick, || id)?;
        self.next_id = next;
        Some(line(&written))
    }

    fn answer(&mut self, id: &str, from: ClusterPosition, local: Position) -> Option<String> {
        self.rounds.answered(id, &from, local).map(|written| line(&written))
    }
}

fn line(written: &ToWrite) -> String {
    let clusters = |all: &[ClusterPosition]| {
        all.iter().map(|one| format!("{}={}", one.cluster, one.position)).collect::<Vec<_>>().join(",")
    };
    let to = written.only_to.as_deref().unwrap_or("*");
    match &written.marker {
        Marker::Request { snapshot_id, source_cluster } => format!("request {snapshot_id} {source_cluster} -> {to}"),
        Marker::Response { snapshot_id, cluster } => {
            format!("response {snapshot_id} {} -> {to}", clusters(std::slice::from_ref(cluster)))
        }
        Marker::Snapshot { snapshot_id, local, clusters: all } => {
            format!("snapshot {snapshot_id} {local} {} -> {to}", clusters(all))
        }
        Marker::Update { subscription, clusters: all } => format!("update {subscription} {} -> {to}", clusters(all)),
    }
}

#[test]
fn one_remote_takes_one_round() {
    let mut script = Script::new(&["b"]);
    assert_eq!(script.tick(0, at(1, 9)).as_deref(), Some("request s0/1 a -> *"));
    assert_eq!(script.tick(1000, at(1, 12)), None, "one pending until the first completes");
    let snapshot = script.answer("s0/1", of("b", 77, 5), at(1, 14));
    assert_eq!(snapshot.as_deref(), Some("snapshot s0 1:14 b=77:5 -> a"));
    // Not complete before it is stored.
    assert_eq!(script.tick(2000, at(1, 12)), None);
    script.rounds.written("s0", true, 2001);
    assert_eq!(script.rounds.figures().last_took_ms, 2001);
    // One more after the last message, then silence.
    assert_eq!(script.tick(3000, at(1, 12)).as_deref(), Some("request s1/1 a -> *"));
    assert!(script.answer("s1/1", of("b", 77, 8), at(1, 18)).is_some());
    script.rounds.written("s1", true, 3100);
    for now_ms in [4000, 5000, 600_000] {
        assert_eq!(script.tick(now_ms, at(1, 12)), None);
    }
    assert_eq!(script.tick(601_000, at(1, 19)).as_deref(), Some("request s2/1 a -> *"));
}

#[test]
fn two_remotes_take_two_rounds_and_keep_the_first_positions() {
    let mut script = Script::new(&["b", "c"]);
    script.tick(0, at(1, 9));
    assert_eq!(script.answer("s0/1", of("b", 70, 1), at(1, 10)), None);
    // B's answer is sent again: it is not C's.
    assert_eq!(script.answer("s0/1", of("b", 70, 3), at(1, 11)), None);
    assert_eq!(script.answer("s0/1", of("c", 80, 1), at(1, 12)).as_deref(), Some("request s0/2 a -> *"));
    // Answers of the first round that come again do not end the second.
    assert_eq!(script.answer("s0/1", of("b", 70, 4), at(1, 13)), None);
    assert_eq!(script.answer("s0/1", of("c", 80, 4), at(1, 13)), None);
    assert_eq!(script.answer("s0/2", of("c", 80, 9), at(1, 14)), None);
    let snapshot = script.answer("s0/2", of("b", 70, 9), at(1, 15));
    assert_eq!(snapshot.as_deref(), Some("snapshot s0 1:15 b=70:1,c=80:1 -> a"));
    assert_eq!(script.rounds.figures().late_answers, 3);
}

#[test]
fn without_remotes_messages_or_connections_nothing_is_written() {
    let mut script = Script::new(&[]);
    assert_eq!(script.tick(0, at(1, 9)), None);
    let mut script = Script::new(&["b"]);
    assert_eq!(script.tick(0, Position::EARLIEST), None);
    script.connected = false;
    assert_eq!(script.tick(1000, at(1, 1)), None);
    script.connected = true;
    assert!(script.tick(2000, at(1, 1)).is_some());
}

#[test]
fn unanswered_requests_are_repeated_once_per_timeout() {
    let mut script = Script::new(&["b"]);
    let mut requests = 0;
    for second in 0..600 {
        requests += u32::from(script.tick(second * 1000, at(1, 9)).is_some());
    }
    assert_eq!(requests, 20);
    assert_eq!(script.rounds.figures().timed_out, 19);
    assert_eq!(script.answer("s3/1", of("b", 1, 1), at(1, 10)), None, "too late");
}

#[test]
fn several_wait_once_one_is_complete() {
    let mut script = Script::new(&["b"]);
    script.tick(0, at(1, 0));
    script.answer("s0/1", of("b", 1, 0), at(1, 1));
    script.rounds.written("s0", true, 10);
    for nth in 1..20 {
        script.tick(nth * 1000, at(1, 10 * nth as i64));
    }
    assert_eq!(script.rounds.figures().pending, 8);
    assert!(script.answer("s2/1", of("b", 1, 5), at(1, 99)).is_some());
}

#[test]
fn a_marker_that_cannot_be_stored_ends_its_attempt() {
    let mut script = Script::new(&["b"]);
    script.tick(0, at(1, 0));
    script.answer("s0/1", of("b", 1, 0), at(1, 1));
    script.rounds.written("s0", false, 10);
    assert_eq!(script.rounds.figures().completed, 0);
    assert_eq!(script.tick(1000, at(1, 0)).as_deref(), Some("request s1/1 a -> *"));
}

#[test]
fn a_remote_that_is_removed_ends_the_attempts_that_wait_for_it() {
    let mut script = Script::new(&["b", "c"]);
    script.tick(0, at(1, 0));
    script.remotes.remove("c");
    assert_eq!(script.tick(1000, at(1, 0)).as_deref(), Some("request s1/1 a -> *"));
    assert!(script.answer("s1/1", of("b", 1, 0), at(1, 1)).is_some());
}

#[test]
fn others_are_answered_with_the_end_of_the_topic() {
    let script = Script::new(&["b"]);
    assert_eq!(line(&script.rounds.asked("x", "b", at(4, 2))), "response x a=4:2 -> b");
}
