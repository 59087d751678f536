"""Two regions that replicate to each other, with the stock client."""
import itertools
import pathlib
import shutil
import subprocess
import time

import pulsar
import pytest
import requests

from region import BINARY, Region, wait_until

COUNTER = itertools.count()
SETTINGS = {"replicationStartAt": "latest", "diskUsageThreshold": 0.99, "diskUsageLwmThreshold": 0.98, "backlogQuotaCheckIntervalInSeconds": 1}


class Pair:
    """`west` and `east`, registered with each other; namespace `geo/both` is in both."""

    def __init__(self, folder, **settings):
        self.west = Region(folder / "west", clusterName="west", **{**SETTINGS, **settings})
        self.east = Region(folder / "east", clusterName="east", **{**SETTINGS, **settings})
        for region in (self.west, self.east):
            region.start()
        self.register()
        for region in (self.west, self.east):
            region.put("tenants/geo", {"allowedClusters": ["west", "east"]})
            region.put("namespaces/geo/both", {"replication_clusters": ["west", "east"]})
            region.put("namespaces/geo/later", {"replication_clusters": [region.settings["clusterName"]]})

    def register(self):
        for region, name, other in ((self.west, "east", self.east), (self.east, "west", self.west)):
            region.put(f"clusters/{name}", {
                "serviceUrl": f"http://localhost:{other.ready['web_port']}",
                "brokerServiceUrl": f"pulsar://localhost:{other.ready['binary_port']}",
            })

    def close(self):
        for region in (self.west, self.east):
            region.close()


def admin(region, method, path, body=None, expect=(200, 204)):
    answer = requests.request(method, f"http://localhost:{region.ready['web_port']}/admin/v2/{path}", json=body, timeout=30)
    assert answer.status_code in expect, f"{method} {path}: {answer.status_code} {answer.text}"
    return answer


Region.put = lambda self, path, body: admin(self, "PUT", path, body)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    pair = Pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.close()


@pytest.fixture
def make_pair(tmp_path):
    made = []

    def make(**settings):
        made.append(Pair(tmp_path, **settings))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


@pytest.fixture
def clients(pair):
    clients = pair.west.client(), pair.east.client()
    yield clients
    for client in clients:
        client.close()


def path_of(topic):
    return topic.replace("://", "/")


def new_topic(namespace="geo/both"):
    return f"persistent://{namespace}/t{next(COUNTER)}"


def link(region, topic, remote):
    return admin(region, "GET", f"{path_of(topic)}/stats").json()["replication"].get(remote, {})


def copied(region, topic, remote):
    stats = link(region, topic, remote)
    return stats.get("connected") and stats["replicationBacklog"] == 0


def receive(consumer, count, seconds=20):
    """Exactly `count` messages; none comes behind them."""
    got = []
    for _ in range(count):
        message = consumer.receive(int(seconds * 1000))
        got.append(message)
        consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        message = consumer.receive(300)
        got.append(message)
    return got


def texts(messages):
    return [message.data().decode() for message in messages]


def subscribe(client, topic, name="s", **options):
    return client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest, **options)


def test_messages_go_both_ways_once_and_no_further(pair, clients):
    west, east = clients
    topic = new_topic()
    consumers = [subscribe(client, topic) for client in clients]
    producers = [client.create_producer(topic) for client in clients]
    for i in range(50):
        producers[0].send(f"w{i}".encode())
        producers[1].send(f"e{i}".encode())
    for consumer in consumers:
        got = texts(receive(consumer, 100))
        assert [text for text in got if text[0] == "w"] == [f"w{i}" for i in range(50)]
        assert [text for text in got if text[0] == "e"] == [f"e{i}" for i in range(50)]
    for region, remote in ((pair.west, "east"), (pair.east, "west")):
        wait_until(lambda: copied(region, topic, remote), 10, "the copy")
        stats = link(region, topic, remote)
        assert stats["state"] == "running" and stats["inboundConnection"] and stats["outboundConnection"], stats
    assert admin(pair.east, "GET", f"{path_of(topic)}/stats").json()["publishers"][0]["producerName"] == producers[1].producer_name()


def test_what_a_message_carries_arrives(pair, clients):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=20)
    for i in range(20):
        producer.send_async(f"batch-{i}".encode(), lambda *_: None, partition_key=f"k{i}", properties={"n": str(i)},
                            event_timestamp=1000 + i)
    producer.flush()
    single = west.create_producer(topic, batching_enabled=False, compression_type=pulsar.CompressionType.ZLib)
    single.send(b"single", ordering_key="o", properties={"a": "b"})
    got = receive(consumer, 21)
    assert texts(got) == [f"batch-{i}" for i in range(20)] + ["single"]
    assert [message.partition_key() for message in got[:20]] == [f"k{i}" for i in range(20)]
    assert [message.properties()["n"] for message in got[:20]] == [str(i) for i in range(20)]
    assert [message.event_timestamp() for message in got[:20]] == [1000 + i for i in range(20)]
    assert got[20].properties()["a"] == "b"
    assert got[20].properties()["__MSG_PROP_REPL_SOURCE_POSITION"].count(":") == 1


