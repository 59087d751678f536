//! Fail-over put together: records over the region link, topics of this broker behind it.
//!
//! Failure: without the region link nothing of it runs, and every region is active.
//! Must never know: what a switch decides.

use crate::cli::Failure;
use bytes::Bytes;
use meridian_broker::BrokerService;
use meridian_broker::failover::{AckFigures, TopicPositionsHere, TopicsHost};
use meridian_failover::service::Settings as Times;
use meridian_failover::{FailoverCall, FailoverReply, FailoverService, PeerCalls};
use meridian_link::{FailoverHandler, HandlerRefusal, RegionLink};
use meridian_metadata::SharedStore;
use meridian_settings::{Key, Settings};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// The step under which all calls travel; what they ask stands in the body.
const STEP: &str = "failover/1";
/// What a call between regions may take beside the switch that it asks for.
const CALL_MARGIN_MS: u64 = 6_000;

/// Opens the records and puts them in force; the tasks that follow them.
///
/// # Errors
/// The store, or a record that can't be read.
pub async fn start(
    service: &Arc<BrokerService>,
    store: SharedStore,
    link: &Arc<RegionLink>,
    acks: Arc<dyn AckFigures>,
    settings: &Settings,
) -> Result<Vec<JoinHandle<()>>, Failure> {
    let host = Arc::new(TopicsHost::new(
        service,
        acks,
        Duration::from_millis(settings.count(Key::FailoverConsumerSettleMillis)),
    ));
    let peers = Arc::new(OverLink { link: link.clone() });
    let own = &service.config().cluster;
    let failover = FailoverService::open(own, store, host.clone(), peers, times(settings)).await?;
    service.set_failover(failover.clone(), host);
    link.set_positions(Arc::new(TopicPositionsHere(Arc::downgrade(service))));
    link.set_failover(Arc::new(Steps { failover: failover.clone() }));
    Ok(failover.start())
}

fn times(settings: &Settings) -> Times {
    Times {
        beat_ms: settings.count(Key::FailoverCheckIntervalMillis),
        confirm_ms: settings.count(Key::FailoverConfirmTimeoutMillis),
        drain_ms: settings.count(Key::FailoverDrainTimeoutMillis),
    }
}

/// How long a call between regions may take: one that asks for a switch waits for its end.
pub fn call_ms(settings: &Settings) -> u64 {
    settings.count(Key::FailoverDrainTimeoutMillis).saturating_mul(2).saturating_add(CALL_MARGIN_MS)
}

struct OverLink {
    link: Arc<RegionLink>,
}

impl PeerCalls for OverLink {
    fn call<'a>(
        &'a self,
        region: &'a str,
        call: FailoverCall,
    ) -> meridian_metadata::BoxFuture<'a, Result<FailoverReply, String>> {
        Box::pin(async move {
            let body = serde_json::to_vec(&call).map_err(|error| error.to_string())?;
            let reply = self.link.failover(region, STEP, Bytes::from(body)).await.map_err(|error| error.to_string())?;
            serde_json::from_slice(&reply).map_err(|error| format!("its answer can't be read: {error}"))
        })
    }
}

struct Steps {
    failover: Arc<FailoverService>,
}

impl FailoverHandler for Steps {
    fn step<'a>(
        &'a self,
        from: &'a str,
        step: &'a str,
        body: Bytes,
    ) -> meridian_metadata::BoxFuture<'a, Result<Bytes, HandlerRefusal>> {
        Box::pin(async move {
            if step != STEP {
                return Err(HandlerRefusal::Never(format!("step '{step}' is not known here, {STEP} is")));
            }
            let call = serde_json::from_slice(&body)
                .map_err(|error| HandlerRefusal::Never(format!("the call can't be read: {error}")))?;
            let reply = self.failover.answer(from, call).await;
            serde_json::to_vec(&reply).map(Bytes::from).map_err(|error| HandlerRefusal::Never(error.to_string()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_table() {
        let mut settings = Settings::default();
        assert_eq!(times(&settings), Times::default());
        assert_eq!(call_ms(&settings), 30_000);
        settings.set_pair("test", "failoverDrainTimeoutMillis=60000").expect("it is a setting");
        assert_eq!((times(&settings).drain_ms, call_ms(&settings)), (60_000, 126_000), "a call waits for the switch");
    }
}
