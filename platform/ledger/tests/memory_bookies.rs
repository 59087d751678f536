//! The whole client over memory bookies: what an owner sees when things go well and when they do not.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use meridian_bookie_api::{Bookie, BookieError, EntryBytes};
use meridian_ledger::testing::{EventLog, MemoryLedgers};
use meridian_ledger::{
    AppendEvent, AppendSink, LedgerConfig, LedgerError, LedgerOptions, LedgerReader, LedgerState, LedgerWriter, Ledgers,
};
use meridian_placement::Rule;
use meridian_topology::Location;
use meridian_types::{BookieId, EntryId, LedgerId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

fn options(ensemble_size: u32, write_quorum: u32, ack_quorum: u32) -> LedgerOptions {
    LedgerOptions { ensemble_size, write_quorum, ack_quorum, properties: BTreeMap::new() }
}

fn entries(from: i64, count: i64) -> Vec<EntryBytes> {
    (from..from + count).map(|n| EntryBytes::plain(Bytes::from(format!("entry {n}")))).collect()
}

async fn create(ledgers: &MemoryLedgers, e: u32, qw: u32, qa: u32) -> (Arc<dyn LedgerWriter>, Arc<EventLog>) {
    let log = Arc::new(EventLog::default());
    (ledgers.client.create(options(e, qw, qa), log.clone()).await.unwrap(), log)
}

async fn read_all(reader: &dyn LedgerReader) -> Vec<String> {
    let (mut all, mut next) = (Vec::new(), EntryId(0));
    while next <= reader.last_confirmed() {
        let run = reader.read(next, 7, 1 << 20).await.unwrap();
        for entry in run {
            assert_eq!(entry.entry_id, next);
            next = next.next();
            all.push(String::from_utf8(entry.payload.to_vec()).unwrap());
        }
    }
    all
}

fn wanted(count: i64) -> Vec<String> {
    (0..count).map(|n| format!("entry {n}")).collect()
}

#[tokio::test]
async fn what_is_appended_is_confirmed_in_order_and_read_back() {
    for (e, qw, qa) in [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2)] {
        let ledgers = MemoryLedgers::new(5);
        let (writer, log) = create(&ledgers, e, qw, qa).await;
        for batch in 0..10 {
            let first = writer.append(entries(batch * 5, 5)).unwrap();
            assert_eq!(first, EntryId(batch * 5));
        }
        assert!(log.wait_confirmed(EntryId(49)).await);
        assert_eq!(read_all(writer.as_ref()).await, wanted(50));
        assert_eq!(writer.close().await, Ok(EntryId(49)));
        assert_eq!(writer.close().await, Ok(EntryId(49)), "closing again changes nothing");
        assert_eq!(writer.append(entries(50, 1)), Err(LedgerError::Closed(writer.id())));
        let reader = ledgers.another().client.open(writer.id()).await.unwrap();
        assert_eq!(reader.last_confirmed(), EntryId(49));
        assert_eq!(reader.length_bytes(), wanted(50).iter().map(|s| s.len() as u64).sum::<u64>());
        assert_eq!(read_all(reader.as_ref()).await, wanted(50), "{e} {qw} {qa}");
    }
}

/// Two processes take turns on one log, each with a block of ids of its own: what is created later has the higher id.
#[tokio::test]
async fn ids_rise_over_processes_that_take_turns() {
    let ledgers = MemoryLedgers::new(1);
    let other = ledgers.another();
    let mut floor = LedgerId(-1);
    let mut created = Vec::new();
    for turn in 0..20 {
        let owner = if turn % 2 == 0 { &ledgers } else { &other };
        owner.client.ids_above(floor).await.unwrap();
        let (writer, _) = create(owner, 1, 1, 1).await;
        assert!(writer.id() > floor, "{} after {floor}", writer.id());
        floor = writer.id();
        created.push(floor.0);
    }
    // A floor that the sequence has not reached (a restored backup) moves it on, for everybody.
    ledgers.client.ids_above(LedgerId(1_000_000)).await.unwrap();
    assert!(create(&ledgers, 1, 1, 1).await.0.id() > LedgerId(1_000_000));
    other.client.ids_above(LedgerId(1_000_100)).await.unwrap();
    let (writer, _) = create(&other, 1, 1, 1).await;
    assert!(writer.id() > LedgerId(1_000_100));
    // A floor below the block costs nothing.
    other.client.ids_above(LedgerId(3)).await.unwrap();
    assert_eq!(create(&other, 1, 1, 1).await.0.id().0, writer.id().0 + 1);
}

