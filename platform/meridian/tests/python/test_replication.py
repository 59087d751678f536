"""Two regions that replicate to each other, with the stock client."""
import itertools
import time

import pulsar
import pytest
import requests

from region import wait_until
from replicated import admin, clients, copied, link, new_topic, pair, path_of, receive, subscribe, texts


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
