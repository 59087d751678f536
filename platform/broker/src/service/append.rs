//! What the broker itself writes into a topic, as a producer of its own.
//!
//! Role: [`Appender`] keeps one producer on a topic and hands it messages; it is done when all are stored. Used for the
//! audit log.
//! Failure: a sentence; the producer is made anew at the next call.
//! Must never know: what messages say.

use super::{BrokerService, now_ms};
use crate::service::Create;
use bytes::{Bytes, BytesMut};
use meridian_topic::api::BoxFuture;
use meridian_topic::{
    AccessMode, ClientSink, Delivery, ProducerKey, ProducerReady, ProducerRequest, Publish, Receipt, TopicError,
    TopicErrorKind, TopicHandle,
};
use meridian_types::TopicName;
use meridian_wire::payload;
use meridian_wire::proto::MessageMetadata;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// How long storing may take.
const STORE_LIMIT: Duration = Duration::from_secs(15);

/// Receipts counted, and why there will be no more.
#[derive(Debug, Clone, Default)]
struct Progress {
    stored: u64,
    fault: Option<String>,
}

struct Receipts(watch::Sender<Progress>);

impl Receipts {
    fn fail(&self, why: String) {
        self.0.send_modify(|progress| progress.fault = progress.fault.take().or(Some(why)));
    }
}

impl ClientSink for Receipts {
    fn receipts(&self, _producer_id: u64, receipts: &[Receipt]) {
        self.0.send_modify(|progress| progress.stored += receipts.len() as u64);
    }
    fn send_error(&self, _producer_id: u64, _sequence_id: u64, _kind: TopicErrorKind, message: &str) {
        self.fail(message.to_owned());
    }
    fn producer_ready(&self, _producer_id: u64, _ready: ProducerReady) {}
    fn producer_refused(&self, _producer_id: u64, error: &TopicError) {
        self.fail(error.to_string());
    }
    fn close_producer(&self, _producer_id: u64) {
        self.fail("the topic has been closed".to_owned());
    }
    fn close_consumer(&self, _consumer_id: u64) {}
    fn deliver(&self, _consumer_id: u64, _deliveries: Vec<Delivery>) {}
    fn active_consumer_changed(&self, _consumer_id: u64, _is_active: bool) {}
    fn reached_end_of_topic(&self, _consumer_id: u64) {}
    fn is_writable(&self) -> bool {
        true
    }
    fn probe(&self) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }
    fn peer_address(&self) -> String {
        "broker".to_owned()
    }
    fn client_version(&self) -> String {
        format!("Meridian/{}", env!("CARGO_PKG_VERSION"))
    }
}

struct Open {
    topic: Arc<dyn TopicHandle>,
    key: ProducerKey,
    name: String,
    progress: watch::Receiver<Progress>,
    sent: u64,
}

/// Writes into one topic.
pub struct Appender {
    service: Weak<BrokerService>,
    topic: TopicName,
    open: tokio::sync::Mutex<Option<Open>>,
    properties: BTreeMap<String, String>,
}

impl Appender {
    /// Of a topic, which is made when it is first needed.
    pub fn new(service: &Arc<BrokerService>, topic: TopicName, properties: BTreeMap<String, String>) -> Self {
        Self { service: Arc::downgrade(service), topic, open: Default::default(), properties }
    }

    /// Appends messages, in order; they are stored when it answers.
    ///
    /// # Errors
    /// What is in the way. Some of them may have been stored.
    pub async fn append(&self, messages: Vec<Bytes>) -> Result<(), String> {
        let mut held = self.open.lock().await;
        let mut open = match held.take().filter(|open| open.progress.borrow().fault.is_none()) {
            Some(open) => open,
            None => self.open().await?,
        };
        let batch = messages.into_iter().map(|message| open.next(&message)).collect::<Vec<_>>();
        open.topic.publish(open.key, batch);
        let wanted = open.sent;
        let done = open.progress.wait_for(|progress| progress.stored >= wanted || progress.fault.is_some());
        let outcome = match tokio::time::timeout(STORE_LIMIT, done).await {
            Ok(Ok(progress)) => progress.fault.clone().map_or(Ok(()), Err),
            Ok(Err(_)) => Err("the topic has gone".to_owned()),
            Err(_) => Err(format!("not stored within {} s", STORE_LIMIT.as_secs())),
        };
        match outcome {
            Ok(()) => {
                *held = Some(open);
                Ok(())
            }
            Err(why) => {
                open.topic.remove_producer(open.key).await;
                Err(why)
            }
        }
    }

    async fn open(&self) -> Result<Open, String> {
        let service = self.service.upgrade().ok_or("the broker has ended")?;
        let topic = service.topic(&self.topic, Create::Always).await.map_err(|error| error.to_string())?;
        let (sender, progress) = watch::channel(Progress::default());
        let request = ProducerRequest {
            sink: Arc::new(Receipts(sender)),
            producer_id: 0,
            name: service.next_producer_name(),
            user_provided_name: false,
            epoch: 0,
            access_mode: AccessMode::Shared,
            topic_epoch: None,
            // What it writes is the platform's own: no rule of a namespace keeps it out.
            encrypted: true,
            metadata: self.properties.clone(),
            schema_version: None,
            initial_subscription: None,
            receipts_by_position: false,
            principal: None,
        };
        let ready = topic.add_producer(request).await.map_err(|error| error.to_string())?;
        Ok(Open { topic, key: ready.key, name: ready.name, progress, sent: 0 })
    }
}

impl Open {
    fn next(&mut self, message: &Bytes) -> Publish {
        let metadata = MessageMetadata {
            producer_name: self.name.clone(),
            sequence_id: self.sent,
            publish_time: now_ms(),
            ..Default::default()
        };
        let mut entry = BytesMut::new();
        payload::encode(&metadata, message, &mut entry);
        let publish = Publish {
            sequence_id: self.sent,
            highest_sequence_id: None,
            messages: 1,
            marker: false,
            is_chunk: false,
            source: None,
            payload: entry.freeze(),
        };
        self.sent += 1;
        publish
    }
}
