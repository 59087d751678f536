//! A server and stores on it, for the tests.
#![allow(dead_code, reason = "every test program uses a part")]

use meridian_metadata::SharedStore;
use meridian_metadata_tikv::{TikvConfig, TikvStore};
use meridian_mini_tikv::{MiniTikv, TikvOptions};
use std::sync::Arc;

/// The prefix of all keys.
pub const PREFIX: &str = "test/";

/// A server whose data keys lie in many regions.
pub fn many_regions() -> TikvOptions {
    TikvOptions { regions: 45, region_prefix: b"test/".to_vec(), ..TikvOptions::default() }
}

/// How to reach a server, with short bounds.
pub fn config(server: &MiniTikv) -> TikvConfig {
    let mut config = TikvConfig::new(vec![server.address().to_string()], PREFIX);
    config.poll_interval_ms = 100;
    config
}

/// Connects on a thread of its own, so that it can be called from a task.
pub fn connect(config: TikvConfig) -> Arc<TikvStore> {
    std::thread::spawn(|| TikvStore::connect_blocking(config).expect("the store")).join().expect("a thread")
}

/// A store on a server of its own.
pub fn store_on(options: &TikvOptions) -> (SharedStore, MiniTikv) {
    let server = MiniTikv::start(options).expect("a server");
    let store = connect(config(&server));
    (store, server)
}
