"""kill -9 at random moments: whatever was acknowledged is there, in order; what was acked stays acked."""
import os
import random
import threading
import time

import pulsar
from pulsar import ConsumerType, InitialPosition

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "5"))


def read_everything(region, topic):
    client = region.client()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    bodies = []
    while reader.has_message_available():
        bodies.append(int(reader.read_next(10000).data()))
    client.close()
    return bodies


def test_confirmed_messages_survive_kills_in_order(make_region):
    region = make_region()
    randomness = random.Random(7)
    confirmed, sent = [], 0
    for round_number in range(ROUNDS):
        # A new topic now and then: reading it all again takes time.
        topic = f"persistent://public/default/kills-{round_number // 20}"
        confirmed = confirmed if round_number % 20 else []
        client = region.client(operation_timeout_seconds=5)
        # Without a subscription nothing has to be kept.
        client.subscribe(topic, "keep", initial_position=InitialPosition.Earliest, receiver_queue_size=1)
        producer = client.create_producer(topic, batching_enabled=round_number % 2 == 0, send_timeout_millis=3000,
                                          block_if_queue_full=True, batching_max_publish_delay_ms=1)
        stop = threading.Event()
        round_confirmed = []

        def done(number):
            return lambda result, _id: result == pulsar.Result.Ok and round_confirmed.append(number)

        def load():
            nonlocal sent
            while not stop.is_set():
                try:
                    producer.send_async(str(sent).encode(), done(sent))
                except pulsar.PulsarException:
                    return
                sent += 1

        thread = threading.Thread(target=load)
        thread.start()
        time.sleep(randomness.uniform(0.05, 0.6))
        region.kill()
        stop.set()
        thread.join(20)
        client.shutdown()
        assert not thread.is_alive()
        confirmed += round_confirmed
        region.start()
        stored = read_everything(region, topic)
        missing = set(confirmed) - set(stored)
        assert not missing, f"round {round_number}: {len(missing)} confirmed messages are gone: {sorted(missing)[:5]}"
        first_seen = list(dict.fromkeys(stored))
        assert first_seen == sorted(first_seen), f"round {round_number}: the order is broken"
    assert confirmed, "the load confirmed something"


def test_acknowledgements_survive_a_kill(make_region):
    region = make_region()
    topic = "persistent://public/default/acks"
    client = region.client()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest,
                                batch_index_ack_enabled=True)
    single = client.create_producer(topic, batching_enabled=False)
    batch = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=500)
    for number in range(50):
        single.send(f"single {number}".encode())
    for number in range(50):
        batch.send_async(f"batch {number}".encode(), None)
    batch.flush()
    messages = [consumer.receive(10000) for _ in range(100)]
    acked = set()
    for message in messages[::3]:
        consumer.acknowledge(message)
        acked.add(message.data())
    # Acknowledgements without a receipt are persisted once a second.
    time.sleep(2.5)
    region.kill()
    client.shutdown()
    region.start()
    client = region.client()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, batch_index_ack_enabled=True)
    again = set()
    for _ in range(100 - len(acked)):
        again.add(consumer.receive(10000).data())
    assert not again & acked, "nothing acked is delivered again"
    assert again | acked == {message.data() for message in messages}
    client.close()


def test_a_term_signal_ends_it_cleanly(make_region):
    region = make_region()
    client = region.client()
    client.create_producer("persistent://public/default/term").send(b"x")
    assert region.stop() == 0
    client.shutdown()
    region.start()
    assert read_everything_bytes(region, "persistent://public/default/term") == [b"x"]


def read_everything_bytes(region, topic):
    client = region.client()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    bodies = []
    while reader.has_message_available():
        bodies.append(reader.read_next(10000).data())
    client.close()
    return bodies
