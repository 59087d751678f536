"""What concerns many topics at once, asked of any broker of a cluster: the topics are served by several."""
import re

import pulsar
import pytest

from cluster import Cluster
from region import wait_until

TOPICS = 12
NAMESPACE = "public/default"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster")).start()
    yield cluster
    cluster.close()


def owners(cluster, topics):
    paths = ["/lookup/v2/topic/" + topic.replace("://", "/") for topic in topics]
    return [cluster.brokers[0].get(path)["brokerId"] for path in paths]


def deal(cluster, namespace):
    """Gives each broker some of the bundles; chance may give one all."""
    edges = cluster.brokers[0].get(f"/admin/v2/namespaces/{namespace}/bundles")["boundaries"]
    for number, edge in enumerate(zip(edges, edges[1:])):
        broker = cluster.brokers[number % 3].web.removeprefix("http://")
        path = f"/admin/v2/namespaces/{namespace}/{'_'.join(edge)}/unload?destinationBroker={broker}"
        answer = cluster.brokers[0].admin("PUT", path)
        assert answer.status_code == 204, answer.text


@pytest.fixture
def spread(cluster, request):
    """Topics with a subscription `s`, on all three brokers."""
    name = re.sub(r"\W+", "-", request.node.name)
    topics = [f"persistent://{NAMESPACE}/{name}-{number}" for number in range(TOPICS)]
    client = cluster.client()
    for topic in topics:
        client.subscribe(topic, "s").close()
        client.create_producer(topic).send(b"x")
    client.close()
    deal(cluster, NAMESPACE)
    wait_until(lambda: len(set(owners(cluster, topics))) == 3, 10, "topics on all brokers")
    return topics


def backlogs(cluster, topics):
    def of(topic):
        subscriptions = cluster.brokers[0].get(f"/admin/v2/{topic.replace('://', '/')}/stats")["subscriptions"]
        return {name: found["msgBacklog"] for name, found in subscriptions.items()}
    return [of(topic) for topic in topics]


@pytest.mark.parametrize("broker", range(3))
def test_a_namespaces_backlog_is_cleared_over_any_broker(cluster, spread, broker):
    assert backlogs(cluster, spread) == [{"s": 1}] * TOPICS
    answer = cluster.brokers[broker].admin("POST", f"/admin/v2/namespaces/{NAMESPACE}/clearBacklog/s")
    assert answer.status_code == 204, answer.text
    assert backlogs(cluster, spread) == [{"s": 0}] * TOPICS
    answer = cluster.brokers[broker].admin("POST", f"/admin/v2/namespaces/{NAMESPACE}/unsubscribe/s")
    assert answer.status_code == 204, answer.text
    assert backlogs(cluster, spread) == [{}] * TOPICS


def test_who_still_consumes_is_not_unsubscribed(cluster, spread):
    client = cluster.client()
    consumers = [client.subscribe(topic, "s") for topic in spread]
    answer = cluster.brokers[1].admin("POST", f"/admin/v2/namespaces/{NAMESPACE}/unsubscribe/s")
    assert (answer.status_code, "consumer" in answer.text.lower()) == (412, True), answer.text
    client.close()
    assert len(consumers) == TOPICS


def test_subscriptions_are_declared_wherever_topics_are_served(cluster):
    topics = {f"declared-{number}": {"partitions": 4, "subscriptions": {"billing": {"position": "earliest"}}}
              for number in range(4)}
    document = {"owner": "team", "tenants": {"declared": {"namespaces": {"n": {"topics": topics}}}}}
    for broker in cluster.brokers[::-1]:
        answer = broker.admin("PUT", "/admin/v2/meridian/apply", json=document)
        assert answer.status_code == 200, answer.text
        parts = [f"persistent://declared/n/{name}-partition-{part}" for name in topics for part in range(4)]
    deal(cluster, "declared/n")
    wait_until(lambda: len(set(owners(cluster, parts))) == 3, 10, "topics on all brokers")
    answer = cluster.brokers[2].admin("PUT", "/admin/v2/meridian/apply", json=document)
    assert answer.status_code == 200, answer.text
    assert backlogs(cluster, parts) == [{"billing": 0}] * 16
    for topic in topics.values():
        topic["subscriptions"] = {}
    answer = cluster.brokers[0].admin("PUT", "/admin/v2/meridian/apply?prune=true", json=document)
    assert answer.status_code == 200, answer.text
    assert backlogs(cluster, parts) == [{}] * 16


def test_topics_that_keep_nothing_are_listed_by_every_broker(cluster):
    topics = [f"non-persistent://{NAMESPACE}/fleeting-{number}" for number in range(TOPICS)]
    client = cluster.client()
    producers = [client.create_producer(topic) for topic in topics]
    for broker in cluster.brokers:
        listed = broker.get(f"/admin/v2/non-persistent/{NAMESPACE}")
        assert [topic for topic in listed if "fleeting" in topic] == sorted(topics)
    for number in range(3):
        other = cluster.client(broker=number)
        consumer = other.subscribe(re.compile(f"{NAMESPACE}/fleeting-.*"), f"s{number}",
                                   regex_subscription_mode=pulsar.RegexSubscriptionMode.AllTopics)
        received = set()

        def reached_by_all():
            # What comes before a consumer has asked for messages is dropped.
            for producer in producers:
                producer.send(b"x")
            try:
                received.update(consumer.receive(500).topic_name() for _ in topics)
            except pulsar.Timeout:
                pass
            return received == set(topics)

        wait_until(reached_by_all, 20, "messages of all topics")
        other.close()
    client.close()


def test_a_look_up_over_http_names_the_owner(cluster, spread):
    for broker in cluster.brokers:
        client = pulsar.Client(broker.web)
        for topic in spread:
            consumer = client.subscribe(topic, "web")
            consumer.close()
        client.close()
    # No redirect, which would cost clients their credentials.
    for broker in cluster.brokers:
        for topic in spread:
            answer = broker.admin("GET", "/lookup/v2/topic/" + topic.replace("://", "/"), allow_redirects=False)
            assert answer.status_code == 200, answer.text
            assert answer.json()["brokerUrl"] in {other.url for other in cluster.brokers}
