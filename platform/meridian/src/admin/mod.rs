//! `meridian admin`: operators' commands over the admin API of a running region.
//!
//! Role: arguments in, calls out, answers printed as JSON (for scripts) or as sentences (for people).
//! Failure: one line with the call, its status and its reason; exit code 1.
//! Must never know: what a call does in the region.

pub mod api;
mod bookies;
mod failover;

use crate::cli::Failure;
use api::Admin;
use clap::{Args, Subcommand};
use meridian_client::TlsSettings;
use std::path::PathBuf;

/// Holds a token, if `--token` does not.
const TOKEN_VARIABLE: &str = "MERIDIAN_TOKEN";

/// Which region is called, and as whom.
#[derive(Args)]
pub struct Connection {
    /// Admin address of a region.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Token of an operator; without it the one in MERIDIAN_TOKEN, if there is one.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Certificates to trust (PEM), for https.
    #[arg(long, value_name = "FILE")]
    trust: Option<PathBuf>,
    /// Client certificate (PEM), for https.
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// Its key (PEM).
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
}

impl Connection {
    /// The region's API.
    ///
    /// # Errors
    /// The address is none.
    pub fn admin(&self) -> Result<Admin, Failure> {
        let tls = TlsSettings {
            trust_file: self.trust.clone(),
            certificate_file: self.certificate.clone(),
            key_file: self.key.clone(),
            ..TlsSettings::default()
        };
        let from_environment = || std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
        Admin::at(&self.url, tls, self.token.clone().or_else(from_environment))
    }
}

/// A line on standard output.
#[expect(clippy::print_stdout, reason = "this is what the commands are for")]
pub fn say(line: &str) {
    println!("{line}");
}

#[derive(Args)]
pub struct AdminArgs {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: AdminCommand,
}

#[derive(Subcommand)]
enum AdminCommand {
    /// Storage nodes: which there are, taking one away, audits of all copies.
    Bookies {
        #[command(subcommand)]
        command: bookies::BookiesCommand,
    },
    /// Which region is active for a namespace, what a switch costs, switches, and what they leave behind.
    Failover {
        #[command(subcommand)]
        command: failover::FailoverCommand,
    },
}

/// Runs one of them.
///
/// # Errors
/// What the region answered.
pub fn run(args: AdminArgs) -> Result<(), Failure> {
    let admin = args.connection.admin()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match args.command {
        AdminCommand::Bookies { command } => runtime.block_on(bookies::run(&admin, command)),
        AdminCommand::Failover { command } => runtime.block_on(failover::run(&admin, command)),
    }
}