def test_chunked_messages_arrive_whole(pair, clients):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic, batching_enabled=False, chunking_enabled=True, max_pending_messages=100)
    large = bytes(range(256)) * 4 * 1024 * 12
    producer.send(large)
    producer.send(b"small")
    assert [message.data() for message in receive(consumer, 2)] == [large, b"small"]


def test_schemas_are_brought_over_before_the_messages(pair, clients):
    class Order(pulsar.schema.Record):
        id = pulsar.schema.Integer()

    class Larger(pulsar.schema.Record):
        _avro_namespace = None
        id = pulsar.schema.Integer()
        name = pulsar.schema.String()

    west, east = clients
    topic = new_topic()
    producer = west.create_producer(topic, schema=pulsar.schema.AvroSchema(Order))
    producer.send(Order(id=1))
    wait_until(lambda: admin(pair.east, "GET", f"schemas/{topic.split('://')[1]}/schema", expect=(200, 404)).status_code == 200, 15,
               "the schema in the other region")
    consumer = east.subscribe(topic, "s", schema=pulsar.schema.AvroSchema(Order),
                              initial_position=pulsar.InitialPosition.Earliest)
    producer.send(Order(id=2))
    assert [message.value().id for message in receive(consumer, 2)] == [1, 2]


def test_messages_go_only_where_they_are_meant_to_go(pair, clients):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic, batching_enabled=False)
    producer.send(b"all")
    producer.send(b"west only", replication_clusters=["west"])
    producer.send(b"east", replication_clusters=["east", "west"])
    assert texts(receive(consumer, 2)) == ["all", "east"]
    wait_until(lambda: copied(pair.west, topic, "east"), 10, "an empty backlog")


def test_partitioned_topics_have_as_many_partitions_there(pair, clients):
    west, east = clients
    topic = new_topic()
    admin(pair.west, "PUT", f"{path_of(topic)}/partitions", 3)
    producer = west.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
                                    batching_enabled=False)
    for i in range(30):
        producer.send(str(i).encode(), partition_key=str(i))
    wait_until(lambda: admin(pair.east, "GET", f"{path_of(topic)}/partitions", expect=(200, 404)).json().get("partitions") == 3,
               15, "the partitioned topic in the other region")
    consumer = subscribe(east, topic)
    assert sorted(texts(receive(consumer, 30)), key=int) == [str(i) for i in range(30)]


def test_a_topic_of_another_shape_stops_its_link_and_says_why(pair, clients):
    west, _ = clients
    topic = new_topic()
    admin(pair.east, "PUT", f"{path_of(topic)}/partitions", 2)
    producer = west.create_producer(topic)
    producer.send(b"x")
    wait_until(lambda: "partition-mismatch" in link(pair.west, topic, "east").get("state", ""), 20, "the reason")
    assert link(pair.west, topic, "east")["replicationBacklog"] == 1


def test_replication_is_switched_on_and_off_while_traffic_runs(pair, clients):
    west, east = clients
    topic = new_topic("geo/later")
    producer = west.create_producer(topic)
    producer.send(b"before")
    policy = f"{path_of(topic)}/replication"
    admin(pair.west, "POST", policy, ["west", "east"])
    wait_until(lambda: "east" in admin(pair.west, "GET", f"{path_of(topic)}/stats").json()["replication"], 10, "the link")
    wait_until(lambda: "pulsar.repl.east" in admin(pair.west, "GET", f"{path_of(topic)}/internalStats").json()["cursors"], 10,
               "the cursor")
    producer.send(b"during")
    consumer = subscribe(east, topic)
    assert texts(receive(consumer, 1)) == ["during"], "from latest on"
    wait_until(lambda: copied(pair.west, topic, "east"), 10, "the copy")
    admin(pair.west, "POST", policy, ["west"])
    wait_until(lambda: not admin(pair.west, "GET", f"{path_of(topic)}/stats").json()["replication"], 10, "the end of the link")
    wait_until(lambda: "pulsar.repl.east" not in admin(pair.west, "GET", f"{path_of(topic)}/internalStats").json()["cursors"], 10,
               "the end of the cursor")
    producer.send(b"after")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1000)


