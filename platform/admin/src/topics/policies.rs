//! Policies of topics: one row each.

use super::of_topic;
use crate::call::Call;
use crate::error::AdminError;
use crate::namespaces::check_clusters;
use crate::policy_table::{
    Input, QuotaChange, Row, count, entry_filters, field, no_such_call, offload, pause_on_ack, persistence, retention,
    shown, subscription_types,
};
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::Method;
use axum::routing::get;
use meridian_door::Action;
use meridian_policy::{
    AutoSubscriptionCreationOverride, BacklogQuota, BacklogQuotaKind, DispatchRate, EffectivePolicies, PublishRate,
    SubscribeRate, TopicPolicies,
};
use meridian_settings::Key;
use meridian_types::TopicName;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What rows here are of.
type Line = Row<TopicPolicies>;

const TABLE: &[Line] = &[
    count!("messageTTL", message_ttl_in_seconds, "Invalid value for message TTL")
        .applied_by(|all| shown(&all.message_ttl_s)),
    count!("maxProducers", max_producers, "maxProducers must be 0 or more")
        .required()
        .applied_by(|all| shown(&all.max_producers)),
    count!("maxConsumers", max_consumers, "maxConsumers must be 0 or more")
        .required()
        .applied_by(|all| shown(&all.max_consumers)),
    count!(
        "maxConsumersPerSubscription",
        max_consumers_per_subscription,
        "Invalid value for maxConsumersPerSubscription"
    )
    .required()
    .unset_is_no_content()
    .applied_by(|all| shown(&all.max_consumers_per_subscription)),
    count!("maxSubscriptionsPerTopic", max_subscriptions, "maxSubscriptionsPerTopic must be 0 or more")
        .required()
        .unset_is_no_content()
        .applied_by(|all| shown(&all.max_subscriptions)),
    count!("maxUnackedMessagesOnConsumer", max_unacked_messages_per_consumer, "maxUnackedNum must be 0 or more")
        .applied_by(|all| shown(&all.max_unacked_per_consumer)),
    count!(
        "maxUnackedMessagesOnSubscription",
        max_unacked_messages_per_subscription,
        "maxUnackedNum must be 0 or more"
    )
    .applied_by(|all| shown(&all.max_unacked_per_subscription)),
    count!("maxMessageSize", max_message_size, MESSAGE_SIZE_REFUSED)
        .required()
        .unset_is_no_content()
        .applied_by(|all| shown(&all.max_message_bytes)),
    count!("deduplicationSnapshotInterval", deduplication_snapshot_interval_seconds, "interval must be 0 or more")
        .applied_by(|all| shown(&all.deduplication_snapshot_s)),
    field!("globalProducers", global_producers).applied_by(|all| shown(&all.global_producers)),
    field!("replicateSubscriptionState", replicate_subscription_state)
        .applied_by(|all| shown(&all.replicate_subscription_state)),
    field!("deduplicationEnabled", deduplication_enabled).applied_by(|all| shown(&all.deduplication)),
    field!("delayedDelivery", delayed_delivery).applied_by(|all| shown(&all.delayed_delivery)),
    field!("inactiveTopicPolicies", inactive_topic_policies).applied_by(|all| shown(&all.inactive_topics)),
    field!("dispatchRate", dispatch_rate)
        .applied_by(|all| dispatch_rate(all.topic_dispatch_rate, all.topic_dispatch_relative)),
    field!("subscriptionDispatchRate", subscription_dispatch_rate)
        .applied_by(|all| dispatch_rate(all.subscription_dispatch_rate, all.subscription_dispatch_relative)),
    field!("replicatorDispatchRate", replicator_dispatch_rate)
        .applied_by(|all| dispatch_rate(all.replicator_dispatch_rate, all.replicator_dispatch_relative)),
    field!("publishRate", publish_rate).unset_is_no_content().applied_by(|all| {
        let (messages, bytes) = all.publish_rate;
        let none: (PublishRate, PublishRate) = Default::default();
        if (messages, bytes) == (0, 0) {
            return shown(&none.0);
        }
        json!({ "publishThrottlingRateInMsg": limit(messages), "publishThrottlingRateInByte": limit(bytes) })
    }),
    field!("subscribeRate", subscribe_rate).applied_by(|all| {
        let (calls, period) = all.subscribe_rate;
        let unset = SubscribeRate::default();
        let calls = if calls == 0 { unset.subscribe_throttling_rate_per_consumer } else { i64::from(calls) };
        json!({ "subscribeThrottlingRatePerConsumer": calls, "ratePeriodInSecond": period })
    }),
    Line::new(
        "compactionThreshold",
        |policies, _| shown(&policies.compaction_threshold),
        |policies, input| {
            let threshold: Option<i64> = input.parse()?;
            if threshold.is_some_and(|bytes| bytes < 0) {
                return Err(AdminError::invalid("Invalid value for compactionThreshold"));
            }
            policies.compaction_threshold = threshold;
            Ok(())
        },
    )
    .required()
    .removed_by(|policies, _| policies.compaction_threshold = None)
    .applied_by(|all| shown(&all.compaction_threshold_bytes)),
    offload!(),
    pause_on_ack!().unset_shows(|| Value::from(false)),
    field!("schemaCompatibilityStrategy", schema_compatibility_strategy)
        .put()
        .applied_by(|all| shown(&all.schema_compatibility)),
    field!("schemaValidationEnforced", schema_validation_enforced)
        .required()
        .applied_by(|all| shown(&all.schema_validation_enforced)),
    subscription_types!(subscription_types_enabled).applied_by(|all| shown(&all.subscription_types)),
    entry_filters!().applied_by(|_| json!({ "entryFilterNames": "" })),
    field!("autoSubscriptionCreation", auto_subscription_creation_override).applied_by(|all| {
        let allow_auto_subscription_creation = all.auto_subscription_creation.allowed;
        shown(&AutoSubscriptionCreationOverride { allow_auto_subscription_creation })
    }),
    Line::new(
        "replication",
        |policies, _| shown(&policies.replication_clusters),
        |policies, input| {
            policies.replication_clusters = Some(input.parse::<Option<_>>()?.unwrap_or_default());
            Ok(())
        },
    )
    .removed_by(|policies, _| policies.replication_clusters = None)
    .applied_by(|all| shown(&all.replication_clusters)),
    persistence!(persistence).applied_by(|all| shown(&all.persistence)),
    retention!(
        retention,
        "Retention Quota must exceed configured backlog quota for topic. Please increase retention quota and retry"
    )
    .applied_by(|all| shown(&all.retention)),
];

