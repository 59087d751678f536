"""Replication of topics that keep nothing (non-persistent ones)."""
import time

import pulsar
import pytest
import requests

from region import wait_until
from replicated import admin, clients, connected, link, make_pair, new_topic, pair, path_of, receive, texts


def live_topic(namespace="geo/both"):
    return new_topic(namespace).replace("persistent://", "non-persistent://")


def test_a_topic_that_keeps_nothing_brings_over_the_first_message_too(pair, clients):
    west, east = clients
    for _ in range(5):
        topic = live_topic()
        consumer = east.subscribe(topic, "s")
        west.create_producer(topic).send(b"first")
        assert consumer.receive(10000).data() == b"first"


def test_a_partitioned_topic_that_keeps_nothing_is_replicated(pair, clients):
    west, east = clients
    topic = live_topic()
    admin(pair.west, "PUT", f"{path_of(topic)}/partitions", 3)
    producer = west.create_producer(topic, batching_enabled=False, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    there = lambda: admin(pair.east, "GET", f"{path_of(topic)}/partitions", expect=(200, 404)).json().get("partitions")
    wait_until(lambda: there() == 3, 20, "the partitions there")
    consumer = east.subscribe(topic, "s")
    for part in range(3):
        wait_until(lambda: connected(pair.west, f"{topic}-partition-{part}", "east"), 20, "the links")
    for i in range(30):
        producer.send(str(i).encode())
    assert sorted(texts(receive(consumer, 30)), key=int) == [str(i) for i in range(30)]
    stats = lambda: admin(pair.west, "GET", f"{path_of(topic)}/partitioned-stats").json()["replication"]["east"]
    wait_until(lambda: stats()["msgOutCount"] == 30, 10, "the answers")
    assert stats()["msgDropCount"] == 0


def test_schemas_of_a_topic_that_keeps_nothing_are_brought_over(pair, clients):
    class Price(pulsar.schema.Record):
        cents = pulsar.schema.Integer()

    west, east = clients
    topic = live_topic()
    schema = pulsar.schema.AvroSchema(Price)
    consumer = east.subscribe(topic, "s", schema=schema)
    producer = west.create_producer(topic, schema=schema)
    for i in range(10):
        producer.send(Price(cents=i))
    assert [message.value().cents for message in receive(consumer, 10)] == list(range(10))


def test_replication_of_a_topic_that_keeps_nothing_is_switched_on_and_off(pair, clients):
    west, east = clients
    topic = live_topic("geo/later")
    consumer, here = east.subscribe(topic, "s"), west.subscribe(topic, "s")
    producer = west.create_producer(topic)
    producer.send(b"0")
    assert "east" not in admin(pair.west, "GET", f"{path_of(topic)}/stats").json()["replication"]
    try:
        for region in (pair.west, pair.east):
            admin(region, "POST", "namespaces/geo/later/replication", ["west", "east"])
        wait_until(lambda: connected(pair.west, topic, "east"), 20, "the link")
        producer.send(b"1")
        assert consumer.receive(10000).data() == b"1", "without a reload of the topic"
    finally:
        for region, name in ((pair.west, "west"), (pair.east, "east")):
            admin(region, "POST", "namespaces/geo/later/replication", [name])
    wait_until(lambda: link(pair.west, topic, "east") == {}, 20, "the end of the link")
    producer.send(b"2")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    assert texts(receive(here, 3)) == ["0", "1", "2"]


def test_a_region_that_is_away_slows_no_publisher_and_its_losses_are_counted(make_pair):
    pair = make_pair()
    topic = live_topic()
    client = pair.west.client()
    producer = client.create_producer(topic, batching_enabled=False, max_pending_messages=500, block_if_queue_full=True)
    wait_until(lambda: connected(pair.west, topic, "east"), 20, "the link")
    answered = []

    def publish(count):
        began = time.monotonic()
        for _ in range(count):
            producer.send_async(b"x" * 1000, lambda result, _: answered.append(result))
        producer.flush()
        return time.monotonic() - began

    with_east = publish(5000)
    pair.east.kill()
    wait_until(lambda: link(pair.west, topic, "east")["state"].startswith("disconnected"), 30, "the loss is known")
    dropped = link(pair.west, topic, "east")["msgDropCount"]
    without = publish(5000)
    assert answered == [pulsar.Result.Ok] * 10000
    assert without < with_east * 3 + 1, (with_east, without)
    wait_until(lambda: link(pair.west, topic, "east")["msgDropCount"] == dropped + 5000, 20, "the count")
    text = requests.get(f"{pair.west.web}/metrics", timeout=30).text
    counts = [line for line in text.splitlines() if line.startswith("meridian_replication_dropped_total") and topic in line]
    assert [float(line.split()[-1]) for line in counts] == [dropped + 5000], counts
    assert link(pair.west, topic, "east")["msgDropRate"] > 0
    # What is published after its return arrives.
    pair.east.start()
    consumer = pair.east.client().subscribe(topic, "s")
    wait_until(lambda: connected(pair.west, topic, "east"), 40, "the link")
    producer.send(b"again")
    assert consumer.receive(10000).data() == b"again"
    client.close()


def test_topics_that_keep_nothing_and_that_nobody_uses_go_in_both_regions(make_pair):
    pair = make_pair(replicationIdleLinkSeconds=2, brokerDeleteInactiveTopicsFrequencySeconds=1, brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=2)
    topic = live_topic()
    client = pair.west.client()
    client.create_producer(topic).send(b"x")
    listed = lambda region: topic in admin(region, "GET", "non-persistent/geo/both").json()
    wait_until(lambda: listed(pair.east), 20, "the topic in the other region")
    client.close()
    wait_until(lambda: not listed(pair.west) and not listed(pair.east), 60, "their end")
