//! The command line.

use crate::{admin, bookie, certs, config, regions, standalone, tokens};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// An error that ends the process: its text is all that is left of it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A multi-region, geo-replicated messaging platform that speaks the Pulsar protocol.
#[derive(Parser)]
#[command(name = "meridian", version, about, long_about = None)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one region in this process: metadata, bookies, broker, admin API.
    Standalone(StandaloneArgs),
    /// Run two regions, west and east, that replicate to each other.
    Regions(regions::RegionsArgs),
    /// Print every setting with its default and what it does.
    Settings {
        /// As the reference page of the documentation.
        #[arg(long)]
        markdown: bool,
    },
    /// Work on a storage node's folders.
    Bookie {
        #[command(subcommand)]
        command: BookieCommand,
    },
    /// Make and check tokens.
    Tokens {
        #[command(subcommand)]
        command: tokens::TokensCommand,
    },
    /// Make certificates for trying things out.
    Certs {
        #[command(subcommand)]
        command: certs::CertsCommand,
    },
    /// Call the admin API of a region.
    Admin(admin::AdminArgs),
    /// Put load on a region and say what it does to latency.
    Perf(meridian_bench::perf::PerfArgs),
}

#[derive(Subcommand)]
enum BookieCommand {
    /// Build the index anew from the entry logs. The node must not run.
    RebuildIndex(StandaloneArgs),
}

/// Where settings come from.
#[derive(Args, Clone)]
pub struct StandaloneArgs {
    /// Folder of all data; made if absent.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Properties file (key=value), e.g. a broker.conf.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting; wins over the file. May be given many times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Bookies in this process.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub bookies: Option<u16>,
    /// Write the addresses here as JSON once everything answers (for scripts that use port 0).
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// End as by SIGTERM once standard input closes (for a parent that must not leave it behind).
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,
}

impl Cli {
    /// Runs what was asked for.
    ///
    /// # Errors
    /// Whatever ended it.
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Standalone(args) => standalone::run(args),
            Command::Regions(args) => regions::run(args),
            Command::Settings { markdown: true } => {
                print!("{}", meridian_settings::print::as_markdown());
                Ok(())
            }
            Command::Settings { markdown: false } => {
                print!("{}", meridian_settings::print::as_text());
                Ok(())
            }
            Command::Bookie { command: BookieCommand::RebuildIndex(args) } => {
                let (settings, _) = config::load(&args)?;
                bookie::rebuild_index(&settings, &args.data_dir)
            }
            Command::Tokens { command } => tokens::run(command),
            Command::Certs { command } => certs::run(command),
            Command::Admin(args) => admin::run(args),
            Command::Perf(args) => Ok(meridian_bench::perf::run(args)?),
        }
    }
}
