"""Policies take effect on the owner of the topic: set by REST, seen by the stock client. Topic before namespace."""
import itertools
import time

import pulsar
import pytest

from region import Region, wait_until

COUNTER = itertools.count()
NS = "effects/ns"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    region = Region(tmp_path_factory.mktemp("effects"), backlogQuotaCheckIntervalInSeconds=1, brokerDeleteInactiveTopicsFrequencySeconds=1,
                    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=3600,
                    diskUsageThreshold=0.99, diskUsageLwmThreshold=0.98).start()
    assert region.admin("PUT", "/admin/v2/tenants/effects", json={"allowedClusters": ["standalone"]}).status_code == 204
    client = region.client()
    yield Place(region, client)
    client.close()
    region.close()


class Place:
    def __init__(self, region, client):
        self.region, self.client = region, client

    def namespace(self):
        name = f"effects/ns{next(COUNTER)}"
        assert self.region.admin("PUT", f"/admin/v2/namespaces/{name}").status_code == 204
        return name

    def set(self, where, value, method="POST"):
        answer = self.region.admin(method, f"/admin/v2/{where}", json=value)
        assert answer.status_code in (200, 204), (where, answer.status_code, answer.text)

    def topic(self, namespace):
        name = f"persistent/{namespace}/t{next(COUNTER)}"
        assert self.region.admin("PUT", f"/admin/v2/{name}").status_code == 204
        return name, name.replace("persistent/", "persistent://", 1)

    def stats(self, path):
        return self.region.get(f"/admin/v2/{path}/stats")


def test_numbers_of_producers_and_consumers_are_limited_and_a_topic_may_lift_it(place):
    namespace = place.namespace()
    path, topic = place.topic(namespace)
    for policy in ("maxProducersPerTopic", "maxConsumersPerTopic", "maxConsumersPerSubscription", "maxSubscriptionsPerTopic"):
        place.set(f"namespaces/{namespace}/{policy}", 1)
    first = place.client.create_producer(topic)
    with pytest.raises(pulsar.ProducerBusy):
        place.client.create_producer(topic)
    consumer = place.client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.PulsarException):
        place.client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    place.set(f"{path}/maxProducers", 0)
    place.set(f"{path}/maxConsumers", 0)
    second = place.client.create_producer(topic)
    with pytest.raises(pulsar.PulsarException):
        place.client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    place.set(f"{path}/maxConsumersPerSubscription", 5)
    another = place.client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.PulsarException):
        place.client.subscribe(topic, "s2")
    for one in (first, second, consumer, another):
        one.close()


def test_topics_of_a_namespace_are_limited(place):
    namespace = place.namespace()
    place.set(f"namespaces/{namespace}/maxTopicsPerNamespace", 2)
    place.topic(namespace)
    assert place.region.admin("PUT", f"/admin/v2/persistent/{namespace}/p/partitions", data="2").status_code in (409, 412)
    place.topic(namespace)
    answer = place.region.admin("PUT", f"/admin/v2/persistent/{namespace}/third")
    assert answer.status_code in (409, 412) and answer.json()["reason"]


def test_a_topics_message_size_is_limited(place):
    path, topic = place.topic(place.namespace())
    place.set(f"{path}/maxMessageSize", 100)
    producer = place.client.create_producer(topic)
    producer.send(b"x" * 20)
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"x" * 1000)
    producer.close()


