//! SUBSCRIBE, FLOW, UNSUBSCRIBE, CLOSE_CONSUMER, SEEK, GET_LAST_MESSAGE_ID, CONSUMER_STATS.

use super::producer::metadata_of;
use super::slots::Begin;
use super::{Session, reply, schemas};
use crate::access::Wish;
use crate::error::BrokerError;
use crate::quotas::Hold;
use crate::service::Create;
use meridian_failover::PublishRule;
use meridian_policy::check_properties;
use meridian_policy::quota::Limit;
use meridian_registry::RegistryError;
use meridian_topic::{
    ConsumerKey, InitialCursor, KeySharedPolicy, SeekTo, SubscribeRequest, SubscriptionType, TopicHandle,
};
use meridian_types::TopicName;
use meridian_wire::error::request_error;
use meridian_wire::proto::command_subscribe::{InitialPosition, SubType};
use meridian_wire::proto::command_topic_migrated::ResourceType;
use meridian_wire::proto::{
    CommandCloseConsumer, CommandConsumerStats, CommandConsumerStatsResponse, CommandFlow, CommandGetLastMessageId,
    CommandGetLastMessageIdResponse, CommandSeek, CommandSubscribe, CommandSuccess, CommandUnsubscribe, KeySharedMeta,
    KeySharedMode, ServerError,
};
use std::sync::Arc;

const NO_CONSUMER: &str = "Consumer not found";

fn type_of(number: i32) -> Option<SubscriptionType> {
    Some(match SubType::try_from(number).ok()? {
        SubType::Exclusive => SubscriptionType::Exclusive,
        SubType::Shared => SubscriptionType::Shared,
        SubType::Failover => SubscriptionType::Failover,
        SubType::KeyShared => SubscriptionType::KeyShared,
    })
}

fn type_name(sub_type: Option<SubscriptionType>) -> Option<String> {
    let name = match sub_type? {
        SubscriptionType::Exclusive => "Exclusive",
        SubscriptionType::Shared => "Shared",
        SubscriptionType::Failover => "Failover",
        SubscriptionType::KeyShared => "Key_Shared",
    };
    Some(name.to_owned())
}

fn key_shared(meta: &KeySharedMeta) -> KeySharedPolicy {
    let allow_out_of_order = meta.allow_out_of_order_delivery();
    if meta.key_shared_mode == KeySharedMode::Sticky as i32 {
        // Negative bounds become huge ones, which the topic refuses.
        let ranges = meta.hash_ranges.iter().map(|range| (range.start as u32, range.end as u32)).collect();
        return KeySharedPolicy::Sticky { allow_out_of_order, ranges };
    }
    KeySharedPolicy::AutoSplit { allow_out_of_order }
}

impl Session {
    pub(super) fn subscribe(&self, request: CommandSubscribe) {
        let (request_id, grants) = (request.request_id, self.grants_version());
        let topic = match self.admit_consumer(&request) {
            Ok(topic) => topic,
            Err(error) => return self.send(reply::refused(request_id, &error)),
        };
        let max = self.service.config().session.max_handlers_per_connection;
        let id = request.consumer_id;
        let begun = self.slots.lock().begin_consumer(id, &request.subscription, topic.partition(), max);
        let token = match begun {
            Begin::Fresh(token) => token,
            Begin::Exists => return self.send(CommandSuccess { request_id, ..Default::default() }),
            Begin::Pending => {
                let text = "Consumer is already present on the connection";
                return self.send(request_error(request_id, ServerError::ServiceNotReady, text));
            }
            Begin::TooMany => {
                let text = format!("the connection holds {max} producers and consumers already");
                return self.send(request_error(request_id, ServerError::NotAllowedError, &text));
            }
        };
        self.spawn(|session| async move {
            match session.attach_consumer(topic, request, token).await {
                Ok(()) => session.close_forbidden_since(grants),
                Err(error) => {
                    session.slots.lock().forget_consumer(id, token);
                    session.send(reply::refused(request_id, &error));
                }
            }
        });
    }

    fn admit_consumer(&self, request: &CommandSubscribe) -> Result<TopicName, BrokerError> {
        let topic = TopicName::parse(&request.topic)?;
        self.service.access().check(&self.principal(), Wish::Consume(&topic, &request.subscription))?;
        self.service.check_subscription_name(&request.subscription)?;
        let chars: usize =
            request.metadata.iter().map(|pair| pair.key.chars().count() + pair.value.chars().count()).sum();
        let max = self.service.config().session.max_consumer_metadata_chars;
        if chars > max {
            return Err(BrokerError::InvalidValue(format!(
                "The size of the consumer's metadata is {chars} characters, the limit is {max}"
            )));
        }
        Ok(topic)
    }

