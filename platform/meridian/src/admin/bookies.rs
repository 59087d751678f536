//! `meridian admin bookies`: the list, taking one away, audits.
//!
//! Failure: an order that was refused, or a wait that was broken off: the order stands all the same.
//! Must never know: how ledgers are moved.

use super::api::Admin;
use crate::cli::Failure;
use clap::Subcommand;
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/admin/v2/meridian/bookies";
const AUDIT: &str = "/admin/v2/meridian/bookies-audit";
/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Subcommand)]
pub enum BookiesCommand {
    /// All bookies with their state, place, number of ledgers, and whether they leave.
    List,
    /// Move all ledgers of a bookie to others, wait until nothing of it is needed, and show how far it is.
    Decommission {
        /// The bookie.
        id: String,
        /// Writable bookies that have to be left: the widest ensemble of the cluster.
        #[arg(long, default_value_t = 1)]
        keep: usize,
        /// Give the order and do not wait.
        #[arg(long)]
        no_wait: bool,
    },
    /// Take the order back: the bookie is chosen again. What was moved stays moved.
    Recommission {
        /// The bookie.
        id: String,
    },
    /// Look at all copies now and show what was found; without --now what the last audit found.
    Audit {
        /// Order an audit and wait for its end.
        #[arg(long)]
        now: bool,
    },
}

/// Runs one of them.
///
/// # Errors
/// What the region answered; an audit that found something.
pub async fn run(admin: &Admin, command: BookiesCommand) -> Result<(), Failure> {
    match command {
        BookiesCommand::List => list(&admin.get(PATH).await?),
        BookiesCommand::Decommission { id, keep, no_wait } => decommission(admin, &id, keep, no_wait).await,
        BookiesCommand::Recommission { id } => admin.delete(&format!("{PATH}/{id}/decommission")).await,
        BookiesCommand::Audit { now } => audit(admin, now).await,
    }
}

#[expect(clippy::print_stdout, reason = "this is what the command is for")]
fn say(line: &str) {
    println!("{line}");
}

fn list(lines: &Value) -> Result<(), Failure> {
    say(&format!("{:<28} {:<10} {:<20} {:>9}  {}", "BOOKIE", "STATE", "PLACE", "LEDGERS", "LEAVES"));
    for line in lines.as_array().into_iter().flatten() {
        let text = |name: &str| line[name].as_str().unwrap_or_default();
        let place: String =
            ["region", "zone"].iter().filter_map(|part| line[*part].as_str()).map(|part| format!("/{part}")).collect();
        let leaves = line["leaving"]["reason"].as_str().unwrap_or_default();
        say(&format!("{:<28} {:<10} {place:<20} {:>9}  {leaves}", text("id"), text("state"), line["ledgers"]));
    }
    Ok(())
}

async fn decommission(admin: &Admin, id: &str, keep: usize, no_wait: bool) -> Result<(), Failure> {
    let path = format!("{PATH}/{id}/decommission");
    let mut progress = admin.put(&format!("{path}?keep={keep}"), &Value::Null).await?;
    let mut told = None;
    loop {
        let left = progress["ledgersLeft"].as_u64().unwrap_or_default();
        if told != Some(left) {
            say(&format!("{id}: {left} ledgers left"));
            told = Some(left);
        }
        if progress["done"] == json!(true) {
            say(&format!("{id}: nothing of it is needed any more; it may be stopped"));
            return Ok(());
        }
        if no_wait {
            return Ok(());
        }
        if progress["leaving"].is_null() {
            return Err(format!("{id}: the order was taken back").into());
        }
        tokio::time::sleep(LOOK).await;
        progress = admin.get(&path).await?;
    }
}

async fn audit(admin: &Admin, now: bool) -> Result<(), Failure> {
    let mut ordered_ms = 0;
    if now {
        let ordered = admin.post(AUDIT, &Value::Null).await?;
        ordered_ms = ordered["orderedMs"].as_u64().unwrap_or_default();
        say("the audit is ordered");
    }
    let report = loop {
        match admin.get(AUDIT).await {
            Ok(report) if report["begunMs"].as_u64().unwrap_or_default() >= ordered_ms => break report,
            Ok(_) => {}
            // There was none before.
            Err(error) if now && error.to_string().contains("No audit has ended yet") => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(LOOK).await;
    };
    say(&serde_json::to_string_pretty(&report)?);
    let count = |name: &str| report[name].as_u64().unwrap_or_default();
    let beyond = report["unrecoverable"].as_array().map_or(0, Vec::len);
    for line in report["unrecoverable"].as_array().into_iter().flatten() {
        say(&format!("ledger {} is unrecoverable: {}", line["ledger"], line["reason"].as_str().unwrap_or_default()));
    }
    let found = count("missingCopies") + count("damagedCopies") + count("underReplicatedLedgers");
    match (found, beyond) {
        (0, 0) => Ok(()),
        (_, 0) => Err(format!("{found} findings; repairs are ordered").into()),
        _ => Err(format!("{found} findings; {beyond} ledgers are unrecoverable until a bookie comes back").into()),
    }
}
