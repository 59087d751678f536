//! The one binary.
//!
//! Role: reads the command line and hands over to a subcommand; nothing is decided here.
//! Failure: an error ends the process with exit code 1 and one line that says what to change.
//! Must never know: any protocol decision.
#![forbid(unsafe_code)]

mod admin;
mod apply;
mod audit;
mod bookie;
mod bookies;
mod broker;
mod certs;
mod child;
mod cli;
mod cluster;
mod config;
mod failover;
mod floors;
mod front;
mod logging;
mod patience;
mod ports;
mod process;
mod ready;
mod recovery;
mod region_link;
mod regions;
mod role;
mod stats_page;
mod storage_desk;
mod store;
mod tokens;

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // `eprintln!` panics where standard error can't be written.
            let _ = writeln!(std::io::stderr(), "meridian: {error}");
            ExitCode::FAILURE
        }
    }
}
