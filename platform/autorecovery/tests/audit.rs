//! Audits, several workers, and what must not be done, over bookies in memory.

mod common;

use common::{Running, body, options, quick, until, write};
use meridian_autorecovery::records::Report;
use meridian_autorecovery::{AutorecoveryConfig, Desk, DeskError};
use meridian_ledger::keys::{HOLDING_VALUE, holding_key};
use meridian_ledger::testing::MemoryLedgers;
use meridian_ledger::{LedgerConfig, LedgerState, Ledgers};
use meridian_metadata::Condition;
use meridian_placement::Rule;
use meridian_topology::Location;
use meridian_types::{BookieId, EntryId, LedgerId};
use std::sync::Arc;
use std::time::Duration;

fn desk(ledgers: &MemoryLedgers) -> Desk {
    Desk::new(ledgers.metadata.clone(), ledgers.client.clone())
}

/// Orders an audit and waits for its report.
async fn audit(desk: &Desk) -> Report {
    let ordered_ms = desk.order_audit().await.expect("ordered");
    until("the audit has ended", || async {
        desk.report().await.expect("there").is_some_and(|report| report.begun_ms >= ordered_ms)
    })
    .await;
    desk.report().await.expect("there").expect("there")
}

#[tokio::test]
async fn missing_and_damaged_copies_are_found_and_made_again() {
    let cluster = MemoryLedgers::new(4);
    let writer = write(&cluster.client, options(3, 3, 2), 40).await;
    writer.close().await.expect("closed");
    let healthy = write(&cluster.client, options(3, 2, 2), 40).await;
    healthy.close().await.expect("closed");
    let ledger = writer.id();
    let record = cluster.client.record(ledger).await.expect("there");
    let holder = |slot: usize| {
        let id = &record.ensembles[0].bookies[slot];
        cluster.bookies.iter().find(|b| meridian_bookie_api::Bookie::id(&***b) == id).expect("there").clone()
    };
    (5..40).for_each(|id| holder(0).forget(ledger, EntryId(id)));
    holder(1).damage(ledger, EntryId(0));
    let running = Running::start(quick("one"), cluster.metadata.clone(), cluster.another().client);
    let desk = desk(&cluster);

    let report = audit(&desk).await;
    assert_eq!((report.ledgers, report.open_ledgers, report.repairs), (2, 0, 1), "{report:?}");
    assert!(report.missing_copies >= 1 && report.damaged_copies == 1, "{report:?}");
    assert!(report.copies >= 12 && report.lines.iter().all(|line| line.ledger_id == ledger), "{report:?}");
    until("the copies are there again", || async {
        (0..40).all(|id| holder(0).holds(ledger, EntryId(id)))
            && meridian_bookie_api::Bookie::read(&*holder(1), common::one(ledger, 0)).await.is_ok()
    })
    .await;
    until("the mark is gone", || async {
        cluster.metadata.range("/autorecovery/repair/", None, 10).await.expect("there").entries.is_empty()
    })
    .await;
    let again = audit(&desk).await;
    assert_eq!((again.missing_copies, again.damaged_copies, again.repairs), (0, 0, 0), "{again:?}");
    assert!(running.figure("autorecovery_audit_ledgers") > 1.0);
    running.stop().await;
}

#[tokio::test]
async fn an_audit_puts_holdings_right() {
    let cluster = MemoryLedgers::new(3);
    let writer = write(&cluster.client, options(3, 3, 2), 1).await;
    let ledger = writer.id();
    let lost = holding_key(&BookieId::new("b1"), ledger);
    let stale = [holding_key(&BookieId::new("gone"), ledger), holding_key(&BookieId::new("b0"), LedgerId(77_777))];
    cluster.metadata.delete(&lost, Condition::Any).await.expect("deleted");
    for key in &stale {
        cluster.metadata.put(key, HOLDING_VALUE.to_vec(), Condition::Absent).await.expect("put");
    }
    let running = Running::start(quick("one"), cluster.metadata.clone(), cluster.another().client);
    let report = audit(&desk(&cluster)).await;
    assert_eq!((report.mended_holdings, report.ledgers, report.open_ledgers), (3, 1, 1), "{report:?}");
    assert!(cluster.metadata.get(&lost).await.expect("there").is_some());
    for key in &stale {
        assert!(cluster.metadata.get(key).await.expect("there").is_none(), "{key}");
    }
    running.stop().await;
}