    async fn attach_consumer(
        self: &Arc<Self>,
        name: TopicName,
        request: CommandSubscribe,
        token: u64,
    ) -> Result<(), BrokerError> {
        let create = if request.force_topic_creation() { Create::IfAllowed } else { Create::Never };
        if request.durable()
            && let PublishRule::Moved { to } = self.service.publish_rule(&name)
        {
            self.send_moved(ResourceType::Consumer, request.consumer_id, &self.service.address_of(&to));
            return Err(BrokerError::NotReady(format!("the topic is served in region {to}")));
        }
        let counted = self.count_client(Limit::Consumers, &name).await?;
        let topic = self.service.topic(&name, create).await?;
        if request.durable() {
            self.service.check_subscription_quota(&name, &request.subscription)?;
        }
        if let Some(info) = schemas::given(request.schema.as_ref())? {
            self.service.admit_consumer_schema(&topic, info, self.principal().acting()).await?;
        }
        let (id, request_id) = (request.consumer_id, request.request_id);
        let request = self.subscribe_request(&name, request)?;
        let key = topic.subscribe(request).await?;
        let (installed, active) = self.install_consumer(&topic, (id, token), key, request_id, counted);
        if !installed {
            topic.remove_consumer(key).await;
            let text = "the topic dropped the consumer while it was being created";
            return Err(BrokerError::NotReady(text.to_owned()));
        }
        if let Some(is_active) = active {
            self.send_active(id, is_active);
        }
        Ok(())
    }

    fn install_consumer(
        &self,
        topic: &Arc<dyn TopicHandle>,
        (id, token): (u64, u64),
        key: ConsumerKey,
        request_id: u64,
        counted: Hold,
    ) -> (bool, Option<bool>) {
        let mut slots = self.slots.lock();
        let ended = slots.ended;
        let Some(slot) = slots.pending_consumer(id, token).filter(|_| !ended) else { return (false, None) };
        slot.attached = Some((topic.clone(), key));
        slot.counted = Some(counted);
        self.send(CommandSuccess { request_id, ..Default::default() });
        (true, slot.active.take())
    }

    fn subscribe_request(
        self: &Arc<Self>,
        topic: &TopicName,
        request: CommandSubscribe,
    ) -> Result<SubscribeRequest, BrokerError> {
        let Some(sub_type) = type_of(request.sub_type) else {
            return Err(BrokerError::NotAllowed(format!("unknown subscription type {}", request.sub_type)));
        };
        let initial = match request.initial_position() {
            InitialPosition::Earliest => InitialCursor::Earliest,
            InitialPosition::Latest => InitialCursor::Latest,
        };
        let start = request.start_message_id.as_ref();
        let subscription_properties = metadata_of(&request.subscription_properties);
        check_properties(&subscription_properties).map_err(RegistryError::Policy)?;
        Ok(SubscribeRequest {
            sink: self.clone(),
            consumer_id: request.consumer_id,
            consumer_name: request.consumer_name.clone().unwrap_or_default(),
            sub_type,
            durable: request.durable(),
            initial,
            start_message_id: start.map(|id| (reply::position(id), id.batch_index())),
            start_rollback_s: request.start_message_rollback_duration_sec(),
            priority_level: request.priority_level(),
            read_compacted: request.read_compacted(),
            key_shared: request.key_shared_meta.as_ref().map(key_shared),
            consumer_epoch: request.consumer_epoch,
            replicate_state: request
                .replicate_subscription_state
                .filter(|_| self.service.config().replicated_subscriptions),
            metadata: metadata_of(&request.metadata),
            subscription_properties,
            may_create: self.service.may_create_subscription(topic),
            principal: self.principal().acting().map(str::to_owned),
            subscription: request.subscription,
        })
    }

    pub(super) fn flow(&self, flow: &CommandFlow) -> Result<(), String> {
        // Permits are signed for some clients: the upper half of the numbers is negative there.
        if flow.message_permits == 0 || flow.message_permits > i32::MAX as u32 {
            return Err(format!("FLOW of {} permits", flow.message_permits as i32));
        }
        let attached = self.slots.lock().consumer(flow.consumer_id);
        if let Some((topic, key)) = attached {
            topic.flow(key, flow.message_permits);
        }
        Ok(())
    }

    /// The consumer, or an ERROR that there is none.
    fn consumer_or_refuse(&self, id: u64, request_id: u64) -> Option<(Arc<dyn TopicHandle>, ConsumerKey)> {
        let attached = self.slots.lock().consumer(id);
        if attached.is_none() {
            self.send(request_error(request_id, ServerError::MetadataError, NO_CONSUMER));
        }
        attached
    }

