//! Plays seeds: one with its trace, or many with what came of them.
#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use meridian_sim::storage::{Bug, StoragePlan, run_many_storage, run_storage};
use meridian_sim::{Plan, Planted, run, run_many};
use std::fmt::{Debug, Display};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum World {
    /// Two or three regions of one replicated topic.
    Regions,
    /// The storage of one region: bookies, owners of a log, autorecovery, metadata.
    Storage,
}

/// Whole regions in one process, from a seed, with faults and checkers.
#[derive(Parser)]
#[command(name = "meridian-sim", version)]
struct Cli {
    /// What is simulated.
    #[arg(long, value_enum, default_value = "regions")]
    world: World,
    /// Play this seed and print everything that happens.
    #[arg(long, value_name = "N", conflicts_with = "schedules")]
    seed: Option<u64>,
    /// Play so many seeds and print what came of them.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    schedules: u64,
    /// The first of them.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// On so many threads; without, on all cores.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Plant a bug, by name.
    #[arg(long, value_name = "NAME", default_value = "nothing")]
    plant: String,
}

/// What many runs came to, whichever world they were in.
struct Summary {
    runs: u64,
    violated: u64,
    first: Vec<(u64, String)>,
    simulated_ms: u64,
    coverage: String,
}

fn unknown(all: &[impl Debug]) -> String {
    let names: Vec<String> = all.iter().map(|one| format!("{one:?}")).collect();
    format!("--plant: there are {}", names.join(", "))
}

fn planted<T: Default>(name: &str, found: Option<T>, all: &[impl Debug]) -> Result<T, String> {
    if name.eq_ignore_ascii_case("nothing") {
        return Ok(T::default());
    }
    found.ok_or_else(|| unknown(all))
}

fn tell(plan: &impl Debug, trace: &[String], ended_ms: u64, coverage: &impl Display, violations: &[String]) -> bool {
    println!("{plan:#?}");
    trace.iter().for_each(|line| println!("{line}"));
    println!("\nended at {ended_ms} ms of simulated time\n{coverage}");
    violations.iter().for_each(|violation| println!("VIOLATION {violation}"));
    println!("violations {}", violations.len());
    !violations.is_empty()
}

fn print(summary: &Summary, took: Duration) -> bool {
    println!("schedules {}", summary.runs);
    println!("violations {}", summary.violated);
    println!("time {:.1} s, simulated {:.1} h", took.as_secs_f64(), summary.simulated_ms as f64 / 3_600_000.0);
    for (seed, violation) in &summary.first {
        println!("  seed {seed}: {violation}");
    }
    print!("{}", summary.coverage);
    summary.violated > 0
}

fn play(cli: &Cli) -> Result<bool, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (threads, begun) = (cli.threads.unwrap_or(cores), Instant::now());
    match (cli.world, cli.seed) {
        (World::Regions, Some(seed)) => {
            let bug = planted(&cli.plant, Planted::named(&cli.plant), &Planted::ALL)?;
            let run = run(seed, bug, true);
            Ok(tell(&Plan::of(seed), &run.trace, run.ended_ms, &run.coverage, &run.violations))
        }
        (World::Storage, Some(seed)) => {
            let bug = planted(&cli.plant, Bug::named(&cli.plant), &Bug::ALL)?;
            let run = run_storage(seed, bug, true);
            Ok(tell(&StoragePlan::of(seed), &run.trace, run.ended_ms, &run.coverage, &run.violations))
        }
        (World::Regions, None) => {
            let bug = planted(&cli.plant, Planted::named(&cli.plant), &Planted::ALL)?;
            let many = run_many(cli.from, cli.schedules, bug, threads, 0);
            let (runs, violated, simulated_ms) = (many.runs, many.violated, many.simulated_ms);
            let coverage = many.coverage.to_string();
            Ok(print(&Summary { runs, violated, first: many.first, simulated_ms, coverage }, begun.elapsed()))
        }
        (World::Storage, None) => {
            let bug = planted(&cli.plant, Bug::named(&cli.plant), &Bug::ALL)?;
            let many = run_many_storage(cli.from, cli.schedules, bug, threads, 0);
            let (runs, violated, simulated_ms) = (many.runs, many.violated, many.simulated_ms);
            let coverage = many.coverage.to_string();
            Ok(print(&Summary { runs, violated, first: many.first, simulated_ms, coverage }, begun.elapsed()))
        }
    }
}

fn main() -> ExitCode {
    match play(&Cli::parse()) {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