#[tokio::test]
async fn b155_broken_placement_is_counted() {
    let at = |label: &str| Location::parse(label).expect("a label");
    let config = LedgerConfig { placement: Rule::default(), ..MemoryLedgers::quick_config() };
    let places = vec![at("/a"), at("/a"), at("/a")];
    let cluster = MemoryLedgers::at_places(places, config.clone());
    write(&cluster.client, options(2, 2, 2), 1).await.close().await.expect("closed");
    let running = Running::start(quick("one"), cluster.metadata.clone(), cluster.client.clone());
    let report = audit(&desk(&cluster)).await;
    assert_eq!((report.misplaced_ensembles, report.mendable_ensembles, report.repairs), (1, 0, 0), "{report:?}");
    running.stop().await;
}

#[tokio::test]
async fn two_workers_share_the_ledgers_of_a_bookie() {
    let cluster = MemoryLedgers::new(5);
    let mut ledgers = Vec::new();
    for _ in 0..60 {
        let writer = write(&cluster.client, options(4, 4, 3), 8).await;
        writer.close().await.expect("closed");
        ledgers.push(writer.id());
    }
    let slow = |name: &str| {
        let mut config = quick(name);
        (config.ledgers_in_flight, config.bytes_per_second) = (1, 400_000);
        config
    };
    cluster.bookies[0].crash();
    let first = Running::start(slow("one"), cluster.metadata.clone(), cluster.another().client);
    let second = Running::start(slow("two"), cluster.metadata.clone(), cluster.another().client);
    let lost = BookieId::new("b0");
    let desk = desk(&cluster);
    until("all is moved", || async { desk.progress(&lost).await.expect("there").ledgers_left == 0 }).await;
    let done = [&first, &second].map(|r| r.figure("autorecovery_ledgers_replicated_total"));
    assert!(done[0] >= 1.0 && done[1] >= 1.0, "{done:?}");
    let auditors = [&first, &second].map(|r| r.figure("autorecovery_is_auditor"));
    assert!((auditors[0] + auditors[1] - 1.0).abs() < 0.1, "{auditors:?}");
    for ledger in ledgers {
        let record = cluster.client.record(ledger).await.expect("there");
        for id in 0..8 {
            for bookie in &record.ensembles[0].bookies {
                let holder = cluster.bookies.iter().find(|b| meridian_bookie_api::Bookie::id(&***b) == bookie);
                assert!(holder.expect("there").holds(ledger, EntryId(id)), "{ledger} {id} {bookie}");
            }
        }
    }
    // The auditor goes; the other one takes over at once, and the mark of a bookie without ledgers goes away.
    let (auditor, other) = if auditors[0] > 0.5 { (first, second) } else { (second, first) };
    auditor.stop().await;
    until("the other is auditor", || async { other.figure("autorecovery_is_auditor") > 0.5 }).await;
    until("the mark is gone", || async { desk.progress(&lost).await.expect("there").leaving.is_none() }).await;
    other.stop().await;
}

/// With three bookies and three copies nobody can take the place of a lost one: fencing would only stop the owner.
#[tokio::test]
async fn an_open_ledger_without_replacement_stays_open() {
    let cluster = MemoryLedgers::new(3);
    let owner = cluster.another();
    let writer = write(&owner.client, options(3, 3, 2), 5).await;
    let ledger = writer.id();
    cluster.bookies[0].crash();
    let running = Running::start(quick("one"), cluster.metadata.clone(), cluster.another().client);
    until("it was looked at", || async { running.figure("autorecovery_ledgers_waiting") > 0.0 }).await;
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert_eq!(cluster.client.record(ledger).await.expect("there").state, LedgerState::Open);
    assert!(!cluster.bookies[1].is_fenced(ledger), "the owner goes on with two copies");
    assert!(running.figure("autorecovery_ledgers_closed_total") < 0.5);
    // The bookie is back: the mark goes, and nothing was done.
    cluster.bookies[0].set(|faults| faults.down = false);
    until("the mark is gone", || async { running.figure("autorecovery_bookies_leaving") < 0.5 }).await;
    assert_eq!(owner.client.recover(ledger).await.expect("recovered").last_confirmed(), EntryId(4));
    running.stop().await;
}