    fn remove_consumer_slot(&self, id: u64, key: ConsumerKey) {
        let mut slots = self.slots.lock();
        if slots.consumer(id).is_some_and(|(_, attached)| attached == key) {
            slots.consumers.remove(&id);
        }
    }

    pub(super) fn close_consumer_command(&self, close: CommandCloseConsumer) {
        let slot = self.slots.lock().consumers.remove(&close.consumer_id);
        let done = CommandSuccess { request_id: close.request_id, ..Default::default() };
        // Unknown, or still being created: the creation finds its slot gone and undoes itself.
        let Some((topic, key)) = slot.and_then(|slot| slot.attached) else { return self.send(done) };
        self.spawn(|session| async move {
            topic.remove_consumer(key).await;
            session.send(done);
        });
    }

    pub(super) fn unsubscribe(&self, request: CommandUnsubscribe) {
        let request_id = request.request_id;
        let Some((topic, key)) = self.consumer_or_refuse(request.consumer_id, request_id) else { return };
        self.spawn(|session| async move {
            match topic.unsubscribe(key, request.force()).await {
                Ok(()) => {
                    session.remove_consumer_slot(request.consumer_id, key);
                    session.send(CommandSuccess { request_id, ..Default::default() });
                }
                Err(error) => session.send(reply::refused(request_id, &error.into())),
            }
        });
    }

    pub(super) fn seek(&self, request: CommandSeek) {
        let request_id = request.request_id;
        let to = match (&request.message_id, request.message_publish_time) {
            (Some(id), _) => {
                SeekTo::Position(reply::position(id), id.ack_set.iter().map(|word| *word as u64).collect())
            }
            (None, Some(time)) => SeekTo::PublishTime(time),
            (None, None) => {
                let text = "Message id and message publish time were not present";
                return self.send(request_error(request_id, ServerError::MetadataError, text));
            }
        };
        let Some((topic, key)) = self.consumer_or_refuse(request.consumer_id, request_id) else { return };
        self.spawn(|session| async move {
            match topic.seek(key, to).await {
                Ok(()) => session.send(CommandSuccess { request_id, ..Default::default() }),
                Err(error) => {
                    let text = format!("Error when resetting subscription: {error}");
                    session.send(request_error(request_id, ServerError::UnknownError, &text));
                }
            }
        });
    }

    pub(super) fn last_message_id(&self, request: CommandGetLastMessageId) {
        let request_id = request.request_id;
        let Some((topic, key)) = self.consumer_or_refuse(request.consumer_id, request_id) else { return };
        self.spawn(|session| async move {
            let partition = topic.name().partition();
            match topic.last_message(key).await {
                Ok(last) => session.send(CommandGetLastMessageIdResponse {
                    request_id,
                    last_message_id: reply::message_id(last.position, partition, last.batch_index),
                    consumer_mark_delete_position: last
                        .mark_delete
                        .filter(|position| position.ledger_id.0 >= 0)
                        .map(|position| reply::message_id(position, partition, -1)),
                }),
                Err(error) => session.send(reply::refused(request_id, &error.into())),
            }
        });
    }

    pub(super) fn consumer_stats(&self, request: &CommandConsumerStats) {
        let attached = self.slots.lock().consumer(request.consumer_id);
        let stats = attached.and_then(|(topic, key)| topic.consumer_stats(key));
        let Some((consumer, subscription)) = stats else {
            return self.send(CommandConsumerStatsResponse {
                request_id: request.request_id,
                error_code: Some(ServerError::ConsumerNotFound as i32),
                error_message: Some(format!("Consumer {} not found", request.consumer_id)),
                ..Default::default()
            });
        };
        self.send(CommandConsumerStatsResponse {
            request_id: request.request_id,
            msg_rate_out: Some(consumer.rate_out),
            msg_throughput_out: Some(consumer.throughput_out),
            msg_rate_redeliver: Some(consumer.rate_redeliver),
            consumer_name: Some(consumer.name),
            available_permits: Some(consumer.available_permits as u64),
            unacked_messages: Some(consumer.unacked_messages),
            blocked_consumer_on_unacked_msgs: Some(consumer.blocked_on_unacked),
            address: Some(consumer.address),
            connected_since: Some(crate::time::iso(consumer.connected_since_ms)),
            r#type: type_name(subscription.sub_type),
            msg_rate_expired: Some(subscription.rate_expired),
            msg_backlog: Some(subscription.backlog_entries),
            message_ack_rate: Some(consumer.ack_rate),
            ..Default::default()
        });
    }
}
