//! PRODUCER and CLOSE_PRODUCER.

use super::slots::Begin;
use super::{Session, reply, schemas};
use crate::access::Wish;
use crate::error::BrokerError;
use crate::quotas::Hold;
use crate::service::Create;
use bytes::Bytes;
use meridian_failover::{LinkRule, PublishRule};
use meridian_policy::quota::Limit;
use meridian_topic::origins::is_link;
use meridian_topic::{AccessMode, ProducerKey, ProducerRequest, TopicHandle};
use meridian_types::TopicName;
use meridian_wire::error::request_error;
use meridian_wire::proto::command_topic_migrated::ResourceType;
use meridian_wire::proto::{
    CommandCloseProducer, CommandProducer, CommandProducerSuccess, CommandSuccess, ProducerAccessMode, ServerError,
};
use meridian_wire::replicate::{EPOCH_KEY, LINK_KEY, link_target};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) fn metadata_of(pairs: &[meridian_wire::proto::KeyValue]) -> BTreeMap<String, String> {
    pairs.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect()
}

fn access_mode(number: Option<i32>) -> AccessMode {
    match number.and_then(|number| ProducerAccessMode::try_from(number).ok()) {
        Some(ProducerAccessMode::Exclusive) => AccessMode::Exclusive,
        Some(ProducerAccessMode::WaitForExclusive) => AccessMode::WaitForExclusive,
        Some(ProducerAccessMode::ExclusiveWithFencing) => AccessMode::ExclusiveWithFencing,
        _ => AccessMode::Shared,
    }
}

impl Session {
    pub(super) fn create_producer(&self, request: CommandProducer) {
        let (request_id, grants) = (request.request_id, self.grants_version());
        let topic = match self.admit_producer(&request) {
            Ok(topic) => topic,
            Err(error) => return self.send(reply::refused(request_id, &error)),
        };
        let max = self.service.config().session.max_handlers_per_connection;
        let id = request.producer_id;
        let token = {
            let mut slots = self.slots.lock();
            match slots.begin_producer(id, request_id, max) {
                Begin::Fresh(token) => token,
                Begin::Pending => {
                    let text = "Producer is already present on the connection";
                    drop(slots);
                    return self.send(request_error(request_id, ServerError::ServiceNotReady, text));
                }
                Begin::TooMany => {
                    drop(slots);
                    let text = format!("the connection holds {max} producers and consumers already");
                    return self.send(request_error(request_id, ServerError::NotAllowedError, &text));
                }
                Begin::Exists => {
                    let slot = slots.producers.get(&id);
                    let (name, version) =
                        slot.map(|slot| (slot.name.clone(), slot.schema_version.clone())).unwrap_or_default();
                    drop(slots);
                    return self.send(CommandProducerSuccess {
                        request_id,
                        producer_name: name,
                        schema_version: Some(version),
                        ..Default::default()
                    });
                }
            }
        };
        self.spawn(|session| async move {
            match session.attach_producer(topic, &request, token).await {
                Ok(()) => session.close_forbidden_since(grants),
                Err(error) => {
                    session.slots.lock().forget_producer(id, token);
                    session.send(reply::refused(request_id, &error));
                }
            }
        });
    }

    fn admit_producer(&self, request: &CommandProducer) -> Result<TopicName, BrokerError> {
        let topic = TopicName::parse(&request.topic)?;
        let principal = self.principal();
        let wish = if is_link(request.producer_name()) { Wish::Replicate(&topic) } else { Wish::Produce(&topic) };
        self.service.access().check(&principal, wish)?;
        if let Some(subscription) = request.initial_subscription_name.as_deref().filter(|name| !name.is_empty()) {
            self.service.access().check(&principal, Wish::Consume(&topic, subscription))?;
            self.service.check_subscription_name(subscription)?;
            if !self.service.may_create_subscription(&topic) {
                let text =
                    "Could not create the initial subscription due to the auto subscription creation is not allowed.";
                return Err(BrokerError::NotAllowed(text.to_owned()));
            }
        }
        Ok(topic)
    }

    /// A link that was given the address of another region is told so: what it sends would be stored in the wrong place and
    /// count as delivered. Pulsar clusters may call this region by another name.
    fn check_target(&self, request: &CommandProducer) -> Result<(), BrokerError> {
        let own = &self.service.config().cluster;
        let ours = request.metadata.iter().any(|pair| pair.key == LINK_KEY);
        match link_target(request.producer_name()).filter(|target| ours && target != own) {
            Some(target) => {
                let message = format!("this is region {own}, the link is for {target}: its address is wrong");
                Err(BrokerError::NotAllowed(message))
            }
            None => Ok(()),
        }
    }

    /// Whether this region takes the producer: tenants' ones where the namespace is active, links of the present epoch.
    fn check_region(&self, topic: &TopicName, request: &CommandProducer) -> Result<(), BrokerError> {
        if is_link(request.producer_name()) {
            self.check_target(request)?;
            let epoch = request.metadata.iter().find(|pair| pair.key == EPOCH_KEY).map(|pair| pair.value.as_str());
            return match self.service.link_rule(topic, epoch) {
                LinkRule::Stale { current } => {
                    Err(BrokerError::NotAllowed(format!("stale epoch: the namespace is at {current} here")))
                }
                LinkRule::Accept | LinkRule::Ask => Ok(()),
            };
        }
        if let PublishRule::Moved { to } = self.service.publish_rule(topic) {
            self.send_moved(ResourceType::Producer, request.producer_id, &self.service.address_of(&to));
            return Err(BrokerError::NotReady(format!("the topic is served in region {to}")));
        }
        Ok(())
    }

