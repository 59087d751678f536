//! Plays seeds: one with its trace, or many with what came of them.
#![forbid(unsafe_code)]

use clap::Parser;
use meridian_sim::{Plan, Planted, Report, run, run_many};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Two or three regions in one process, from a seed, with faults and checkers.
#[derive(Parser)]
#[command(name = "meridian-sim", version)]
struct Cli {
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
    #[arg(long, value_name = "NAME", value_parser = planted, default_value = "nothing")]
    plant: Planted,
}

fn planted(name: &str) -> Result<Planted, String> {
    if name.eq_ignore_ascii_case("nothing") {
        return Ok(Planted::Nothing);
    }
    let names: Vec<String> = Planted::ALL.iter().map(|planted| format!("{planted:?}")).collect();
    Planted::named(name).ok_or_else(|| format!("there are: {}", names.join(", ")))
}

fn play(seed: u64, planted: Planted) -> usize {
    println!("{:#?}", Plan::of(seed));
    let outcome = run(seed, planted, true);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    println!("\nended at {} ms of simulated time\n{}", outcome.ended_ms, outcome.coverage);
    outcome.violations.iter().for_each(|violation| println!("VIOLATION {violation}"));
    println!("violations {}", outcome.violations.len());
    outcome.violations.len()
}

fn print(report: &Report, took: Duration) {
    println!("schedules {}", report.runs);
    println!("violations {}", report.violated);
    println!("time {:.1} s, simulated {:.1} h", took.as_secs_f64(), report.simulated_ms as f64 / 3_600_000.0);
    for (seed, violation) in &report.first {
        println!("  seed {seed}: {violation}");
    }
    print!("{}", report.coverage);
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let violated = match cli.seed {
        Some(seed) => play(seed, cli.plant) > 0,
        None => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let begun = Instant::now();
            let report = run_many(cli.from, cli.schedules, cli.plant, cli.threads.unwrap_or(cores), 0);
            print(&report, begun.elapsed());
            report.violated > 0
        }
    };
    if violated { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