def test_where_data_goes_is_a_matter_of_trust(pair):
    admin(pair.west, "PUT", "clusters/north", {"brokerServiceUrl": "pulsar://localhost:1"})
    for clusters, status in ((["west", "nowhere"], 403), (["west", "north"], 403), ([], 412), (["west", "east"], 200)):
        admin(pair.west, "POST", "namespaces/geo/both/replication", clusters, expect=(status,))
    topic = new_topic()
    pair.west.client().create_producer(topic)
    admin(pair.west, "POST", f"{path_of(topic)}/replication", ["west", "north"], expect=(403,))
    admin(pair.west, "PUT", "namespaces/geo/bad", {"replication_clusters": ["west", "north"]}, expect=(403,))
    admin(pair.west, "DELETE", "clusters/north")


def test_failure_domains_and_peers_of_clusters(pair):
    admin(pair.west, "PUT", "clusters/south", {"brokerServiceUrl": "pulsar://localhost:1", "authenticationPlugin": "token",
                                               "authenticationParameters": "token:secret"})
    shown = admin(pair.west, "GET", "clusters/south").json()
    assert "secret" not in str(shown) and shown["brokerServiceUrl"] == "pulsar://localhost:1"
    domains = "clusters/south/failureDomains"
    admin(pair.west, "POST", f"{domains}/a", {"brokers": ["b1:8080"]}, expect=(204,))
    admin(pair.west, "POST", f"{domains}/b", {"brokers": ["b1:8080"]}, expect=(409,))
    assert admin(pair.west, "GET", domains).json() == {"a": {"brokers": ["b1:8080"]}}
    admin(pair.west, "POST", "clusters/south", shown)
    assert admin(pair.west, "GET", f"{domains}/a").json() == {"brokers": ["b1:8080"]}
    admin(pair.west, "DELETE", f"{domains}/a")
    admin(pair.west, "GET", f"{domains}/a", expect=(404,))
    admin(pair.west, "POST", "clusters/south/peers", ["nowhere"], expect=(412,))
    admin(pair.west, "POST", "clusters/south/peers", ["east"], expect=(204,))
    assert admin(pair.west, "GET", "clusters/south/peers").json() == ["east"]
    admin(pair.west, "DELETE", "clusters/west", expect=(412,))
    admin(pair.west, "DELETE", "clusters/south")


def test_an_unload_loses_nothing(pair, clients):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic, batching_enabled=False)
    for i in range(60):
        producer.send(str(i).encode())
        if i % 20 == 10:
            admin(pair.west if i % 40 == 10 else pair.east, "PUT", f"{path_of(topic)}/unload")
    assert texts(receive(consumer, 60)) == [str(i) for i in range(60)]


def test_a_global_producer_that_changes_regions_is_stored_once(pair, clients):
    west, east = clients
    for region in (pair.west, pair.east):
        admin(region, "PUT", "namespaces/geo/global", {"replication_clusters": ["west", "east"]})
        admin(region, "POST", "namespaces/geo/global/globalProducers", True)
    topic = new_topic("geo/global")
    consumers = [subscribe(client, topic) for client in clients]
    first = west.create_producer(topic, producer_name="p", batching_enabled=False)
    for i in range(20):
        first.send(str(i).encode(), sequence_id=i)
    first.close()
    second = east.create_producer(topic, producer_name="p", batching_enabled=False)
    for i in range(10, 40):
        second.send(str(i).encode(), sequence_id=i)
    for consumer in consumers:
        assert sorted(texts(receive(consumer, 40)), key=int) == [str(i) for i in range(40)]


def test_a_batch_that_is_cut_another_way_is_stored_once(pair, clients):
    topic = new_topic()
    consumers = [subscribe(client, topic) for client in clients]
    for region in (pair.west, pair.east):
        admin(region, "POST", f"{path_of(topic)}/globalProducers", True)

    def send(client, first, last):
        producer = client.create_producer(topic, producer_name="moving", initial_sequence_id=first - 1, batching_enabled=True,
                                          batching_max_messages=10, batching_max_publish_delay_ms=500)
        for number in range(first, last):
            producer.send_async(str(number).encode(), None)
        producer.flush()
        producer.close()

    send(clients[0], 0, 100)
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    send(clients[1], 40, 95)
    send(clients[1], 95, 125)
    wait_until(lambda: copied(pair.east, topic, "west"), 20, "the copy back")
    for consumer in consumers:
        # Whole batches that are known are not stored again; the one that holds old and new messages is, as a whole.
        got = [int(text) for text in texts(receive(consumer, 130))]
        assert sorted(got) == sorted([*range(125), *range(95, 100)]), got