    async fn attach_producer(
        self: &Arc<Self>,
        name: TopicName,
        request: &CommandProducer,
        token: u64,
    ) -> Result<(), BrokerError> {
        self.check_region(&name, request)?;
        let counted = match is_link(request.producer_name()) {
            true => None,
            false => Some(self.count_client(Limit::Producers, &name).await?),
        };
        let topic = self.service.topic(&name, Create::IfAllowed).await?;
        if let Some(subscription) = request.initial_subscription_name.as_deref().filter(|name| !name.is_empty()) {
            self.service.check_subscription_quota(&name, subscription)?;
        }
        let version = self.producer_schema(&name, request).await?;
        let given = request.producer_name.clone().filter(|name| !name.is_empty());
        let user_provided_name = given.is_some() && request.user_provided_producer_name();
        let request = ProducerRequest {
            sink: self.clone(),
            producer_id: request.producer_id,
            name: given.unwrap_or_else(|| self.service.next_producer_name()),
            user_provided_name,
            epoch: request.epoch(),
            access_mode: access_mode(request.producer_access_mode),
            topic_epoch: request.topic_epoch,
            encrypted: request.encrypted(),
            metadata: metadata_of(&request.metadata),
            schema_version: version.map(|version| version as i64),
            initial_subscription: request.initial_subscription_name.clone().filter(|name| !name.is_empty()),
            receipts_by_position: self.client().is_some_and(|client| client.repl_dedup),
            principal: self.principal().acting().map(str::to_owned),
        };
        let producer_id = request.producer_id;
        let version = version.map(reply::schema_version).unwrap_or_default();
        let ready = topic.add_producer(request).await?;
        self.install_producer(topic, (producer_id, token), ready, version, counted).await
    }

    /// The topic has taken the producer: the slot gets it, unless the client has gone meanwhile.
    async fn install_producer(
        &self,
        topic: Arc<dyn TopicHandle>,
        (producer_id, token): (u64, u64),
        mut ready: meridian_topic::ProducerReady,
        schema_version: Bytes,
        counted: Option<Hold>,
    ) -> Result<(), BrokerError> {
        {
            let mut slots = self.slots.lock();
            let ended = slots.ended;
            if let Some(slot) = slots.pending_producer(producer_id, token).filter(|_| !ended) {
                slot.attached = Some((topic, ready.key));
                slot.counted = counted;
                slot.name = ready.name.clone();
                slot.schema_version = schema_version;
                // It may have become ready between the topic's answer and now.
                ready.ready |= slot.ready;
                slot.ready = ready.ready;
                // Under the lock, so that nothing of this producer is written before its success.
                self.send(reply::producer_success(slot.request_id, &ready, &slot.schema_version));
                return Ok(());
            }
        }
        topic.remove_producer(ready.key).await;
        Err(BrokerError::NotReady("the topic dropped the producer while it was being created".to_owned()))
    }

    async fn producer_schema(&self, topic: &TopicName, request: &CommandProducer) -> Result<Option<u64>, BrokerError> {
        // A link brings messages of all schemas; each was admitted where it was sent.
        let link = is_link(request.producer_name());
        if let Some(info) = schemas::given(request.schema.as_ref())? {
            if link {
                return self.service.register_link_schema(topic, info, self.principal().acting()).await.map(Some);
            }
            return self.service.register_schema(topic, info, self.principal().acting()).await.map(Some);
        }
        if !link && self.service.schema_enforced(topic) && self.service.schemas().latest(topic).await?.is_some() {
            let text =
                format!("Producers cannot connect or send message without a schema to topics with a schema: {topic}");
            return Err(crate::schema::SchemaError::Incompatible(text).into());
        }
        Ok(None)
    }

    pub(super) fn close_producer_command(&self, close: CommandCloseProducer) {
        let attached: Option<(Arc<dyn TopicHandle>, ProducerKey)> = {
            let slots = self.slots.lock();
            slots.producers.get(&close.producer_id).and_then(|slot| slot.attached.clone())
        };
        let done = CommandSuccess { request_id: close.request_id, ..Default::default() };
        let Some((topic, key)) = attached else {
            // Unknown, or still being created: the creation finds its slot gone and undoes itself.
            self.slots.lock().producers.remove(&close.producer_id);
            return self.send(done);
        };
        self.spawn(|session| async move {
            // The slot stays until the topic is done: what was sent before is still answered.
            topic.remove_producer(key).await;
            let gone = {
                let mut slots = session.slots.lock();
                let same = slots.producers.get(&close.producer_id).and_then(|slot| slot.attached.as_ref());
                let same = same.is_some_and(|(_, attached)| *attached == key);
                if same { slots.producers.remove(&close.producer_id) } else { None }
            };
            if let Some(slot) = gone {
                session.drop_unanswered(slot);
            }
            session.send(done);
        });
    }
}
