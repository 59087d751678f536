//! `meridian cluster`: what is done once for a cluster of many processes.
//!
//! Failure: one line that says what is there already, or what to set.

mod demo;
pub mod identity;

use crate::cli::{Failure, SettingsArgs};
use crate::config;
use crate::role::Role;
use crate::store::{self, StoreUrl};
use clap::{Args, Subcommand};
use identity::ClusterIdentity;
use meridian_metadata::SharedStore;
use meridian_settings::{Key, Settings};

/// What `meridian cluster` does.
#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Write the identity of a new cluster into the metadata store. Once, before the first process starts.
    Init(InitArgs),
    /// Say which cluster the metadata store belongs to.
    Show(SettingsArgs),
    /// Run a whole cluster on this machine: a metadata store, brokers, bookies in three zones, a process each.
    Demo(demo::DemoArgs),
}

/// What `meridian cluster init` takes.
#[derive(Args)]
pub struct InitArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// A store that belongs to this cluster already is no error.
    #[arg(long)]
    if_absent: bool,
}

/// Runs one.
///
/// # Errors
/// The store, or what it holds.
pub fn run(command: ClusterCommand) -> Result<(), Failure> {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    match command {
        ClusterCommand::Init(args) => runtime()?.block_on(init(&args)),
        ClusterCommand::Show(args) => runtime()?.block_on(show(&args)),
        ClusterCommand::Demo(args) => demo::run(&args),
    }
}

async fn open(args: &SettingsArgs) -> Result<(Settings, SharedStore), Failure> {
    let (settings, _) = config::load(Role::Broker, args)?;
    let url = StoreUrl::parse(settings.text(Key::MetadataStoreUrl))?;
    let store = store::open(&url, &settings, None).await?;
    Ok((settings, store))
}

async fn init(args: &InitArgs) -> Result<(), Failure> {
    let (settings, store) = open(&args.settings).await?;
    let (cluster, url) = (settings.text(Key::ClusterName), settings.text(Key::MetadataStoreUrl));
    let (found, new) = ClusterIdentity::initialise(&store, cluster).await?;
    let ClusterIdentity { cluster: name, instance, .. } = &found;
    match (new, args.if_absent && name == cluster) {
        (true, _) => println!("cluster {name} initialised, instance {instance}"),
        (false, true) => println!("cluster {name} is there already, instance {instance}"),
        (false, false) => {
            return Err(format!(
                "metadataStoreUrl={url}: belongs to cluster {name} already (instance {instance}); nothing was changed"
            )
            .into());
        }
    }
    Ok(())
}

async fn show(args: &SettingsArgs) -> Result<(), Failure> {
    let (settings, store) = open(args).await?;
    match ClusterIdentity::load(&store).await? {
        Some(found) => println!("cluster {}, instance {}", found.cluster, found.instance),
        None => println!("{}: no cluster yet", settings.text(Key::MetadataStoreUrl)),
    }
    Ok(())
}
