//! The suite of every metadata store while the store and the network fail in one way all the time.

mod support;

use meridian_metadata::SharedStore;
use meridian_mini_tikv::{Fault, MiniTikv, Rpc};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// More often than any test can use it up.
const ALWAYS: u64 = 1_000_000;
/// The calls of a transaction.
const CALLS: [Rpc; 4] = [Rpc::BatchGet, Rpc::Scan, Rpc::Prewrite, Rpc::Commit];

/// A store whose calls fail, each `every`-th of its kind.
fn failing(calls: &[Rpc], fault: Fault, every: u64) -> (SharedStore, MiniTikv) {
    let server = MiniTikv::start(&support::many_regions()).expect("a server");
    let mut config = support::config(&server);
    config.rpc_timeout_ms = 200;
    let store = support::connect(config);
    for call in calls {
        server.faults().inject_every(*call, fault, every, ALWAYS);
    }
    (store, server)
}

mod refused_before {
    use super::*;
    meridian_metadata::conformance_tests!(|| failing(&CALLS, Fault::Before, 4));
}

mod lost_replies {
    use super::*;
    meridian_metadata::conformance_tests!(|| failing(&[Rpc::Commit, Rpc::Prewrite], Fault::After, 3));
}

mod hanging_calls {
    use super::*;
    meridian_metadata::conformance_tests!(|| failing(&CALLS, Fault::Hang, 40));
}

mod no_leader {
    use super::*;
    meridian_metadata::conformance_tests!(|| failing(&CALLS, Fault::NotLeader, 5));
}

mod busy {
    use super::*;
    meridian_metadata::conformance_tests!(|| failing(&CALLS, Fault::ServerIsBusy, 6));
}

mod moving_regions {
    use super::*;
    meridian_metadata::conformance_tests!(|| failing(&CALLS, Fault::EpochNotMatch, 10));
}

mod failing_driver {
    use super::*;
    meridian_metadata::conformance_tests!(|| failing(&[Rpc::GetRegion], Fault::Before, 2));
}

/// Moves a server's clock ahead again and again until it is dropped.
struct Jumping {
    _server: Arc<MiniTikv>,
    over: Arc<AtomicBool>,
}

impl Drop for Jumping {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn jumping() -> (SharedStore, Jumping) {
    let (store, server) = support::store_on(&support::many_regions());
    let (server, over) = (Arc::new(server), Arc::new(AtomicBool::new(false)));
    let (clock, ended) = (server.clone(), over.clone());
    std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            clock.jump(30_000);
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    (store, Jumping { _server: server, over })
}

mod jumping_clock {
    use super::*;
    meridian_metadata::conformance_tests!(jumping);
}