/// Bookies `b0`, `b1`, … at these places.
fn at_places(labels: &[&str], own: &str, rule: Rule) -> MemoryLedgers {
    let at = |label: &&str| Location::parse(label).unwrap();
    let config = LedgerConfig { placement: rule, location: at(&own), ..MemoryLedgers::quick_config() };
    MemoryLedgers::at_places(labels.iter().map(at).collect(), config)
}

fn zone_of(bookie: &BookieId, labels: &[&str]) -> String {
    let at: usize = bookie.as_str()[1..].parse().unwrap();
    labels[at].to_owned()
}

#[tokio::test]
async fn copies_stand_in_different_zones_also_after_one_was_replaced() {
    let labels = ["/a", "/a", "/a", "/b", "/b", "/b"];
    let enforced = Rule { min_zones: 2, min_regions: 1, enforced: true };
    for _ in 0..20 {
        let ledgers = at_places(&labels, "", enforced);
        let (writer, log) = create(&ledgers, 4, 2, 1).await;
        let record = ledgers.client.record(writer.id()).await.unwrap();
        let zones: Vec<String> = record.ensembles[0].bookies.iter().map(|id| zone_of(id, &labels)).collect();
        assert!((0..4).all(|at| zones[at] != zones[(at + 1) % 4]), "{zones:?}");
        let victim = record.ensembles[0].bookies[1].clone();
        ledgers.bookies.iter().find(|b| *b.id() == victim).unwrap().crash();
        writer.append(entries(0, 8)).unwrap();
        assert!(log.wait_confirmed(EntryId(7)).await);
        writer.close().await.unwrap();
        let record = ledgers.client.record(writer.id()).await.unwrap();
        let replaced = &record.ensembles.last().unwrap().bookies[1];
        assert_ne!(*replaced, victim);
        assert_eq!(zone_of(replaced, &labels), zones[1], "the other zone would stand next to itself");
    }
    let one_zone = at_places(&["/a", "/a", "/a"], "", enforced);
    let refused = one_zone.client.create(options(3, 2, 1), Arc::new(EventLog::default())).await.map(drop);
    assert!(matches!(refused, Err(LedgerError::NotPlaced(_))), "{refused:?}");
    let wish = at_places(&["/a", "/a", "/a"], "", Rule::default());
    create(&wish, 3, 2, 1).await;
}

#[tokio::test]
async fn the_nearest_copy_is_read_first() {
    let labels = ["/a", "/b", "/c"];
    let ledgers = at_places(&labels, "/b", Rule::default());
    for _ in 0..6 {
        let (writer, log) = create(&ledgers, 3, 3, 2).await;
        writer.append(entries(0, 3)).unwrap();
        assert!(log.wait_confirmed(EntryId(2)).await);
        writer.close().await.unwrap();
        let reader = ledgers.client.open(writer.id()).await.unwrap();
        assert_eq!(read_all(reader.as_ref()).await, wanted(3));
    }
    let reads = |at: usize| ledgers.bookies[at].requests().1;
    assert!(reads(1) >= 6, "{}", reads(1));
    assert_eq!((reads(0), reads(2)), (0, 0));
}

