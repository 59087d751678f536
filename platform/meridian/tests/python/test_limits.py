"""Clients that misbehave: memory stays bounded and the others go on."""
import os
import socket
import struct
import threading
import time

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from region import wait_until


def closed_by_peer(connection):
    connection.settimeout(10)
    try:
        while connection.recv(65536):
            pass
        return True
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("garbage", [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 64,
    struct.pack(">II", 8, 100) + b"\0" * 8,
    struct.pack(">II", 4, 0),
    struct.pack(">I", 0x7FFFFFFF),
    struct.pack(">II", 6, 2) + b"\x08\x12",  # a PING before CONNECT
], ids=["http", "ones", "command-longer-than-frame", "empty-command", "oversized", "before-connect"])
def test_garbage_closes_that_connection_only(region, client, topic, garbage):
    with socket.create_connection(("localhost", region.ready["binary_port"])) as connection:
        connection.sendall(garbage)
        assert closed_by_peer(connection)
    client.create_producer(topic).send(b"others go on")


def test_a_client_that_never_reads_costs_bounded_memory(region, topic):
    client = region.client()
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    lazy = client.subscribe(topic, "lazy", initial_position=InitialPosition.Earliest, receiver_queue_size=5)
    brisk = client.subscribe(topic, "brisk", initial_position=InitialPosition.Earliest)
    before = region.rss_bytes()
    body = os.urandom(100_000)
    for _ in range(1000):
        producer.send_async(body, None)
    producer.flush()
    for _ in range(1000):
        brisk.acknowledge(brisk.receive(10000))
    assert region.rss_bytes() - before < 700 << 20
    stats = region.get(topic.replace("persistent://", "/admin/v2/persistent/") + "/stats")
    assert stats["subscriptions"]["brisk"]["msgBacklog"] == 0 or wait_until(
        lambda: region.get(topic.replace("persistent://", "/admin/v2/persistent/") + "/stats")
        ["subscriptions"]["brisk"]["msgBacklog"] == 0)
    assert lazy.receive(5000).data() == body
    client.close()


def test_unacked_limit_pauses_and_acks_resume(make_region):
    region = make_region(maxUnackedMessagesPerConsumer=100)
    client = region.client()
    topic = "persistent://public/default/unacked"
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(300):
        producer.send_async(str(n).encode(), None)
    producer.flush()
    held = []
    with pytest.raises(pulsar.Timeout):
        while True:
            held.append(consumer.receive(1000))
    assert 100 <= len(held) < 200
    stats = region.get("/admin/v2/persistent/public/default/unacked/stats")
    assert stats["subscriptions"]["s"]["consumers"][0]["blockedConsumerOnUnackedMsgs"] is True
    for message in held:
        consumer.acknowledge(message)
    total = len(held)
    while total < 300:
        consumer.acknowledge(consumer.receive(5000))
        total += 1
    client.close()


def test_idle_process_is_small(make_region):
    region = make_region()
    assert region.rss_bytes() <= 60 << 20
