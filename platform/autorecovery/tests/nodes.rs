//! Five storage nodes over TCP: one is lost, or taken away by order, and every ledger is back to full copies.

mod common;

use common::{Cluster, Running, body, holds, options, quick, until};
use meridian_autorecovery::{AutorecoveryConfig, follow_leaving};
use meridian_bookie_api::EntryBytes;
use meridian_ledger::{LedgerState, LedgerWriter};
use meridian_types::{BookieId, EntryId, LedgerId};
use std::future::pending;
use std::sync::Arc;

/// Ledgers of all kinds: closed ones, with and without stripes, with one run of entries or several.
async fn closed_ledgers(cluster: &Cluster, count: usize) -> Vec<(LedgerId, i64)> {
    let mut ledgers = Vec::new();
    for n in 0..count {
        let shape = [options(3, 3, 2), options(4, 3, 2), options(2, 2, 2), options(1, 1, 1)][n % 4].clone();
        // What only a lost bookie had can't be had from others.
        let shape = if shape.write_quorum == 1 { options(3, 2, 2) } else { shape };
        let entries = 1 + (n as i64 * 13) % 90;
        let writer = cluster.ledger(shape, entries).await;
        writer.close().await.expect("closed");
        ledgers.push((writer.id(), entries));
    }
    ledgers
}

async fn nothing_left_on(cluster: &Cluster, bookie: &str) {
    let bookie = BookieId::new(bookie);
    until("all ledgers are moved", || async {
        cluster.desk.progress(&bookie).await.expect("metadata is there").ledgers_left == 0
    })
    .await;
}

