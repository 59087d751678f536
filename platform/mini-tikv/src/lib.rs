//! A server that speaks the protocol of TiKV and its placement driver, for tests only.
//!
//! Role: optimistic transactions (Percolator) over many regions behind the real wire protocol, so that the metadata
//! store over TiKV is tested against what it will meet: locks, conflicts, region errors, lost replies, a store that
//! hangs, a clock that jumps. One process plays placement driver and store; faults are injected by [`Faults`].
//! Invariants: T1 time stamps grow, also over a restart with the same folder; T2 a region's epoch never goes back;
//! T3 with a folder, what was acknowledged is there after the process was killed.
//! Failure: a broken journal ends the start with [`StartError`]; a request that can't be journalled is refused.
//! Must never know: what keys mean. It is no TiKV: no raft, no replicas, no engine, no splits under load.
#![forbid(unsafe_code)]

mod faults;
mod journal;
mod mvcc;
mod pd;
mod regions;
mod server;
mod state;
mod store_service;
mod tso;

/// The generated messages and services.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod pb {
    pub(crate) mod metapb {
        tonic::include_proto!("metapb");
    }
    pub(crate) mod errorpb {
        tonic::include_proto!("errorpb");
    }
    pub(crate) mod kvrpcpb {
        tonic::include_proto!("kvrpcpb");
    }
    pub(crate) mod tikvpb {
        tonic::include_proto!("tikvpb");
    }
    pub(crate) mod pdpb {
        tonic::include_proto!("pdpb");
    }
}

pub use faults::{Fault, Faults, Rpc};
pub use server::{MiniTikv, StartError, TikvOptions, TlsFiles};
