"""Tenants with limits, producers that send as fast as they are answered, and consumers that count what comes."""
import array
import bisect
import threading
import time

import program
import pulsar
from traffic import Side, open_client

QUOTAS = "/admin/v2/meridian/quotas"


def make_tenant(made, name, namespaces=("n",), bundles=12):
    """A tenant with namespaces of so many bundles, so that topics come to all brokers."""
    broker = made.brokers[0]
    program.admin(broker, "PUT", f"/admin/v2/tenants/{name}", {"allowedClusters": [made.name]})
    for namespace in namespaces:
        program.admin(broker, "PUT", f"/admin/v2/namespaces/{name}/{namespace}", {"bundles": {"numBundles": bundles}})


def set_quota(made, place, limits):
    """The operator's limits of a place; none = they are lifted."""
    if limits:
        program.admin(made.brokers[0], "PUT", f"{QUOTAS}/{place}", limits)
    else:
        program.admin(made.brokers[0], "DELETE", f"{QUOTAS}/{place}")


def spread(made, namespaces, at_least, most=200):
    """Names of topics of which every broker serves one or more; and how many each serves."""
    topics, served = [], {broker.name: 0 for broker in made.brokers}
    while len(topics) < at_least or not all(served.values()):
        if len(topics) >= most:
            raise RuntimeError(f"topics do not come to all brokers: {served}")
        topic = f"persistent://{namespaces[len(topics) % len(namespaces)]}/t{len(topics)}"
        served[program.owner_of(made, topic).name] += 1
        topics.append(topic)
    return topics, served


def flood(pipe, url, log_file, topics, producers, window, body_bytes):
    """Each producer has `window` messages under way all the time between `go` and `pause`."""
    client = open_client(url, log_file)
    opened = [client.create_producer(topics[number % len(topics)], batching_enabled=False, send_timeout_millis=0,
                                     max_pending_messages=2 * window) for number in range(producers)]
    body, moments, refused = b"x" * body_bytes, array.array("d"), []
    running, under_way, counting = False, 0, threading.Lock()

    def count(more):
        nonlocal under_way
        with counting:
            under_way += more

    def send(producer):
        def done(result, _id):
            count(-1)
            if result == pulsar.Result.Ok:
                moments.append(time.monotonic())
            elif len(refused) < 1000:
                refused.append(str(result))
            if running and result == pulsar.Result.Ok:
                send(producer)

        count(1)
        producer.send_async(body, done)

    pipe.send("ready")
    while (word := pipe.recv()) != "stop":
        running = word == "go"
        if running:
            for producer in opened * window:
                send(producer)
        deadline = time.monotonic() + 120
        while not running and under_way > 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        pipe.send("done")
    running = False
    pipe.send((moments, refused))
    client.close() if under_way <= 0 else client.shutdown()


class Counted:
    """Moments at which something came."""

    def __init__(self, moments):
        self.moments = sorted(moments)

    def between(self, since, until):
        return bisect.bisect_left(self.moments, until) - bisect.bisect_left(self.moments, since)


def tell_all(sides, word):
    """At once; all have done it afterwards."""
    for side in sides:
        side.pipe.send(word)
    for side in sides:
        side.answer(word, 150)


class Flood(Side):
    """Producers in a process of their own that send as fast as they are answered, from `go` until `pause`."""

    def __init__(self, made, name, topics, producers, window=20, body_bytes=1024):
        log_file = str(made.folder / f"flood-{name}.log")
        super().__init__(flood, made.url(), log_file, topics, producers, window, body_bytes)

    def end(self, seconds=180):
        moments, refused = super().end(seconds)
        return Counted(moments), refused


def take(pipe, url, log_file, topics, queue):
    client = open_client(url, log_file)
    moments = array.array("d")

    def came(consumer, message):
        moments.append(time.monotonic())
        consumer.acknowledge(message)

    pipe.send("ready")
    pipe.recv()
    for topic in topics:
        client.subscribe(topic, "take", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=queue,
                         message_listener=came)
    pipe.send("done")
    pipe.recv()
    pipe.send(moments)
    client.close()


class Taker(Side):
    """Consumers in a process of their own, one on each topic, that read and acknowledge from `go` until they are ended."""

    def __init__(self, made, name, topics, queue=1000):
        super().__init__(take, made.url(), str(made.folder / f"taker-{name}.log"), topics, queue)

    def end(self, seconds=180):
        return Counted(super().end(seconds))


def fill(made, topics, messages, body_bytes, batch):
    """So many messages on each topic, in batches; a subscription keeps them."""
    client = made.client(operation_timeout_seconds=60)
    for topic in topics:
        client.subscribe(topic, "take", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1).close()
    producers = [client.create_producer(topic, batching_enabled=batch > 1, batching_max_messages=batch,
                                        batching_max_publish_delay_ms=10, send_timeout_millis=0, block_if_queue_full=True)
                 for topic in topics]
    body = b"x" * body_bytes
    for producer in producers:
        for _ in range(messages):
            producer.send_async(body, None)
    for producer in producers:
        producer.flush()
    client.close()
