"""What was confirmed, what arrived, and the difference.

A message's body is `<producer>:<number>:<filling>`; the number counts from 0 per producer. The oracle holds the numbers whose
send was confirmed. *Exact* means: every confirmed number is there, once, in order per producer.
"""
import os
import random
import threading
import time
from collections import Counter, defaultdict

import pulsar


class Traffic:
    """Sends numbered messages through one producer and keeps what was confirmed."""

    def __init__(self, side, topic, name, batching=True, body_bytes=100, **options):
        self.client = side.client()
        self.name = name
        self.filling = os.urandom(max(body_bytes, 64) // 2).hex()[:max(body_bytes - 24, 0)]
        options.setdefault("send_timeout_millis", 60000)
        options.setdefault("batching_max_publish_delay_ms", 2)
        self.producer = self.client.create_producer(topic, producer_name=name, batching_enabled=batching,
                                                    block_if_queue_full=True, **options)
        self.confirmed, self.refused = [], []
        self.confirmed_at = {}
        self.next = 0

    def body(self, number):
        return f"{self.name}:{number}:{self.filling}".encode()

    def send(self, count=1, **options):
        for _ in range(count):
            number, self.next = self.next, self.next + 1

            def done(result, _id, number=number):
                if result == pulsar.Result.Ok:
                    self.confirmed_at[number] = time.monotonic()
                    self.confirmed.append(number)
                else:
                    self.refused.append(number)

            self.producer.send_async(self.body(number), done, **options)
        return self

    def flush(self):
        self.producer.flush()
        return self

    def close(self):
        self.producer.flush()
        self.client.close()
        return self


class Steady:
    """Traffic at a rate, in a thread, until it is ended; as a context."""

    def __init__(self, traffic, per_second, flush=True):
        """Without `flush` the end does not wait for confirmations, as when their region is dead."""
        self.traffic, self.per_second, self.flush = traffic, per_second, flush
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        begun, sent = time.monotonic(), 0
        while not self.stopped.is_set():
            due = int((time.monotonic() - begun) * self.per_second)
            if due > sent:
                self.traffic.send(due - sent)
                sent = due
            self.stopped.wait(0.001)

    def __enter__(self):
        self.thread.start()
        return self.traffic

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()
        if self.flush:
            self.traffic.flush()


def parse(data):
    name, number, _ = data.split(b":", 2)
    return name.decode(), int(number)


def read_all(side, topic, until=None, idle_s=10.0):
    """(producer, number) of all messages of a topic in its order. Ends once all of `until` were seen and nothing is left,
    or after a while without any message."""
    client = side.client()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5000)
    missing = set(until or ())
    seen, last = [], time.monotonic()
    while time.monotonic() - last < idle_s:
        try:
            message = reader.read_next(200)
        except pulsar.Timeout:
            if until is not None and not missing and not reader.has_message_available():
                break
            continue
        last = time.monotonic()
        key = parse(message.data())
        missing.discard(key)
        seen.append(key)
    client.close()
    return seen


def compare(confirmed, seen):
    """`confirmed`: producer → numbers; `seen`: (producer, number) in order. Returns counts; exact means all zero."""
    times = Counter(seen)
    wanted = {(name, number) for name, numbers in confirmed.items() for number in numbers}
    order = defaultdict(list)
    for name, number in dict.fromkeys(seen):
        order[name].append(number)
    reordered = sum(1 for numbers in order.values() for before, after in zip(numbers, numbers[1:]) if after < before)
    return {"confirmed": len(wanted), "missing": len(wanted - set(times)),
            "doubled": sum(count - 1 for count in times.values()), "reordered": reordered}


def exact(result):
    return result["missing"] == result["doubled"] == result["reordered"] == 0


def check(side, topic, traffics, idle_s=10.0):
    """Compares what a region holds with what these producers had confirmed."""
    confirmed = {traffic.name: traffic.confirmed for traffic in traffics}
    until = {(name, number) for name, numbers in confirmed.items() for number in numbers}
    return compare(confirmed, read_all(side, topic, until, idle_s))


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def sample(population, count, seed=1):
    return random.Random(seed).sample(population, count)