#[tokio::test]
async fn nothing_is_moved_while_most_bookies_are_missing() {
    let cluster = MemoryLedgers::new(5);
    for _ in 0..10 {
        write(&cluster.client, options(3, 3, 2), 2).await.close().await.expect("closed");
    }
    cluster.bookies[..3].iter().for_each(|bookie| bookie.crash());
    let running = Running::start(quick("one"), cluster.metadata.clone(), cluster.another().client);
    until("it is held", || async { running.figure("autorecovery_held") > 0.5 }).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(running.figure("autorecovery_bookies_missing") > 2.5);
    assert!(
        running.figure("autorecovery_bookies_leaving") < 0.5
            && running.figure("autorecovery_bytes_replicated_total") < 0.5
    );
    cluster.bookies[..3].iter().for_each(|bookie| bookie.set(|faults| faults.down = false));
    until("it goes on", || async { running.figure("autorecovery_held") < 0.5 }).await;
    running.stop().await;
}

#[tokio::test]
async fn an_entry_that_only_the_lost_bookie_had_is_said_and_waits_for_it() {
    let cluster = MemoryLedgers::new(4);
    let writer = write(&cluster.client, options(2, 2, 1), 6).await;
    writer.close().await.expect("closed");
    let ledger = writer.id();
    let record = cluster.client.record(ledger).await.expect("there");
    let holder = |slot: usize| {
        let id = &record.ensembles[0].bookies[slot];
        cluster.bookies.iter().find(|b| meridian_bookie_api::Bookie::id(&***b) == id).expect("there")
    };
    holder(1).forget(ledger, EntryId(3));
    holder(0).crash();
    let running = Running::start(quick("one"), cluster.metadata.clone(), cluster.another().client);
    until("it is said", || async {
        running.figure("autorecovery_entries_without_copy_total") + running.figure("autorecovery_ledgers_failed_total")
            > 0.5
    })
    .await;
    assert_eq!(cluster.client.record(ledger).await.expect("there"), record, "metadata still names who has it");
    // Asked while it was away, it could not answer; now it is back and nothing has to be moved.
    holder(0).set(|faults| faults.down = false);
    until("the mark is gone", || async { running.figure("autorecovery_bookies_leaving") < 0.5 }).await;
    let reader = cluster.client.open(ledger).await.expect("opened");
    assert_eq!(reader.read(EntryId(3), 1, 1).await.expect("read")[0].payload, body(ledger, 3));
    running.stop().await;
}

#[tokio::test]
async fn the_desk_lists_bookies_and_refuses_what_would_leave_too_few() {
    let cluster = MemoryLedgers::new(3);
    write(&cluster.client, options(2, 2, 2), 1).await.close().await.expect("closed");
    let desk = desk(&cluster);
    let lines = desk.list().await.expect("listed");
    assert_eq!(lines.len(), 3);
    assert_eq!(lines.iter().map(|line| line.ledgers).sum::<u64>(), 2);
    let unknown = BookieId::new("nobody");
    assert_eq!(desk.decommission(&unknown, 1).await, Err(DeskError::UnknownBookie(unknown)));
    let first = BookieId::new("b0");
    assert_eq!(desk.decommission(&first, 3).await, Err(DeskError::TooFewLeft { left: 2, needed: 3 }));
    desk.decommission(&first, 2).await.expect("two are left");
    let second = desk.decommission(&BookieId::new("b1"), 2).await;
    assert_eq!(second, Err(DeskError::TooFewLeft { left: 1, needed: 2 }));
    let marked = desk.list().await.expect("listed");
    assert!(marked.iter().all(|line| line.leaving.is_some() == (line.id == first)));
    let _: Arc<Desk> = Arc::new(desk);
}

/// Three bookies in one zone and one in another, which was away when the ledger was written.
async fn crowded() -> (MemoryLedgers, LedgerId) {
    let at = |label: &str| Location::parse(label).expect("a label");
    let config = LedgerConfig { placement: Rule::default(), ..MemoryLedgers::quick_config() };
    let cluster = MemoryLedgers::at_places(vec![at("/a"), at("/a"), at("/a"), at("/b")], config);
    cluster.bookies[3].crash();
    let writer = write(&cluster.client, options(3, 3, 2), 30).await;
    writer.close().await.expect("closed");
    cluster.bookies[3].set(|faults| faults.down = false);
    (cluster, writer.id())
}