@pytest.mark.parametrize("victim", ["west", "east"])
def test_a_killed_region_comes_back_and_each_message_is_there_once(make_pair, victim):
    pair = make_pair()
    topic = new_topic()
    west, east = pair.west.client(), pair.east.client()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
    acked = []
    region = getattr(pair, victim)
    for i in range(600):
        producer.send_async(str(i).encode(), lambda result, _, i=i: result == pulsar.Result.Ok and acked.append(i))
        if i in (150, 350):
            wait_until(lambda: len(acked) > 20, 30, "some receipts")
            region.kill()
            region.start()
    wait_until(lambda: len(acked) == 600, 60, "all receipts")
    wait_until(lambda: copied(pair.west, topic, "east"), 60, "the copy")
    consumer.close()
    fresh = subscribe(pair.east.client(), topic, "fresh")
    got = texts(receive(fresh, len({*acked}), 30))
    # What the client resends after the region's end may be there twice in its own region, and so in the other one.
    assert sorted(set(got), key=int) == [str(i) for i in range(600)]
    again = subscribe(pair.west.client(), topic, "fresh")
    here = texts(receive(again, len(got), 30))
    assert here == got
    stats = link(pair.west, topic, "east")
    assert stats["gapMessages"] == 0 and stats["expiredBeforeCopy"] == 0, stats


def test_b020_what_was_not_copied_is_copied_without_clients_after_a_restart(make_pair):
    pair = make_pair()
    topic = new_topic()
    client = pair.west.client()
    producer = client.create_producer(topic)
    producer.send(b"0")
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    pair.east.kill()
    for i in range(1, 50):
        producer.send(str(i).encode())
    client.close()
    pair.west.kill()
    pair.east.start()
    pair.west.start()
    consumer = subscribe(pair.east.client(), topic)
    assert texts(receive(consumer, 50, 30)) == [str(i) for i in range(50)]


def test_b009_idle_cleanup_keeps_what_is_not_copied(make_pair):
    pair = make_pair(brokerDeleteInactiveTopicsFrequencySeconds=1, brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=2)
    topic = new_topic()
    client = pair.west.client()
    producer = client.create_producer(topic)
    producer.send(b"a")
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    pair.east.kill()
    producer.send(b"b")
    client.close()
    time.sleep(6)
    assert link(pair.west, topic, "east")["replicationBacklog"] == 1, "the topic is kept for what is not copied"
    assert "disconnected" in link(pair.west, topic, "east")["state"]
    pair.east.start()
    wait_until(lambda: copied(pair.west, topic, "east"), 30, "the copy after the return")


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
def test_b002_b003_a_full_backlog_there_holds_the_link_until_there_is_room(pair, clients, policy):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic, batching_enabled=False)
    producer.send(b"0" * 400)
    receive(consumer, 1)
    quota = {"limitSize": 2000, "policy": policy}
    admin(pair.east, "POST", f"{path_of(topic)}/backlogQuota?backlogQuotaType=destination_storage", quota)
    consumer.close()
    for i in range(1, 10):
        producer.send(str(i).encode() * 400)
    wait_until(lambda: link(pair.west, topic, "east")["state"].startswith("refused"), 20, "the refusal")
    for i in range(10, 20):
        producer.send(str(i).encode() * 200)
    consumer = subscribe(east, topic)
    got = [message.data()[:2] for message in receive(consumer, 19, 40)]
    assert got == [str(i).encode() * (1 if i >= 10 else 2) for i in range(1, 20)]
    wait_until(lambda: copied(pair.west, topic, "east"), 40, "the rest")


def test_b018_what_outlives_its_time_before_it_is_copied_is_counted(make_pair):
    pair = make_pair(messageExpiryCheckIntervalInSeconds=1)
    topic = new_topic()
    client = pair.west.client()
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"first")
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    admin(pair.west, "POST", "namespaces/geo/both/messageTTL", 2)
    pair.east.kill()
    for i in range(30):
        producer.send(str(i).encode())
    time.sleep(3)
    pair.east.start()
    wait_until(lambda: copied(pair.west, topic, "east"), 40, "the end of the backlog")
    consumer = subscribe(pair.east.client(), topic)
    arrived = 0
    try:
        while True:
            consumer.receive(1500)
            arrived += 1
    except pulsar.Timeout:
        pass
    assert link(pair.west, topic, "east")["expiredBeforeCopy"] == 31 - arrived > 0


def test_metrics_name_the_links(pair, clients):
    west, _ = clients
    topic = new_topic()
    west.create_producer(topic).send(b"x")
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    text = requests.get(f"http://localhost:{pair.west.ready['web_port']}/metrics", timeout=30).text
    lines = [line for line in text.splitlines() if topic in line and 'remote_cluster="east"' in line]
    names = {line.split("{")[0] for line in lines}
    expected = {f"pulsar_replication_{name}" for name in (
        "rate_in", "rate_out", "throughput_in", "throughput_out", "backlog", "rate_expired", "connected_count",
        "delay_in_seconds", "disconnected_count")}
    expected |= {f"meridian_replication_{name}" for name in (
        "state", "restarts_total", "gap_messages_total", "expired_before_copy_total")}
    assert expected <= names
    assert any(line.startswith("pulsar_replication_connected_count") and line.endswith(" 1") for line in lines)


