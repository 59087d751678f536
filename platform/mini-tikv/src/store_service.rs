//! The calls of a store over the wire.
//!
//! Role: checks region and epoch, asks for faults, applies the request to the [`State`].
//! Invariants: a fault before does nothing, a fault after has done everything; each is counted once.
//! Failure: region errors and statuses of the protocol.
//! Must never know: sockets.

use crate::faults::{Fault, Faults, Rpc};
use crate::journal::JournalError;
use crate::pb::kvrpcpb::{self as kv, Context};
use crate::pb::{errorpb, tikvpb};
use crate::state::State;
use parking_lot::Mutex;
use std::sync::Arc;
use tonic::{Request, Response, Status};

type Reply<T> = Result<Response<T>, Status>;
type Bounds = (Vec<u8>, Vec<u8>);

/// The store.
#[derive(Debug, Clone)]
pub(crate) struct StoreService {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) faults: Faults,
}

fn journal(error: JournalError) -> Status {
    Status::internal(error.to_string())
}

/// Never answers; the client's own deadline ends it.
pub(crate) async fn hang() -> Status {
    std::future::pending().await
}

/// The part of a range that lies in a region; an empty end is no end.
fn within((start, end): &Bounds, from: Vec<u8>, to: Vec<u8>) -> Bounds {
    let start = start.clone().max(from);
    let end = match (end.is_empty(), to.is_empty()) {
        (true, _) => to,
        (false, true) => end.clone(),
        (false, false) => end.clone().min(to),
    };
    (start, end)
}

impl StoreService {
    /// Runs one request in its region; the inner error is the region's.
    async fn run<T>(
        &self,
        rpc: Rpc,
        context: Option<Context>,
        apply: impl FnOnce(&mut State, &Bounds) -> Result<T, JournalError>,
    ) -> Result<Result<T, errorpb::Error>, Status> {
        self.faults.thawed().await;
        let fault = self.faults.next(rpc);
        match fault {
            Some(Fault::Before) => return Err(Status::unavailable("injected before")),
            Some(Fault::HangBefore) => return Err(hang().await),
            _ => {}
        }
        let answer = {
            let mut state = self.state.lock();
            match region_error(&mut state, context.unwrap_or_default(), fault)? {
                Err(error) => return Ok(Err(error)),
                Ok(bounds) => apply(&mut state, &bounds).map_err(journal)?,
            }
        };
        match fault {
            Some(Fault::After) => Err(Status::unavailable("injected after")),
            Some(Fault::Hang) => Err(hang().await),
            _ => Ok(Ok(answer)),
        }
    }
}

fn region_error(
    state: &mut State,
    context: Context,
    fault: Option<Fault>,
) -> Result<Result<Bounds, errorpb::Error>, Status> {
    let region_id = context.region_id;
    let mut error = errorpb::Error::default();
    if fault == Some(Fault::EpochNotMatch) {
        state.raise_epoch().map_err(journal)?;
    }
    match (state.regions.by_id(region_id), state.regions.bounds(region_id)) {
        (Some(region), Some(_)) if region.region_epoch != context.region_epoch => {
            error.epoch_not_match = Some(errorpb::EpochNotMatch { current_regions: vec![region] });
        }
        (Some(_), Some(bounds)) => match fault {
            Some(Fault::ServerIsBusy) => error.server_is_busy = Some(errorpb::ServerIsBusy::default()),
            Some(Fault::NotLeader) => error.not_leader = Some(errorpb::NotLeader { region_id, leader: None }),
            _ => return Ok(Ok(bounds)),
        },
        _ => error.region_not_found = Some(errorpb::RegionNotFound { region_id }),
    }
    Ok(Err(error))
}

/// Answers a request whose response carries the region's error.
macro_rules! answer {
    ($self:ident, $rpc:ident, $request:ident, $response:ident, |$state:ident, $query:ident, $bounds:ident| $body:expr) => {{
        let $query = $request.into_inner();
        let context = $query.context.clone();
        match $self.run(Rpc::$rpc, context, |$state, $bounds| $body).await? {
            Ok(answer) => Ok(Response::new(answer)),
            Err(error) => Ok(Response::new(kv::$response { region_error: Some(error), ..Default::default() })),
        }
    }};
}

#[tonic::async_trait]
impl tikvpb::tikv_server::Tikv for StoreService {
    async fn kv_get(&self, request: Request<kv::GetRequest>) -> Reply<kv::GetResponse> {
        answer!(self, Get, request, GetResponse, |state, query, _bounds| {
            Ok(match state.keys().get(&query.key, query.version) {
                Ok(value) => kv::GetResponse {
                    not_found: value.is_none(),
                    value: value.unwrap_or_default(),
                    ..Default::default()
                },
                Err(error) => kv::GetResponse { error: Some(error), ..Default::default() },
            })
        })
    }

