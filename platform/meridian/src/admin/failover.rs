//! `meridian admin failover`: the cost before, the switch, the account after.
//!
//! Failure: a switch of many namespaces goes on after one that was refused and ends with an error that counts them and
//! names those that were switched; with an error nothing else is printed, but for a plan that names what stands in its way.
//! Must never know: how switches are made.

use super::api::Admin;
use super::say;
use crate::cli::Failure;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

const PATH: &str = "/admin/v2/meridian/failover";

/// Namespaces to work on.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// TENANT/NAMESPACE.
    #[arg(value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// All namespaces of a tenant that have an active region.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// All namespaces whose active region is this one.
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
}

#[derive(Subcommand)]
pub enum FailoverCommand {
    /// Give a namespace its first active region: the others send clients there.
    Enable {
        /// TENANT/NAMESPACE.
        namespace: String,
        /// The region.
        #[arg(long, value_name = "REGION")]
        active: String,
    },
    /// Show who is active.
    Show {
        /// TENANT/NAMESPACE; all without it.
        namespace: Option<String>,
    },
    /// What a switch would cost: messages missing, messages seen again.
    Cost {
        /// TENANT/NAMESPACE.
        namespace: String,
        /// The target.
        #[arg(long, value_name = "REGION")]
        to: String,
    },
    /// The steps of a planned switch, and what stands in its way.
    Plan {
        #[command(flatten)]
        which: Which,
        /// The target.
        #[arg(long, value_name = "REGION")]
        to: String,
    },
    /// Switch: publishes are held, everything is drained, clients are moved.
    Switch {
        #[command(flatten)]
        which: Which,
        /// The target.
        #[arg(long, value_name = "REGION")]
        to: String,
        /// Without asking the active region; --url must be the target's. What it had not sent is set aside there.
        #[arg(long)]
        force: bool,
    },
    /// How the account of the last switch stands.
    Settle {
        /// TENANT/NAMESPACE.
        namespace: String,
    },
    /// What a forced switch left behind in this region.
    Tails {
        #[command(subcommand)]
        command: TailsCommand,
    },
}

#[derive(Subcommand)]
pub enum TailsCommand {
    /// List them.
    List {
        /// TENANT/NAMESPACE.
        namespace: String,
    },
    /// Publish one in the active region, each message labelled.
    Replay(TailArgs),
    /// Give one up.
    Drop(TailArgs),
}

#[derive(Args)]
pub struct TailArgs {
    /// TENANT/NAMESPACE.
    namespace: String,
    /// The topic (partition).
    #[arg(long)]
    topic: String,
    /// The epoch that cut it off.
    #[arg(long)]
    epoch: String,
}

/// Runs one of them.
///
/// # Errors
/// What the region answered.
pub async fn run(admin: &Admin, command: FailoverCommand) -> Result<(), Failure> {
    match command {
        FailoverCommand::Enable { namespace, active } => {
            print(&admin.put(&format!("{PATH}/{namespace}"), &json!({ "active": active })).await?)
        }
        FailoverCommand::Show { namespace: Some(namespace) } => {
            print(&admin.get(&format!("{PATH}/{namespace}")).await?)
        }
        FailoverCommand::Show { namespace: None } => print(&admin.get(PATH).await?),
        FailoverCommand::Cost { namespace, to } => print(&cost(admin, &namespace, &to).await?),
        FailoverCommand::Plan { which, to } => plan(admin, &which, &to).await,
        FailoverCommand::Switch { which, to, force } => switch(admin, &which, &to, force).await,
        FailoverCommand::Settle { namespace } => print(&admin.get(&format!("{PATH}/{namespace}/settlement")).await?),
        FailoverCommand::Tails { command } => tails(admin, command).await,
    }
}

#[expect(clippy::print_stdout, reason = "this is what the command is for")]
fn print(value: &Value) -> Result<(), Failure> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

async fn cost(admin: &Admin, namespace: &str, to: &str) -> Result<Value, Failure> {
    admin.get(&format!("{PATH}/{namespace}/cost?to={to}")).await
}