def test_b012_messages_refused_for_short_spells_are_neither_lost_nor_doubled(pair, clients):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(east, topic, receiver_queue_size=5000)
    producer = west.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    producer.send(b"x" * 200)
    receive(consumer, 1)
    path = f"{path_of(topic)}/maxMessageSize"
    total, turns, received = 6000, itertools.cycle([100, 1000]), []
    end = time.monotonic() + 120
    next_turn = sent = 0
    while len(received) < total and time.monotonic() < end:
        if sent < total:
            for _ in range(200):
                producer.send_async(f"{sent}:".encode().ljust(200, b"x"), lambda *_: None)
                sent += 1
        if time.monotonic() >= next_turn:
            admin(pair.east, "POST", path, next(turns) if len(received) < total * 0.9 or sent < total else 1000)
            next_turn = time.monotonic() + 0.3
        try:
            while True:
                message = consumer.receive(50)
                consumer.acknowledge(message)
                received.append(int(message.data().split(b":")[0]))
        except pulsar.Timeout:
            pass
    producer.flush()
    assert received == list(range(total)), (len(received), len(set(received)))
    stats = link(pair.east, topic, "west")
    assert stats["inbound"]["givenUp"] == 0, stats


def test_b015_a_refused_schema_stops_the_link_until_it_is_accepted(pair, clients):
    class One(pulsar.schema.Record):
        a = pulsar.schema.Integer()

    class Two(pulsar.schema.Record):
        b = pulsar.schema.String(required=True)

    One.__name__ = Two.__name__ = "Same"
    west, east = clients
    for region in (pair.west, pair.east):
        admin(region, "PUT", "namespaces/geo/schemas", {"replication_clusters": ["west", "east"]}, expect=(204, 409))
        admin(region, "PUT", "namespaces/geo/schemas/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    topic = new_topic("geo/schemas")
    consumer = subscribe(east, topic)
    first = west.create_producer(topic, schema=pulsar.schema.AvroSchema(One), batching_enabled=False)
    first.send(One(a=1))
    receive(consumer, 1)
    admin(pair.east, "PUT", "namespaces/geo/schemas/schemaCompatibilityStrategy", "ALWAYS_INCOMPATIBLE")
    second = west.create_producer(topic, schema=pulsar.schema.AvroSchema(Two), batching_enabled=False)
    second.send(Two(b="x"))
    first.send(One(a=2))
    wait_until(lambda: link(pair.west, topic, "east")["state"].startswith("schema-blocked"), 20, "the reason")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1000)
    assert link(pair.west, topic, "east")["replicationBacklog"] == 2
    admin(pair.east, "PUT", "namespaces/geo/schemas/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert len(receive(consumer, 2, 60)) == 2
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the rest")


def test_b021_a_topic_made_anew_is_copied_from_its_beginning(pair, clients):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic)
    for i in range(20):
        producer.send(f"old-{i}".encode())
    receive(consumer, 20)
    producer.close()
    admin(pair.west, "DELETE", f"{path_of(topic)}?force=true")
    producer = west.create_producer(topic)
    for i in range(10):
        producer.send(f"new-{i}".encode())
    assert texts(receive(consumer, 10, 30)) == [f"new-{i}" for i in range(10)]


def test_b036_a_link_that_begins_at_the_earliest_message_brings_what_is_there(make_pair):
    pair = make_pair(replicationStartAt="earliest", defaultRetentionTimeInMinutes=10, defaultRetentionSizeInMB=100)
    topic = new_topic("geo/later")
    producer = pair.west.client().create_producer(topic)
    for i in range(100):
        producer.send(str(i).encode())
    admin(pair.west, "POST", "namespaces/geo/later/replication", ["west", "east"])
    consumer = subscribe(pair.east.client(), topic)
    assert texts(receive(consumer, 100, 30)) == [str(i) for i in range(100)]


def test_b035_b033_taking_a_region_out_frees_its_cursors(pair, clients):
    west, _ = clients
    for region, clusters in ((pair.west, ["west", "east"]), (pair.east, ["east"])):
        admin(region, "PUT", "namespaces/geo/out", {"replication_clusters": clusters})
    topics = [new_topic("geo/out") for _ in range(3)]
    for topic in topics:
        west.create_producer(topic).send(b"x")
    wait_until(lambda: all(copied(pair.west, topic, "east") for topic in topics), 20, "the copies")
    admin(pair.west, "POST", "namespaces/geo/out/replication", ["west"])

    def cursors(topic):
        return admin(pair.west, "GET", f"{path_of(topic)}/internalStats").json()["cursors"]

    wait_until(lambda: not any("pulsar.repl.east" in cursors(topic) for topic in topics), 10, "the end of the cursors")


