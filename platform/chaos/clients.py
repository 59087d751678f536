"""Producers and consumers of a round: the stock client, which tells the oracle whatever it is told."""
import threading
import time
import zlib

import program  # finds the harness
import pulsar
from promises import Oracle

KEYS = 8
BODY_BYTES = (0, 100, 2000)
CUMULATIVE_EVERY = 50
# Of ten messages of the shared subscription so many are acknowledged.
ACKED_OF_TEN = 7


def position(message):
    of = message.message_id()
    return of.ledger_id(), of.entry_id(), of.batch_index()


def body_of(message):
    key, number = message.data().split(b":", 2)[:2]
    return key.decode(), int(number)


class Producing(threading.Thread):
    """Numbered messages with keys, at a rate, until it is stopped."""

    def __init__(self, made, oracle, rate, batching):
        super().__init__(daemon=True)
        self.oracle, self.rate, self.stopped, self.answered = oracle, rate, threading.Event(), 0
        self.client = made.client(operation_timeout_seconds=20)
        # Batches hold one key each: what is delivered by key is one entry.
        self.producer = self.client.create_producer(
            oracle.topic, batching_enabled=batching, batching_type=pulsar.BatchingType.KeyBased, batching_max_publish_delay_ms=10,
            send_timeout_millis=0, block_if_queue_full=True, max_pending_messages=20_000)
        self.start()

    def run(self):
        begun = time.monotonic()
        while not self.stopped.is_set():
            for _ in range(self.oracle.sent, int((time.monotonic() - begun) * self.rate)):
                self.send(f"k{zlib.crc32(b'%d' % self.oracle.sent) % KEYS}")
            time.sleep(0.005)

    def send(self, key):
        number = self.oracle.sent
        self.oracle.sent += 1

        def done(result, _id):
            if result == pulsar.Result.Ok:
                self.oracle.confirmed.add((key, number))
            else:
                self.oracle.refused.append((key, number, str(result)))
            self.answered += 1

        filling = b"x" * BODY_BYTES[number % len(BODY_BYTES)]
        self.producer.send_async(f"{key}:{number}:".encode() + filling, done, partition_key=key)

    def send_last(self):
        """One message more of each key, so that something has to come."""
        for key in range(KEYS):
            self.send(f"k{key}")

    def all_answered(self):
        return self.answered >= self.oracle.sent

    def stop(self):
        self.stopped.set()
        self.join(20)


class Consuming(threading.Thread):
    """One consumer, subscribed again whenever it is told to or its subscription failed."""

    def __init__(self, made, subscription, kind, acknowledge, name):
        super().__init__(name=name, daemon=True)
        self.subscription, self.kind, self.acknowledge = subscription, kind, acknowledge
        self.client = made.client(operation_timeout_seconds=10)
        self.stopped, self.renew, self.last, self.unacked = threading.Event(), threading.Event(), None, 0
        self.consumer = self.subscribe()
        self.start()

    def subscribe(self):
        return self.client.subscribe(
            self.subscription.oracle.topic, self.subscription.name, self.kind, consumer_name=self.name, receiver_queue_size=200,
            initial_position=pulsar.InitialPosition.Earliest, batch_index_ack_enabled=True)

    def run(self):
        while not self.stopped.is_set():
            try:
                self.step()
            except pulsar.PulsarException:
                time.sleep(0.1)

    def step(self):
        if self.renew.is_set():
            self.renew.clear()
            old, self.consumer = self.consumer, None
            old.close()
        self.consumer = self.consumer or self.subscribe()
        try:
            message = self.consumer.receive(200)
        except pulsar.Timeout:
            message = None
        except pulsar.AlreadyClosed:
            self.consumer = None
            return
        if message:
            self.subscription.received(body_of(message), position(message))
        self.acknowledge(self, message)

    def stop(self):
        self.stopped.set()


def each(consuming, message):
    if message:
        consuming.consumer.acknowledge(message)
        consuming.subscription.acknowledged(position(message))


def most(consuming, message):
    """The same messages whenever they come."""
    if message and body_of(message)[1] % 10 < ACKED_OF_TEN:
        each(consuming, message)


def cumulative(consuming, message):
    """Now and then, and when nothing comes."""
    if message:
        consuming.last, consuming.unacked = message, consuming.unacked + 1
    if consuming.unacked >= CUMULATIVE_EVERY or (consuming.unacked and not message):
        consuming.consumer.acknowledge_cumulative(consuming.last)
        consuming.subscription.acknowledged_up_to(position(consuming.last))
        consuming.unacked = 0


class Traffic:
    """A topic with a producer, a subscription in order, one by key, a shared one, and one that keeps everything."""

    def __init__(self, made, topic, rate, batching):
        self.made, self.oracle, self.closed = made, Oracle(topic), False
        program.harness.keep(made, topic)
        kinds = pulsar.ConsumerType
        ordered, keyed, shared = (self.oracle.subscription(name, ordered) for name, ordered in
                                  (("ordered", True), ("keyed", True), ("shared", False)))
        self.shared = shared
        self.consuming = [Consuming(made, ordered, kinds.Failover, cumulative, f"ordered-{n}") for n in range(2)]
        self.consuming += [Consuming(made, keyed, kinds.KeyShared, each, f"keyed-{n}") for n in range(2)]
        self.consuming += [Consuming(made, shared, kinds.Shared, most, "shared-0")]
        self.producing = Producing(made, self.oracle, rate, batching)

    def renew(self):
        for consuming in self.consuming:
            consuming.renew.set()

    def settle(self, before):
        for subscription in self.oracle.subscriptions.values():
            subscription.settle(before)

    def close(self):
        for consuming in self.consuming:
            consuming.stop()
        self.producing.stopped.set()
        for thread in [*self.consuming, self.producing]:
            thread.join(30)
            thread.client.shutdown()
