//! The calls of the placement driver over the wire.
//!
//! Role: one member that is the leader, one store, the regions, time stamps.
//! Invariants: T1; every answer carries the header that clients insist on.
//! Failure: statuses of the protocol.
//! Must never know: sockets, transactions.

use crate::faults::{Fault, Faults, Rpc};
use crate::pb::pdpb;
use crate::regions::STORE;
use crate::state::State;
use crate::store_service::hang;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

type Reply<T> = Result<Response<T>, Status>;
type TsoStream = Pin<Box<dyn Stream<Item = Result<pdpb::TsoResponse, Status>> + Send>>;

const CLUSTER: u64 = 7;

/// The placement driver.
#[derive(Debug, Clone)]
pub(crate) struct PdService {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) faults: Faults,
    /// `host:port` of this server.
    pub(crate) address: String,
    pub(crate) tls: bool,
}

fn header() -> Option<pdpb::ResponseHeader> {
    Some(pdpb::ResponseHeader { cluster_id: CLUSTER })
}

impl PdService {
    async fn pass(&self, rpc: Rpc) -> Result<(), Status> {
        self.faults.thawed().await;
        match self.faults.next(rpc) {
            None => Ok(()),
            Some(Fault::Hang | Fault::HangBefore) => Err(hang().await),
            Some(_) => Err(Status::unavailable("injected")),
        }
    }

    fn store(&self) -> crate::pb::metapb::Store {
        crate::pb::metapb::Store { id: STORE, address: self.address.clone() }
    }

    fn region(region: Option<crate::pb::metapb::Region>) -> Reply<pdpb::GetRegionResponse> {
        let leader = region.as_ref().and_then(|region| region.peers.first().copied());
        Ok(Response::new(pdpb::GetRegionResponse { header: header(), region, leader }))
    }

    async fn stamps(&self, request: pdpb::TsoRequest) -> Result<pdpb::TsoResponse, Status> {
        self.pass(Rpc::Tso).await?;
        let stamp = self.state.lock().take_stamps(u64::from(request.count));
        let (physical, logical) = stamp.map_err(|error| Status::internal(error.to_string()))?;
        let timestamp = Some(pdpb::Timestamp { physical: physical as i64, logical: logical as i64 });
        Ok(pdpb::TsoResponse { header: header(), count: request.count, timestamp })
    }
}

#[tonic::async_trait]
impl pdpb::pd_server::Pd for PdService {
    async fn get_members(&self, _: Request<pdpb::GetMembersRequest>) -> Reply<pdpb::GetMembersResponse> {
        self.pass(Rpc::GetMembers).await?;
        let scheme = if self.tls { "https" } else { "http" };
        let url = format!("{scheme}://{}", self.address);
        let member =
            pdpb::Member { name: "mini".into(), member_id: 1, peer_urls: vec![url.clone()], client_urls: vec![url] };
        Ok(Response::new(pdpb::GetMembersResponse {
            header: header(),
            members: vec![member.clone()],
            leader: Some(member.clone()),
            etcd_leader: Some(member),
        }))
    }

    async fn tso(&self, request: Request<Streaming<pdpb::TsoRequest>>) -> Reply<TsoStream> {
        let service = self.clone();
        let answers = request.into_inner().then(move |query| {
            let service = service.clone();
            async move { service.stamps(query?).await }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn get_region(&self, request: Request<pdpb::GetRegionRequest>) -> Reply<pdpb::GetRegionResponse> {
        self.pass(Rpc::GetRegion).await?;
        let region = self.state.lock().regions.by_encoded_key(&request.into_inner().region_key);
        Self::region(Some(region))
    }

    async fn get_region_by_id(&self, request: Request<pdpb::GetRegionByIdRequest>) -> Reply<pdpb::GetRegionResponse> {
        self.pass(Rpc::GetRegion).await?;
        let region = self.state.lock().regions.by_id(request.into_inner().region_id);
        Self::region(region)
    }

    async fn get_store(&self, _: Request<pdpb::GetStoreRequest>) -> Reply<pdpb::GetStoreResponse> {
        self.pass(Rpc::GetStore).await?;
        Ok(Response::new(pdpb::GetStoreResponse { header: header(), store: Some(self.store()) }))
    }

    async fn get_all_stores(&self, _: Request<pdpb::GetAllStoresRequest>) -> Reply<pdpb::GetAllStoresResponse> {
        self.pass(Rpc::GetStore).await?;
        Ok(Response::new(pdpb::GetAllStoresResponse { header: header(), stores: vec![self.store()] }))
    }

    async fn update_gc_safe_point(
        &self,
        request: Request<pdpb::UpdateGcSafePointRequest>,
    ) -> Reply<pdpb::UpdateGcSafePointResponse> {
        self.faults.thawed().await;
        let raised = self.state.lock().raise_safe_point(request.into_inner().safe_point);
        let new_safe_point = raised.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(pdpb::UpdateGcSafePointResponse { header: header(), new_safe_point }))
    }
}
