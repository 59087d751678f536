//! `meridian regions`: two embedded regions, `west` and `east`, that know each other.
//!
//! Role: starts two children of this binary (`standalone`), registers each with the other over the admin API, makes the
//! replicated namespace `demo/orders`, says how to try it, and ends both when asked.
//! Invariants: R1 nothing is announced before both regions answer and know each other; R2 no child outlives this process:
//! a child ends by itself once its standard input closes, also if this process is killed; R3 the end of one child ends
//! the other; R4 one process works on a folder.
//! Failure: what prevented the start, or which child ended and the last lines of its log, as the one error line's text.
//! Must never know: any protocol but a few admin calls.

use crate::admin::api::Admin;
use crate::child::{Child, with_free_ports};
use crate::cli::Failure;
use crate::floors;
use clap::Args;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Pause between two looks whether both children live.
const LOOK: Duration = Duration::from_millis(100);
/// How long both may take to answer.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long both may take to end once asked: a little more than a region's own limit.
const END_LIMIT: Duration = Duration::from_secs(60);
/// The namespace that both hold.
const TENANT: &str = "demo";
const NAMESPACE: &str = "demo/orders";

/// What `meridian regions` takes.
#[derive(Args, Clone)]
pub struct RegionsArgs {
    /// Folder of all data and logs; made if absent. Each region has a folder of its own in it.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Properties file (key=value) for both regions, e.g. a broker.conf.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One setting of both regions; wins over the file, not over names and ports. May be given many times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Bookies of each region, so that it can keep several copies.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    bookies: Option<u16>,
    /// Any free ports instead of 6650/8080/6680 and 6750/8180/6780; `--ready-file` tells which.
    #[arg(long)]
    free_ports: bool,
    /// Write the addresses of both here as JSON once everything answers.
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

/// A region of the pair: its name and its ports (binary, web, region link).
struct Plan {
    name: &'static str,
    ports: [u16; 3],
}

const PLANS: [Plan; 2] =
    [Plan { name: "west", ports: [6650, 8080, 6680] }, Plan { name: "east", ports: [6750, 8180, 6780] }];

/// Runs both until a signal or the end of one ends them.
///
/// # Errors
/// Whatever prevented the start or a clean end.
pub fn run(args: RegionsArgs) -> Result<(), Failure> {
    // Before anything of it is touched: another one's logs and ready files are in it, too (R4).
    let _claim = floors::claim(&args.data_dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut children = Vec::new();
    let outcome = runtime.block_on(serve(&args, &mut children));
    let outcome = outcome.map_err(|error| with_free_ports(error, args.free_ports));
    let ended = end(&mut children);
    outcome.and(ended)
}

async fn serve(args: &RegionsArgs, children: &mut Vec<Child>) -> Result<(), Failure> {
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangup = signal(SignalKind::hangup())?;
    let life = async {
        start(args, children).await?;
        loop {
            tokio::time::sleep(LOOK).await;
            children.iter_mut().try_for_each(Child::check)?;
        }
    };
    tokio::select! {
        outcome = life => outcome,
        _ = term.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

/// Brings both up and makes them know each other (R1).
async fn start(args: &RegionsArgs, children: &mut Vec<Child>) -> Result<(), Failure> {
    let shown = args.data_dir.display();
    if crate::store::metadata_dir(&args.data_dir).exists() {
        return Err(format!("--data-dir {shown}: holds the data of one region; `meridian standalone` serves it").into());
    }
    for plan in &PLANS {
        let child = Child::start(plan.name, "standalone", &args.data_dir, &options(args, plan))?;
        children.push(child.called(format!("region {}", plan.name)));
    }
    tokio::time::timeout(START_LIMIT, async {
        while !children.iter_mut().try_fold(true, |ready, child| Ok::<_, Failure>(child.is_ready()? && ready))? {
            tokio::time::sleep(LOOK).await;
        }
        Ok::<_, Failure>(())
    })
    .await
    .map_err(|_| format!("not ready in {START_LIMIT:?}; see the logs in {shown}"))??;
    for here in children.iter() {
        introduce(here, children).await?;
    }
    announce(args, children)
}

/// The options of one child. Ours come last, so they win.
fn options(args: &RegionsArgs, plan: &Plan) -> Vec<String> {
    let mut options = Vec::new();
    if let Some(file) = &args.config {
        options.extend(["--config".to_owned(), file.display().to_string()]);
    }
    if let Some(bookies) = args.bookies {
        options.extend(["--bookies".to_owned(), bookies.to_string()]);
    }
    let ours = [
        ("clusterName", plan.name.to_owned()),
        ("brokerServicePort", port(args, plan.ports[0])),
        ("webServicePort", port(args, plan.ports[1])),
        ("regionLinkPort", port(args, plan.ports[2])),
    ];
    // Two regions on one machine are for trying out: nobody else is let in unless asked.
    let settings = std::iter::once("bindAddress=127.0.0.1".to_owned())
        .chain(args.set.iter().cloned())
        .chain(ours.map(|(key, value)| format!("{key}={value}")));
    options.extend(settings.flat_map(|setting| ["--set".to_owned(), setting]));
    options
}

fn port(args: &RegionsArgs, wanted: u16) -> String {
    if args.free_ports { 0 } else { wanted }.to_string()
}

/// Tells one region who both are, and makes the tenant and the namespace there.
async fn introduce(here: &Child, all: &[Child]) -> Result<(), Failure> {
    let admin = Admin::new(here.name(), here.port("web_port")?);
    for peer in all {
        let mut entry = json!({
            "serviceUrl": format!("http://localhost:{}", peer.port("web_port")?),
            "brokerServiceUrl": format!("pulsar://localhost:{}", peer.port("binary_port")?),
        });
        if let Ok(port) = peer.port("region_link_port") {
            entry["regionLinkUrl"] = json!(format!("http://localhost:{port}"));
        }
        let path = format!("/admin/v2/clusters/{}", peer.name());
        if !admin.put_new(&path, &entry).await? {
            admin.post(&path, &entry).await?;
        }
    }
    let names: Vec<_> = all.iter().map(Child::name).collect();
    admin
        .put_new(&format!("/admin/v2/tenants/{TENANT}"), &json!({ "adminRoles": [], "allowedClusters": names }))
        .await?;
    admin.put_new(&format!("/admin/v2/namespaces/{NAMESPACE}"), &json!({ "replication_clusters": names })).await?;
    Ok(())
}

fn announce(args: &RegionsArgs, children: &[Child]) -> Result<(), Failure> {
    let mut text = String::from("two regions are ready\n");
    for child in children {
        let (binary, web) = (child.port("binary_port")?, child.port("web_port")?);
        text += &format!(
            "  {}  pulsar://localhost:{binary}  http://localhost:{web}  log {}\n",
            child.name(),
            child.log_file().display()
        );
    }
    text += &format!("{NAMESPACE} is replicated between them, public/default is local to each. To try it:\n");
    let program = own_path();
    let sides = [("receive", children.last(), "consume"), ("send   ", children.first(), "produce --rate 1")];
    for (what, child, verb) in sides {
        let Some(child) = child else { continue };
        text += &format!(
            "  {what} in {}: {program} perf {verb} --url pulsar://localhost:{} persistent://{NAMESPACE}/try\n",
            child.name(),
            child.port("binary_port")?
        );
    }
    // Standard output may be closed; the regions run nevertheless.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let Some(file) = &args.ready_file else { return Ok(()) };
    let ready: serde_json::Map<_, _> =
        children.iter().map(|child| (child.name().to_owned(), child.ready().clone())).collect();
    write_whole(file, &json!(ready).to_string())
}

/// This program as a shell finds it.
pub fn own_path() -> String {
    std::env::current_exe().map_or_else(|_| "meridian".to_owned(), |path| path.display().to_string())
}

/// Writes a file whole or not at all.
///
/// # Errors
/// The file.
pub fn write_whole(file: &Path, text: &str) -> Result<(), Failure> {
    let draft = file.with_extension("draft");
    std::fs::write(&draft, text)
        .and_then(|()| std::fs::rename(&draft, file))
        .map_err(|error| format!("--ready-file {}: {error}", file.display()).into())
}

/// Asks all to end, then waits for each (R3).
fn end(children: &mut [Child]) -> Result<(), Failure> {
    children.iter_mut().for_each(Child::ask_to_end);
    let mut outcome = Ok(());
    for child in children {
        outcome = outcome.and(child.wait(END_LIMIT));
    }
    outcome
}
