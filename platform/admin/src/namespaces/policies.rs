//! Policies of namespaces: one row each.

use super::PATH;
use super::replication::{check_allowed, check_clusters};
use crate::call::Call;
use crate::error::AdminError;
use crate::policy_table::{Input, QuotaChange, Row, count, field, persistence, rate, retention, shown};
use crate::reply::Reply;
use crate::state::AdminState;
use crate::unserved::not_served;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::routing::get;
use meridian_policy::{AutoTopicCreationOverride, Policies, SchemaCompatibility, SubscriptionAuthMode};

/// What rows here are of.
type Line = Row<Policies>;

const TABLE: &[Line] = &[
    count!("messageTTL", message_ttl_in_seconds, "Invalid value for message TTL"),
    count!(
        "subscriptionExpirationTime",
        subscription_expiration_time_minutes,
        "Invalid value for subscription expiration time"
    ),
    count!("maxProducersPerTopic", max_producers_per_topic, "maxProducersPerTopic must be 0 or more"),
    count!("maxConsumersPerTopic", max_consumers_per_topic, "maxConsumersPerTopic must be 0 or more"),
    count!(
        "maxConsumersPerSubscription",
        max_consumers_per_subscription,
        "maxConsumersPerSubscription must be 0 or more"
    ),
    count!("maxSubscriptionsPerTopic", max_subscriptions_per_topic, "maxSubscriptionsPerTopic must be 0 or more"),
    count!("maxTopicsPerNamespace", max_topics_per_namespace, "maxTopicsPerNamespace must be 0 or more"),
    count!(
        "maxUnackedMessagesPerConsumer",
        max_unacked_messages_per_consumer,
        "maxUnackedMessagesPerConsumer must be 0 or more"
    ),
    count!(
        "maxUnackedMessagesPerSubscription",
        max_unacked_messages_per_subscription,
        "maxUnackedMessagesPerSubscription must be 0 or more"
    ),
    count!(
        "deduplicationSnapshotInterval",
        deduplication_snapshot_interval_seconds,
        "deduplicationSnapshotInterval must be 0 or more"
    ),
    field!("deduplication", deduplication_enabled),
    field!("globalProducers", global_producers),
    field!("replicateSubscriptionState", replicate_subscription_state),
    field!("encryptionRequired", encryption_required),
    field!("delayedDelivery", delayed_delivery_policies),
    field!("inactiveTopicPolicies", inactive_topic_policies),
    field!("schemaValidationEnforced", schema_validation_enforced),
    field!("autoSubscriptionCreation", auto_subscription_creation_override),
    field!("subscriptionTypesEnabled", subscription_types_enabled),
    field!("entryFilters", entry_filters),
    field!("resourcegroup", resource_group_name),
    field!("antiAffinity", anti_affinity_group),
    field!("properties", properties).put(),
    field!("offloadPolicies", offload_policies),
    field!("offloadDeletionLagMs", offload_deletion_lag_ms).put(),
    field!("offloadThreshold", offload_threshold).put().removed_by(|policies, _| policies.offload_threshold = -1),
    field!("offloadThresholdInSeconds", offload_threshold_in_seconds)
        .put()
        .answering(StatusCode::OK)
        .removed_by(|policies, _| policies.offload_threshold_in_seconds = -1),
    field!("schemaAutoUpdateCompatibilityStrategy", schema_auto_update_compatibility_strategy).put(),
    field!("replication", replication_clusters).answering(StatusCode::OK),
    field!("allowedClusters", allowed_clusters),
    rate!("dispatchRate", topic_dispatch_rate),
    rate!("subscriptionDispatchRate", subscription_dispatch_rate),
    rate!("replicatorDispatchRate", replicator_dispatch_rate),
    rate!("subscribeRate", cluster_subscribe_rate),
    rate!("publishRate", publish_max_message_rate),
    Line::new(
        "isAllowAutoUpdateSchema",
        |policies, _| shown(&policies.is_allow_auto_update_schema.unwrap_or(true)),
        |policies, input| {
            policies.is_allow_auto_update_schema = input.parse()?;
            Ok(())
        },
    ),
    Line::new(
        "subscriptionAuthMode",
        |policies, _| shown(&policies.subscription_auth_mode),
        |policies, input| {
            policies.subscription_auth_mode = input.parse::<Option<SubscriptionAuthMode>>()?.unwrap_or_default();
            Ok(())
        },
    ),
    Line::new(
        "schemaCompatibilityStrategy",
        |policies, _| shown(&policies.schema_compatibility_strategy),
        |policies, input| {
            policies.schema_compatibility_strategy = input.parse::<Option<SchemaCompatibility>>()?.unwrap_or_default();
            Ok(())
        },
    )
    .put(),
    Line::new(
        "compactionThreshold",
        |policies, _| shown(&policies.compaction_threshold),
        |policies, input| {
            let threshold: Option<i64> = input.parse()?;
            if threshold.is_some_and(|bytes| bytes < 0) {
                return Err(AdminError::invalid("Invalid value for compaction threshold"));
            }
            policies.compaction_threshold = threshold;
            Ok(())
        },
    )
    .put()
    .removed_by(|policies, _| policies.compaction_threshold = None),
    Line::new(
        "autoTopicCreation",
        |policies, _| shown(&policies.auto_topic_creation_override),
        |policies, input| {
            let given: Option<AutoTopicCreationOverride> = input.parse()?;
            given.iter().try_for_each(check_auto_topic_creation)?;
            policies.auto_topic_creation_override = given;
            Ok(())
        },
    )
    .removed_by(|policies, _| policies.auto_topic_creation_override = None),
    retention!(retention_policies),
    persistence!(persistence),
];

