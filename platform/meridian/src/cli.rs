//! The command line.

use crate::role::Role;
use crate::{admin, apply, bookie, certs, cluster, config, process, regions, tokens};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::io::Write;
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
    /// Run a broker of a cluster.
    Broker(ProcessArgs),
    /// Run a storage node of a cluster, or work on its folders.
    #[command(args_conflicts_with_subcommands = true)]
    Bookie {
        #[command(flatten)]
        run: ProcessArgs,
        #[command(subcommand)]
        command: Option<BookieCommand>,
    },
    /// Run a broker and a storage node of a cluster in one process: the broker calls its own storage node directly.
    Node(ProcessArgs),
    /// Restore copies of lost bookies and audit, for clusters whose bookies do not do that beside their work.
    Autorecovery(ProcessArgs),
    /// Set up a cluster of many processes.
    Cluster {
        #[command(subcommand)]
        command: cluster::ClusterCommand,
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
    /// Bring a declarative document into force: tenants, namespaces, policies, topics, grants, regions.
    Apply(apply::ApplyArgs),
    /// Call the admin API of a region.
    Admin(admin::AdminArgs),
    /// Print the script by which a shell completes this command's words.
    Completion {
        /// Which shell.
        shell: Shell,
    },
    /// Put load on a region and say what it does to latency.
    Perf(meridian_bench::perf::PerfArgs),
}

#[derive(Subcommand)]
enum BookieCommand {
    /// Build the index anew from the entry logs. The node must not run.
    RebuildIndex(ProcessArgs),
}

/// Where settings come from.
#[derive(Args, Clone)]
pub struct SettingsArgs {
    /// Properties file (key=value), e.g. a broker.conf.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting; wins over the file. May be given many times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// What every server process takes.
#[derive(Args, Clone)]
pub struct ProcessArgs {
    /// Folder of all data; made if absent. A broker of a cluster needs none.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// Write the addresses here as JSON once everything answers (for scripts that use port 0).
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// End as by SIGTERM once standard input closes (for a parent that must not leave it behind).
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,
}

/// What `meridian standalone` takes.
#[derive(Args, Clone)]
pub struct StandaloneArgs {
    #[command(flatten)]
    pub process: ProcessArgs,
    /// Bookies in this process.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub bookies: Option<u16>,
}

fn rebuild_index(args: &ProcessArgs) -> Result<(), Failure> {
    let data_dir = args.data_dir.as_deref().ok_or("--data-dir: expected the folder of all data")?;
    let (settings, _) = config::load(Role::Standalone, &args.settings)?;
    bookie::rebuild_index(&settings, data_dir)
}

/// The script, whole before any of it is written: a reader that goes away is an error, no panic.
fn completion(shell: Shell) -> Vec<u8> {
    let (mut command, mut script) = (Cli::command(), Vec::new());
    clap_complete::generate(shell, &mut command, "meridian", &mut script);
    script
}

impl Cli {
    /// Runs what was asked for.
    ///
    /// # Errors
    /// Whatever ended it.
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Standalone(args) => process::run(Role::Standalone, &args.process, args.bookies),
            Command::Broker(args) => process::run(Role::Broker, &args, None),
            Command::Autorecovery(args) => process::run(Role::Autorecovery, &args, None),
            Command::Node(args) => process::run(Role::Node, &args, None),
            Command::Bookie { command: None, run } => process::run(Role::Bookie, &run, None),
            Command::Bookie { command: Some(BookieCommand::RebuildIndex(args)), .. } => rebuild_index(&args),
            Command::Cluster { command } => cluster::run(command),
            Command::Regions(args) => regions::run(args),
            Command::Settings { markdown: true } => {
                print!("{}", meridian_settings::print::as_markdown());
                Ok(())
            }
            Command::Settings { markdown: false } => {
                print!("{}", meridian_settings::print::as_text());
                Ok(())
            }
            Command::Tokens { command } => tokens::run(command),
            Command::Certs { command } => certs::run(command),
            Command::Apply(args) => apply::run(args),
            Command::Admin(args) => admin::run(args),
            Command::Completion { shell } => Ok(std::io::stdout().write_all(&completion(shell))?),
            Command::Perf(args) => Ok(meridian_bench::perf::run(args)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_completes_commands_nouns_and_verbs() {
        Cli::command().debug_assert();
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completion(*shell)).unwrap();
            for word in ["standalone", "apply", "create-partitioned-topic", "set-retention", "--dry-run"] {
                // One of the shells leaves the dashes out.
                assert!(script.contains(word.trim_start_matches('-')), "{shell}: {word}");
            }
        }
    }
}
