//! Policies of namespaces: one row each.

use super::PATH;
use super::replication::{check_allowed, check_clusters};
use crate::call::Call;
use crate::error::AdminError;
use crate::policy_table::{
    Input, QuotaChange, Row, count, entry_filters, field, no_such_call, offload, pause_on_ack, persistence, rate,
    retention, shown, subscription_types,
};
use crate::quotas::check_binding;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::routing::get;
use meridian_door::{Action, Scope};
use meridian_policy::{AutoTopicCreationOverride, Policies, SchemaCompatibility, SubscriptionAuthMode};
use serde_json::Value;

/// What rows here are of.
type Line = Row<Policies>;

const TABLE: &[Line] = &[
    count!("messageTTL", message_ttl_in_seconds, "Invalid value for message TTL").required(),
    count!(
        "subscriptionExpirationTime",
        subscription_expiration_time_minutes,
        "Invalid value for subscription expiration time"
    )
    .required(),
    count!("maxProducersPerTopic", max_producers_per_topic, "maxProducersPerTopic must be 0 or more").required(),
    count!("maxConsumersPerTopic", max_consumers_per_topic, "maxConsumersPerTopic must be 0 or more").required(),
    count!(
        "maxConsumersPerSubscription",
        max_consumers_per_subscription,
        "maxConsumersPerSubscription must be 0 or more"
    )
    .required(),
    count!("maxSubscriptionsPerTopic", max_subscriptions_per_topic, "maxSubscriptionsPerTopic must be 0 or more")
        .required(),
    count!("maxTopicsPerNamespace", max_topics_per_namespace, "maxTopicsPerNamespace must be 0 or more").required(),
    count!(
        "maxUnackedMessagesPerConsumer",
        max_unacked_messages_per_consumer,
        "maxUnackedMessagesPerConsumer must be 0 or more"
    )
    .required(),
    count!(
        "maxUnackedMessagesPerSubscription",
        max_unacked_messages_per_subscription,
        "maxUnackedMessagesPerSubscription must be 0 or more"
    )
    .required(),
    count!(
        "deduplicationSnapshotInterval",
        deduplication_snapshot_interval_seconds,
        "interval must be greater than or equal to 0"
    ),
    field!("deduplication", deduplication_enabled).required(),
    field!("globalProducers", global_producers),
    field!("replicateSubscriptionState", replicate_subscription_state),
    field!("encryptionRequired", encryption_required).required(),
    field!("delayedDelivery", delayed_delivery_policies),
    field!("inactiveTopicPolicies", inactive_topic_policies),
    field!("schemaValidationEnforced", schema_validation_enforced).required(),
    field!("autoSubscriptionCreation", auto_subscription_creation_override),
    subscription_types!(subscription_types_enabled),
    entry_filters!(),
    pause_on_ack!().unset_shows(|| Value::from(false)),
    Line::new("resourcegroup", |policies, _| shown(&policies.resource_group_name), |_, _| Err(no_such_call()))
        .removed_by(|policies, _| policies.resource_group_name = None),
    Line::new(
        "antiAffinity",
        |policies, _| shown(&policies.anti_affinity_group),
        |policies, input| {
            let group: Option<String> = input.parse()?;
            let group = group.filter(|group| !group.trim().is_empty());
            policies.anti_affinity_group =
                Some(group.ok_or_else(|| AdminError::invalid("antiAffinityGroup can't be empty"))?);
            Ok(())
        },
    )
    .unset_is_no_content()
    .removed_by(|policies, _| policies.anti_affinity_group = None),
    field!("properties", properties).put(),
    offload!(),
    field!("offloadDeletionLagMs", offload_deletion_lag_ms).put().required(),
    field!("offloadThreshold", offload_threshold).put().removed_by(|policies, _| policies.offload_threshold = -1),
    field!("offloadThresholdInSeconds", offload_threshold_in_seconds)
        .put()
        .answering(StatusCode::OK)
        .removed_by(|policies, _| policies.offload_threshold_in_seconds = -1),
    field!("schemaAutoUpdateCompatibilityStrategy", schema_auto_update_compatibility_strategy)
        .put()
        .unset_is_no_content(),
    Line::new(
        "replication",
        |policies, _| shown(&policies.replication_clusters),
        |policies, input| {
            policies.replication_clusters = input.parse::<Option<_>>()?.unwrap_or_default();
            Ok(())
        },
    )
    .answering(StatusCode::OK),
    field!("allowedClusters", allowed_clusters).answering(StatusCode::OK).required(),
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
    )
    .required(),
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
                return Err(AdminError::invalid("compactionThreshold must be 0 or more"));
            }
            policies.compaction_threshold = threshold;
            Ok(())
        },
    )
    .put()
    .required()
    .removed_by(|policies, _| policies.compaction_threshold = None),
    Line::new(
        "autoTopicCreation",
        |policies, _| shown(&policies.auto_topic_creation_override),
        |policies, input| {
            // Below zero is told as too few, not as no number.
            if input.value.get("defaultNumPartitions").and_then(Value::as_i64).is_some_and(|count| count < 0) {
                return Err(AdminError::invalid(TOO_FEW_PARTITIONS));
            }
            let given: Option<AutoTopicCreationOverride> = input.parse()?;
            given.iter().try_for_each(check_auto_topic_creation)?;
            policies.auto_topic_creation_override = given;
            Ok(())
        },
    )
    .removed_by(|policies, _| policies.auto_topic_creation_override = None),
    retention!(retention_policies, "Retention Quota must exceed configured backlog quota for namespace."),
    persistence!(persistence),
];

