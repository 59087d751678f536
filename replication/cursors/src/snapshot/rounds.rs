//! Making snapshots: requests out, answers in, a mapping of positions at the end.
//!
//! Role: [`SnapshotRounds`] is told the time, what is in the topic and what arrives, and answers what to write.
//! Invariants: P1–P3 of the parent; N1 a round is named by `<id>/<number>` on the wire, so an answer that is sent again
//! after its round does not count; N2 a snapshot is complete when its marker is stored, not before: a marker that can't be
//! written is given up with its attempt; N3 at most [`RoundsConfig::max_pending`] attempts wait at once, and one until
//! the first is complete.
//! Failure: an attempt that is not answered in time is dropped and counted.
//! Must never know: clocks, logs.

use super::marker::{ClusterPosition, Marker};
use meridian_types::Position;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Times and bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundsConfig {
    /// An attempt begins at most every so many ms (`replicatedSubscriptionsSnapshotFrequencyMillis`).
    pub every_ms: u64,
    /// An attempt without an answer ends after so long (`replicatedSubscriptionsSnapshotTimeoutSeconds`).
    pub timeout_ms: u64,
    /// Attempts that wait at once.
    pub max_pending: usize,
}

impl Default for RoundsConfig {
    fn default() -> Self {
        Self { every_ms: 1000, timeout_ms: 30_000, max_pending: 8 }
    }
}

/// What the topic looks like at a tick.
#[derive(Debug, Clone, Copy)]
pub struct Tick<'a> {
    /// Now.
    pub now_ms: u64,
    /// The last entry that is no marker, [`Position::EARLIEST`] if there is none.
    pub last_message: Position,
    /// Clusters that the topic is replicated to by markers.
    pub remotes: &'a BTreeSet<String>,
    /// All of them are connected.
    pub connected: bool,
}

/// A marker to store in the topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToWrite {
    /// The marker.
    pub marker: Marker,
    /// The only cluster that it may travel to; `None` = all.
    pub only_to: Option<String>,
}

/// What happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Attempts begun.
    pub started: u64,
    /// Snapshots stored.
    pub completed: u64,
    /// Attempts without an answer in time.
    pub timed_out: u64,
    /// Answers that belong to no attempt, or to a round that is over.
    pub late_answers: u64,
    /// How long the last complete one took.
    pub last_took_ms: u64,
    /// Attempts waiting.
    pub pending: u64,
}

struct Pending {
    id: String,
    started_ms: u64,
    /// The last message when it began.
    started_at: Position,
    round: u32,
    remotes: BTreeSet<String>,
    /// P2.
    positions: BTreeMap<String, Position>,
    /// Remotes of whom an answer of this round is missing.
    missing: BTreeSet<String>,
    /// The snapshot marker is being stored.
    writing: bool,
}

/// See the head of the file.
pub struct SnapshotRounds {
    own: String,
    config: RoundsConfig,
    pending: VecDeque<Pending>,
    last_start_ms: Option<u64>,
    /// Where the last complete snapshot began.
    completed_at: Option<Position>,
    figures: Figures,
}

impl SnapshotRounds {
    /// For a topic in cluster `own`.
    pub fn new(own: impl Into<String>, config: RoundsConfig) -> Self {
        Self {
            own: own.into(),
            config,
            pending: VecDeque::new(),
            last_start_ms: None,
            completed_at: None,
            figures: Figures::default(),
        }
    }

    /// What happened so far.
    pub fn figures(&self) -> Figures {
        Figures { pending: self.pending.len() as u64, ..self.figures }
    }

