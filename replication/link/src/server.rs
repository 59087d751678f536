//! The service that peers call.
//!
//! Invariants: N1; a stream is answered message by message, in order.
//! Failure: gRPC statuses: permission denied for who may not call, unavailable for what may work later.
//! Must never know: what payloads mean.

use crate::api::{AckDelta, AckHandler, AckOutcome, HandlerRefusal};
use crate::config::{ACK_BATCH, MAX_MESSAGE_BYTES, STREAM_QUEUE};
use crate::convert;
use crate::link::{Context, RegionLink, wall_ms};
use crate::peer::{REGION, capabilities};
use crate::proto::region_link_server::{RegionLink as Service, RegionLinkServer};
use crate::proto::{self, ack_up};
use crate::secure;
use crate::sync::sink;
use std::future::Future;
use std::net::TcpListener;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// How long merging a batch of deltas may take.
const ACK_DEADLINE: Duration = Duration::from_secs(15);

struct LinkService {
    link: Arc<RegionLink>,
}

impl RegionLink {
    /// Answers peers until `until` ends.
    ///
    /// # Errors
    /// The listener or the certificates can't be used.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        until: impl Future<Output = ()> + Send,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let times = &self.context.config.times;
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(Duration::from_millis(times.beat_ms)))
            .http2_keepalive_timeout(Some(Duration::from_millis(times.beat_timeout_ms)))
            .tcp_nodelay(true)
            .max_concurrent_streams(64);
        let tls = self.context.config.tls.clone();
        let service = RegionLinkServer::new(LinkService { link: self })
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let server = server.add_service(service);
        match tls {
            Some(tls) => server.serve_with_incoming_shutdown(secure::accepted(listener, tls), until).await?,
            None => server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), until).await?,
        }
        Ok(())
    }
}

impl LinkService {
    fn context(&self) -> &Arc<Context> {
        &self.link.context
    }

    /// The caller's region, if it may call (N1). With TLS the transport has let in nobody without a certificate, and the
    /// certificate is the region's (N5).
    fn admit<T>(&self, request: &Request<T>) -> Result<String, Status> {
        let region = request.metadata().get(REGION).and_then(|value| value.to_str().ok());
        let region = region.ok_or_else(|| Status::unauthenticated(format!("a call without {REGION}")))?;
        let own = self.link.region();
        let Some(peer) = self.link.find(region) else {
            let why = format!("region {own} has no cluster entry for region {region}");
            tracing::warn!(region, "a region that is not registered calls on the region link");
            return Err(Status::permission_denied(why));
        };
        if !self.link.encrypted() && !peer.allows_plaintext() {
            let why = format!(
                "the region link of region {own} is not encrypted, and its cluster entry for {region} does not allow \
                 that (regionLinkUrl=http://…)"
            );
            self.context().note(region, |status| {
                status.calls_refused += 1;
                status.last_refusal = Some(why.clone());
            });
            return Err(Status::permission_denied(why));
        }
        if self.link.encrypted() {
            let shown = request.peer_certs();
            let shown = shown.as_ref().and_then(|chain| chain.first());
            if let Err(why) = secure::is_of_region(shown, region) {
                tracing::warn!(region, why, "a call on the region link is refused");
                self.context().note(region, |status| {
                    status.calls_refused += 1;
                    status.last_refusal = Some(why.clone());
                });
                return Err(Status::permission_denied(why));
            }
        }
        self.context().note(region, |_| {});
        Ok(region.to_owned())
    }
}

fn refused(refusal: HandlerRefusal) -> Status {
    match refusal {
        HandlerRefusal::Later(reason) => Status::unavailable(reason),
        HandlerRefusal::Never(reason) => Status::failed_precondition(reason),
    }
}

fn not_ready(what: &str) -> Status {
    Status::unavailable(format!("this region does not do {what} yet"))
}

#[tonic::async_trait]
impl Service for LinkService {
    type SyncStream = ReceiverStream<Result<proto::SyncDown, Status>>;
    type AcksStream = ReceiverStream<Result<proto::AckDown, Status>>;

    async fn hello(&self, request: Request<proto::HelloRequest>) -> Result<Response<proto::HelloReply>, Status> {
        let region = self.admit(&request)?;
        let hello = request.into_inner();
        let own = self.link.region();
        if hello.region != region || hello.expects != own {
            return Err(Status::failed_precondition(format!(
                "region {region} expects region {} here, this is region {own}",
                hello.expects
            )));
        }
        Ok(Response::new(proto::HelloReply {
            region: own.to_owned(),
            region_id: meridian_types::RegionId::of(own).0,
            version: self.context().config.version.clone(),
            wall_ms: wall_ms(),
            capabilities: capabilities(self.context()),
        }))
    }