def test_what_a_link_has_not_copied_can_be_skipped(pair, clients):
    west, _ = clients
    topic = new_topic()
    admin(pair.east, "PUT", f"{path_of(topic)}/partitions", 2)
    west.create_producer(topic).send(b"x")
    wait_until(lambda: link(pair.west, topic, "east").get("replicationBacklog") == 1, 20, "a backlog")
    admin(pair.west, "POST", f"{path_of(topic)}/subscription/pulsar.repl.east/skip_all", expect=(204,))
    wait_until(lambda: link(pair.west, topic, "east")["replicationBacklog"] == 0, 10, "no backlog")
    admin(pair.west, "POST", f"{path_of(topic)}/subscription/pulsar.repl.north/skip_all", expect=(404,))


def test_b029_b030_shapes_come_from_the_source(make_pair):
    pair = make_pair(allowAutoTopicCreation="true")
    for region in (pair.east,):
        admin(region, "POST", "namespaces/geo/both/autoTopicCreation", {"allowAutoTopicCreation": False})
    plain, parts = new_topic(), new_topic()
    client = pair.west.client()
    client.create_producer(plain).send(b"x")
    wait_until(lambda: copied(pair.west, plain, "east"), 20, "a topic made there although nobody may make one by using it")
    admin(pair.west, "PUT", f"{path_of(parts)}/partitions", 2)
    client.create_producer(parts).send(b"x")

    def count():
        return admin(pair.east, "GET", f"{path_of(parts)}/partitions", expect=(200, 404)).json().get("partitions", 0)

    wait_until(lambda: count() == 2, 20, "two partitions")
    admin(pair.west, "POST", f"{path_of(parts)}/partitions", 4)
    producer = client.create_producer(parts, batching_enabled=False)
    for i in range(40):
        producer.send(str(i).encode(), partition_key=str(i))
    wait_until(lambda: count() == 4, 30, "four partitions")
    for i in range(4):
        wait_until(lambda: copied(pair.west, f"{parts}-partition-{i}", "east"), 30, "the copy")
    listed = admin(pair.east, "GET", "persistent/geo/both").json()
    assert sorted(listed) == sorted([plain] + [f"{parts}-partition-{i}" for i in range(4)])


def test_an_address_of_another_region_is_refused_and_nothing_is_lost(make_pair):
    pair = make_pair()
    topic = new_topic()
    west, east = pair.west.client(), pair.east.client()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic)
    producer.send(b"0")
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the first copy")
    entry = lambda region: {"serviceUrl": region.web, "brokerServiceUrl": region.url}
    # West calls itself east.
    admin(pair.west, "POST", "clusters/east", entry(pair.west))
    producer.send(b"1")
    wait_until(lambda: "this is region west" in link(pair.west, topic, "east").get("state", ""), 20, "the refusal")
    admin(pair.west, "POST", "clusters/east", entry(pair.east))
    producer.send(b"2")
    assert texts(receive(consumer, 3)) == ["0", "1", "2"]
    for client in (west, east):
        client.close()


def test_b062_a_region_that_is_built_anew_gets_what_is_still_there(make_pair):
    pair = make_pair(defaultRetentionTimeInMinutes=60, defaultRetentionSizeInMB=100)
    topic = new_topic()
    west, east = pair.west.client(), pair.east.client()
    consumers = [subscribe(client, topic) for client in (west, east)]
    producer = west.create_producer(topic)
    for i in range(40):
        producer.send(str(i).encode())
    for consumer in consumers:
        receive(consumer, 40)
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    east.close()
    pair.east.kill()
    shutil.rmtree(pair.east.folder / "data")
    pair.east.start()
    pair.east.put("clusters/west", {"serviceUrl": pair.west.web, "brokerServiceUrl": pair.west.url})
    pair.east.put("tenants/geo", {"allowedClusters": ["west", "east"]})
    pair.east.put("namespaces/geo/both", {"replication_clusters": ["west", "east"]})
    producer.send(b"40")
    wait_until(lambda: copied(pair.west, topic, "east"), 40, "the copy")
    fresh = subscribe(pair.east.client(), topic, "fresh")
    assert texts(receive(fresh, 41)) == [str(i) for i in range(41)]
    assert "the remote has the topic anew" in pathlib.Path(pair.west.log_file).read_text()
    # A restart of either is no new life.
    pair.west.stop()
    pair.west.start()
    wait_until(lambda: copied(pair.west, topic, "east"), 40, "the copy")
    assert link(pair.west, topic, "east")["msgOutCount"] == 0