fn check_auto_topic_creation(given: &AutoTopicCreationOverride) -> Result<(), AdminError> {
    let invalid =
        |text: &str| Err(AdminError::invalid(format!("Invalid configuration for autoTopicCreationOverride. {text}")));
    match (given.allow_auto_topic_creation, given.topic_type.as_deref(), given.default_num_partitions) {
        (false, ..) => Ok(()),
        (true, Some("partitioned"), Some(count)) if count > 0 => Ok(()),
        (true, Some("partitioned"), _) => invalid("[defaultNumPartitions] cannot be less than 1 for partition type."),
        (true, None | Some("non-partitioned"), None | Some(0)) => Ok(()),
        (true, Some("non-partitioned"), Some(_)) => invalid("[numPartitions] is not allowed for non-partitioned type."),
        (true, ..) => invalid("Unknown topic type [topicType]"),
    }
}

pub fn routes() -> Router<AdminState> {
    let under = |rest: &str| format!("{PATH}{rest}");
    Router::new()
        .route(&under("/{policy}"), get(read).post(write).put(write).delete(remove))
        .route(&under("/backlogQuotaMap"), get(quotas))
        .route(&under("/backlogQuota"), axum::routing::post(set_quota).delete(remove_quota))
        .route(&under("/persistence/bookieAffinity"), get(affinity).post(set_affinity).delete(remove_affinity))
        .route(&under("/removeOffloadPolicies"), axum::routing::delete(remove_offload))
        .route(&under("/property/{key}/{value}"), axum::routing::put(set_property))
        .route(&under("/property/{key}"), get(property).delete(remove_property))
}

async fn read(State(state): Given, call: Call) -> Answer {
    let row = Line::named(TABLE, &call)?;
    let namespace = state.administered_namespace(&call)?;
    let policies = state.registry().namespace(&namespace).unwrap_or_default();
    Ok(Reply::setting(&(row.read)(&policies, &state.service.config().cluster)))
}

