//! Calls of topics; those of their policies stand elsewhere.

use super::table::{FORCE, plain};
use super::{Body, Kind, Verb};

const CALLS: &[Verb] = &[
    plain("list", "List topics", "GET", "persistent/{namespace}").asking(&[("bundle", false)]),
    plain("list-partitioned-topics", "List partitioned topics", "GET", "persistent/{namespace}/partitioned"),
    plain("create", "Create a topic", "PUT", "{topic}"),
    plain("create-partitioned-topic", "Create a partitioned topic", "PUT", "{topic}/partitions")
        .with(Body::One(Kind::Number)),
    plain("update-partitioned-topic", "Give it more partitions", "POST", "{topic}/partitions")
        .with(Body::One(Kind::Number)),
    plain("get-partitioned-topic-metadata", "Show its partitions", "GET", "{topic}/partitions"),
    plain("delete", "Delete a topic", "DELETE", "{topic}").asking(FORCE),
    plain("delete-partitioned-topic", "Delete a partitioned topic", "DELETE", "{topic}/partitions").asking(FORCE),
    plain("unload", "Unload a topic", "PUT", "{topic}/unload"),
    plain("lookup", "Find a topic's broker", "GET", "/lookup/v2/topic/{topic}"),
    plain("bundle-range", "Show its hash range", "GET", "/lookup/v2/topic/{topic}/bundle"),
    plain("stats", "Figures", "GET", "{topic}/stats"),
    plain("partitioned-stats", "Figures of all partitions", "GET", "{topic}/partitioned-stats"),
    plain("stats-internal", "Figures of its storage", "GET", "{topic}/internalStats"),
    plain("info-internal", "Its record", "GET", "{topic}/internal-info"),
    plain("get-properties", "Show properties", "GET", "{topic}/properties"),
    plain("update-properties", "Set properties", "PUT", "{topic}/properties").with(Body::One(Kind::Json)),
    plain("remove-properties", "Remove a property", "DELETE", "{topic}/properties").asking(&[("key", false)]),
    plain("permissions", "Show grants", "GET", "{topic}/permissions"),
    plain("grant-permission", "Grant produce, consume, …", "POST", "{topic}/permissions/{role}")
        .with(Body::One(Kind::List)),
    plain("revoke-permission", "Withdraw a role's grants", "DELETE", "{topic}/permissions/{role}"),
    plain("terminate", "End a topic: nothing can be published any more", "POST", "{topic}/terminate"),
    plain("partitioned-terminate", "End all partitions", "POST", "{topic}/terminate/partitions"),
    plain("compact", "Compact a topic", "PUT", "{topic}/compaction"),
    plain("compaction-status", "Whether it is compacted", "GET", "{topic}/compaction"),
    plain("restore", "Give a region that was built anew its former messages back", "PUT", "{topic}/restore/{region}"),
    plain("restore-status", "How that goes", "GET", "{topic}/restore/{region}"),
    plain("trim-topic", "Drop what nobody needs", "POST", "{topic}/trim"),
    plain("last-message-id", "Show the last id", "GET", "{topic}/lastMessageId"),
    plain("get-message-id", "Show the first id at a time (ms since 1970)", "GET", "{topic}/messageid/{time}"),
    plain("get-message-by-id", "Show a message", "GET", "{topic}/ledger/{ledger}/entry/{entry}"),
    plain("subscriptions", "List subscriptions", "GET", "{topic}/subscriptions"),
    plain(
        "create-subscription",
        "Create a subscription at earliest or latest",
        "PUT",
        "{topic}/subscription/{subscription}",
    )
    .with(Body::One(Kind::Text))
    .asking(&[("replicated", true)]),
    plain("unsubscribe", "Delete a subscription", "DELETE", "{topic}/subscription/{subscription}").asking(FORCE),
    plain("skip", "Skip messages", "POST", "{topic}/subscription/{subscription}/skip/{count}"),
    plain("clear-backlog", "Skip everything", "POST", "{topic}/subscription/{subscription}/skip_all"),
    plain("expire-messages", "Expire messages", "POST", "{topic}/subscription/{subscription}/expireMessages/{seconds}"),
    plain(
        "expire-messages-all-subscriptions",
        "Expire messages of all subscriptions",
        "POST",
        "{topic}/all_subscription/expireMessages/{seconds}",
    ),
    plain("peek-messages", "Show the nth message", "GET", "{topic}/subscription/{subscription}/position/{nth}"),
    plain(
        "reset-cursor",
        "Move a subscription to a time (ms since 1970)",
        "POST",
        "{topic}/subscription/{subscription}/resetcursor/{time}",
    ),
    plain(
        "set-replicated-subscription-status",
        "Share acknowledgements with other regions",
        "POST",
        "{topic}/subscription/{subscription}/replicatedSubscriptionStatus",
    )
    .with(Body::One(Kind::Switch)),
];

/// All but policies.
pub fn verbs() -> Vec<Verb> {
    CALLS.to_vec()
}
