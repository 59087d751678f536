"""What every user does: send, receive, acknowledge, in every form the client has."""
import time

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from region import wait_until


def receive_all(consumer, count, timeout_millis=10000):
    messages = [consumer.receive(timeout_millis) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    return messages


def nothing_more(consumer, millis=300):
    with pytest.raises(pulsar.Timeout):
        consumer.receive(millis)


def test_one_message_with_everything_on_it(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"body", properties={"a": "1"}, partition_key="key", ordering_key="order", event_timestamp=123,
                  sequence_id=7)
    message = consumer.receive(5000)
    assert message.data() == b"body"
    assert message.properties() == {"a": "1"}
    assert message.partition_key() == "key"
    assert message.ordering_key() == "order"
    assert message.event_timestamp() == 123
    assert message.topic_name() == topic
    assert abs(message.publish_timestamp() - time.time() * 1000) < 60000
    assert message.redelivery_count() == 0


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batching", [True, False])
def test_order_and_content(client, topic, compression, batching):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_publish_delay_ms=5,
                                      compression_type=getattr(pulsar.CompressionType, compression))
    sent = [f"message {n} ".encode() * (n % 40 + 1) for n in range(500)]
    for body in sent:
        producer.send_async(body, None)
    producer.flush()
    assert [m.data() for m in receive_all(consumer, len(sent))] == sent


def test_chunks(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    body = bytes(range(256)) * 60_000
    producer.send(body)
    producer.send(b"small")
    assert [m.data() for m in receive_all(consumer, 2, 30000)] == [body, b"small"]


def test_a_message_over_the_limit_is_refused_and_the_next_goes_through(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (6 << 20))
    producer.send(b"fits")
    assert consumer.receive(5000).data() == b"fits"


def test_exclusive_refuses_a_second_consumer(client, region, topic):
    client.subscribe(topic, "s", ConsumerType.Exclusive)
    other = region.client()
    with pytest.raises(pulsar.ConsumerBusy):
        other.subscribe(topic, "s", ConsumerType.Exclusive)
    other.close()


def test_shared_spreads_and_loses_nothing(client, topic):
    consumers = [client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=10) for _ in range(3)]
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(300):
        producer.send_async(str(n).encode(), None)
    producer.flush()
    seen = [[], [], []]
    deadline = time.monotonic() + 20
    while sum(map(len, seen)) < 300 and time.monotonic() < deadline:
        for consumer, got in zip(consumers, seen):
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            got.append(int(message.data()))
            consumer.acknowledge(message)
    assert sorted(sum(seen, [])) == list(range(300))
    assert all(seen), "every consumer got some"


def test_failover_hands_over_without_loss(client, region, topic):
    other = region.client()
    first = client.subscribe(topic, "s", ConsumerType.Failover, consumer_name="a")
    second = other.subscribe(topic, "s", ConsumerType.Failover, consumer_name="b")
    producer = client.create_producer(topic)
    for n in range(20):
        producer.send(str(n).encode())
    holders = {}
    for name, consumer in (("a", first), ("b", second)):
        try:
            holders[name] = consumer.receive(4000)
        except pulsar.Timeout:
            pass
    assert len(holders) == 1, "exactly one consumer is active"
    active, passive = (first, second) if "a" in holders else (second, first)
    active.acknowledge(holders.popitem()[1])
    active.close()
    assert [int(m.data()) for m in receive_all(passive, 19)] == list(range(1, 20))
    other.close()


def test_key_shared_keeps_each_key_in_order_and_on_one_consumer(client, topic):
    consumers = [client.subscribe(topic, "s", ConsumerType.KeyShared) for _ in range(3)]
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(300):
        producer.send_async(str(n).encode(), None, partition_key=f"key-{n % 20}")
    producer.flush()
    seen, holder, total = {}, {}, 0
    deadline = time.monotonic() + 20
    while total < 300 and time.monotonic() < deadline:
        for number, consumer in enumerate(consumers):
            try:
                message = consumer.receive(20)
            except pulsar.Timeout:
                continue
            key = message.partition_key()
            assert holder.setdefault(key, number) == number, "a key has one consumer"
            seen.setdefault(key, []).append(int(message.data()))
            consumer.acknowledge(message)
            total += 1
    assert total == 300
    assert all(values == sorted(values) for values in seen.values())
    assert len(set(holder.values())) == 3


def test_negative_acknowledgement_comes_again_with_a_count(client, topic):
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    client.create_producer(topic).send(b"again")
    message = consumer.receive(5000)
    assert message.redelivery_count() == 0
    consumer.negative_acknowledge(message)
    message = consumer.receive(5000)
    assert (message.data(), message.redelivery_count()) == (b"again", 1)
    consumer.acknowledge(message)
    nothing_more(consumer)


def test_dead_letters(client, topic):
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2, dead_letter_topic=topic + "-dead",
                                             initial_subscription_name="graves")
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=50,
                                dead_letter_policy=policy)
    graves = client.subscribe(topic + "-dead", "graves")
    client.create_producer(topic).send(b"poison")
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(5000))
    assert graves.receive(10000).data() == b"poison"


