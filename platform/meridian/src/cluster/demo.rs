//! `meridian cluster demo`: a whole cluster on loopback, one process for each node.
//!
//! Role: starts a metadata store (or takes one that runs), initialises the cluster, starts bookies over three zones and
//! brokers, says how to try it, and starts again what ends, as a supervisor would: a node may be killed to see what
//! happens. Ends all when asked.
//! Invariants: D1 nothing is announced before every node answers; D2 no child outlives this process: a child ends by
//! itself once its standard input closes; D3 one process works on a folder.
//! Failure: what prevented the start, with the last lines of the log of the node that ended.
//! Must never know: any protocol.

use super::identity::ClusterIdentity;
use crate::child::{Child, with_free_ports};
use crate::cli::Failure;
use crate::floors;
use crate::regions::{own_path, write_whole};
use crate::store::{self, StoreUrl};
use clap::Args;
use meridian_metadata::SharedStore;
use meridian_settings::Settings;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Pause between two looks at the children.
const LOOK: Duration = Duration::from_millis(100);
/// How long a node may take to answer.
const START_LIMIT: Duration = Duration::from_secs(90);
/// How long a node may take to end.
const END_LIMIT: Duration = Duration::from_secs(60);
/// Pause before a node that ended is started again.
const AGAIN: Duration = Duration::from_secs(5);
/// Zones that nodes are spread over.
const ZONES: usize = 3;
/// Name of the cluster.
const CLUSTER: &str = "demo";
/// Name of the store's child.
const STORE: &str = "metadata";

