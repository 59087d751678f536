//! What a process does about lost bookies.
//!
//! Must never know: how ledgers are moved.

use crate::config::autorecovery::autorecovery;
use crate::floors::Floors;
use crate::role::Role;
use meridian_autorecovery::follow_leaving;
use meridian_settings::{Key, Settings};
use std::future::pending;
use tokio::task::JoinHandle;

/// A broker's writers replace bookies that leave; a process with bookies moves ledgers of lost ones, if the setting says
/// so. The tasks end when aborted.
pub fn start(role: Role, settings: &Settings, floors: &Floors) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    if role.has_broker() {
        tasks.push(tokio::spawn(follow_leaving(floors.store.clone(), floors.ledgers.clone(), pending())));
    }
    let beside_bookies = role.bookies(settings) > 0 && settings.switch(Key::AutoRecoveryDaemonEnabled);
    if role == Role::Autorecovery || beside_bookies {
        let name = format!("{} {}", role.name(), std::process::id());
        let config = autorecovery(settings, &name, &floors.metrics);
        let running = meridian_autorecovery::run(config, floors.store.clone(), floors.ledgers.clone(), pending());
        tasks.push(tokio::spawn(async move {
            if let Err(error) = running.await {
                tracing::error!(%error, "autorecovery does not run");
            }
        }));
    }
    tasks
}
