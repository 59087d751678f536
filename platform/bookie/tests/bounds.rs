//! Floods: memory stays bounded, every add is answered, what was answered `Ok` is there.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic")]

mod common;

use common::{Answers, add_entry, config, payload, read};
use meridian_bookie::LocalBookie;
use meridian_bookie_api::{AddSink, Bookie, BookieError};
use std::sync::Arc;

fn gauge(registry: &prometheus::Registry, name: &str) -> i64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == name).unwrap();
    family.get_metric()[0].get_gauge().get_value() as i64
}

#[test]
fn a_flood_is_refused_as_busy_beyond_the_bound() {
    let base = tempfile::tempdir().unwrap();
    let mut small = config(base.path());
    small.write_cache_bytes = 64 << 10;
    small.journal.queue_bytes = 32 << 10;
    let (cache_bytes, queue_bytes) = (small.write_cache_bytes, small.journal.queue_bytes);
    let registry = small.registry.clone();
    let bookie = LocalBookie::open(small).unwrap();
    let answers = Arc::new(Answers::default());
    let entries = 4000;
    let mut highest = 0;
    for entry in 0..entries {
        let add = add_entry(entry % 5, entry / 5, payload(entry % 5, entry / 5, 1000), false);
        bookie.add(vec![add], Arc::clone(&answers) as Arc<dyn AddSink>);
        if entry % 50 == 0 {
            highest = highest.max(gauge(&registry, "bookie_write_cache_size"));
        }
    }
    let results = answers.wait(entries as usize);
    assert_eq!(results.len(), entries as usize, "each once");
    // Active up to its hard bound (twice its size and the queue), the other one as large as it was swapped.
    let bound = 2 * (2 * cache_bytes + queue_bytes) as i64;
    assert!(highest <= bound, "{highest} bytes in the caches, {bound} allowed");
    let mut taken = 0;
    for result in &results {
        match &result.result {
            Ok(()) => {
                taken += 1;
                let (ledger, entry) = (result.ledger_id.0, result.entry_id.0);
                assert_eq!(read(&*bookie, ledger, entry, 1).unwrap()[0].payload, payload(ledger, entry, 1000));
            }
            Err(error) => assert!(matches!(error, BookieError::Busy(_)), "{error}"),
        }
    }
    assert!(taken > 0);
}

#[test]
fn closing_answers_everything_that_was_taken() {
    let base = tempfile::tempdir().unwrap();
    let bookie = common::open(base.path());
    let answers = Arc::new(Answers::default());
    for entry in 0..500 {
        bookie.add(vec![add_entry(1, entry, payload(1, entry, 500), false)], Arc::clone(&answers) as Arc<dyn AddSink>);
    }
    bookie.close().unwrap();
    let results = answers.wait(500);
    assert!(results.iter().all(|one| one.result == Ok(())));
    bookie.add(vec![add_entry(1, 500, payload(1, 500, 500), false)], Arc::clone(&answers) as Arc<dyn AddSink>);
    assert!(matches!(answers.wait(501)[500].result, Err(BookieError::Unavailable(_))));
    drop(bookie);
    common::check(&*common::open(base.path()), 1, 0..500, 500);
}