#[tokio::test]
async fn a_lost_bookie_is_replaced_and_nothing_is_lost() {
    let ledgers = MemoryLedgers::new(4);
    let (writer, log) = create(&ledgers, 3, 3, 2).await;
    writer.append(entries(0, 5)).unwrap();
    assert!(log.wait_confirmed(EntryId(4)).await);
    let record = ledgers.client.record(writer.id()).await.unwrap();
    let victim = record.ensembles[0].bookies[1].clone();
    ledgers.bookies.iter().find(|b| *b.id() == victim).unwrap().crash();
    writer.append(entries(5, 5)).unwrap();
    assert!(log.wait_confirmed(EntryId(9)).await);
    assert_eq!(writer.close().await, Ok(EntryId(9)));
    let record = ledgers.client.record(writer.id()).await.unwrap();
    assert_eq!(record.ensembles.len(), 2);
    assert_eq!(record.ensembles[1].first, EntryId(5));
    assert!(!record.ensembles[1].bookies.contains(&victim));
    assert_eq!(ledgers.client.counters().ensemble_changes, 1);
    let reader = ledgers.client.open(writer.id()).await.unwrap();
    assert_eq!(read_all(reader.as_ref()).await, wanted(10));
}

#[tokio::test]
async fn without_a_replacement_the_writer_goes_on_with_an_ack_quorum_and_the_bookie_may_come_back() {
    let ledgers = MemoryLedgers::new(3);
    let (writer, log) = create(&ledgers, 3, 3, 2).await;
    ledgers.bookies[0].crash();
    writer.append(entries(0, 5)).unwrap();
    assert!(log.wait_confirmed(EntryId(4)).await);
    ledgers.bookies[1].crash();
    writer.append(entries(5, 5)).unwrap();
    ledgers.bookies[0].set(|faults| faults.down = false);
    assert!(log.wait_confirmed(EntryId(9)).await, "{:?}", log.events());
    assert!(ledgers.bookies[0].holds(writer.id(), EntryId(9)));
    assert_eq!(writer.close().await, Ok(EntryId(9)));
}

#[tokio::test]
async fn with_too_few_bookies_the_writer_ends_within_its_deadline() {
    let ledgers = MemoryLedgers::new(3);
    let (writer, log) = create(&ledgers, 3, 3, 2).await;
    ledgers.bookies[0].crash();
    ledgers.bookies[1].set(|faults| faults.mute = true);
    writer.append(entries(0, 1)).unwrap();
    assert!(log.wait_ended().await);
    assert_eq!(log.confirmed(), EntryId::NONE);
    assert!(writer.append(entries(1, 1)).is_err());
    assert!(writer.close().await.is_err());
}

#[tokio::test]
async fn a_read_only_single_bookie_ends_the_writer_at_once() {
    let ledgers = MemoryLedgers::new(1);
    let (writer, log) = create(&ledgers, 1, 1, 1).await;
    ledgers.bookies[0].set(|faults| faults.read_only = true);
    writer.append(entries(0, 1)).unwrap();
    assert!(log.wait_ended().await);
    let error = LedgerError::Bookie(BookieError::ReadOnly("told to be".to_owned()));
    assert_eq!(log.events(), [AppendEvent::Ended { ledger_id: writer.id(), error }]);
    let refused = ledgers.client.create(options(1, 1, 1), log.clone()).await.err();
    assert_eq!(refused, Some(LedgerError::NotEnoughBookies { needed: 1, available: 0 }));
    // The ledger can still be sealed (S10: recovery has reserved room).
    let reader = ledgers.client.recover(writer.id()).await.unwrap();
    assert_eq!(reader.last_confirmed(), EntryId::NONE);
}

#[tokio::test]
async fn a_busy_bookie_gets_the_entries_again() {
    let ledgers = MemoryLedgers::new(1);
    let (writer, log) = create(&ledgers, 1, 1, 1).await;
    ledgers.bookies[0].set(|f| f.refuse_adds = Some((3, BookieError::Busy("queue full".to_owned()))));
    for n in 0..5 {
        writer.append(entries(n, 1)).unwrap();
    }
    assert!(log.wait_confirmed(EntryId(4)).await);
    assert_eq!(read_all(writer.as_ref()).await, wanted(5));
    assert_eq!(ledgers.client.counters().ensemble_changes, 0);
}