const MESSAGE_SIZE_REFUSED: &str = "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller \
                                   than that in the broker-level";

/// Names, whether they are set by PUT, and whether they can be unset.
pub fn names() -> impl Iterator<Item = (&'static str, bool, bool)> {
    TABLE.iter().map(|row| (row.name, row.by_put, row.remove.is_some() && row.name != "schemaValidationEnforced"))
}

/// A rate in force as Pulsar writes it: no limit is -1.
fn limit(value: u64) -> i64 {
    if value == 0 { -1 } else { i64::try_from(value).unwrap_or(i64::MAX) }
}

fn dispatch_rate((messages, bytes): (u64, u64), relative_to_publish_rate: bool) -> Value {
    shown(&DispatchRate {
        dispatch_throttling_rate_in_msg: limit(messages),
        dispatch_throttling_rate_in_byte: limit(bytes),
        relative_to_publish_rate,
        ..DispatchRate::default()
    })
}

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route(&of_topic("/{policy}"), get(read).post(write).put(write).delete(remove))
        .route(&of_topic("/backlogQuotaMap"), get(quotas))
        .route(&of_topic("/backlogQuota"), axum::routing::post(set_quota).delete(remove_quota))
}

/// The topic of the path, which exists and may have policies.
async fn target(state: &AdminState, call: &Call) -> Result<TopicName, AdminError> {
    let topic = state.topic_for(call, Action::Administer)?;
    if !state.settings().switch(Key::TopicLevelPoliciesEnabled) {
        return Err(AdminError::not_allowed(
            "Topic level policies is disabled, to enable the topic level policy and retry.",
        ));
    }
    state.require_topic(&topic).await?;
    Ok(topic)
}

async fn read(State(state): Given, call: Call) -> Answer {
    let row = Line::named(TABLE, &call)?;
    let topic = target(&state, &call).await?;
    let policies = state.registry().topic_policies(&topic).unwrap_or_default();
    let own = (row.read)(&policies, &state.service.config().cluster);
    if !own.is_null() || !call.flag("applied") {
        return Ok(row.reply(&own));
    }
    match row.applied {
        Some(applied) => Ok(row.reply(&applied(&state.registry().effective(&topic)))),
        // No broker offloads, so that nothing of it is in force: what the namespace asks for is shown.
        None if row.name == "offloadPolicies" => {
            let policies = state.registry().namespace(&topic.namespace()).unwrap_or_default();
            Ok(row.reply(&policies.offload_policies.as_ref().map(crate::offload::shown).unwrap_or_default()))
        }
        None => Ok(row.reply(&own)),
    }
}

