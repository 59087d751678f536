//! The control service of a bookie: gRPC, seldom used, for operators and recovery.
//!
//! Role: [`BookieControl`] is what a node must answer; [`control_service`] puts it behind gRPC; the client is
//! [`proto::bookie_control_client::BookieControlClient`].
//! Invariants: L1 a page of ledgers says whether it is the last, so that a partial listing is never taken for a whole
//! one (S6).
//! Failure: gRPC statuses by class: retry = unavailable, corrupt = data loss, fenced = failed precondition.
//! Must never know: entries' bytes.

use crate::bookie::{BookieError, BoxFuture, FenceState};
use crate::secure::{self, ServerSide};
use meridian_types::{BookieId, Classify, ErrorClass, LedgerId};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Generated messages, client and server.
#[allow(missing_docs, reason = "generated; described in the .proto file")]
#[allow(clippy::all, clippy::wildcard_imports, reason = "generated")]
pub mod proto {
    tonic::include_proto!("meridian.bookie.v1");
}

use proto::bookie_control_server::{BookieControl as Service, BookieControlServer};

/// Ledgers in one page.
pub const LEDGERS_PER_PAGE: usize = 100_000;

/// State of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookieInfo {
    /// Its id.
    pub id: BookieId,
    /// Its registered identity.
    pub cookie: String,
    /// Takes ordinary adds.
    pub writable: bool,
    /// Takes writes of recovery.
    pub recovery_writable: bool,
}

/// What a node answers beside data calls.
pub trait BookieControl: Send + Sync {
    /// Its state.
    fn info(&self) -> BookieInfo;

    /// Every ledger held, in order.
    fn list_ledgers(&self) -> BoxFuture<'_, Result<Vec<LedgerId>, BookieError>>;

    /// Stores what is in the caches.
    fn request_checkpoint(&self) -> BoxFuture<'_, Result<(), BookieError>>;

    /// Fences a ledger durably.
    fn fence_ledger(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<FenceState, BookieError>>;
}

/// A node behind gRPC, to be added to a tonic server.
pub fn control_service(node: Arc<dyn BookieControl>) -> BookieControlServer<ControlService> {
    BookieControlServer::new(ControlService { node })
}

/// Serves the control port until the future is dropped.
///
/// # Errors
/// The port can't be served any more.
pub async fn serve_control(
    listener: tokio::net::TcpListener,
    node: Arc<dyn BookieControl>,
    tls: Option<ServerSide>,
) -> Result<(), tonic::transport::Error> {
    let server = tonic::transport::Server::builder().add_service(control_service(node));
    match tls {
        None => server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)).await,
        Some(side) => server.serve_with_incoming(secure::incoming(listener, side)).await,
    }
}

/// See [`control_service`].
pub struct ControlService {
    node: Arc<dyn BookieControl>,
}

fn status(error: BookieError) -> Status {
    let words = error.to_string();
    match error.class() {
        ErrorClass::Retry | ErrorClass::Redirect => Status::unavailable(words),
        ErrorClass::Caller => Status::not_found(words),
        ErrorClass::Fenced => Status::failed_precondition(words),
        ErrorClass::Corrupt => Status::data_loss(words),
    }
}

#[tonic::async_trait]
impl Service for ControlService {
    async fn info(&self, _: Request<proto::InfoRequest>) -> Result<Response<proto::InfoReply>, Status> {
        let info = self.node.info();
        let ledgers = self.node.list_ledgers().await.map_err(status)?.len() as u64;
        Ok(Response::new(proto::InfoReply {
            bookie: info.id.as_str().to_owned(),
            cookie: info.cookie,
            writable: info.writable,
            recovery_writable: info.recovery_writable,
            ledgers,
        }))
    }

    async fn list_ledgers(
        &self,
        request: Request<proto::ListLedgersRequest>,
    ) -> Result<Response<proto::ListLedgersReply>, Status> {
        let request = request.into_inner();
        let all = self.node.list_ledgers().await.map_err(status)?;
        let limit = match request.limit as usize {
            0 => LEDGERS_PER_PAGE,
            limit => limit.min(LEDGERS_PER_PAGE),
        };
        let start = request.after.map_or(0, |after| all.partition_point(|ledger_id| ledger_id.0 <= after));
        let page: Vec<i64> = all[start..].iter().take(limit).map(|ledger_id| ledger_id.0).collect();
        let last = start + page.len() == all.len();
        Ok(Response::new(proto::ListLedgersReply { ledgers: page, last }))
    }

    async fn checkpoint(
        &self,
        _: Request<proto::CheckpointRequest>,
    ) -> Result<Response<proto::CheckpointReply>, Status> {
        self.node.request_checkpoint().await.map_err(status)?;
        Ok(Response::new(proto::CheckpointReply {}))
    }

    async fn fence(&self, request: Request<proto::FenceRequest>) -> Result<Response<proto::FenceReply>, Status> {
        let state = self.node.fence_ledger(LedgerId(request.into_inner().ledger)).await.map_err(status)?;
        Ok(Response::new(proto::FenceReply {
            last_add_confirmed: state.last_add_confirmed.0,
            last_entry: state.last_entry.0,
        }))
    }
}