#[tokio::test]
async fn a_new_owner_fences_the_old_one_and_finds_what_was_confirmed() {
    for (e, qw, qa) in [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2), (5, 5, 3)] {
        let ledgers = MemoryLedgers::new(5);
        let (writer, log) = create(&ledgers, e, qw, qa).await;
        writer.append(entries(0, 20)).unwrap();
        assert!(log.wait_confirmed(EntryId(19)).await);
        let other = ledgers.another();
        let reader = other.client.recover(writer.id()).await.unwrap();
        assert_eq!(reader.last_confirmed(), EntryId(19));
        assert_eq!(read_all(reader.as_ref()).await, wanted(20));
        let bytes = wanted(20).iter().map(|s| s.len() as u64).sum::<u64>();
        assert_eq!(reader.length_bytes(), bytes);
        writer.append(entries(20, 1)).unwrap();
        assert!(log.wait_ended().await);
        assert_eq!(log.confirmed(), EntryId(19), "nothing is confirmed after the fence");
        assert_eq!(writer.close().await, Err(LedgerError::Fenced(writer.id())));
        let again = other.client.recover(writer.id()).await.unwrap();
        assert_eq!(again.last_confirmed(), EntryId(19));
    }
}

#[tokio::test]
async fn two_recoveries_at_once_answer_the_same() {
    let ledgers = MemoryLedgers::new(4);
    let (writer, log) = create(&ledgers, 3, 3, 2).await;
    writer.append(entries(0, 30)).unwrap();
    assert!(log.wait_confirmed(EntryId(29)).await);
    let (one, two) = (ledgers.another(), ledgers.another());
    let (a, b) = tokio::join!(one.client.recover(writer.id()), two.client.recover(writer.id()));
    assert_eq!(a.unwrap().last_confirmed(), EntryId(29));
    assert_eq!(b.unwrap().last_confirmed(), EntryId(29));
}

#[tokio::test]
async fn a_recovery_without_enough_answers_says_what_it_waited_for_and_can_be_repeated() {
    let ledgers = MemoryLedgers::new(3);
    let (writer, log) = create(&ledgers, 3, 3, 2).await;
    writer.append(entries(0, 3)).unwrap();
    assert!(log.wait_confirmed(EntryId(2)).await);
    ledgers.bookies[0].crash();
    ledgers.bookies[1].set(|faults| faults.mute = true);
    let error = ledgers.another().client.recover(writer.id()).await.err().unwrap();
    assert!(matches!(&error, LedgerError::QuorumUnavailable { reason, .. } if reason.contains("fencing")), "{error}");
    assert_eq!(ledgers.client.record(writer.id()).await.unwrap().state, LedgerState::InRecovery);
    ledgers.bookies[1].set(|faults| faults.mute = false);
    let reader = ledgers.another().client.recover(writer.id()).await.unwrap();
    assert_eq!(read_all(reader.as_ref()).await, wanted(3));
}

#[tokio::test]
async fn b135_damage_and_silence_lead_to_another_replica() {
    let ledgers = MemoryLedgers::new(3);
    let (writer, log) = create(&ledgers, 3, 3, 3).await;
    writer.append(entries(0, 10)).unwrap();
    assert!(log.wait_confirmed(EntryId(9)).await);
    writer.close().await.unwrap();
    let reader = ledgers.client.open(writer.id()).await.unwrap();
    for (bookie, entry) in [(0, 0), (1, 0), (0, 4), (2, 4), (1, 9), (2, 9)] {
        ledgers.bookies[bookie].damage(writer.id(), EntryId(entry));
    }
    assert_eq!(read_all(reader.as_ref()).await, wanted(10));
    ledgers.bookies[0].damage(writer.id(), EntryId(9));
    let lost = reader.read(EntryId(9), 1, 100).await;
    assert!(matches!(lost, Err(LedgerError::Corrupt { entry_id: EntryId(9), .. })), "{lost:?}");

    ledgers.bookies[0].set(|faults| faults.mute = true);
    ledgers.bookies[1].set(|faults| faults.mute = true);
    assert_eq!(reader.read(EntryId(2), 1, 100).await.unwrap()[0].payload, "entry 2");
    ledgers.bookies[2].crash();
    let silent = reader.read(EntryId(2), 1, 100).await;
    assert!(matches!(silent, Err(LedgerError::QuorumUnavailable { .. })), "{silent:?}");
}

