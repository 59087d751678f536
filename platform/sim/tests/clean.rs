//! Many seeds without a planted bug: nothing is found, and enough happens.

use meridian_sim::{Planted, run, run_many};

const SEEDS: u64 = 1000;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

#[test]
fn a_thousand_seeds_violate_nothing() {
    let report = run_many(0, SEEDS, Planted::Nothing, threads(), 1);
    assert_eq!(report.first, [], "play it: cargo run -p meridian-sim -- --seed N");
    assert_eq!((report.runs, report.violated), (SEEDS, 0));
    for (name, count) in report.coverage.list() {
        assert!(count > 0, "{name} never happened");
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in [3, 4, 5, 11] {
        let (one, other) = (run(seed, Planted::Nothing, true), run(seed, Planted::Nothing, true));
        assert!(one.trace.len() > 100);
        assert_eq!(one.trace, other.trace);
        assert_eq!((one.coverage, one.ended_ms), (other.coverage, other.ended_ms));
    }
}