def test_cumulative_acknowledgement(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(str(n).encode())
    messages = [consumer.receive(5000) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[5])
    consumer.redeliver_unacknowledged_messages()
    assert [m.data() for m in receive_all(consumer, 4)] == [b"6", b"7", b"8", b"9"]


def test_single_messages_of_a_batch_are_acknowledged(client, topic):
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for n in range(10):
        producer.send_async(str(n).encode(), None)
    producer.flush()
    messages = [consumer.receive(5000) for _ in range(10)]
    for message in messages[::2]:
        consumer.acknowledge(message)
    time.sleep(0.3)
    consumer.close()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, batch_index_ack_enabled=True)
    assert [m.data() for m in receive_all(consumer, 5)] == [b"1", b"3", b"5", b"7", b"9"]
    nothing_more(consumer)


def test_seek_by_id_and_by_time(client, topic):
    producer = client.create_producer(topic, batching_enabled=False)
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    ids = [producer.send(str(n).encode()) for n in range(5)]
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    for n in range(5, 10):
        producer.send(str(n).encode())
    receive_all(consumer, 10)
    consumer.seek(between)
    assert [int(m.data()) for m in receive_all(consumer, 5)] == [5, 6, 7, 8, 9]
    consumer.seek(ids[2])
    assert int(consumer.receive(5000).data()) == 3
    consumer.seek(pulsar.MessageId.earliest)
    assert int(consumer.receive(5000).data()) == 0


def test_readers_and_last_message_id(client, topic):
    producer = client.create_producer(topic)
    ids = [producer.send(str(n).encode()) for n in range(10)]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(int(reader.read_next(5000).data()))
    assert got == list(range(10))
    reader.close()
    reader = client.create_reader(topic, ids[6])
    assert int(reader.read_next(5000).data()) == 7
    reader.close()
    consumer = client.subscribe(topic, "s")
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (ids[9].ledger_id(), ids[9].entry_id())


def test_partitions(client, region, topic):
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    assert region.admin("PUT", path + "/partitions", json=4).status_code == 204
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{n}" for n in range(4)]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
                                      batching_enabled=False)
    for n in range(40):
        producer.send(str(n).encode())
    messages = receive_all(consumer, 40)
    assert sorted(int(m.data()) for m in messages) == list(range(40))
    assert {m.topic_name() for m in messages} == {f"{topic}-partition-{n}" for n in range(4)}


def test_several_topics_by_pattern(client, topic):
    names = [f"{topic}-pattern-{letter}" for letter in "abc"]
    producers = [client.create_producer(name) for name in names]
    consumer = client.subscribe(__import__("re").compile(f"{topic}-pattern-.*"), "s")
    for producer in producers:
        producer.send(producer.topic().encode())
    assert sorted(m.data().decode() for m in receive_all(consumer, 3)) == names


def test_delayed_messages_wait_until_they_are_due(client, topic):
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    begun = time.monotonic()
    producer.send(b"late", deliver_after=__import__("datetime").timedelta(milliseconds=1500))
    producer.send(b"now")
    assert consumer.receive(1000).data() == b"now"
    assert consumer.receive(6000).data() == b"late"
    assert time.monotonic() - begun >= 1.4


def test_a_name_belongs_to_one_producer(client, region, topic):
    client.create_producer(topic, producer_name="me")
    other = region.client()
    with pytest.raises(pulsar.ProducerBusy):
        other.create_producer(topic, producer_name="me")
    other.close()


def test_an_exclusive_producer_fences_others(client, region, topic):
    client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)


def test_non_persistent_topics(client, topic):
    topic = topic.replace("persistent://", "non-persistent://", 1)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"seen")
    assert consumer.receive(5000).data() == b"seen"


def test_unsubscribe_removes_the_subscription(client, region, topic):
    consumer = client.subscribe(topic, "gone")
    client.create_producer(topic).send(b"x")
    consumer.unsubscribe()
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    wait_until(lambda: region.get(path + "/subscriptions") == [], message="the subscription is gone")


def test_deduplication_drops_what_was_stored(region, client, topic):
    namespace = f"public/dedup-{topic.rsplit('-', 1)[1]}"
    assert region.admin("PUT", f"/admin/v2/namespaces/{namespace}").status_code == 204
    assert region.admin("POST", f"/admin/v2/namespaces/{namespace}/deduplication", json=True).status_code == 204
    topic = f"persistent://{namespace}/t"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    for sequence in (1, 2, 2, 1, 3):
        producer.send(str(sequence).encode(), sequence_id=sequence)
    producer.close()
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    assert producer.last_sequence_id() == 3
    producer.send(b"3", sequence_id=3)
    producer.send(b"4", sequence_id=4)
    assert [m.data() for m in receive_all(consumer, 4)] == [b"1", b"2", b"3", b"4"]
    nothing_more(consumer)


def test_schemas_are_registered_and_checked(client, region, topic):
    class Point(pulsar.schema.Record):
        x = pulsar.schema.Integer()
        y = pulsar.schema.Integer(required=True)

    class Other(pulsar.schema.Record):
        name = pulsar.schema.String(required=True)

    consumer = client.subscribe(topic, "s", schema=pulsar.schema.AvroSchema(Point))
    producer = client.create_producer(topic, schema=pulsar.schema.AvroSchema(Point))
    producer.send(Point(x=1, y=2))
    value = consumer.receive(5000).value()
    assert (value.x, value.y) == (1, 2)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=pulsar.schema.AvroSchema(Other))
    schema = region.get(topic.replace("persistent://", "/admin/v2/schemas/") + "/schema")
    assert schema["type"] == "AVRO" and schema["version"] == 0