#[tokio::test]
async fn an_idle_writer_tells_its_last_add_confirmed_and_becomes_quiet() {
    let ledgers = MemoryLedgers::new(3);
    let (writer, log) = create(&ledgers, 3, 3, 2).await;
    writer.append(entries(0, 3)).unwrap();
    assert!(log.wait_confirmed(EntryId(2)).await);
    let told = || ledgers.bookies.iter().all(|b| b.heard(writer.id()) == EntryId(2));
    let quiet = async {
        while !told() || ledgers.client.active_writers() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(5), quiet).await.unwrap();
    let reader = ledgers.another().client.open(writer.id()).await.unwrap();
    assert_eq!(reader.last_confirmed(), EntryId(2), "an open ledger is readable up to its last-add-confirmed");
    assert_eq!(read_all(reader.as_ref()).await, wanted(3));
    assert!(!ledgers.bookies[0].is_fenced(writer.id()), "opening does not fence");
}

/// Appends from inside the news, and takes a lock there that the owner holds while appending.
struct Chained {
    writer: Mutex<Option<Arc<dyn LedgerWriter>>>,
    confirmed: Mutex<Vec<EntryId>>,
    log: EventLog,
}

impl AppendSink for Chained {
    fn append_event(&self, event: AppendEvent) {
        let writer = self.writer.lock();
        if let (Some(writer), AppendEvent::Confirmed { up_to, .. }) = (writer.as_ref(), &event) {
            self.confirmed.lock().push(*up_to);
            if up_to.0 < 99 {
                writer.append(entries(up_to.0 + 1, 1)).unwrap();
            }
        }
        self.log.append_event(event);
    }
}

#[tokio::test]
async fn news_may_append_and_take_the_owners_lock() {
    let ledgers = MemoryLedgers::new(3);
    let sink = Arc::new(Chained { writer: Mutex::new(None), confirmed: Mutex::default(), log: EventLog::default() });
    let writer = ledgers.client.create(options(3, 3, 2), sink.clone()).await.unwrap();
    {
        let mut place = sink.writer.lock();
        *place = Some(writer.clone());
        writer.append(entries(0, 1)).unwrap();
    }
    assert!(sink.log.wait_confirmed(EntryId(99)).await);
    let confirmed = sink.confirmed.lock().clone();
    assert!(confirmed.is_sorted() && confirmed.windows(2).all(|pair| pair[0] < pair[1]), "{confirmed:?}");
}

#[tokio::test]
async fn ids_are_never_given_twice_and_cost_one_write_each() {
    let ledgers = MemoryLedgers::new(1);
    let other = ledgers.another();
    let log = Arc::new(EventLog::default());
    let mut ids = Vec::new();
    for n in 0..200 {
        let client = if n % 2 == 0 { &ledgers.client } else { &other.client };
        ids.push(client.create(options(1, 1, 1), log.clone()).await.unwrap().id());
    }
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), 200);
    ledgers.client.delete(ids[0]).await.unwrap();
    ledgers.client.delete(ids[0]).await.unwrap();
    assert_eq!(ledgers.client.open(ids[0]).await.err(), Some(LedgerError::NoSuchLedger(ids[0])));
    assert_eq!(
        ledgers.client.recover(LedgerId(999_999)).await.err(),
        Some(LedgerError::NoSuchLedger(LedgerId(999_999)))
    );
}
