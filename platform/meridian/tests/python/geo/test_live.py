"""Topics that keep nothing, over two regions: best effort, once, one hop, and only where a message is meant to go.

Nothing here asks for more than a link promises that is open and far from its limits, so each message is expected.
"""
import struct

import pulsar
import pytest

from raw import Raw, decode
from region import wait_until

MESSAGE = 9


def live_topic(pair):
    return pair.topic().replace("persistent://", "non-persistent://")


def open_links(pair, topic):
    """Both links have their producers open."""
    for here, there in (("west", "east"), ("east", "west")):
        wait_until(lambda: pair[here].link_stats(topic, there).get("connected"), 30, f"the link from {here} to {there}")


def received(consumer, seconds=1.0):
    got = []
    try:
        while True:
            got.append(consumer.receive(int(seconds * 1000)).data().decode())
    except pulsar.Timeout:
        return got


@pytest.fixture
def live(pair):
    """Topic, and a producer and a consumer on each side, the links open."""
    topic = live_topic(pair)
    clients = {name: pair[name].client() for name in ("west", "east")}
    consumers = {name: client.subscribe(topic, f"s-{name}") for name, client in clients.items()}
    producers = {name: client.create_producer(topic, batching_enabled=False) for name, client in clients.items()}
    open_links(pair, topic)
    yield topic, producers, consumers
    for client in clients.values():
        client.close()


def test_messages_go_both_ways_once_and_no_further(pair, live):
    topic, producers, consumers = live
    for i in range(100):
        producers["west"].send(f"w{i}".encode())
        producers["east"].send(f"e{i}".encode())
    for consumer in consumers.values():
        got = received(consumer)
        for side in "we":
            assert [text for text in got if text[0] == side] == [f"{side}{i}" for i in range(100)]
    for here, there in (("west", "east"), ("east", "west")):
        wait_until(lambda: pair[here].link_stats(topic, there)["msgOutCount"] == 100, 10, "the answers")
        assert pair[here].link_stats(topic, there)["msgDropCount"] == 0


def test_messages_go_only_where_they_are_meant_to_go(pair, live):
    topic, producers, consumers = live
    west = producers["west"]
    west.send(b"all")
    west.send(b"local", disable_replication=True)
    west.send(b"west only", replication_clusters=["west"])
    west.send(b"east", replication_clusters=["east"])
    west.send(b"end")
    assert received(consumers["east"]) == ["all", "east", "end"]
    assert received(consumers["west"]) == ["all", "local", "west only", "east", "end"], "who is connected here gets all"
    assert pair["west"].link_stats(topic, "east")["msgDropCount"] == 0, "what was not meant for it is not dropped"


def metadata_of_next(connection):
    """The metadata of the next message on a connection, by field number."""
    while True:
        size, = struct.unpack(">I", connection.read(4))
        frame = connection.read(size)
        length, = struct.unpack(">I", frame[:4])
        command = decode(frame[4:4 + length])
        if command[1][0] == MESSAGE:
            entry = frame[4 + length:]
            magic, _checksum, metadata_bytes = struct.unpack(">HII", entry[:10])
            assert magic == 0x0E01
            return decode(entry[10:10 + metadata_bytes])


def test_a_copy_says_where_it_comes_from(pair, live):
    topic, producers, consumers = live
    connection = Raw(pair["east"].ports["binary"], "")
    assert connection.ask("subscribe", {1: topic, 2: "raw", 3: 0, 4: 7, 5: 1})[0] == "success"
    connection.send("flow", {1: 7, 2: 10})
    # The broker has the permits once it has answered what came behind them.
    connection.ask("consumer_stats", {1: 2, 4: 7})
    producers["west"].send(b"copy", properties={"a": "b"})
    producers["east"].send(b"own")
    seen = {}
    for _ in range(2):
        metadata = metadata_of_next(connection)
        seen[metadata[1][0].decode()] = metadata
    connection.close()
    copy, own = seen[producers["west"].producer_name()], seen[producers["east"].producer_name()]
    assert copy[5] == [b"west"] and 5 not in own, "field 5 of the metadata: replicated_from"
    properties = [decode(pair) for pair in copy[4]]
    assert {one[1][0]: one[2][0] for one in properties}[b"a"] == b"b"


def test_batches_and_keys_arrive_whole(pair, live):
    topic, producers, consumers = live
    client = pair["west"].client()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=20)
    for i in range(50):
        producer.send_async(str(i).encode(), lambda *_: None, partition_key=f"k{i}")
    producer.flush()
    got = [consumers["east"].receive(10000) for _ in range(50)]
    client.close()
    assert [message.data().decode() for message in got] == [str(i) for i in range(50)]
    assert [message.partition_key() for message in got] == [f"k{i}" for i in range(50)]


def test_what_a_region_that_is_cut_off_misses_is_counted_and_gone(pair, live):
    topic, producers, consumers = live
    producers["west"].send(b"before")
    assert received(consumers["east"]) == ["before"]
    pair.links["west", "east"].cut()
    wait_until(lambda: not pair["west"].link_stats(topic, "east")["connected"], 60, "the end of the connection")
    for i in range(20):
        producers["west"].send(f"lost{i}".encode())
    wait_until(lambda: pair["west"].link_stats(topic, "east")["msgDropCount"] > 0, 20, "the count")
    pair.heal()
    open_links(pair, topic)
    producers["west"].send(b"after")
    got = received(consumers["east"], 3)
    assert got[-1] == "after" and len(got) < 21, got
    assert received(consumers["west"]) == ["before", *(f"lost{i}" for i in range(20)), "after"], "here nothing is missing"


def test_in_three_regions_that_know_each_other_each_message_arrives_once(make_group):
    group = make_group("west", "east", "north")
    topic = live_topic(group)
    clients = {name: side.client() for name, side in group.sides.items()}
    consumers = {name: client.subscribe(topic, f"s-{name}") for name, client in clients.items()}
    producers = {name: client.create_producer(topic, batching_enabled=False) for name, client in clients.items()}
    for here in group.sides:
        for there in group.sides:
            if here != there:
                wait_until(lambda: group[here].link_stats(topic, there).get("connected"), 30, f"the link from {here} to {there}")
    for i in range(20):
        for name, producer in producers.items():
            producer.send(f"{name}{i}".encode())
    for consumer in consumers.values():
        assert sorted(received(consumer)) == sorted(f"{name}{i}" for name in group.sides for i in range(20))
    for client in clients.values():
        client.close()
