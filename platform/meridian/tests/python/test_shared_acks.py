"""A subscription that two regions share: what was acknowledged in one is not delivered in the other."""
import itertools

import pulsar
import pytest

from region import wait_until
from replicated import Pair, admin, path_of

COUNTER = itertools.count()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    pair = Pair(tmp_path_factory.mktemp("shared"), brokerDeleteInactiveTopicsEnabled="false")
    for region, name, other in ((pair.west, "east", pair.east), (pair.east, "west", pair.west)):
        admin(region, "POST", f"clusters/{name}", {
            "serviceUrl": f"http://localhost:{other.ready['web_port']}",
            "brokerServiceUrl": f"pulsar://localhost:{other.ready['binary_port']}",
            "regionLinkUrl": f"http://localhost:{other.ready['region_link_port']}",
        })
    yield pair
    pair.close()


@pytest.fixture
def clients(pair):
    clients = pair.west.client(), pair.east.client()
    yield clients
    for client in clients:
        client.close()


def new_topic():
    return f"persistent://geo/both/shared{next(COUNTER)}"


def subscribe(client, topic, kind=pulsar.ConsumerType.Shared, **options):
    return client.subscribe(topic, "s", consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest,
                            replicate_subscription_state_enabled=True, batch_index_ack_enabled=True, **options)


def backlog(region, topic):
    stats = admin(region, "GET", f"{path_of(topic)}/stats", expect=(200, 404))
    if stats.status_code == 404:
        return None
    subscription = stats.json()["subscriptions"].get("s")
    return subscription and subscription["msgBacklog"]


def copied(region, topic, remote):
    link = admin(region, "GET", f"{path_of(topic)}/stats").json()["replication"].get(remote, {})
    return link.get("connected") and link["replicationBacklog"] == 0


def drain(consumer, ms=1500):
    got = []
    try:
        while True:
            got.append(consumer.receive(ms).data().decode())
    except pulsar.Timeout:
        return got


def test_acks_in_holes(pair, clients):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(west, topic)
    producer = west.create_producer(topic)
    for i in range(200):
        producer.send(str(i).encode())
    left = []
    for i in range(200):
        message = consumer.receive(10_000)
        if i % 10 == 3:
            left.append(message.data().decode())
        else:
            consumer.acknowledge(message)
    wait_until(lambda: backlog(pair.east, topic) == 20, 20, "east knows what is acknowledged")
    consumer.close()
    moved = subscribe(east, topic)
    assert drain(moved) == left
    stats = admin(pair.west, "GET", f"{path_of(topic)}/stats").json()["subscriptions"]["s"]
    assert stats["isReplicated"] and stats["sharedAcks"]["peers"][0]["cluster"] == "east", stats
    metrics = pair.west.admin("GET", "/metrics").text
    assert f'topic="{topic}",subscription="s",remote_cluster="east"' in metrics


def test_a_part_of_a_batch(pair, clients):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(west, topic)
    producer = west.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000, batching_max_messages=10)
    for i in range(20):
        producer.send_async(str(i).encode(), None)
    producer.flush()
    for i in range(20):
        message = consumer.receive(10_000)
        if i not in (3, 14, 15):
            consumer.acknowledge(message)
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")

    def state(region):
        return admin(region, "GET", f"{path_of(topic)}/stats").json()["subscriptions"].get("s", {}).get("sharedAcks", {})

    def known():
        here, there = state(pair.west), state(pair.east)
        # Two batches in part, and all of it confirmed.
        held = here["stateBytes"] > 150 and here["stateBytes"] == there.get("stateBytes")
        return held and here["peers"][0].get("notConfirmedSince") is None

    consumer.close()
    wait_until(known, 20, "east knows")
    moved = subscribe(east, topic)
    assert drain(moved) == ["3", "14", "15"]


def test_both_regions_and_back(pair, clients):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(west, topic)
    producers = [client.create_producer(topic) for client in clients]
    for i in range(50):
        producers[0].send(f"w{i}".encode())
        producers[1].send(f"e{i}".encode())
    for _ in range(60):
        consumer.acknowledge(consumer.receive(10_000))
    wait_until(lambda: backlog(pair.east, topic) == 40 and backlog(pair.west, topic) == 40, 20, "east knows")
    consumer.close()
    moved = subscribe(east, topic)
    for _ in range(40):
        moved.acknowledge(moved.receive(10_000))
    wait_until(lambda: backlog(pair.west, topic) == 0, 20, "west knows")
    moved.close()
    again = subscribe(west, topic)
    assert drain(again) == []


def test_seek_and_unsubscribe_travel(pair, clients):
    west, _ = clients
    topic = new_topic()
    consumer = subscribe(west, topic, pulsar.ConsumerType.Exclusive)
    producer = west.create_producer(topic)
    for i in range(20):
        producer.send(str(i).encode())
    messages = [consumer.receive(10_000) for _ in range(20)]
    consumer.acknowledge_cumulative(messages[-1])
    wait_until(lambda: backlog(pair.east, topic) == 0, 20, "east is at the end")
    consumer.seek(messages[5].message_id())
    wait_until(lambda: backlog(pair.east, topic) in (14, 15), 20, "east went back")
    consumer.unsubscribe()
    wait_until(lambda: backlog(pair.east, topic) is None, 20, "gone in east")


def test_acks_while_the_other_region_is_down(pair, clients):
    west, _ = clients
    topic = new_topic()
    consumer = subscribe(west, topic)
    producer = west.create_producer(topic)
    for i in range(100):
        producer.send(str(i).encode())
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    pair.east.kill()
    for i in range(100):
        message = consumer.receive(10_000)
        if i % 2:
            consumer.acknowledge(message)
    pair.east.start()
    wait_until(lambda: backlog(pair.east, topic) == 50, 30, "east has caught up")
    consumer.close()
    client = pair.east.client()
    assert drain(subscribe(client, topic)) == [str(i) for i in range(0, 100, 2)]
    client.close()


def test_a_policy_shares_every_subscription(pair, clients):
    west, _ = clients
    admin(pair.west, "POST", "namespaces/geo/both/replicateSubscriptionState", True)
    try:
        topic = new_topic()
        consumer = west.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = west.create_producer(topic)
        for i in range(10):
            producer.send(str(i).encode())
        for _ in range(4):
            consumer.acknowledge(consumer.receive(10_000))
        wait_until(lambda: backlog(pair.east, topic) == 6, 20, "east has it")
    finally:
        admin(pair.west, "DELETE", "namespaces/geo/both/replicateSubscriptionState")