    async fn sync(&self, request: Request<Streaming<proto::SyncUp>>) -> Result<Response<Self::SyncStream>, Status> {
        let region = self.admit(&request)?;
        let store = self.context().objects.get().ok_or_else(|| not_ready("objects"))?.clone();
        let (context, link) = (self.context().clone(), Arc::downgrade(&self.link));
        let mut stream = request.into_inner();
        let (down, answers) = mpsc::channel(STREAM_QUEUE);
        tokio::spawn(async move {
            while let Ok(Some(message)) = stream.message().await {
                if !is_registered(&link, &region) {
                    return;
                }
                let answer = match sink::answer(&*store, &region, message).await {
                    Ok((answer, took)) => {
                        context.note(&region, |status| {
                            status.objects_taken += took.taken;
                            status.objects_refused += took.refused;
                        });
                        Ok(answer)
                    }
                    Err(status) => Err(status),
                };
                let ends = answer.is_err();
                if down.send(answer).await.is_err() || ends {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn acks(&self, request: Request<Streaming<proto::AckUp>>) -> Result<Response<Self::AcksStream>, Status> {
        let region = self.admit(&request)?;
        let handler = self.context().acks.get().ok_or_else(|| not_ready("acknowledgements"))?.clone();
        let link = Arc::downgrade(&self.link);
        let stream = request.into_inner();
        let (down, answers) = mpsc::channel(STREAM_QUEUE);
        tokio::spawn(async move { take_acks(&link, &*handler, &region, stream, &down).await });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn failover(
        &self,
        request: Request<proto::FailoverRequest>,
    ) -> Result<Response<proto::FailoverReply>, Status> {
        let region = self.admit(&request)?;
        let handler = self.context().failover.get().ok_or_else(|| not_ready("fail-over"))?.clone();
        let asked = request.into_inner();
        let body = handler.step(&region, &asked.step, asked.body).await.map_err(refused)?;
        Ok(Response::new(proto::FailoverReply { body }))
    }

    async fn positions(
        &self,
        request: Request<proto::PositionsRequest>,
    ) -> Result<Response<proto::PositionsReply>, Status> {
        let region = self.admit(&request)?;
        let handler = self.context().positions.get().ok_or_else(|| not_ready("positions"))?.clone();
        let topics = handler.positions(&region, request.into_inner().topics).await;
        Ok(Response::new(proto::PositionsReply { topics: topics.into_iter().map(convert::positions_out).collect() }))
    }
}

/// A region whose entry was deleted is not listened to any more, whatever it has open.
fn is_registered(link: &Weak<RegionLink>, region: &str) -> bool {
    link.upgrade().is_some_and(|link| link.find(region).is_some())
}

/// Merges what comes, as much at once as is there.
async fn take_acks(
    link: &Weak<RegionLink>,
    handler: &dyn AckHandler,
    region: &str,
    mut stream: Streaming<proto::AckUp>,
    down: &mpsc::Sender<Result<proto::AckDown, Status>>,
) {
    while let Ok(Some(first)) = stream.message().await {
        let mut deltas = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next.take() {
            match message.kind {
                Some(ack_up::Kind::Delta(delta)) => deltas.push(convert::delta(delta)),
                Some(ack_up::Kind::Resync(resync)) => handler.resync(region, &resync.topic, &resync.subscription),
                None => {}
            }
            if deltas.len() < ACK_BATCH {
                // Only what has come already: one poll.
                next = tokio::time::timeout(Duration::ZERO, stream.message()).await.ok().and_then(Result::ok).flatten();
            }
        }
        let Some(link) = link.upgrade().filter(|link| link.find(region).is_some()) else { return };
        link.context.note(region, |status| status.acks += deltas.len() as u64);
        for (token, outcome) in merge(handler, region, deltas).await {
            if down.send(Ok(convert::ack_out(token, outcome))).await.is_err() {
                return;
            }
        }
    }
}

async fn merge(handler: &dyn AckHandler, region: &str, deltas: Vec<AckDelta>) -> Vec<(u64, AckOutcome)> {
    if deltas.is_empty() {
        return Vec::new();
    }
    let tokens: Vec<u64> = deltas.iter().map(|delta| delta.token).collect();
    let outcomes = tokio::time::timeout(ACK_DEADLINE, handler.apply(region, deltas)).await;
    let late = || AckOutcome::Later(format!("not merged within {} s", ACK_DEADLINE.as_secs()));
    match outcomes {
        Ok(outcomes) if outcomes.len() == tokens.len() => tokens.into_iter().zip(outcomes).collect(),
        Ok(_) => {
            debug_assert!(false, "one outcome per delta");
            tokens.into_iter().map(|token| (token, AckOutcome::Later("no outcome".to_owned()))).collect()
        }
        Err(_) => tokens.into_iter().map(|token| (token, late())).collect(),
    }
}