def test_a_region_that_is_built_anew_gets_its_own_messages_back_by_order_and_once(make_pair):
    pair = make_pair(defaultRetentionTimeInMinutes=60, defaultRetentionSizeInMB=100)
    topic = new_topic()
    west, east = pair.west.client(), pair.east.client()
    here = subscribe(west, topic)
    from_west, from_east = west.create_producer(topic), east.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50)
    for i in range(20):
        from_west.send(f"w{i}".encode())
        from_east.send_async(f"e{i}".encode(), lambda *_: None)
    from_east.flush()
    for region, remote in ((pair.west, "east"), (pair.east, "west")):
        wait_until(lambda: copied(region, topic, remote), 20, "the copy")
    receive(here, 40)
    east.close()
    pair.east.kill()
    path = f"{path_of(topic)}/restore/east"
    # Which life of the topic it has is known again when it is heard.
    wait_until(lambda: not connected(pair.west, topic, "east"), 30, "the loss is known")
    refused = admin(pair.west, "PUT", path, expect=(409,)).json()["reason"]
    assert "is not connected" in refused and "east" in refused
    shutil.rmtree(pair.east.folder / "data")
    pair.east.start()
    pair.east.put("clusters/west", {"serviceUrl": pair.west.web, "brokerServiceUrl": pair.west.url})
    pair.east.put("tenants/geo", {"allowedClusters": ["west", "east"]})
    pair.east.put("namespaces/geo/both", {"replication_clusters": ["west", "east"]})
    east = pair.east.client()
    fresh = subscribe(east, topic, "fresh")
    east.create_producer(topic).send(b"new")
    from_west.send(b"w20")
    wait_until(lambda: copied(pair.west, topic, "east") and copied(pair.east, topic, "west"), 60, "the copy")
    assert sorted(texts(receive(fresh, 22))) == sorted(["new", *(f"w{i}" for i in range(21))]), "nothing comes back by itself"
    assert sorted(texts(receive(here, 2))) == ["new", "w20"]
    assert admin(pair.west, "GET", path).json()["status"] == "NOT_RUN"

    def restore():
        wait_until(lambda: admin(pair.west, "PUT", path, expect=(200, 204, 409)).status_code != 409, 30, "its beginning")
        done = lambda: admin(pair.west, "GET", path).json()
        wait_until(lambda: done()["status"] != "RUNNING", 30, "its end")
        return done()

    first = restore()
    assert (first["status"], first["lastError"], first["alreadyThere"]) == ("SUCCESS", "", 0)
    assert first["returned"] > 0
    assert texts(receive(fresh, 20)) == [f"e{i}" for i in range(20)], "in order"
    again = restore()
    assert (again["status"], again["returned"], again["alreadyThere"]) == ("SUCCESS", 0, first["returned"])
    # They name their origin, so that nobody sends them on, and the marks that know them outlive a restart.
    wait_until(lambda: copied(pair.east, topic, "west"), 20, "an empty backlog")
    assert link(pair.east, topic, "west")["msgOutCount"] == 1
    with pytest.raises(pulsar.Timeout):
        here.receive(500)
    east.close()
    pair.east.stop()
    pair.east.start()
    wait_until(lambda: copied(pair.west, topic, "east") and connected(pair.west, topic, "east"), 40, "the link")
    # One that meets the connection of before the restart ends with an error, and is begun again.
    third = wait_until(lambda: next((one for one in [restore()] if one["status"] == "SUCCESS"), None), 30, "a pass to its end")
    assert (third["returned"], third["alreadyThere"]) == (0, first["returned"])
    whole = subscribe(pair.east.client(), topic, "whole")
    assert len(receive(whole, 42)) == 42
    admin(pair.west, "PUT", f"{path_of(topic)}/restore/north", expect=(404,))


def test_b041_topics_can_be_deleted_after_this_region_has_left(make_pair):
    pair = make_pair()
    client = pair.west.client()
    producers = [client.create_producer(new_topic()) for _ in range(100)]
    for producer in producers:
        producer.send(b"x")
    wait_until(lambda: all(copied(pair.west, producer.topic(), "east") for producer in producers), 40, "the copies")
    before = pair.west.rss_bytes()
    for region in (pair.east, pair.west):
        admin(region, "POST", "namespaces/geo/both/replication", ["east"])
    for producer in producers:
        producer.close()
        admin(pair.west, "DELETE", path_of(producer.topic()))
    assert pair.west.get("/admin/v2/persistent/geo/both") == []
    assert pair.west.rss_bytes() < before + (16 << 20)