    async fn kv_batch_get(&self, request: Request<kv::BatchGetRequest>) -> Reply<kv::BatchGetResponse> {
        answer!(self, BatchGet, request, BatchGetResponse, |state, query, _bounds| {
            let pair = |key: Vec<u8>| match state.keys().get(&key, query.version) {
                Ok(None) => None,
                Ok(Some(value)) => Some(kv::KvPair { error: None, key, value }),
                Err(error) => Some(kv::KvPair { error: Some(error), key, value: Vec::new() }),
            };
            let pairs = query.keys.into_iter().filter_map(pair).collect();
            Ok(kv::BatchGetResponse { pairs, ..Default::default() })
        })
    }

    async fn kv_scan(&self, request: Request<kv::ScanRequest>) -> Reply<kv::ScanResponse> {
        answer!(self, Scan, request, ScanResponse, |state, query, bounds| {
            let (mut from, mut to) = (query.start_key.clone(), query.end_key.clone());
            if query.reverse {
                std::mem::swap(&mut from, &mut to);
            }
            let (start, end) = within(bounds, from, to);
            Ok(kv::ScanResponse { pairs: state.keys().scan(&start, &end, &query), ..Default::default() })
        })
    }

    async fn kv_prewrite(&self, request: Request<kv::PrewriteRequest>) -> Reply<kv::PrewriteResponse> {
        let mode = request.get_ref();
        if mode.use_async_commit || mode.try_one_pc || mode.for_update_ts != 0 {
            return Err(Status::unimplemented("only plain optimistic transactions"));
        }
        answer!(self, Prewrite, request, PrewriteResponse, |state, query, _bounds| {
            Ok(kv::PrewriteResponse { errors: state.prewrite(query)?, ..Default::default() })
        })
    }

    async fn kv_commit(&self, request: Request<kv::CommitRequest>) -> Reply<kv::CommitResponse> {
        answer!(self, Commit, request, CommitResponse, |state, query, _bounds| {
            let commit_version = query.commit_version;
            Ok(kv::CommitResponse { error: state.commit(query)?, commit_version, ..Default::default() })
        })
    }

    async fn kv_batch_rollback(&self, request: Request<kv::BatchRollbackRequest>) -> Reply<kv::BatchRollbackResponse> {
        answer!(self, BatchRollback, request, BatchRollbackResponse, |state, query, _bounds| {
            Ok(kv::BatchRollbackResponse { error: state.rollback(query)?, ..Default::default() })
        })
    }

    async fn kv_txn_heart_beat(&self, request: Request<kv::TxnHeartBeatRequest>) -> Reply<kv::TxnHeartBeatResponse> {
        answer!(self, TxnHeartBeat, request, TxnHeartBeatResponse, |state, query, _bounds| {
            Ok(match state.heart_beat(query)? {
                Ok(lock_ttl) => kv::TxnHeartBeatResponse { lock_ttl, ..Default::default() },
                Err(error) => kv::TxnHeartBeatResponse { error: Some(error), ..Default::default() },
            })
        })
    }

    async fn kv_check_txn_status(
        &self,
        request: Request<kv::CheckTxnStatusRequest>,
    ) -> Reply<kv::CheckTxnStatusResponse> {
        answer!(self, CheckTxnStatus, request, CheckTxnStatusResponse, |state, query, _bounds| {
            state.check_status(query)
        })
    }

    async fn kv_scan_lock(&self, request: Request<kv::ScanLockRequest>) -> Reply<kv::ScanLockResponse> {
        answer!(self, ScanLock, request, ScanLockResponse, |state, query, bounds| {
            let (start, end) = within(bounds, query.start_key, query.end_key);
            let locks = state.keys().scan_locks(&start, &end, query.max_version, query.limit as usize);
            Ok(kv::ScanLockResponse { locks, ..Default::default() })
        })
    }

    async fn kv_resolve_lock(&self, request: Request<kv::ResolveLockRequest>) -> Reply<kv::ResolveLockResponse> {
        answer!(self, ResolveLock, request, ResolveLockResponse, |state, query, bounds| {
            let error = state.resolve(&query, (&bounds.0, &bounds.1))?;
            Ok(kv::ResolveLockResponse { error, ..Default::default() })
        })
    }
}