#[tokio::test]
async fn b155_copies_move_to_the_zone_that_is_back() {
    let (cluster, ledger) = crowded().await;
    let running = Running::start(quick("one"), cluster.metadata.clone(), cluster.client.clone());
    let report = audit(&desk(&cluster)).await;
    assert_eq!((report.misplaced_ensembles, report.mendable_ensembles, report.repairs), (1, 1, 1), "{report:?}");
    until("the copies are moved", || async {
        common::holds(&cluster.client.record(ledger).await.expect("there"), "b3")
    })
    .await;
    let record = cluster.client.record(ledger).await.expect("there");
    let stay = record.ensembles[0].bookies.iter().filter(|id| id.as_str() != "b3").count();
    assert_eq!(stay, 2, "one member is enough: {record:?}");
    assert!((0..30).all(|id| cluster.bookies[3].holds(ledger, EntryId(id))));
    until("the order is done", || async {
        cluster.metadata.range("/autorecovery/repair/", None, 10).await.expect("there").entries.is_empty()
    })
    .await;
    let again = audit(&desk(&cluster)).await;
    assert_eq!((again.misplaced_ensembles, again.repairs), (0, 0), "{again:?}");
    assert_eq!(running.figure("autorecovery_placement_ensembles_mended_total") as u64, 1);
    assert!(running.figure("autorecovery_bytes_replicated_total") > 0.0, "under the same limit as other copies");
    running.stop().await;
}

#[tokio::test]
async fn copies_stay_where_the_setting_says_so() {
    let (cluster, ledger) = crowded().await;
    let before = cluster.client.record(ledger).await.expect("there");
    let config = AutorecoveryConfig { mends_placement: false, ..quick("one") };
    let running = Running::start(config, cluster.metadata.clone(), cluster.client.clone());
    let report = audit(&desk(&cluster)).await;
    assert_eq!((report.misplaced_ensembles, report.mendable_ensembles, report.repairs), (1, 1, 0), "{report:?}");
    assert_eq!(cluster.client.record(ledger).await.expect("there"), before);
    running.stop().await;
}

/// Its last bookies are lost, more of them than a recovery can miss, and its owner is gone.
#[tokio::test]
async fn a_ledger_beyond_recovery_is_told_with_its_reason_and_forgotten_when_a_bookie_is_back() {
    let cluster = MemoryLedgers::new(6);
    // So many others that two are not most of those that hold ledgers.
    for _ in 0..12 {
        write(&cluster.client, options(3, 3, 2), 1).await.close().await.expect("closed");
    }
    let owner = cluster.another();
    let writer = write(&owner.client, options(3, 3, 2), 5).await;
    let ledger = writer.id();
    drop((writer, owner));
    let record = cluster.client.record(ledger).await.expect("there");
    let of = |slot: usize| {
        let id = &record.ensembles[0].bookies[slot];
        cluster.bookies.iter().find(|b| meridian_bookie_api::Bookie::id(&***b) == id).expect("there")
    };
    [0, 1].iter().for_each(|slot| of(*slot).crash());
    let running = Running::start(quick("one"), cluster.metadata.clone(), cluster.another().client);
    let desk = desk(&cluster);
    let listed = || async {
        let (ledgers, more) = desk.hopeless().await.expect("there");
        assert!(!more);
        ledgers.into_iter().find(|(id, _)| *id == ledger).map(|(_, mark)| mark)
    };
    until("it is told", || async { listed().await.is_some_and(|mark| mark.attempts > 1) }).await;
    let mark = listed().await.expect("it is told");
    assert!(mark.reason.contains("2 of every 3 of its last bookies must answer, 1 are there"), "{mark:?}");
    assert!(mark.tried_ms > mark.since_ms);
    until("it is counted", || async { running.figure("autorecovery_unrecoverable_ledgers") > 0.5 }).await;
    assert_eq!(cluster.client.record(ledger).await.expect("there").state, LedgerState::Open, "nothing was fenced");
    // One of them is back: a recovery can miss the other.
    of(0).set(|faults| faults.down = false);
    until("it is recovered", || async {
        cluster.client.record(ledger).await.expect("there").state == LedgerState::Closed
    })
    .await;
    until("it is forgotten", || async {
        listed().await.is_none() && running.figure("autorecovery_unrecoverable_ledgers") < 0.5
    })
    .await;
    let reader = cluster.client.open(ledger).await.expect("opened");
    assert_eq!(reader.read(EntryId(4), 1, 1).await.expect("read")[0].payload, body(ledger, 4));
    running.stop().await;
}