/// Those of which changes in a namespace that is not there are refused in other words.
const IN_OTHER_WORDS: &[&str] = &[
    "maxSubscriptionsPerTopic",
    "maxTopicsPerNamespace",
    "deduplicationSnapshotInterval",
    "delayedDelivery",
    "inactiveTopicPolicies",
    "retention",
    "resourcegroup",
];

const TOO_FEW_PARTITIONS: &str = "Invalid configuration for autoTopicCreationOverride. the detail is \
                                  [defaultNumPartitions] cannot be less than 1 for partition type.";

/// Names, whether they are set by PUT, and whether they can be unset.
pub fn names() -> impl Iterator<Item = (&'static str, bool, bool)> {
    TABLE.iter().map(|row| (row.name, row.by_put, row.remove.is_some()))
}

fn check_auto_topic_creation(given: &AutoTopicCreationOverride) -> Result<(), AdminError> {
    let invalid = |text: &str| {
        Err(AdminError::invalid(format!("Invalid configuration for autoTopicCreationOverride. the detail is {text}")))
    };
    match (given.allow_auto_topic_creation, given.topic_type.as_deref(), given.default_num_partitions) {
        (false, ..) => Ok(()),
        (true, Some("partitioned"), Some(count)) if count > 0 => Ok(()),
        (true, Some("partitioned"), None) => {
            invalid("[defaultNumPartitions] cannot be null when the type is partitioned.")
        }
        (true, Some("partitioned"), _) => Err(AdminError::invalid(TOO_FEW_PARTITIONS)),
        (true, None | Some("non-partitioned"), None | Some(0)) => Ok(()),
        (true, Some("non-partitioned"), Some(_)) => {
            invalid("[defaultNumPartitions] is not allowed to be set when the type is non-partition.")
        }
        (true, kind, _) => invalid(&format!("Unknown topic type [{}]", kind.unwrap_or_default())),
    }
}

pub fn routes() -> Router<AdminState> {
    let under = |rest: &str| format!("{PATH}{rest}");
    Router::new()
        .route("/admin/v2/namespaces/{tenant}/antiAffinity/{group}", get(anti_affinity_group))
        .route(&under("/{policy}"), get(read).post(write).put(write).delete(remove))
        .route(&under("/backlogQuotaMap"), get(quotas))
        .route(&under("/backlogQuota"), axum::routing::post(set_quota).delete(remove_quota))
        .route(&under("/persistence/bookieAffinity"), get(affinity).post(set_affinity).delete(remove_affinity))
        .route(&under("/removeOffloadPolicies"), axum::routing::delete(remove_offload))
        .route(&under("/resourcegroup/{group}"), axum::routing::post(set_group))
        .route(&under("/property/{key}/{value}"), axum::routing::put(set_property))
        .route(&under("/property/{key}"), get(property).delete(remove_property))
}

async fn read(State(state): Given, call: Call) -> Answer {
    let row = Line::named(TABLE, &call)?;
    let namespace = state.administered_namespace(&call)?;
    let policies = state.registry().namespace(&namespace).unwrap_or_default();
    Ok(row.reply(&(row.read)(&policies, &state.service.config().cluster)))
}