async fn write(State(state): Given, method: Method, call: Call) -> Answer {
    let row = Line::named(TABLE, &call)?;
    row.check_set_by(&method)?;
    state.topic_for(&call, Action::Administer)?;
    // The one policy that comes in the query.
    let value = match call.query("messageTTL").filter(|_| row.name == "messageTTL") {
        Some(text) => Value::from(text),
        None => row.value(&call)?,
    };
    let input = Input { name: row.name, value, cluster: &state.service.config().cluster };
    match row.name {
        "replication" => {
            let topic = target(&state, &call).await?;
            check_clusters(&state, &topic.namespace(), &input.parse::<Option<_>>()?.unwrap_or_default())?;
        }
        "maxMessageSize" => {
            let most = state.settings().count(Key::MaxMessageSize);
            if input.parse::<Option<i64>>()?.is_some_and(|bytes| u64::try_from(bytes).is_ok_and(|bytes| bytes > most)) {
                return Err(AdminError::invalid(format!("{MESSAGE_SIZE_REFUSED} ({most} bytes)")));
            }
        }
        _ => {}
    }
    change(&state, &call, row.name, |policies| (row.write)(policies, &input)).await?;
    Ok(Reply::empty(row.set_status))
}

async fn remove(State(state): Given, call: Call) -> Answer {
    let row = Line::named(TABLE, &call)?;
    // Pulsar has no such call either, and a tool's test counts on that.
    if row.name == "schemaValidationEnforced" {
        return Err(no_such_call());
    }
    let remove = row.remover()?;
    let cluster = &state.service.config().cluster;
    change(&state, &call, row.name, |policies| {
        remove(policies, cluster);
        Ok(())
    })
    .await
}

async fn change(
    state: &AdminState,
    call: &Call,
    what: &str,
    change: impl FnMut(&mut TopicPolicies) -> Result<(), AdminError>,
) -> Answer {
    let topic = target(state, call).await?;
    state.registry().update_topic_policies(&topic, change).await?;
    tracing::info!(%topic, policy = what, by = call.principal.acting(), "policy of a topic changed");
    Ok(Reply::done())
}

async fn quotas(State(state): Given, call: Call) -> Answer {
    let topic = target(&state, &call).await?;
    let own = state.registry().topic_policies(&topic).unwrap_or_default().backlog_quota_map.clone();
    if !call.flag("applied") {
        return Ok(Reply::json(&own));
    }
    let mut all = in_force(&state.registry().effective(&topic));
    all.extend(own);
    Ok(Reply::json(&all))
}

fn in_force(policies: &EffectivePolicies) -> BTreeMap<BacklogQuotaKind, BacklogQuota> {
    let size = BacklogQuota::new(limit(policies.backlog_quota_bytes), -1, policies.backlog_bytes_policy);
    let age = BacklogQuota::new(-1, limit(policies.backlog_quota_s), policies.backlog_age_policy);
    BTreeMap::from([(BacklogQuotaKind::DestinationStorage, size), (BacklogQuotaKind::MessageAge, age)])
}

async fn set_quota(State(state): Given, call: Call) -> Answer {
    state.topic_for(&call, Action::Administer)?;
    change_quota(&state, &call, &QuotaChange::set(&call)?).await
}

async fn remove_quota(State(state): Given, call: Call) -> Answer {
    change_quota(&state, &call, &QuotaChange::unset(&call)?).await
}

async fn change_quota(state: &AdminState, call: &Call, wanted: &QuotaChange) -> Answer {
    let namespace = call.namespace()?.to_string();
    change(state, call, "backlogQuota", |policies| {
        wanted.apply(&mut policies.backlog_quota_map, policies.retention, &namespace)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_used_once() {
        let names: BTreeSet<_> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TABLE.len());
    }

    #[test]
    fn every_row_reads_what_it_wrote_and_unset_is_null() {
        let mut policies = TopicPolicies::default();
        for row in TABLE {
            assert!((row.read)(&policies, "here").is_null(), "{} is unset", row.name);
        }
        let ttl = TABLE.iter().find(|row| row.name == "messageTTL").unwrap();
        let below = Input { name: "messageTTL", value: Value::from(-5), cluster: "here" };
        assert_eq!((ttl.write)(&mut policies, &below), Err(AdminError::invalid("Invalid value for message TTL")));
        (ttl.write)(&mut policies, &Input { name: "messageTTL", value: Value::from("0"), cluster: "here" }).unwrap();
        assert_eq!((ttl.read)(&policies, "here"), Value::from(0));
        ttl.remove.unwrap()(&mut policies, "here");
        assert!(policies.is_empty());
    }
}