async fn confirmed(writer: &Arc<dyn LedgerWriter>, entry: i64) {
    until("an entry is confirmed", || async { writer.last_confirmed() >= EntryId(entry) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_ledger_of_a_lost_bookie_is_back_to_full_copies() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::open(folder.path(), 5).await;
    let ledgers = closed_ledgers(&cluster, 40).await;
    // An owner that lives and does nothing, and one that is gone; both have the lost bookie in some ledger.
    let mut idle = Vec::new();
    let mut orphans = Vec::new();
    let gone = Cluster::another(&cluster.store, &cluster.nodes);
    for _ in 0..4 {
        idle.push(cluster.ledger(options(4, 3, 2), 20).await);
        orphans.push(common::write(&gone, options(4, 3, 2), 20).await.id());
    }
    drop(gone);
    let following = tokio::spawn(follow_leaving(cluster.store.clone(), cluster.client.clone(), pending()));

    cluster.nodes.lose("b0");
    let worker = Cluster::another(&cluster.store, &cluster.nodes);
    let running = Running::start(quick("one"), cluster.store.clone(), worker);
    until("the loss is seen", || async { running.figure("autorecovery_bookies_leaving") > 0.0 }).await;
    nothing_left_on(&cluster, "b0").await;

    for (ledger, entries) in &ledgers {
        let record = cluster.client.record(*ledger).await.expect("there");
        assert!(!holds(&record, "b0"), "{record:?}");
        cluster.verify(*ledger, *entries).await;
    }
    for writer in &idle {
        let record = cluster.client.record(writer.id()).await.expect("there");
        assert_eq!(record.state, LedgerState::Open, "a writer that lives is not fenced");
        let next = writer.append(vec![EntryBytes::plain(body(writer.id(), 20))]).expect("still the owner");
        assert_eq!(next, EntryId(20));
        confirmed(writer, 20).await;
        writer.close().await.expect("closed");
        cluster.verify(writer.id(), 21).await;
    }
    for ledger in &orphans {
        let record = cluster.client.record(*ledger).await.expect("there");
        let closed = record.state == LedgerState::Closed && record.last_entry == EntryId(19);
        assert!(closed || !holds(&record, "b0"), "{record:?}");
        cluster.verify(*ledger, 20).await;
    }
    assert!(running.figure("autorecovery_ledgers_replicated_total") > 0.0);
    assert!(running.figure("autorecovery_bytes_replicated_total") > 0.0);
    assert!(running.figure("autorecovery_ledgers_failed_total") < 1.0);
    running.stop().await;
    following.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_is_taken_away_by_order_while_it_serves() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::open(folder.path(), 5).await;
    let ledgers = closed_ledgers(&cluster, 12).await;
    let writer = cluster.ledger(options(4, 3, 2), 10).await;
    // Where there is but one copy, it comes from the bookie that leaves.
    let single = cluster.ledger(options(1, 1, 1), 30).await;
    single.close().await.expect("closed");
    let record = cluster.client.record(single.id()).await.expect("there");
    let leaves = record.ensembles[0].bookies[0].clone();
    let following = tokio::spawn(follow_leaving(cluster.store.clone(), cluster.client.clone(), pending()));
    let worker = Cluster::another(&cluster.store, &cluster.nodes);
    let running = Running::start(quick("one"), cluster.store.clone(), worker);

    let progress = cluster.desk.decommission(&leaves, 3).await.expect("ordered");
    assert!(!progress.is_done() && progress.ledgers_left > 0);
    nothing_left_on(&cluster, leaves.as_str()).await;
    until("it is done", || async { cluster.desk.progress(&leaves).await.expect("there").is_done() }).await;
    for (ledger, entries) in ledgers.iter().chain([&(single.id(), 30)]) {
        cluster.verify(*ledger, *entries).await;
    }
    // Nobody chooses it any more.
    for _ in 0..6 {
        let fresh = cluster.ledger(options(3, 3, 2), 1).await;
        assert!(!holds(&cluster.client.record(fresh.id()).await.expect("there"), leaves.as_str()));
    }
    writer.append(vec![EntryBytes::plain(body(writer.id(), 10))]).expect("not fenced");
    confirmed(&writer, 10).await;
    cluster.verify(writer.id(), 10).await;

    cluster.desk.recommission(&leaves).await.expect("taken back");
    until("it is chosen again", || async {
        let fresh = cluster.ledger(options(4, 3, 2), 1).await;
        holds(&cluster.client.record(fresh.id()).await.expect("there"), leaves.as_str())
    })
    .await;
    running.stop().await;
    following.abort();
}

/// Ledgers that have a copy on `b0`, every one of them whole.
async fn held_by_b0(cluster: &Cluster, ledgers: &[(LedgerId, i64)]) -> usize {
    let mut held = 0;
    for (ledger, entries) in ledgers {
        held += usize::from(holds(&cluster.client.record(*ledger).await.expect("there"), "b0"));
        cluster.verify(*ledger, *entries).await;
    }
    held
}

/// A bookie that is back within the grace costs nothing; one that is back in the middle of its repair keeps what it still
/// holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b152_a_bookie_that_comes_back_is_not_copied() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::open(folder.path(), 5).await;
    let ledgers = closed_ledgers(&cluster, 24).await;
    let before = held_by_b0(&cluster, &ledgers).await;
    let register = |there: bool| *cluster.nodes.node("b0").registered.lock() = there;
    let leaving = |running: &Running| running.figure("autorecovery_bookies_leaving") > 0.0;

    let config = AutorecoveryConfig { lost_grace_ms: 5_000, ..quick("one") };
    let worker = Cluster::another(&cluster.store, &cluster.nodes);
    let running = Running::start(config, cluster.store.clone(), worker);
    register(false);
    until("it is missed", || async { leaving(&running) }).await;
    register(true);
    until("its mark is gone", || async { !leaving(&running) }).await;
    assert!(running.figure("autorecovery_bytes_replicated_total") < 1.0, "nothing was copied");
    assert_eq!(held_by_b0(&cluster, &ledgers).await, before);
    running.stop().await;

    // Slow enough that most is left when it comes back.
    let config = AutorecoveryConfig { bytes_per_second: 40_000, ledgers_in_flight: 1, ..quick("two") };
    let worker = Cluster::another(&cluster.store, &cluster.nodes);
    let running = Running::start(config, cluster.store.clone(), worker);
    register(false);
    until("the repair has begun", || async { running.figure("autorecovery_ledgers_replicated_total") > 0.0 }).await;
    register(true);
    until("its mark is gone", || async { !leaving(&running) }).await;
    until("no ledger is at work", || async {
        let figures = ["autorecovery_ledgers_waiting", "autorecovery_ledgers_working"];
        figures.iter().all(|figure| running.figure(figure) < 1.0)
    })
    .await;
    let (after, moved) =
        (held_by_b0(&cluster, &ledgers).await, running.figure("autorecovery_ledgers_replicated_total"));
    assert!(after > 0 && after < before, "{before} before, {after} after, {moved} moved");
    // It is looked at some times more: the rest stays where it is.
    let looks = tokio::time::Instant::now();
    until("looks go by", || async { looks.elapsed() > std::time::Duration::from_millis(500) }).await;
    assert_eq!(held_by_b0(&cluster, &ledgers).await, after);
    assert!((running.figure("autorecovery_ledgers_replicated_total") - moved).abs() < 1.0);
    running.stop().await;
}