async fn write(State(state): Given, method: Method, call: Call) -> Answer {
    let row = Line::named(TABLE, &call)?;
    row.check_set_by(&method)?;
    let namespace = call.namespace()?;
    state.allow(&call, Action::Administer, &Scope::Namespace(&namespace))?;
    let input = Input { name: row.name, value: row.value(&call)?, cluster: &state.service.config().cluster };
    match row.name {
        "replication" => {
            let clusters = input.parse::<Option<_>>()?.unwrap_or_default();
            check_clusters(&state, &state.administered_namespace(&call)?, &clusters)?;
        }
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
    if row.name == "resourcegroup" {
        state.allow_operator(&call)?;
    }
    let cluster = &state.service.config().cluster;
    change(&state, &call, row.name, |policies| {
        remove(policies, cluster);
        Ok(())
    })
    .await
}

/// Binds a namespace to a resource group.
async fn set_group(State(state): Given, call: Call) -> Answer {
    let group = call.name("group");
    check_binding(&state, &call, &group)?;
    change(&state, &call, "resourcegroup", |policies| {
        policies.resource_group_name = Some(group.clone());
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
    let namespace = state.administered_namespace(call).map_err(|error| {
        match error.reason == "Namespace does not exist" && IN_OTHER_WORDS.contains(&what) {
            true => AdminError::not_found("Namespace policies does not exist"),
            false => error,
        }
    })?;
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
    state.allow(&call, Action::Administer, &Scope::Namespace(&call.namespace()?))?;
    change_quota(&state, &call, &QuotaChange::set(&call)?).await
}

async fn remove_quota(State(state): Given, call: Call) -> Answer {
    change_quota(&state, &call, &QuotaChange::unset(&call)?).await
}

async fn change_quota(state: &AdminState, call: &Call, wanted: &QuotaChange) -> Answer {
    let namespace = call.namespace()?.to_string();
    change(state, call, "backlogQuota", |policies| {
        wanted.apply(&mut policies.backlog_quota_map, policies.retention_policies, &namespace)
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

/// 501: bookies have no groups to be kept to.
pub(super) fn no_affinity() -> AdminError {
    let text = "Bookie affinity groups are not served: ledgers are spread over bookies by their zones and regions";
    AdminError::new(StatusCode::NOT_IMPLEMENTED, text)
}

async fn affinity(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let policies = state.registry().namespace(&namespace).unwrap_or_default();
    match &policies.bookie_affinity_group {
        Some(group) => Ok(Reply::json(group)),
        None => Ok(Reply::done()),
    }
}

/// Refused: it would be stored without effect.
async fn set_affinity(State(state): Given, call: Call) -> Answer {
    state.administered_namespace(&call)?;
    Err(no_affinity())
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
    Ok(policies
        .properties
        .get(&call.name("key"))
        .map_or_else(|| Reply::empty(StatusCode::OK), |value| Reply::text(value.clone())))
}

async fn set_property(State(state): Given, call: Call) -> Answer {
    let (key, value) = (call.name("key"), call.name("value"));
    change(&state, &call, "properties", |policies| {
        policies.properties.insert(key.clone(), value.clone());
        Ok(())
    })
    .await
}

/// Answers what the property was.
async fn remove_property(State(state): Given, call: Call) -> Answer {
    let key = call.name("key");
    let mut before = None;
    change(&state, &call, "properties", |policies| {
        before = policies.properties.remove(&key);
        Ok(())
    })
    .await?;
    Ok(before.map_or_else(|| Reply::empty(StatusCode::OK), Reply::text))
}

/// Namespaces of a tenant that are to be kept apart as one group.
async fn anti_affinity_group(State(state): Given, call: Call) -> Answer {
    let tenant = call.query("tenant").or(call.query("property"));
    let tenant = tenant.ok_or_else(|| AdminError::bad_request("Tenant should not be null"))?;
    state.allow(&call, Action::Administer, &Scope::Tenant(tenant))?;
    let cluster = call.param("tenant");
    if state.registry().cluster(cluster).is_none() {
        return Err(AdminError::invalid(format!("Cluster {cluster} does not exist.")));
    }
    let group = call.name("group");
    let mut found = state.registry().namespaces(tenant).unwrap_or_default();
    found.retain(|name| {
        let policies = state.registry().namespace(name).unwrap_or_default();
        policies.anti_affinity_group.as_deref() == Some(&group) && policies.replication_clusters.contains(cluster)
    });
    Ok(Reply::json(&found.iter().map(ToString::to_string).collect::<Vec<_>>()))
}