/// What `meridian cluster demo` takes.
#[derive(Args, Clone)]
pub struct DemoArgs {
    /// Folder of all data and logs; made if absent. Each node has a folder of its own in it.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Brokers.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    brokers: u16,
    /// Bookies.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=32))]
    bookies: u16,
    /// A metadata store that runs already, tikv://host:port/prefix; without it `mini-tikv` is started.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The program `mini-tikv`; without it the one beside this program.
    #[arg(long, value_name = "FILE")]
    mini_tikv: Option<PathBuf>,
    /// One setting of all nodes. May be given many times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Any free ports instead of 6650…, 8080… and 3181…; `--ready-file` tells which.
    #[arg(long)]
    free_ports: bool,
    /// Write the addresses of all nodes here as JSON once everything answers.
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

/// A node: what it is started with, and how it is.
struct Node {
    name: String,
    role: &'static str,
    options: Vec<String>,
    child: Option<Child>,
    /// When it is started again.
    again: Option<Instant>,
}

/// Runs the cluster until a signal ends it.
///
/// # Errors
/// Whatever prevented the start or a clean end.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    // Before anything of it is touched: another one's logs and ready files are in it, too (D3).
    let _claim = floors::claim(&args.data_dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut nodes = Vec::new();
    let outcome = runtime.block_on(serve(args, &mut nodes));
    let ended = end(&mut nodes);
    outcome.and(ended)
}

async fn serve(args: &DemoArgs, nodes: &mut Vec<Node>) -> Result<(), Failure> {
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangup = signal(SignalKind::hangup())?;
    let life = async {
        start(args, nodes).await?;
        loop {
            tokio::time::sleep(LOOK).await;
            nodes.iter_mut().try_for_each(|node| node.watch(args))?;
        }
    };
    tokio::select! {
        outcome = life => outcome,
        _ = term.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

impl Node {
    fn new(name: String, role: &'static str, options: Vec<String>) -> Self {
        Self { name, role, options, child: None, again: None }
    }

    fn start(&mut self, args: &DemoArgs) -> Result<(), Failure> {
        let child = match self.role {
            STORE => {
                let beside = std::env::current_exe()?.with_file_name("mini-tikv");
                let mut command = Command::new(args.mini_tikv.as_ref().unwrap_or(&beside));
                command.args(&self.options);
                Child::spawn(&self.name, &args.data_dir, command)?
            }
            role => Child::start(&self.name, role, &args.data_dir, &self.options)?,
        };
        self.child = Some(child);
        Ok(())
    }

    /// Waits until it answers.
    async fn ready(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        let child = self.child.as_mut().ok_or("not started")?;
        while !child.is_ready()? {
            if begun.elapsed() > START_LIMIT {
                return Err(format!(
                    "{} was not ready in {START_LIMIT:?}; see {}",
                    self.name,
                    child.log_file().display()
                )
                .into());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Says that it ended, and starts it again after a while.
    fn watch(&mut self, args: &DemoArgs) -> Result<(), Failure> {
        if let Some(again) = self.again {
            if Instant::now() >= again {
                self.again = None;
                self.start(args)?;
                say(&format!("{} is started again\n", self.name));
            }
            return Ok(());
        }
        if let Some(child) = &mut self.child
            && let Err(error) = child.check()
        {
            say(&format!("{error}\n{} is started again in {} s\n", self.name, AGAIN.as_secs()));
            self.child = None;
            self.again = Some(Instant::now() + AGAIN);
        }
        Ok(())
    }
}

/// Standard output may be closed; the cluster runs nevertheless.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

async fn start(args: &DemoArgs, nodes: &mut Vec<Node>) -> Result<(), Failure> {
    let url = match &args.store {
        Some(url) => url.clone(),
        None => {
            let listen = if args.free_ports { "127.0.0.1:0" } else { "127.0.0.1:2379" };
            let folder = args.data_dir.join(STORE);
            let options =
                ["--listen".to_owned(), listen.to_owned(), "--data-dir".to_owned(), folder.display().to_string()];
            nodes.push(Node::new(STORE.to_owned(), STORE, options.to_vec()));
            let at = bring_up(args, nodes, 0).await.map_err(|error| with_free_ports(error, args.free_ports))?;
            // The address stays the same when it is started again.
            nodes[0].options[1] = at.clone();
            format!("tikv://{at}/{CLUSTER}")
        }
    };
    let store: SharedStore = store::open(&StoreUrl::parse(&url)?, &Settings::default(), None).await?;
    let (identity, _) = ClusterIdentity::initialise(&store, CLUSTER).await?;
    if identity.cluster != CLUSTER {
        return Err(format!("{url} belongs to cluster {}", identity.cluster).into());
    }
    let first = nodes.len();
    nodes.extend(
        (0..args.bookies).map(|number| Node::new(format!("bookie-{number}"), "bookie", bookie(args, &url, number))),
    );
    nodes.extend(
        (0..args.brokers).map(|number| Node::new(format!("broker-{number}"), "broker", broker(args, &url, number))),
    );
    let stats = [("prometheusStatsHttpPort", port(args, 8100, 0))];
    nodes.push(Node::new("autorecovery".to_owned(), "autorecovery", options(args, &url, &stats)));
    for node in &mut nodes[first..] {
        node.start(args)?;
    }
    for node in &mut nodes[first..] {
        node.ready().await.map_err(|error| with_free_ports(error, args.free_ports))?;
    }
    announce(args, &url, nodes)
}

/// Starts one node and answers what it says of itself.
async fn bring_up(args: &DemoArgs, nodes: &mut [Node], at: usize) -> Result<String, Failure> {
    nodes[at].start(args)?;
    nodes[at].ready().await?;
    let said = nodes[at].child.as_ref().map(|child| child.ready().clone()).unwrap_or_default();
    Ok(said.as_str().unwrap_or_default().trim().to_owned())
}

fn options(args: &DemoArgs, url: &str, own: &[(&str, String)]) -> Vec<String> {
    let common = [("clusterName", CLUSTER), ("metadataStoreUrl", url), ("advertisedAddress", "127.0.0.1")];
    // One machine is for trying out: nobody else is let in unless asked.
    let settings = std::iter::once("bindAddress=127.0.0.1".to_owned())
        .chain(args.set.iter().cloned())
        .chain(common.iter().map(|(key, value)| format!("{key}={value}")))
        .chain(own.iter().map(|(key, value)| format!("{key}={value}")));
    settings.flat_map(|setting| ["--set".to_owned(), setting]).collect()
}

fn port(args: &DemoArgs, first: u16, number: u16) -> String {
    if args.free_ports { 0 } else { first + number }.to_string()
}

fn zone(number: u16) -> String {
    format!("/zone-{}", usize::from(number) % ZONES)
}

fn bookie(args: &DemoArgs, url: &str, number: u16) -> Vec<String> {
    let own = [
        ("bookieId", format!("bookie-{number}")),
        ("bookieLocations", zone(number)),
        ("bookiePort", port(args, 3181, number)),
        ("bookieControlPort", port(args, 3281, number)),
        ("prometheusStatsHttpPort", port(args, 8000, number)),
        ("autoRecoveryDaemonEnabled", "false".to_owned()),
    ];
    options(args, url, &own)
}

fn broker(args: &DemoArgs, url: &str, number: u16) -> Vec<String> {
    let own = [
        ("brokerLocation", zone(number)),
        ("brokerServicePort", port(args, 6650, number)),
        ("webServicePort", port(args, 8080, number)),
        ("regionLinkPort", String::new()),
    ];
    options(args, url, &own)
}

fn announce(args: &DemoArgs, url: &str, nodes: &[Node]) -> Result<(), Failure> {
    let mut text = format!("cluster {CLUSTER} is ready, metadata in {url}\n");
    let mut ready = serde_json::Map::new();
    let mut entrance = None;
    for node in nodes {
        let Some(child) = &node.child else { continue };
        ready.insert(node.name.clone(), child.ready().clone());
        let pid = child.ready()["pid"].as_u64().map_or_else(String::new, |pid| format!("  pid {pid}"));
        text += &match node.role {
            "broker" => {
                let (binary, web) = (child.port("binary_port")?, child.port("web_port")?);
                entrance.get_or_insert(binary);
                format!(
                    "  {}{pid}  pulsar://127.0.0.1:{binary}  http://127.0.0.1:{web}  log {}\n",
                    node.name,
                    child.log_file().display()
                )
            }
            _ => format!("  {}{pid}  log {}\n", node.name, child.log_file().display()),
        };
    }
    if let Some(binary) = entrance {
        text += &format!(
            "Any broker will do. To try it, and then kill -9 a node of it:\n  {} perf produce --url pulsar://127.0.0.1:{binary} --rate 1000 persistent://public/default/try\n",
            own_path()
        );
    }
    say(&text);
    let Some(file) = &args.ready_file else { return Ok(()) };
    ready.insert("store".to_owned(), json!(url));
    write_whole(file, &json!(ready).to_string())
}

/// Brokers end first, then bookies, the store last.
fn end(nodes: &mut [Node]) -> Result<(), Failure> {
    let mut outcome = Ok(());
    for role in ["broker", "autorecovery", "bookie", STORE] {
        let mut children: Vec<&mut Child> =
            nodes.iter_mut().filter(|node| node.role == role).filter_map(|node| node.child.as_mut()).collect();
        children.iter_mut().for_each(|child| child.ask_to_end());
        for child in children {
            outcome = outcome.and(child.wait(END_LIMIT));
        }
    }
    outcome
}