/// The namespaces meant; of many, those that are active in `to` already are left out.
async fn chosen(admin: &Admin, which: &Which, to: &str) -> Result<Vec<String>, Failure> {
    if let Some(namespace) = &which.namespace {
        return Ok(vec![namespace.clone()]);
    }
    let all = admin.get(PATH).await?;
    let mut names = Vec::new();
    for one in all.as_array().into_iter().flatten() {
        let (Some(name), Some(active)) = (one["namespace"].as_str(), one["active"].as_str()) else { continue };
        let of_tenant = which.tenant.as_ref().is_none_or(|tenant| name.split('/').next() == Some(tenant));
        let of_region = which.region.as_ref().is_none_or(|region| active == region);
        if of_tenant && of_region && active != to {
            names.push(name.to_owned());
        }
    }
    if names.is_empty() {
        return Err("no namespace that has an active region is meant".into());
    }
    Ok(names)
}

async fn plan(admin: &Admin, which: &Which, to: &str) -> Result<(), Failure> {
    let mut reports = Vec::new();
    for namespace in chosen(admin, which, to).await? {
        let report = cost(admin, &namespace, to).await?;
        reports.push((namespace, report));
    }
    let mut blocked = 0;
    for (namespace, report) in &reports {
        let (missing, again) = (figure(&report["missing"]), figure(&report["again"]));
        let from = report["from"].as_str().unwrap_or_default();
        say(&format!("{namespace}: from {from} (epoch {}) to {to}", report["epoch"].as_str().unwrap_or_default()));
        say(&format!("  1. hold publishes in {from}, wait until what is in flight is stored"));
        say(&format!("  2. drain {missing} messages and {again} acknowledgements to {to}"));
        say(&format!("  3. hand over: {to} is active, {from} refuses publishes"));
        say(&format!("  4. move clients to {to}"));
        if report["exact"] != Value::Bool(true) && report["unknown"].as_array().is_none_or(Vec::is_empty) {
            say("  these figures are what was heard last, not what is");
        }
        for blocker in report["blockers"].as_array().into_iter().flatten() {
            blocked += 1;
            say(&format!("  ! {}", blocker.as_str().unwrap_or_default()));
        }
    }
    if blocked == 0 { Ok(()) } else { Err(format!("{blocked} things stand in the way or are not known").into()) }
}

/// What is not known is no number.
fn figure(value: &Value) -> String {
    value.as_u64().map_or_else(|| "an unknown number of".to_owned(), |number| number.to_string())
}

async fn switch(admin: &Admin, which: &Which, to: &str, force: bool) -> Result<(), Failure> {
    let names = chosen(admin, which, to).await?;
    let (mut accounts, mut switched, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for namespace in &names {
        let answer = match force {
            false => admin.post(&format!("{PATH}/{namespace}/switch"), &json!({ "to": to })).await,
            true => forced(admin, namespace, to).await,
        };
        match answer {
            Ok(account) => {
                accounts.push(json!({ "namespace": namespace, "account": account }));
                switched.push(namespace.as_str());
            }
            Err(error) => failures.push(format!("{namespace}: {error}")),
        }
    }
    if failures.is_empty() {
        return print(&Value::from(accounts));
    }
    let were = format!("{} of {} namespaces were not switched: {}", failures.len(), names.len(), failures.join("; "));
    if switched.is_empty() {
        return Err(were.into());
    }
    Err(format!("{were}; switched: {}", switched.join(", ")).into())
}

/// The region that answers has to be the one that is meant.
async fn forced(admin: &Admin, namespace: &str, to: &str) -> Result<Value, Failure> {
    let own = admin.get("/admin/v2/meridian/region-link").await?;
    if let Some(own) = own["region"].as_str().filter(|own| *own != to) {
        return Err(format!("--url is region {own}, a forced switch is made at {to}").into());
    }
    admin.post(&format!("{PATH}/{namespace}/force"), &Value::Null).await
}

async fn tails(admin: &Admin, command: TailsCommand) -> Result<(), Failure> {
    let (args, step) = match command {
        TailsCommand::List { namespace } => return print(&admin.get(&format!("{PATH}/{namespace}/tails")).await?),
        TailsCommand::Replay(args) => (args, "replay"),
        TailsCommand::Drop(args) => (args, "drop"),
    };
    let body = json!({ "topic": args.topic, "epoch": args.epoch });
    print(&admin.post(&format!("{PATH}/{}/tails/{step}", args.namespace), &body).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_said_in_words() {
        assert_eq!(figure(&json!(0)), "0");
        assert_eq!(figure(&Value::Null), "an unknown number of");
    }
}
