"""The script of admin calls that is run against Pulsar and against Meridian, in order.

A call is (method, path, body); body None = no body, str = sent as it is, anything else = sent as JSON. Every tenant, namespace
and topic is made by the script, so that it may run against any fresh broker whose cluster is `standalone`.
"""
import json

TENANT, NS = "diff", "diff/ns"
TOPIC = f"persistent/{NS}/topic"
PARTITIONED = f"persistent/{NS}/parts"
NON = f"non-persistent/{NS}/non"
NOT_JSON = "{not json"
HUGE = 2**63
RATE = {"dispatchThrottlingRateInMsg": 50, "dispatchThrottlingRateInByte": 2048, "ratePeriodInSecond": 5}
QUOTA = {"limitSize": 10000000, "limitTime": -1, "policy": "producer_request_hold"}


def v2(rest):
    return "/admin/v2/" + rest


class Policy:
    """A policy: its name in the path, how it is set, values that fit, values that do not."""

    def __init__(self, name, good, bad=(), put=False, unset=True):
        self.name, self.good, self.bad, self.verb, self.unset = name, good, list(bad), "PUT" if put else "POST", unset


COUNT_BAD = [-1, "x", 2**31, 1.5, True, [1]]
NAMESPACE_POLICIES = [
    Policy("messageTTL", [60, 0, "7"], COUNT_BAD),
    Policy("subscriptionExpirationTime", [30, 0], COUNT_BAD),
    Policy("maxProducersPerTopic", [4, 0], COUNT_BAD),
    Policy("maxConsumersPerTopic", [5, 0], COUNT_BAD),
    Policy("maxConsumersPerSubscription", [5, 0], COUNT_BAD),
    Policy("maxSubscriptionsPerTopic", [5, 0], COUNT_BAD),
    Policy("maxTopicsPerNamespace", [500, 0], COUNT_BAD),
    Policy("maxUnackedMessagesPerConsumer", [5, 0], COUNT_BAD),
    Policy("maxUnackedMessagesPerSubscription", [5, 0], COUNT_BAD),
    Policy("deduplicationSnapshotInterval", [5, 0], COUNT_BAD),
    Policy("deduplication", [True, False], ["x", 7]),
    Policy("encryptionRequired", [True, False], ["x", 7], unset=False),
    Policy("schemaValidationEnforced", [True, False], ["x", 7], unset=False),
    Policy("isAllowAutoUpdateSchema", [False, True], ["x", 7], unset=False),
    Policy("delayedDelivery", [{"tickTime": 1500, "active": True}, {"tickTime": 1, "active": False, "maxDeliveryDelayInMillis": 5}],
           [{"tickTime": -1, "active": True}, {"tickTime": 0, "active": True}, "x"]),
    Policy("inactiveTopicPolicies",
           [{"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "maxInactiveDurationSeconds": 120, "deleteWhileInactive": False}],
           [{"inactiveTopicDeleteMode": "no such", "maxInactiveDurationSeconds": 1}, {"maxInactiveDurationSeconds": -1, "inactiveTopicDeleteMode": "delete_when_no_subscriptions"}, 7]),
    Policy("dispatchRate", [RATE, {"dispatchThrottlingRateInMsg": 0}], [{"dispatchThrottlingRateInMsg": "x"}, {"ratePeriodInSecond": 0}, {"dispatchThrottlingRateInMsg": -5}, 7]),
    Policy("subscriptionDispatchRate", [RATE], [{"dispatchThrottlingRateInMsg": "x"}, 7]),
    Policy("replicatorDispatchRate", [RATE], [{"dispatchThrottlingRateInMsg": "x"}, 7]),
    Policy("subscribeRate", [{"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}], [{"subscribeThrottlingRatePerConsumer": "x"}, {"subscribeThrottlingRatePerConsumer": -3, "ratePeriodInSecond": -2}, 7]),
    Policy("publishRate", [{"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1048576}, {"publishThrottlingRateInMsg": 0}], [{"publishThrottlingRateInMsg": "x"}, 7]),
    Policy("retention", [{"retentionTimeInMinutes": 100, "retentionSizeInMB": 1000}, {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}],
           [{"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, {"retentionTimeInMinutes": -2, "retentionSizeInMB": 5}, {"retentionTimeInMinutes": "x"}, 7]),
    Policy("persistence", [{"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0.5}],
           [{"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 5, "bookkeeperAckQuorum": 2, "managedLedgerMaxMarkDeleteRate": 0},
            {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2, "managedLedgerMaxMarkDeleteRate": -1}, {}, 7]),
    Policy("compactionThreshold", [1073741824, 0], [-1, "x"], put=True),
    Policy("offloadThreshold", [1024, 0, -1], ["x"], put=True, unset=False),
    Policy("offloadThresholdInSeconds", [1024, -1], ["x"], put=True, unset=False),
    Policy("offloadDeletionLagMs", [1024, 0], ["x"], put=True),
    Policy("offloadPolicies", [{"managedLedgerOffloadDriver": "S3", "managedLedgerOffloadBucket": "b", "s3ManagedLedgerOffloadBucket": "b", "s3ManagedLedgerOffloadRegion": "r"}], [{"managedLedgerOffloadDriver": "no such"}, 7], unset=False),
    Policy("schemaCompatibilityStrategy", ["BACKWARD_TRANSITIVE", "UNDEFINED"], ["NO_SUCH", 7], put=True, unset=False),
    Policy("schemaAutoUpdateCompatibilityStrategy", ["ForwardTransitive"], ["NoSuch"], put=True, unset=False),
    Policy("subscriptionAuthMode", ["Prefix", "None"], ["NoSuch", 7], unset=False),
    Policy("autoTopicCreation", [{"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}, {"allowAutoTopicCreation": False, "topicType": "non-partitioned", "defaultNumPartitions": None}],
           [{"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0}, {"allowAutoTopicCreation": True, "topicType": "no such"}, {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 3}, 7]),
    Policy("autoSubscriptionCreation", [{"allowAutoSubscriptionCreation": False}], [7]),
    Policy("subscriptionTypesEnabled", [["Shared", "Failover"], ["Exclusive"]], [["NoSuch"], 7, []]),
    Policy("antiAffinity", ["group"], ["", 7]),
    Policy("replication", [["standalone"]], [[], ["no-such-cluster"], ["global"], 7], unset=False),
    Policy("allowedClusters", [["standalone"]], [["no-such-cluster"], 7], unset=False),
    Policy("properties", [{"a": "b", "c": "d"}], [7, ["a"]], put=True),
    Policy("entryFilters", [], [{"entryFilterNames": "no.such"}, {"entryFilterNames": ""}, 7]),
    Policy("dispatcherPauseOnAckStatePersistent", [True], []),
    Policy("resourcegroup", [], []),
]
TOPIC_POLICIES = [
    Policy("maxProducers", [4, 0], COUNT_BAD),
    Policy("maxConsumers", [4, 0], COUNT_BAD),
    Policy("maxConsumersPerSubscription", [4, 0], COUNT_BAD),
    Policy("maxSubscriptionsPerTopic", [4, 0], COUNT_BAD),
    Policy("maxUnackedMessagesOnConsumer", [4, 0], COUNT_BAD),
    Policy("maxUnackedMessagesOnSubscription", [4, 0], COUNT_BAD),
    Policy("maxMessageSize", [1024, 0], [-1, "x", 2**31, 2**30]),
    Policy("deduplicationSnapshotInterval", [4, 0], COUNT_BAD),
    Policy("deduplicationEnabled", [True, False], ["x", 7]),
    Policy("delayedDelivery", [{"tickTime": 1500, "active": True}], [{"tickTime": -1, "active": True}, "x"]),
    Policy("inactiveTopicPolicies", [{"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 120, "deleteWhileInactive": False}], [{"maxInactiveDurationSeconds": -1, "inactiveTopicDeleteMode": "delete_when_no_subscriptions"}, 7]),
    Policy("dispatchRate", [RATE], [{"dispatchThrottlingRateInMsg": "x"}, 7]),
    Policy("subscriptionDispatchRate", [RATE], [7]),
    Policy("replicatorDispatchRate", [RATE], [7]),
    Policy("publishRate", [{"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1048576}], [7]),
    Policy("subscribeRate", [{"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}], [7]),
    Policy("compactionThreshold", [1073741824, 0], [-1, "x"]),
    Policy("offloadPolicies", [{"managedLedgerOffloadDriver": "S3", "s3ManagedLedgerOffloadBucket": "b", "s3ManagedLedgerOffloadRegion": "r"}], [7]),
    Policy("schemaCompatibilityStrategy", ["FULL_TRANSITIVE"], ["NO_SUCH"], put=True),
    Policy("schemaValidationEnforced", [True, False], ["x"], unset=False),
    Policy("subscriptionTypesEnabled", [["Shared"]], [["NoSuch"], 7]),
    Policy("entryFilters", [], [{"entryFilterNames": "no.such"}, 7]),
    Policy("autoSubscriptionCreation", [{"allowAutoSubscriptionCreation": False}], [7]),
    Policy("replication", [["standalone"]], [[], ["no-such-cluster"], 7]),
    Policy("persistence", [{"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0.5}], [{"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 5, "bookkeeperAckQuorum": 2}, 7]),
    Policy("retention", [{"retentionTimeInMinutes": 100, "retentionSizeInMB": 1000}], [{"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, {"retentionTimeInMinutes": -2, "retentionSizeInMB": 5}, 7]),
    Policy("dispatcherPauseOnAckStatePersistent", [True], []),
]


def clusters():
    one = v2("clusters/east")
    yield from [
        ("GET", v2("clusters"), None), ("GET", v2("clusters/standalone"), None),
        ("PUT", one, {"serviceUrl": "http://east:8080", "brokerServiceUrl": "pulsar://east:6650"}), ("GET", one, None),
        ("PUT", one, {"serviceUrl": "http://east:8080"}), ("PUT", v2("clusters/west"), None), ("PUT", v2("clusters/w%20est"), {"serviceUrl": "http://w:1"}),
        ("PUT", v2("clusters/west"), {"serviceUrl": "ftp://east"}), ("PUT", v2("clusters/west"), {"brokerServiceUrl": "http://east"}),
        ("PUT", v2("clusters/west"), {"serviceUrl": "http://w:8080", "unknownField": 1}), ("PUT", v2("clusters/north"), NOT_JSON), ("PUT", v2("clusters/north"), 7),
        ("PUT", v2("clusters/north"), {"serviceUrl": ""}), ("PUT", v2("clusters/global"), {"serviceUrl": "http://w:8080"}),
        ("POST", one, {"serviceUrl": "http://east:8081"}), ("POST", one, {"serviceUrl": "ftp://x"}), ("POST", v2("clusters/nowhere"), {"serviceUrl": "http://w:8080"}),
        ("GET", one + "/peers", None), ("POST", one + "/peers", ["standalone"]), ("GET", one + "/peers", None), ("POST", one + "/peers", ["east"]),
        ("POST", one + "/peers", ["nowhere"]), ("POST", one + "/peers", 7), ("GET", v2("clusters/nowhere/peers"), None), ("POST", v2("clusters/nowhere/peers"), ["east"]),
        ("POST", one + "/peers", []), ("GET", v2("clusters/nowhere"), None), ("DELETE", v2("clusters/nowhere"), None),
    ]
    domains = v2("clusters/east/failureDomains")
    yield from [
        ("GET", domains, None), ("POST", domains + "/d1", {"brokers": ["b1", "b2"]}), ("GET", domains, None), ("GET", domains + "/d1", None), ("POST", domains + "/d2", {"brokers": ["b1"]}),
        ("GET", domains + "/no", None), ("DELETE", domains + "/no", None), ("POST", domains + "/d3", NOT_JSON), ("POST", domains + "/d3", None), ("POST", v2("clusters/nowhere/failureDomains/d"), {"brokers": []}),
        ("GET", v2("clusters/nowhere/failureDomains"), None), ("GET", v2("clusters/nowhere/failureDomains/d"), None), ("DELETE", v2("clusters/nowhere/failureDomains/d"), None), ("DELETE", domains + "/d1", None),
    ]
    policies = v2("clusters/standalone/namespaceIsolationPolicies")
    good = {"namespaces": ["diff/.*"], "primary": ["no-broker"], "secondary": [], "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "100"}}}
    yield from [
        ("GET", policies, None), ("GET", policies + "/brokers", None), ("POST", policies + "/p", good), ("GET", policies + "/p", None), ("GET", policies, None), ("POST", policies + "/q", {}), ("POST", policies + "/q", NOT_JSON),
        ("GET", policies + "/no", None), ("DELETE", policies + "/no", None), ("DELETE", policies + "/p", None), ("GET", v2("clusters/nowhere/namespaceIsolationPolicies"), None),
        ("POST", v2("clusters/nowhere/namespaceIsolationPolicies/p"), good), ("GET", v2("clusters/nowhere/namespaceIsolationPolicies/brokers"), None),
    ]
    yield from [
        ("POST", v2("clusters/east/migrate?migrated=true"), {"serviceUrl": "http://w:1", "brokerServiceUrl": "pulsar://w:1"}), ("POST", v2("clusters/east/migrate?migrated=true"), {"serviceUrl": "ftp://x"}),
        ("GET", v2("clusters/east/migrate"), None), ("DELETE", v2("clusters/west"), None), ("DELETE", v2("clusters/east"), None), ("DELETE", v2("clusters/north"), None),
    ]


def tenants():
    new = {"adminRoles": ["a"], "allowedClusters": ["standalone"]}
    yield from [
        ("PUT", v2("tenants/x"), new), ("PUT", v2("tenants/x"), new), ("GET", v2("tenants/x"), None), ("PUT", v2("tenants/x%20y"), new), ("PUT", v2("tenants/y"), None), ("PUT", v2("tenants/y"), {}),
        ("PUT", v2("tenants/y"), {"adminRoles": [" a"], "allowedClusters": ["standalone"]}), ("PUT", v2("tenants/y"), {"adminRoles": [], "allowedClusters": []}), ("PUT", v2("tenants/y"), {"allowedClusters": ["nowhere"]}),
        ("PUT", v2("tenants/y"), NOT_JSON), ("PUT", v2("tenants/y"), 7), ("PUT", v2("tenants/y"), {"adminRoles": "a", "allowedClusters": ["standalone"]}), ("PUT", v2("tenants/z"), {"unknown": 1, "allowedClusters": ["standalone"]}),
        ("GET", v2("tenants/z"), None), ("POST", v2("tenants/x"), {"adminRoles": ["b"], "allowedClusters": ["standalone"]}), ("POST", v2("tenants/x"), {"adminRoles": ["b"], "allowedClusters": []}), ("POST", v2("tenants/x"), None),
        ("POST", v2("tenants/no"), new), ("GET", v2("tenants/no"), None), ("DELETE", v2("tenants/no"), None), ("PUT", v2("namespaces/x/n"), None), ("DELETE", v2("tenants/x"), None), ("DELETE", v2("tenants/x?force=true"), None),
        ("GET", v2("tenants/x"), None), ("DELETE", v2("tenants/z"), None), ("PUT", v2(f"tenants/{TENANT}"), new), ("PUT", v2("tenants/"), new), ("PATCH", v2("tenants/x"), new), ("PUT", v2("tenants/a%2Fb"), new),
    ]


def namespaces():
    at = v2("namespaces/")
    yield from [
        ("PUT", at + NS, {"bundles": {"numBundles": 4}, "replication_clusters": ["standalone"]}), ("PUT", at + NS, None), ("GET", at + NS, None), ("GET", at + TENANT, None), ("GET", at + "no", None), ("GET", at + "no/ns", None),
        ("GET", at + f"{TENANT}/no", None), ("DELETE", at + f"{TENANT}/no", None), ("DELETE", at + "no/ns", None), ("PUT", at + "no/ns", None), ("PUT", at + f"{TENANT}/a%20b", None), ("PUT", at + f"{TENANT}/a", NOT_JSON), ("PUT", at + f"{TENANT}/a", 7),
        ("PUT", at + f"{TENANT}/a", {"bundles": {"numBundles": 0}}), ("PUT", at + f"{TENANT}/a", {"bundles": {"numBundles": -1}}), ("PUT", at + f"{TENANT}/a", {"bundles": {"numBundles": 1000000}}), ("PUT", at + f"{TENANT}/a", {"replication_clusters": ["nowhere"]}),
        ("PUT", at + f"{TENANT}/b", {"persistence": {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}}), ("PUT", at + f"{TENANT}/c", {"unknown": 1}), ("PUT", at + f"{TENANT}/d", {"message_ttl_in_seconds": -4}), ("PUT", at + f"{TENANT}/e", {"max_producers_per_topic": "x"}),
        ("GET", at + f"{TENANT}/c", None), ("PUT", at + f"{TENANT}/f", {"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}}), ("GET", at + f"{NS}/topics", None), ("GET", at + f"{TENANT}/no/topics", None), ("GET", at + f"{NS}/topics?mode=ALL", None), ("GET", at + f"{NS}/topics?mode=NO_SUCH", None),
        ("GET", at + f"{NS}/bundles", None), ("GET", at + f"{TENANT}/no/bundles", None), ("PUT", at + f"{NS}/unload", None), ("PUT", at + f"{TENANT}/no/unload", None), ("PUT", at + f"{NS}/0x00000000_0x40000000/unload", None), ("PUT", at + f"{NS}/0x00000000_0x60000000/unload", None), ("PUT", at + f"{NS}/garbage/unload", None),
        ("POST", at + f"{NS}/clearBacklog", None), ("POST", at + f"{NS}/clearBacklog/sub", None), ("POST", at + f"{NS}/unsubscribe/sub", None), ("POST", at + f"{NS}/0x00000000_0x40000000/clearBacklog", None), ("POST", at + f"{NS}/0x00000000_0x60000000/clearBacklog", None), ("POST", at + f"{NS}/0x00000000_0x40000000/unsubscribe/sub", None),
        ("POST", at + f"{TENANT}/no/clearBacklog", None), ("POST", at + f"{TENANT}/no/unsubscribe/sub", None),
    ]
    for value in (None, True):
        yield "GET", at + f"{NS}/schemaValidationEnforced" + ("?applied=true" if value else ""), None
    for policy in NAMESPACE_POLICIES:
        path = at + f"{NS}/{policy.name}"
        yield "GET", path, None
        for value in policy.good:
            yield policy.verb, path, value
            yield "GET", path, None
        for value in policy.bad:
            yield policy.verb, path, value
        yield policy.verb, path, NOT_JSON
        if policy.name != "properties":  # Pulsar never answers that
            yield policy.verb, path, None
        yield "GET", path, None
        yield "POST" if policy.verb == "PUT" else "PUT", path, policy.good[0] if policy.good else {}
        yield "DELETE", path, None
        yield "GET", path, None
        yield "GET", at + f"{TENANT}/no/{policy.name}", None
        yield policy.verb, at + f"{TENANT}/no/{policy.name}", policy.good[0] if policy.good else {}
        yield "DELETE", at + f"{TENANT}/no/{policy.name}", None
    yield from quotas(at + NS, at + f"{TENANT}/no")
    yield from [
        ("DELETE", at + f"{NS}/removeOffloadPolicies", None), ("GET", at + f"{NS}/persistence/bookieAffinity", None), ("POST", at + f"{NS}/persistence/bookieAffinity", {"bookkeeperAffinityGroupPrimary": "a"}), ("GET", at + f"{NS}/persistence/bookieAffinity", None),
        ("DELETE", at + f"{NS}/persistence/bookieAffinity", None), ("PUT", at + f"{NS}/property/key/value", None), ("GET", at + f"{NS}/property/key", None), ("GET", at + f"{NS}/property/no", None), ("DELETE", at + f"{NS}/property/key", None), ("DELETE", at + f"{NS}/property/no", None), ("PUT", at + f"{NS}/properties", {"a": "b"}), ("DELETE", at + f"{NS}/properties", None), ("GET", at + f"{NS}/properties", None),
        ("GET", at + f"{NS}/isAllowAutoUpdateSchemaWithReplicator", None), ("GET", at + f"{NS}/noSuchPolicy", None), ("POST", at + f"{NS}/noSuchPolicy", 1), ("POST", at + f"{NS}/replication", ["standalone"]),
        ("GET", at + f"standalone/antiAffinity/group", None), ("GET", at + f"standalone/antiAffinity/group?tenant={TENANT}", None), ("GET", at + f"nowhere/antiAffinity/group", None),
        ("PUT", at + f"{NS}/migration?migrated=false", None), ("POST", at + f"{NS}/migration?migrated=false", None),
    ]
    permissions = at + f"{NS}/permissions"
    yield from [
        ("GET", permissions, None), ("POST", permissions + "/role", ["produce", "consume"]), ("GET", permissions, None), ("POST", permissions + "/role", ["nonsense"]), ("POST", permissions + "/role", []), ("POST", permissions + "/role", NOT_JSON), ("POST", permissions + "/role", None), ("POST", permissions + "/role", 7),
        ("GET", permissions, None), ("DELETE", permissions + "/role", None), ("DELETE", permissions + "/no", None), ("GET", at + f"{TENANT}/no/permissions", None), ("POST", at + f"{TENANT}/no/permissions/role", ["produce"]), ("POST", permissions + "/subscription/sub", ["r1", "r2"]), ("GET", permissions + "/subscription", None),
        ("DELETE", permissions + "/sub/r1", None), ("GET", permissions + "/subscription", None), ("DELETE", permissions + "/no/r1", None), ("DELETE", permissions + "/sub/no", None), ("POST", permissions + "/subscription/sub", NOT_JSON), ("POST", permissions + "/subscription/sub", None), ("POST", at + f"{TENANT}/no/permissions/subscription/sub", ["a"]),
    ]
    yield from [("PUT", at + f"{TENANT}/gone", None), ("DELETE", at + f"{TENANT}/gone", None), ("GET", at + f"{TENANT}/gone", None)]


def quotas(of, missing):
    age = "?backlogQuotaType=message_age"
    yield from [
        ("GET", of + "/backlogQuotaMap", None), ("POST", of + "/backlogQuota", QUOTA), ("POST", of + "/backlogQuota" + age, {"limitTime": 3600, "limitSize": -1, "policy": "producer_exception"}), ("GET", of + "/backlogQuotaMap", None),
        ("POST", of + "/backlogQuota", {"limit": "5000", "policy": "consumer_backlog_eviction"}), ("GET", of + "/backlogQuotaMap", None), ("POST", of + "/backlogQuota", {"limitSize": 5}), ("POST", of + "/backlogQuota", {"limitSize": "x", "policy": "producer_exception"}), ("POST", of + "/backlogQuota", {"limitSize": 5, "policy": "no_such"}),
        ("POST", of + "/backlogQuota", NOT_JSON), ("POST", of + "/backlogQuota?backlogQuotaType=no_such", QUOTA), ("DELETE", of + "/backlogQuota", None), ("GET", of + "/backlogQuotaMap", None), ("DELETE", of + "/backlogQuota" + age, None), ("GET", of + "/backlogQuotaMap", None), ("POST", of + "/backlogQuota", None),
        ("POST", of + "/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1}), ("POST", of + "/backlogQuota", {"limitSize": 10 << 20, "policy": "producer_exception"}), ("POST", of + "/backlogQuota" + age, {"limitTime": 6000, "policy": "producer_exception"}), ("POST", of + "/backlogQuota", {"limitSize": 1000, "policy": "producer_exception"}),
        ("POST", of + "/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 0}), ("DELETE", of + "/retention", None), ("POST", of + "/backlogQuota", {"limitSize": 2 << 20, "policy": "producer_exception"}), ("POST", of + "/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1}),
        ("DELETE", of + "/backlogQuota", None), ("DELETE", of + "/retention", None), ("GET", missing + "/backlogQuotaMap", None), ("POST", missing + "/backlogQuota", QUOTA), ("DELETE", missing + "/backlogQuota", None),
    ]


def topics():
    at, parts, non, no = v2(TOPIC), v2(PARTITIONED), v2(NON), v2(f"persistent/{NS}/no")
    yield from [
        ("PUT", at, None), ("PUT", at, None), ("GET", v2(f"persistent/{NS}"), None), ("PUT", v2(f"persistent/{NS}/props"), {"a": "b"}), ("GET", v2(f"persistent/{NS}/props/properties"), None), ("PUT", v2(f"persistent/{NS}/props/properties"), {"c": "d"}), ("GET", v2(f"persistent/{NS}/props/properties"), None),
        ("DELETE", v2(f"persistent/{NS}/props/properties?key=a"), None), ("GET", v2(f"persistent/{NS}/props/properties"), None), ("DELETE", v2(f"persistent/{NS}/props/properties"), None), ("DELETE", v2(f"persistent/{NS}/props"), None), ("DELETE", v2(f"persistent/{NS}/props"), None), ("GET", no + "/properties", None),
        ("PUT", v2("persistent/no/ns/t"), None), ("PUT", v2(f"persistent/{TENANT}/no/t"), None), ("PUT", v2(f"nonsense/{NS}/t"), None), ("PUT", v2(f"persistent/{NS}/t-partition-0"), None), ("PUT", v2(f"persistent/{NS}/a%2Fb"), None), ("GET", v2(f"persistent/{NS}/a%2Fb/stats"), None), ("DELETE", v2(f"persistent/{NS}/a%2Fb"), None), ("PUT", v2(f"persistent/{NS}/bad"), NOT_JSON), ("PUT", v2(f"persistent/{NS}/bad"), 7), ("DELETE", v2(f"persistent/{NS}/bad"), None),
        ("PUT", parts + "/partitions", 3), ("PUT", parts + "/partitions", 3), ("GET", parts + "/partitions", None), ("GET", v2(f"persistent/{NS}/partitioned"), None), ("GET", v2(f"persistent/{TENANT}/no/partitioned"), None), ("GET", v2(f"persistent/{TENANT}/no"), None), ("PUT", v2(f"persistent/{NS}/p2/partitions"), 0), ("PUT", v2(f"persistent/{NS}/p2/partitions"), -1), ("PUT", v2(f"persistent/{NS}/p2/partitions"), "x"), ("PUT", v2(f"persistent/{NS}/p2/partitions"), 2**31), ("PUT", v2(f"persistent/{NS}/p2/partitions"), NOT_JSON), ("PUT", v2(f"persistent/{NS}/p2/partitions"), None),
        ("PUT", v2(f"persistent/{NS}/p2/partitions"), "3"), ("POST", parts + "/partitions", 2), ("POST", parts + "/partitions", 3), ("POST", parts + "/partitions", 4), ("POST", parts + "/partitions", 0), ("POST", parts + "/partitions", "x"), ("POST", parts + "/partitions", None), ("POST", at + "/partitions", 4), ("POST", no + "/partitions", 4), ("GET", at + "/partitions", None), ("GET", no + "/partitions", None), ("GET", no + "/partitions?checkAllowAutoCreation=false", None),
        ("DELETE", no + "/partitions", None), ("DELETE", at + "/partitions", None), ("DELETE", parts, None), ("PUT", v2(f"persistent/{NS}/topic/partitions"), 3), ("PUT", parts, None), ("DELETE", v2(f"persistent/{NS}/p2/partitions"), None), ("PUT", non, None), ("GET", v2(f"non-persistent/{NS}"), None), ("PUT", v2(f"non-persistent/{NS}/np/partitions"), 2), ("GET", v2(f"non-persistent/{NS}/partitioned"), None), ("GET", v2(f"non-persistent/{NS}/np/partitions"), None), ("DELETE", v2(f"non-persistent/{NS}/np/partitions"), None),
        ("GET", at + "/stats", None), ("GET", no + "/stats", None), ("GET", parts + "/stats", None), ("GET", parts + "/partitioned-stats", None), ("GET", at + "/partitioned-stats", None), ("GET", no + "/partitioned-stats", None), ("GET", parts + "/partitioned-stats?perPartition=false", None), ("GET", at + "/internalStats", None), ("GET", no + "/internalStats", None), ("GET", parts + "/partitioned-internalStats", None), ("GET", at + "/internal-info", None), ("GET", no + "/internal-info", None), ("GET", non + "/stats", None), ("GET", non + "/internalStats", None),
        ("GET", at + "/backlog", None), ("GET", at + "/backlogSize", None), ("PUT", at + "/backlogSize", {"ledgerId": 0, "entryId": 0}), ("GET", no + "/subscriptions", None), ("GET", at + "/subscriptions", None), ("GET", parts + "/subscriptions", None),
    ]
    sub = at + "/subscription/sub"
    yield from [
        ("PUT", sub, None), ("PUT", sub, None), ("PUT", at + "/subscription/early", "\"earliest\""), ("PUT", at + "/subscription/late", "\"latest\""), ("PUT", at + "/subscription/by-id", {"ledgerId": -1, "entryId": -1}), ("PUT", at + "/subscription/bad", 7), ("PUT", at + "/subscription/bad2", NOT_JSON), ("PUT", at + "/subscription/bad3", {"ledgerId": "x"}), ("PUT", parts + "/subscription/sub", None), ("PUT", non + "/subscription/sub", None), ("PUT", v2(f"persistent/{TENANT}/no/t/subscription/sub"), None), ("GET", at + "/subscriptions", None),
        ("POST", sub + "/skip/0", None), ("POST", sub + "/skip/5", None), ("POST", sub + "/skip/-1", None), ("POST", sub + "/skip/x", None), ("POST", sub + "/skip_all", None), ("POST", at + "/subscription/no/skip_all", None), ("POST", at + "/subscription/no/skip/1", None), ("POST", no + "/subscription/sub/skip_all", None), ("POST", no + "/subscription/sub/skip/1", None), ("POST", parts + "/subscription/sub/skip/1", None), ("POST", parts + "/subscription/sub/skip_all", None), ("POST", non + "/subscription/sub/skip/1", None),
        ("POST", sub + "/expireMessages/0", None), ("POST", sub + "/expireMessages/10", None), ("POST", sub + "/expireMessages/-1", None), ("POST", sub + "/expireMessages/x", None), ("POST", at + "/subscription/no/expireMessages/10", None), ("POST", no + "/subscription/sub/expireMessages/10", None), ("POST", at + "/all_subscription/expireMessages/10", None), ("POST", no + "/all_subscription/expireMessages/10", None), ("POST", sub + "/expireMessages", {"ledgerId": 0, "entryId": 0}), ("POST", sub + "/expireMessages", None),
        ("POST", sub + "/resetcursor/1", None), ("POST", sub + "/resetcursor/x", None), ("POST", sub + "/resetcursor/-1", None), ("POST", at + "/subscription/no/resetcursor/1", None), ("POST", no + "/subscription/sub/resetcursor/1", None), ("POST", sub + "/resetcursor", {"ledgerId": -1, "entryId": -1}), ("POST", sub + "/resetcursor", NOT_JSON), ("POST", sub + "/resetcursor", None), ("POST", at + "/subscription/no/resetcursor", {"ledgerId": -1, "entryId": -1}), ("POST", no + "/subscription/sub/resetcursor", {"ledgerId": -1, "entryId": -1}), ("POST", parts + "/subscription/sub/resetcursor", {"ledgerId": -1, "entryId": -1}),
        ("GET", sub + "/properties", None), ("PUT", sub + "/properties", {"k": "v"}), ("GET", sub + "/properties", None), ("PUT", at + "/subscription/no/properties", {"k": "v"}), ("GET", at + "/subscription/no/properties", None), ("GET", sub + "/replicatedSubscriptionStatus", None), ("POST", sub + "/replicatedSubscriptionStatus", True), ("GET", sub + "/replicatedSubscriptionStatus", None), ("POST", sub + "/replicatedSubscriptionStatus", "x"), ("POST", sub + "/replicatedSubscriptionStatus", False), ("POST", at + "/subscription/no/replicatedSubscriptionStatus", True), ("GET", at + "/subscription/no/replicatedSubscriptionStatus", None),
        ("POST", sub + "/analyzeBacklog", None), ("GET", sub + "/position/1", None), ("GET", sub + "/position/0", None), ("GET", sub + "/position/x", None), ("GET", at + "/subscription/no/position/1", None), ("GET", no + "/subscription/sub/position/1", None), ("GET", at + "/ledger/0/entry/0", None), ("GET", at + "/ledger/99999/entry/0", None), ("GET", at + "/ledger/x/entry/0", None), ("GET", no + "/ledger/0/entry/0", None), ("GET", at + "/lastMessageId", None), ("GET", no + "/lastMessageId", None), ("GET", parts + "/lastMessageId", None), ("GET", non + "/lastMessageId", None), ("GET", at + "/messageid/1", None), ("GET", at + "/messageid/x", None), ("GET", no + "/messageid/1", None), ("GET", at + "/examinemessage?initialPosition=earliest&messagePosition=1", None), ("GET", at + "/examinemessage?initialPosition=nonsense", None),
        ("DELETE", at + "/subscription/no", None), ("DELETE", no + "/subscription/sub", None), ("DELETE", parts + "/subscription/sub", None), ("DELETE", at + "/subscription/late", None), ("DELETE", at + "/subscription/late?force=true", None), ("GET", at + "/subscriptions", None),
    ]
    yield from [
        ("PUT", at + "/unload", None), ("PUT", no + "/unload", None), ("PUT", parts + "/unload", None), ("GET", at + "/compaction", None), ("PUT", at + "/compaction", None), ("GET", no + "/compaction", None), ("PUT", no + "/compaction", None), ("GET", at + "/offload", None), ("GET", no + "/offload", None), ("PUT", no + "/offload", {"ledgerId": 0, "entryId": 0}), ("POST", at + "/trim", None), ("POST", no + "/trim", None), ("GET", non + "/compaction", None),
        ("POST", at + "/shadowTopics", [f"persistent://{NS}/no"]), ("PUT", at + "/shadowTopics", [f"persistent://{NS}/no"]), ("GET", at + "/shadowTopics", None), ("DELETE", at + "/shadowTopics", None), ("POST", at + "/truncate", None), ("DELETE", at + "/truncate", None), ("DELETE", no + "/truncate", None), ("GET", no + "/permissions", None), ("GET", at + "/permissions", None), ("POST", at + "/permissions/role", ["produce"]), ("GET", at + "/permissions", None), ("POST", at + "/permissions/role", ["nonsense"]), ("POST", at + "/permissions/role", None), ("POST", at + "/permissions/role", NOT_JSON),
        ("DELETE", at + "/permissions/role", None), ("DELETE", at + "/permissions/role", None), ("POST", no + "/permissions/role", ["produce"]), ("DELETE", no + "/permissions/role", None), ("POST", parts + "/permissions/role", ["produce"]), ("GET", parts + "/permissions", None), ("DELETE", parts + "/permissions/role", None), ("GET", at + "/createTime", None), ("GET", "/lookup/v2/topic/" + TOPIC, None), ("GET", "/lookup/v2/topic/" + TOPIC + "/bundle", None), ("GET", f"/lookup/v2/topic/persistent/{TENANT}/no/t", None), ("GET", "/lookup/v2/topic/persistent/no/ns/t", None), ("GET", f"/lookup/v2/topic/nonsense/{NS}/t", None), ("GET", f"/lookup/v2/topic/{TOPIC}?listenerName=no", None),
    ]
    for policy in TOPIC_POLICIES:
        path = f"{at}/{policy.name}"
        yield "GET", path, None
        yield "GET", path + "?applied=true", None
        for value in policy.good:
            yield policy.verb, path, value
            yield "GET", path, None
            yield "GET", path + "?applied=true", None
        for value in policy.bad:
            yield policy.verb, path, value
        yield policy.verb, path, NOT_JSON
        yield policy.verb, path, None
        yield "GET", path, None
        yield "DELETE", path, None
        yield "GET", path, None
        yield "GET", f"{no}/{policy.name}", None
        yield policy.verb, f"{no}/{policy.name}", policy.good[0] if policy.good else {}
        yield "DELETE", f"{no}/{policy.name}", None
        yield "GET", f"{non}/{policy.name}", None
        yield policy.verb, f"{non}/{policy.name}", policy.good[0] if policy.good else {}
        yield policy.verb, f"{parts}/{policy.name}", policy.good[0] if policy.good else {}
        yield "GET", f"{parts}/{policy.name}", None
        yield "DELETE", f"{parts}/{policy.name}", None
    ttl = f"{at}/messageTTL"
    yield from [("GET", ttl, None), ("POST", ttl + "?messageTTL=60", None), ("GET", ttl, None), ("POST", ttl + "?messageTTL=0", None), ("GET", ttl, None), ("POST", ttl + "?messageTTL=-1", None), ("POST", ttl + "?messageTTL=x", None), ("POST", ttl, None), ("DELETE", ttl + "?messageTTL=0", None), ("GET", ttl + "?applied=true", None)]
    yield from quotas(at, no)
    yield from [("GET", at + "/backlogQuotaMap?applied=true", None)]
    yield from [
        ("POST", at + "/terminate", None), ("POST", at + "/terminate", None), ("POST", no + "/terminate", None), ("POST", parts + "/terminate", None), ("POST", parts + "/terminate/partitions", None), ("POST", non + "/terminate", None), ("POST", at + "/terminate/partitions", None), ("DELETE", at, None), ("DELETE", at + "?force=true", None), ("DELETE", at, None), ("DELETE", no + "?force=true", None), ("DELETE", non + "?force=true", None), ("DELETE", parts + "/partitions?force=true", None), ("DELETE", parts + "/partitions?force=true", None),
    ]


def schemas():
    at = v2(f"schemas/{NS}/schemed")
    avro = {"type": "AVRO", "schema": json.dumps({"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]}), "properties": {}}
    other = {"type": "AVRO", "schema": json.dumps({"type": "record", "name": "A", "fields": [{"name": "b", "type": "int"}]}), "properties": {}}
    wider = {"type": "AVRO", "schema": json.dumps({"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}, {"name": "c", "type": ["null", "int"], "default": None}]}), "properties": {}}
    yield from [
        ("PUT", v2(f"persistent/{NS}/schemed"), None), ("GET", at + "/schema", None), ("POST", at + "/schema", avro), ("POST", at + "/schema", avro), ("GET", at + "/schema", None), ("POST", at + "/schema", wider), ("GET", at + "/schemas", None), ("GET", at + "/schema/0", None), ("GET", at + "/schema/9", None), ("GET", at + "/schema/x", None), ("POST", at + "/compatibility", other), ("POST", at + "/compatibility", wider), ("POST", at + "/version", avro), ("POST", at + "/version", other), ("POST", at + "/schema", other),
        ("POST", at + "/schema", {"type": "NO_SUCH", "schema": "", "properties": {}}), ("POST", at + "/schema", {"type": "AVRO", "schema": "nonsense", "properties": {}}), ("POST", at + "/schema", NOT_JSON), ("POST", at + "/schema", None), ("POST", at + "/schema", {}), ("POST", at + "/schema", {"type": "STRING"}), ("GET", at + "/metadata", None), ("GET", v2(f"schemas/{NS}/no/schema"), None), ("GET", v2(f"schemas/{NS}/no/schemas"), None), ("GET", v2(f"schemas/{TENANT}/no/t/schema"), None), ("POST", v2(f"schemas/{TENANT}/no/t/schema"), avro), ("DELETE", at + "/schema", None), ("GET", at + "/schema", None), ("DELETE", v2(f"schemas/{NS}/no/schema"), None), ("DELETE", at + "/schema?force=true", None), ("DELETE", v2(f"persistent/{NS}/schemed?force=true"), None),
    ]


def brokers():
    yield from [
        ("GET", v2("brokers"), None), ("GET", v2("brokers/standalone"), None), ("GET", v2("brokers/nowhere"), None), ("GET", v2("brokers/health"), None), ("GET", v2("brokers/health?topicVersion=V1"), None), ("GET", v2("brokers/health?topicVersion=V2"), None), ("GET", v2("brokers/health?topicVersion=V3"), None), ("GET", v2("brokers/ready"), None), ("GET", v2("brokers/leaderBroker"), None), ("GET", v2("brokers/internal-configuration"), None), ("GET", v2("brokers/configuration/values"), None),
        ("POST", v2("brokers/configuration/noSuch/true"), None), ("DELETE", v2("brokers/configuration/noSuch"), None), ("POST", v2("brokers/configuration/dispatchThrottlingRatePerTopicInMsg/true"), None), ("POST", v2("brokers/configuration/allowAutoSubscriptionCreation/true"), None), ("POST", v2("brokers/configuration/allowAutoSubscriptionCreation/%7B%22key%2F123%22%3A%22https%3A%2F%2Fexample.com%2F%22%7D"), None), ("DELETE", v2("brokers/configuration/allowAutoSubscriptionCreation"), None), ("DELETE", v2("brokers/configuration/dispatchThrottlingRatePerTopicInMsg"), None), ("POST", v2("brokers/configuration/webServicePort/1"), None),
        ("GET", v2("brokers/backlog-quota-check"), None), ("GET", v2("brokers/backlogQuotaCheck"), None), ("GET", v2("brokers/version"), None), ("POST", v2("brokers/shutdown?maxConcurrentUnloadPerSec=x"), None), ("GET", v2("broker-stats/topics"), None), ("GET", v2("broker-stats/metrics"), None), ("GET", v2("broker-stats/mbeans"), None), ("GET", v2("broker-stats/load-report"), None), ("GET", v2("broker-stats/allocator-stats/default"), None), ("GET", v2("broker-stats/allocator-stats/no"), None), ("GET", v2("broker-stats/allocator-stats"), None), ("GET", v2("broker-stats/pending-bookie-ops-stats"), None), ("GET", v2("broker-stats/broker-resource-availability/diff/ns"), None),
        ("GET", v2("resource-quotas"), None), ("GET", v2(f"resource-quotas/{NS}/0x00000000_0x40000000"), None), ("POST", v2("resource-quotas"), {"msgRateIn": 1}), ("GET", v2("resourcegroups"), None), ("GET", v2("resourcegroups/no"), None), ("PUT", v2("resourcegroups/one"), {"publishRateInMsgs": 5}), ("GET", v2("resourcegroups/one"), None), ("DELETE", v2("resourcegroups/one"), None), ("DELETE", v2("resourcegroups/no"), None), ("GET", v2("bookies/racks-info"), None), ("GET", v2("bookies/all"), None), ("GET", v2("bookies/racks-info/b:1"), None), ("POST", v2("bookies/racks-info/b:1?group=default"), {"rack": "/r", "hostname": "h"}), ("DELETE", v2("bookies/racks-info/b:1"), None), ("GET", v2("worker/cluster"), None), ("GET", v2("worker-stats/metrics"), None), ("GET", "/admin/v3/functions/diff/ns", None), ("GET", "/admin/v3/sinks/diff/ns", None), ("GET", "/admin/v3/sources/diff/ns", None), ("GET", "/admin/v3/packages/function/diff/ns", None), ("GET", "/admin/v3/transactions/coordinatorStats", None), ("GET", "/status.html", None), ("GET", "/admin/v2/noSuchPart", None), ("GET", "/noSuchPart", None), ("GET", "/admin/namespaces/standalone/antiAffinity/group", None),
    ]


def last():
    yield from [("DELETE", v2(f"namespaces/{NS}"), None), ("DELETE", v2(f"namespaces/{NS}?force=true"), None), ("GET", v2(f"namespaces/{NS}"), None), ("DELETE", v2(f"tenants/{TENANT}?force=true"), None), ("GET", v2(f"tenants/{TENANT}"), None)]


def calls():
    for part in (clusters, tenants, namespaces, topics, schemas, brokers, last):
        yield from part()