def test_b050_an_idle_replicated_subscription_writes_nothing(make_pair):
    pair = make_pair()
    topic = new_topic()
    west = pair.west.client()
    consumer = west.subscribe(topic, "s", replicate_subscription_state_enabled=True)
    producer = west.create_producer(topic)
    producer.send(b"x")
    consumer.acknowledge(consumer.receive(10_000))
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")

    def entries():
        return [region.get(f"/admin/v2/{path_of(topic)}/internalStats")["numberOfEntries"] for region in (pair.west, pair.east)]

    # One snapshot follows the last message: a request, answers, the snapshot, and their copies.
    seen = [None]

    def still():
        seen.append(entries())
        return seen[-1] == seen[-2] and time.monotonic() > settled

    settled = time.monotonic() + 4
    wait_until(still, 20, "markers end")
    before, until = entries(), time.monotonic() + 5
    assert max(before) <= 10
    reader = west.create_reader(topic, pulsar.MessageId.latest)
    while time.monotonic() < until:
        asked = time.monotonic()
        assert not reader.has_message_available()
        assert time.monotonic() - asked < 1
        time.sleep(0.2)
    assert entries() == before


def tokens(*words):
    return subprocess.run([BINARY, "tokens", *map(str, words)], check=True, capture_output=True, text=True).stdout.strip()


def test_b038_a_remote_with_keys_of_its_own_and_a_token_that_is_changed(tmp_path):
    key = tmp_path / "key"
    tokens("create-secret-key", "--output", key)
    first, second, root = (tokens("create", "--secret-key", key, "--subject", name) for name in ("link", "link2", "root"))
    west = Region(tmp_path / "west", clusterName="west", **SETTINGS).start()
    east = Region(tmp_path / "east", clusterName="east", authenticationEnabled="true", authorizationEnabled="true",
                  authenticationProviders="token", tokenSecretKey=f"file://{key}", superUserRoles="root",
                  replicatorRoles="link,link2", **SETTINGS).start()
    try:
        def put(region, path, body):
            headers = {"Authorization": f"Bearer {root}"} if region is east else {}
            answer = region.admin("PUT", f"/admin/v2/{path}", json=body, headers=headers)
            assert answer.status_code in (200, 204), answer.text

        def there(token):
            return {"serviceUrl": east.web, "brokerServiceUrl": east.url, "authenticationPlugin": "token",
                    "authenticationParameters": f"token:{token}"}

        put(west, "clusters/east", there("not-a-token"))
        put(east, "clusters/west", {"serviceUrl": west.web, "brokerServiceUrl": west.url})
        for region in (west, east):
            put(region, "tenants/geo", {"allowedClusters": ["west", "east"]})
            put(region, "namespaces/geo/both", {"replication_clusters": ["west", "east"]})
        for role in ("link", "link2"):
            answer = east.admin("POST", f"/admin/v2/namespaces/geo/both/permissions/{role}", json=["produce", "consume"],
                                headers={"Authorization": f"Bearer {root}"})
            assert answer.status_code in (200, 204), answer.text
        topic = new_topic()
        producer = west.client().create_producer(topic)
        producer.send(b"0")
        wait_until(lambda: link(west, topic, "east").get("state", "").startswith(("refused", "disconnected")), 20, "a refusal")
        admin(west, "POST", "clusters/east", there(first))
        wait_until(lambda: copied(west, topic, "east"), 20, "the copy")
        # Changed while the link runs: the next messages go over with the new one.
        connected = link(west, topic, "east")["outboundConnectedSince"]
        admin(west, "POST", "clusters/east", there(second))
        wait_until(lambda: link(west, topic, "east").get("outboundConnectedSince", connected) != connected, 20, "a new connection")
        producer.send(b"1")
        wait_until(lambda: copied(west, topic, "east"), 20, "the copy")
        client = east.client(authentication=pulsar.AuthenticationToken(root))
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [reader.read_next(10_000).data() for _ in range(2)] == [b"0", b"1"]
    finally:
        west.close()
        east.close()


def test_b039_a_topic_that_another_region_sends_to_is_deleted_only_by_force(pair, clients):
    west, _ = clients
    topic = new_topic()
    producer = west.create_producer(topic)
    producer.send(b"x")
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    answer = admin(pair.east, "DELETE", path_of(topic), expect=(412,))
    assert "1 connected replicators" in answer.json()["reason"] and "west" in answer.json()["reason"]
    producer.close()
    admin(pair.east, "DELETE", f"{path_of(topic)}?force=true", expect=(204,))


def live_topic(namespace="geo/both"):
    return new_topic(namespace).replace("persistent://", "non-persistent://")


def connected(region, topic, remote):
    return link(region, topic, remote).get("connected")


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