async fn write(State(state): Given, method: Method, call: Call) -> Answer {
    let row = Line::named(TABLE, &call)?;
    row.check_set_by(&method)?;
    let input = Input { value: call.value()?, cluster: &state.service.config().cluster };
    match row.name {
        "replication" => check_clusters(&state, &state.administered_namespace(&call)?, &input.parse()?)?,
        "allowedClusters" => check_allowed(&state, &state.administered_namespace(&call)?, &input.parse()?)?,
        _ => {}
    }
    // The one policy with a second part, given beside the body.
    let by_links = match (row.name, call.query("allowAutoUpdateSchemaWithReplicator")) {
        ("isAllowAutoUpdateSchema", Some(text)) => Some(text.parse().map_err(|_| {
            AdminError::bad_request(format!("allowAutoUpdateSchemaWithReplicator={text}: expected true or false"))
        })?),
        _ => None,
    };
    change(&state, &call, row.name, |policies| {
        policies.is_allow_auto_update_schema_with_replicator =
            by_links.unwrap_or(policies.is_allow_auto_update_schema_with_replicator);
        (row.write)(policies, &input)
    })
    .await?;
    Ok(Reply::empty(row.set_status))
}

async fn remove(State(state): Given, call: Call) -> Answer {
    let row = Line::named(TABLE, &call)?;
    let remove = row.remover()?;
    let cluster = &state.service.config().cluster;
    change(&state, &call, row.name, |policies| {
        remove(policies, cluster);
        Ok(())
    })
    .await
}

/// Changes a namespace's policies, with a line in the log.
async fn change(
    state: &AdminState,
    call: &Call,
    what: &str,
    change: impl FnMut(&mut Policies) -> Result<(), AdminError>,
) -> Answer {
    let namespace = state.administered_namespace(call)?;
    state.registry().update_namespace(&namespace, change).await?;
    tracing::info!(%namespace, policy = what, by = call.principal.acting(), "policy of a namespace changed");
    Ok(Reply::done())
}

async fn quotas(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let policies = state.registry().namespace(&namespace).unwrap_or_default();
    Ok(Reply::json(&policies.backlog_quota_map))
}

async fn set_quota(State(state): Given, call: Call) -> Answer {
    change_quota(&state, &call, &QuotaChange::set(&call)?).await
}

async fn remove_quota(State(state): Given, call: Call) -> Answer {
    change_quota(&state, &call, &QuotaChange::unset(&call)?).await
}

async fn change_quota(state: &AdminState, call: &Call, wanted: &QuotaChange) -> Answer {
    change(state, call, "backlogQuota", |policies| {
        wanted.apply(&mut policies.backlog_quota_map, policies.retention_policies)
    })
    .await
}

async fn remove_offload(State(state): Given, call: Call) -> Answer {
    change(&state, &call, "offloadPolicies", |policies| {
        policies.offload_policies = None;
        Ok(())
    })
    .await
}

async fn affinity(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let policies = state.registry().namespace(&namespace).unwrap_or_default();
    Ok(Reply::setting(&shown(&policies.bookie_affinity_group)))
}

async fn set_affinity(State(state): Given, call: Call) -> Answer {
    state.administered_namespace(&call)?;
    Err(not_served("Bookie affinity is not served: bookies have no groups here, so that it would have no effect"))
}

async fn remove_affinity(State(state): Given, call: Call) -> Answer {
    change(&state, &call, "bookieAffinity", |policies| {
        policies.bookie_affinity_group = None;
        Ok(())
    })
    .await
}

async fn property(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let policies = state.registry().namespace(&namespace).unwrap_or_default();
    Ok(policies.properties.get(&call.name("key")).map_or_else(Reply::done, |value| Reply::text(value.clone())))
}

async fn set_property(State(state): Given, call: Call) -> Answer {
    let (key, value) = (call.name("key"), call.name("value"));
    change(&state, &call, "properties", |policies| {
        policies.properties.insert(key.clone(), value.clone());
        Ok(())
    })
    .await
}

async fn remove_property(State(state): Given, call: Call) -> Answer {
    let key = call.name("key");
    change(&state, &call, "properties", |policies| {
        policies.properties.remove(&key);
        Ok(())
    })
    .await
}
