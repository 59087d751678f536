"""Many topics in metadata: what a look-up, the start of a broker and the listing of their namespace cost."""
import random
import socket
import statistics
import struct
import sys
import time

import program
import requests
from program import wait_until
from traffic import percentile

PARTITIONS = 1000
CONNECT = b"\x08\x02\x12\x05\x0a\x01x\x20\x13"
LOOKUP, ANSWER_FIELD, RESPONSE_FIELD, FAILED = 23, 24, 3, 2


def name(number):
    return f"persistent://{program.NAMESPACE}/wide-{number // PARTITIONS}-partition-{number % PARTITIONS}"


def make_topics(made, have, want):
    """Topics are partitions of topics of a thousand each: they are in metadata at once."""
    while have < want:
        path = f"/admin/v2/persistent/{program.NAMESPACE}/wide-{have // PARTITIONS}/partitions"
        there = have % PARTITIONS
        count = min(PARTITIONS, there + want - have)
        program.admin(made.brokers[0], "POST" if there else "PUT", path, count, seconds=300)
        have += count - there


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def fields(data):
    """Fields of one protobuf message whose values are numbers or bytes."""
    found, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        value = number()
        if tag & 7 == 2:
            value, at = data[at:at + value], at + value
        found[tag >> 3] = value
    return found


class Asker:
    """Looks topics up over the binary protocol, one after the other on one connection."""

    def __init__(self, broker):
        self.socket = socket.create_connection(("127.0.0.1", broker.ready["binary_port"]), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(CONNECT)
        self.receive()

    def send(self, command):
        self.socket.sendall(struct.pack(">II", len(command) + 4, len(command)) + command)

    def receive(self):
        head = self.exactly(8)
        size, length = struct.unpack(">II", head)
        body = self.exactly(size - 4)
        return fields(body[:length])

    def exactly(self, size):
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise RuntimeError("the broker closed the connection")
            data += more
        return data

    def look_up(self, topic):
        """Seconds until the answer."""
        text = topic.encode()
        inner = b"\x0a" + varint(len(text)) + text + b"\x10\x01\x18\x00"
        begun = time.perf_counter()
        self.send(b"\x08" + varint(LOOKUP) + varint(LOOKUP << 3 | 2) + varint(len(inner)) + inner)
        while ANSWER_FIELD not in (answer := self.receive()):
            pass
        took = time.perf_counter() - begun
        response = fields(answer[ANSWER_FIELD])
        if response.get(RESPONSE_FIELD) == FAILED:
            raise RuntimeError(f"look-up of {topic} failed: {response}")
        return took


def look_up_times(made, topics, count, seed):
    """Median and p99 of look-ups of random topics at a broker, binary and HTTP."""
    broker, randomness = made.brokers[0], random.Random(seed)
    chosen = [name(randomness.randrange(topics)) for _ in range(count)]
    asker = Asker(broker)
    for topic in chosen[:count // 5]:
        asker.look_up(topic)
    binary = [asker.look_up(topic) for topic in chosen]
    session, http = requests.Session(), []
    for topic in chosen[:count // 5]:
        begun = time.perf_counter()
        answer = session.get(f"{broker.web}/lookup/v2/topic/{topic.replace('://', '/')}", timeout=60)
        http.append(time.perf_counter() - begun)
        if answer.status_code != 200:
            raise RuntimeError(f"look-up of {topic}: {answer.status_code} {answer.text[:200]}")
    return binary, http


def start_times(made, count):
    """Seconds until a new broker is ready, and until it answers a look-up."""
    ready, answers = [], []
    for number in range(count):
        broker = made.broker(100 + number)
        broker.settings["metadataStoreUrl"] = made.metadata_url
        begun = time.monotonic()
        try:
            broker.start()
            ready.append(time.monotonic() - begun)
            wait_until(lambda: answers_look_up(broker), 120, "its first answer")
            answers.append(time.monotonic() - begun)
            broker.stop()
        finally:
            if broker.process.poll() is None:
                broker.kill()
    return statistics.median(ready), statistics.median(answers)


def answers_look_up(broker):
    answer = requests.get(f"{broker.web}/lookup/v2/topic/{name(0).replace('://', '/')}", timeout=60)
    return answer.status_code == 200


def listing(made):
    """Seconds to the first and the last byte, and how many topics were named."""
    begun = time.monotonic()
    with requests.get(f"{made.brokers[0].web}/admin/v2/persistent/{program.NAMESPACE}", timeout=300, stream=True) as answer:
        parts, first = [], None
        for part in answer.iter_content(1 << 16):
            first = first or time.monotonic() - begun
            parts.append(part)
    took = time.monotonic() - begun
    return first, took, b"".join(parts).count(b"persistent://")


def main():
    options = program.arguments(
        __doc__, topics=(100_000, "topics"), few=(100, "topics that look-ups are compared with"),
        fewest=(10, "topics that starts are compared with"), look_ups=(5000, "look-ups that are timed"),
        starts=(3, "starts that are timed"),
        brokers=(1, "brokers"), bookies=(3, "bookies")).parse_args()
    with program.running(options, brokers=options.brokers, bookies=options.bookies) as made:
        report = program.Report(f"{options.topics:,} topics in metadata", options)
        make_topics(made, 0, options.fewest)
        few_starts = start_times(made, options.starts)
        make_topics(made, options.fewest, options.few)
        few = look_up_times(made, options.few, options.look_ups, 1)
        begun = time.monotonic()
        make_topics(made, options.few, options.topics)
        report.add("making them took", time.monotonic() - begun, "s")
        many = look_up_times(made, options.topics, options.look_ups, 2)
        for kind, at_few, at_many in zip(("binary", "HTTP"), few, many):
            report.add(f"{kind} look-up at {options.few:,}, median", percentile(at_few, 0.5) * 1e6, "us")
            report.add(f"{kind} look-up at {options.topics:,}, median", percentile(at_many, 0.5) * 1e6, "us")
            report.add(f"{kind} look-up at {options.topics:,}, p99", percentile(at_many, 0.99) * 1e6, "us")
            report.add(f"{kind} look-up, median of {options.few:,}", percentile(at_many, 0.5) / percentile(at_few, 0.5), goal=1.5)
        starts = start_times(made, options.starts)
        for what, at_few, at_many in zip(("ready", "first look-up answered"), few_starts, starts):
            report.add(f"start at {options.fewest:,} topics, {what}", at_few, "s")
            report.add(f"start at {options.topics:,} topics, {what}", at_many, "s")
            report.add(f"start, {what}, of {options.fewest:,}", at_many / at_few, goal=2)
        first, took, count = listing(made)
        report.add("listing, first byte", first, "s")
        report.add("listing, whole", took, "s", goal=2)
        report.must("the listing names every topic", count == options.topics, f"{count:,}")
        return report.end()


if __name__ == "__main__":
    sys.exit(main())