    /// Time passes: old attempts end; a new one begins if there is a reason (P3). `new_id` names it.
    pub fn tick(&mut self, tick: Tick<'_>, new_id: impl FnOnce() -> String) -> Option<ToWrite> {
        let deadline = |pending: &Pending| pending.started_ms.saturating_add(self.config.timeout_ms);
        let before = self.pending.len();
        self.pending.retain(|pending| deadline(pending) > tick.now_ms && pending.remotes.is_subset(tick.remotes));
        self.figures.timed_out += (before - self.pending.len()) as u64;
        if tick.remotes.is_empty() || !tick.connected {
            return None;
        }
        let most = if self.completed_at.is_none() { 1 } else { self.config.max_pending.max(1) };
        let early = self.last_start_ms.is_some_and(|at_ms| tick.now_ms < at_ms.saturating_add(self.config.every_ms));
        // The last message is covered by a snapshot that is complete or under way.
        let covering = self.pending.iter().map(|pending| pending.started_at).chain(self.completed_at).max();
        let nothing_new = covering.is_some_and(|at| tick.last_message <= at);
        if self.pending.len() >= most || early || nothing_new || tick.last_message == Position::EARLIEST {
            return None;
        }
        let pending = Pending {
            id: new_id(),
            started_ms: tick.now_ms,
            started_at: tick.last_message,
            round: 1,
            remotes: tick.remotes.clone(),
            positions: BTreeMap::new(),
            missing: tick.remotes.clone(),
            writing: false,
        };
        let request = self.request(&pending);
        self.last_start_ms = Some(tick.now_ms);
        self.figures.started += 1;
        self.pending.push_back(pending);
        Some(request)
    }

    fn request(&self, pending: &Pending) -> ToWrite {
        let snapshot_id = wire_id(&pending.id, pending.round);
        ToWrite { marker: Marker::Request { snapshot_id, source_cluster: self.own.clone() }, only_to: None }
    }

    /// Another cluster asks: the answer says where this topic ends.
    pub fn asked(&self, snapshot_id: &str, source_cluster: &str, last: Position) -> ToWrite {
        let cluster = ClusterPosition { cluster: self.own.clone(), position: last };
        let marker = Marker::Response { snapshot_id: snapshot_id.to_owned(), cluster };
        ToWrite { marker, only_to: Some(source_cluster.to_owned()) }
    }

    /// Another cluster answered; its marker stands at `local` in this topic.
    pub fn answered(&mut self, snapshot_id: &str, from: &ClusterPosition, local: Position) -> Option<ToWrite> {
        let found = self.pending.iter_mut().find(|pending| {
            !pending.writing
                && wire_id(&pending.id, pending.round) == snapshot_id
                && pending.missing.contains(&from.cluster)
        });
        let Some(pending) = found else {
            self.figures.late_answers += 1;
            return None;
        };
        pending.missing.remove(&from.cluster);
        pending.positions.entry(from.cluster.clone()).or_insert(from.position);
        if !pending.missing.is_empty() {
            return None;
        }
        if pending.round == 1 && pending.remotes.len() > 1 {
            pending.round = 2;
            pending.missing = pending.remotes.clone();
            let marker = Marker::Request { snapshot_id: wire_id(&pending.id, 2), source_cluster: self.own.clone() };
            return Some(ToWrite { marker, only_to: None });
        }
        pending.writing = true;
        let clusters = std::mem::take(&mut pending.positions)
            .into_iter()
            .map(|(cluster, position)| ClusterPosition { cluster, position })
            .collect();
        let marker = Marker::Snapshot { snapshot_id: pending.id.clone(), local, clusters };
        Some(ToWrite { marker, only_to: Some(self.own.clone()) })
    }

    /// The marker of a snapshot was stored, or can't be (N2).
    pub fn written(&mut self, snapshot_id: &str, stored: bool, now_ms: u64) {
        let Some(index) = self.pending.iter().position(|pending| pending.writing && pending.id == snapshot_id) else {
            return;
        };
        let Some(pending) = self.pending.remove(index).filter(|_| stored) else { return };
        self.figures.completed += 1;
        self.figures.last_took_ms = now_ms.saturating_sub(pending.started_ms);
        self.completed_at = self.completed_at.max(Some(pending.started_at));
    }
}

fn wire_id(id: &str, round: u32) -> String {
    format!("{id}/{round}")
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
