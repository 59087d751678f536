//! `meridian admin`: operators' commands over the admin API of a running region.
//!
//! Role: arguments in, calls out, answers printed as JSON (for scripts) or as sentences (for people).
//! Failure: one line with the call, its status and its reason; exit code 1.
//! Must never know: what a call does in the region.

pub mod api;
mod bookies;
mod context;
mod failover;
mod verbs;

use crate::cli::Failure;
use api::Admin;
use clap::{Args, Subcommand};
use meridian_client::TlsSettings;
use std::path::PathBuf;

/// Where a region on this machine listens.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// Holds a token, if `--token` does not.
const TOKEN_VARIABLE: &str = "MERIDIAN_TOKEN";

/// Which region is called, and as whom.
#[derive(Args)]
pub struct Connection {
    /// Admin address of a region; without it the one of the context in use, else http://127.0.0.1:8080.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// A context made by `meridian admin context set`, instead of the one in use.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
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
        // An address that was typed is not of the context, and its credentials go to nobody else.
        let chosen = match (&self.url, &self.context) {
            (Some(_), None) => context::Context::default(),
            (_, name) => context::chosen(name.as_deref())?,
        };
        let tls = TlsSettings {
            trust_file: self.trust.clone().or(chosen.trust),
            certificate_file: self.certificate.clone().or(chosen.certificate),
            key_file: self.key.clone().or(chosen.key),
            ..TlsSettings::default()
        };
        let from_environment = || std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
        let token = match (self.token.clone().or_else(from_environment), chosen.token_file) {
            (Some(token), _) => Some(token),
            (None, Some(file)) => Some(context::token_of(&file)?),
            (None, None) => None,
        };
        let url = self.url.clone().or(chosen.url);
        Admin::at(url.as_deref().unwrap_or(DEFAULT_URL), tls, token)
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
    /// How answers are printed.
    #[arg(short, long, value_enum, default_value = "table", global = true)]
    output: verbs::Format,
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
    /// Regions that are called by a name: addresses and where their credentials are.
    Context {
        #[command(subcommand)]
        command: context::ContextCommand,
    },
    /// The admin API as an OpenAPI document.
    Openapi,
    /// A noun and a verb.
    #[command(flatten)]
    Typed(verbs::Typed),
}

/// Runs one of them.
///
/// # Errors
/// What the region answered.
pub fn run(args: AdminArgs) -> Result<(), Failure> {
    let command = match args.command {
        AdminCommand::Context { command } => return context::run(command),
        AdminCommand::Openapi => {
            say(&serde_json::to_string_pretty(&meridian_admin::openapi::document())?);
            return Ok(());
        }
        command => command,
    };
    let admin = args.connection.admin()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        AdminCommand::Bookies { command } => runtime.block_on(bookies::run(&admin, command)),
        AdminCommand::Failover { command } => runtime.block_on(failover::run(&admin, command)),
        AdminCommand::Typed(typed) => runtime.block_on(typed.run(&admin, args.output)),
        AdminCommand::Context { .. } | AdminCommand::Openapi => Ok(()),
    }
}