def test_topics_and_subscriptions_are_created_as_the_namespace_says(place):
    namespace = place.namespace()
    place.set(f"namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False})
    with pytest.raises(pulsar.PulsarException):
        place.client.create_producer(f"persistent://{namespace}/new")
    place.set(f"namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3})
    place.client.create_producer(f"persistent://{namespace}/new").close()
    assert place.region.get(f"/admin/v2/persistent/{namespace}/new/partitions")["partitions"] == 3
    path, topic = place.topic(namespace)
    place.set(f"namespaces/{namespace}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    with pytest.raises(pulsar.PulsarException):
        place.client.subscribe(topic, "s")
    place.set(f"{path}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": True})
    place.client.subscribe(topic, "s").close()


def test_types_of_subscriptions_can_be_narrowed(place):
    namespace = place.namespace()
    path, topic = place.topic(namespace)
    place.set(f"namespaces/{namespace}/subscriptionTypesEnabled", ["Exclusive"])
    with pytest.raises(pulsar.PulsarException):
        place.client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    place.set(f"{path}/subscriptionTypesEnabled", ["Shared"])
    place.client.subscribe(topic, "s", pulsar.ConsumerType.Shared).close()


def test_schemas_are_kept_compatible_required_and_closed(place):
    namespace = place.namespace()
    path, topic = place.topic(namespace)

    class One(pulsar.schema.Record):
        a = pulsar.schema.String(required=True)

    class Other(pulsar.schema.Record):
        a = pulsar.schema.Integer(required=True)

    place.client.create_producer(topic, schema=pulsar.schema.AvroSchema(One)).close()
    with pytest.raises(pulsar.PulsarException):
        place.client.create_producer(topic, schema=pulsar.schema.AvroSchema(Other))
    place.set(f"namespaces/{namespace}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE", "PUT")
    place.set(f"namespaces/{namespace}/isAllowAutoUpdateSchema", False)
    with pytest.raises(pulsar.PulsarException):
        place.client.create_producer(topic, schema=pulsar.schema.AvroSchema(Other))
    place.set(f"namespaces/{namespace}/isAllowAutoUpdateSchema", True)
    place.client.create_producer(topic, schema=pulsar.schema.AvroSchema(Other)).close()
    place.client.create_producer(topic).close()
    place.set(f"{path}/schemaValidationEnforced", True)
    with pytest.raises(pulsar.PulsarException):
        place.client.create_producer(topic)


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
def test_a_backlog_quota_keeps_producers_out(place, policy):
    namespace = place.namespace()
    path, topic = place.topic(namespace)
    place.set(f"{path}/backlogQuota", {"limitSize": 1000, "policy": policy})
    place.client.subscribe(topic, "s").close()
    producer = place.client.create_producer(topic, batching_enabled=False, send_timeout_millis=1000)

    def refused():
        try:
            producer.send(b"x" * 500)
        except pulsar.PulsarException:
            return True
        time.sleep(0.1)
        return False

    wait_until(refused, 20, "a refusal")
    place.set(f"{path}/backlogQuota", {"limitSize": 100_000_000, "policy": policy})
    assert place.region.admin("POST", f"/admin/v2/{path}/subscription/s/skip_all").status_code == 204
    wait_until(lambda: not refused(), 20, "room")
    producer.close()


def test_a_backlog_quota_drops_the_oldest(place):
    path, topic = place.topic(place.namespace())
    place.set(f"{path}/backlogQuota", {"limitSize": 5000, "policy": "consumer_backlog_eviction"})
    place.client.subscribe(topic, "s").close()
    producer = place.client.create_producer(topic, batching_enabled=False)
    for _ in range(40):
        producer.send(b"x" * 500)
    wait_until(lambda: place.stats(path)["subscriptions"]["s"]["msgBacklog"] < 12, 20, "the backlog")
    producer.close()


def test_inactive_topics_go_when_they_may(place):
    namespace = place.namespace()
    path, _ = place.topic(namespace)
    kept, _ = place.topic(namespace)
    place.set(f"namespaces/{namespace}/inactiveTopicPolicies", {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 1, "deleteWhileInactive": True})
    place.set(f"{kept}/inactiveTopicPolicies", {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 1, "deleteWhileInactive": False})
    place.stats(path)
    wait_until(lambda: place.region.admin("GET", f"/admin/v2/{path}/stats").status_code == 404, 30, "the end of the topic")
    assert place.region.admin("GET", f"/admin/v2/{kept}/stats").status_code == 200


def test_delayed_delivery_can_be_switched_off(place):
    path, topic = place.topic(place.namespace())
    place.set(f"{path}/delayedDelivery", {"active": False, "tickTime": 1000})
    consumer = place.client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = place.client.create_producer(topic)
    producer.send(b"now", deliver_at=int(time.time() * 1000) + 600_000)
    consumer.acknowledge(consumer.receive(10_000))
    consumer.close()
    producer.close()


def test_how_a_topic_is_stored_and_kept_is_checked_and_shown_in_force(place):
    namespace = place.namespace()
    path, _ = place.topic(namespace)
    place.set(f"namespaces/{namespace}/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100})
    assert place.region.get(f"/admin/v2/{path}/retention?applied=true")["retentionTimeInMinutes"] == 60
    place.set(f"{path}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    assert place.region.get(f"/admin/v2/{path}/retention?applied=true")["retentionTimeInMinutes"] == 0, "zero is not unset"
    assert place.region.admin("DELETE", f"/admin/v2/{path}/retention").status_code == 204
    assert place.region.get(f"/admin/v2/{path}/retention?applied=true")["retentionTimeInMinutes"] == 60
