"""Real faults against one region: torn and damaged journals, kills under load, full disks, paused clients, floods of
connections and topics. FAULT_ROUNDS makes the random ones longer."""
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from region import Region, wait_until

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "4"))
SEED = int(os.environ.get("FAULT_SEED", "11"))
BLOCK_BYTES, RECORD_HEADER_BYTES = 4096, 48


def read_bodies(region, topic, timeout_ms=20000):
    client = region.client()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5000)
    bodies = []
    while reader.has_message_available():
        bodies.append(reader.read_next(timeout_ms).data().decode())
    client.close()
    return bodies


def keep(region, topic):
    """A subscription that never acks: without one, what is stored may be dropped at once."""
    client = region.client()
    client.subscribe(topic, "keep", initial_position=InitialPosition.Earliest, receiver_queue_size=1)
    client.close()


class Load:
    """Sends numbered messages until it is stopped and keeps what was confirmed."""

    def __init__(self, region, topic, prefix, batching, body_bytes=0):
        self.client = region.client(operation_timeout_seconds=5)
        self.producer = self.client.create_producer(
            topic, batching_enabled=batching, send_timeout_millis=3000, block_if_queue_full=True,
            max_pending_messages=500, batching_max_publish_delay_ms=1)
        self.prefix, self.filling = prefix, "x" * body_bytes
        self.confirmed, self.refused, self.sent = [], [], 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def body(self, number):
        return f"<{self.prefix}-{number:07}>{self.filling}"

    def run(self):
        while not self.stopped.is_set():
            body = self.body(self.sent)

            def done(result, _id, body=body):
                (self.confirmed if result == pulsar.Result.Ok else self.refused).append(body)

            try:
                self.producer.send_async(body.encode(), done)
            except pulsar.PulsarException:
                return
            self.sent += 1

    def end(self):
        self.stopped.set()
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.client.shutdown()


def journals(region):
    return sorted((region.folder / "data/bookie-0/journal").glob("*.journal"))


def records(content, epoch):
    """(start of its sync group, end, kind, payload) of the records of one journal file, as the format describes them."""
    at = group = BLOCK_BYTES
    while at + RECORD_HEADER_BYTES <= len(content):
        length, version, kind, _flags = struct.unpack_from("<IBBB", content, at + 4)
        if content[at + 16:at + 24] == epoch and version == 1 and kind in (1, 2, 3):
            if at % BLOCK_BYTES == 0:
                group = at
            end = at + RECORD_HEADER_BYTES + length
            yield group, end, kind, content[at + RECORD_HEADER_BYTES:end]
            at = end
        elif at % BLOCK_BYTES:
            at = -(-at // BLOCK_BYTES) * BLOCK_BYTES
        else:
            return


def epoch_of(path):
    return bytes.fromhex(path.stem.split("-")[1])[::-1]


def newest_with_records(region):
    """The newest journal file that holds records, its bytes, and its records."""
    for path in reversed(journals(region)):
        content = path.read_bytes()
        found = list(records(content, epoch_of(path)))
        if found:
            return path, content, found
    return None


def spoil_tail(randomness, path, content, end):
    """Damages the file behind `end`; says how."""
    used = max([end] + [at for at in range(end, len(content), BLOCK_BYTES) if any(content[at:at + BLOCK_BYTES])])
    reach = used - end + 3 * BLOCK_BYTES
    at = min(len(content) - 1, end + randomness.randrange(reach))
    length = min(len(content) - at, randomness.randrange(1, reach + 1))
    way = randomness.choice(["cut", "zeros", "garbage", "garbage to the end", "bit"])
    with open(path, "r+b") as file:
        if way == "cut":
            file.truncate(at)
        else:
            file.seek(at)
            if way == "zeros":
                file.write(bytes(length))
            elif way == "garbage":
                file.write(randomness.randbytes(length))
            elif way == "garbage to the end":
                file.write(randomness.randbytes(len(content) - at))
            else:
                file.write(bytes([content[at] ^ (1 << randomness.randrange(8))]))
    return f"{way} at {at} of {path.name}, {length} bytes, whole until {end}"


def check(confirmed, stored, what):
    missing = set(confirmed) - set(stored)
    assert not missing, f"{what}: {len(missing)} confirmed messages are gone: {[body[:14] for body in sorted(missing)[:3]]} of {len(confirmed)}"
    first_seen = list(dict.fromkeys(stored))
    assert first_seen == sorted(first_seen), f"{what}: the order is broken"


def no_panic(region):
    text = (region.folder / "log.txt").read_text(errors="replace")
    assert "panicked" not in text, text[text.index("panicked") - 300:][:2000]


def test_torn_and_damaged_journal_tails_lose_nothing_confirmed(make_region):
    region = make_region()
    randomness = random.Random(SEED)
    confirmed, spoilt = [], 0
    for number in range(ROUNDS):
        topic = f"persistent://public/default/torn-{number // 10}"
        if number % 10 == 0:
            confirmed = []
            keep(region, topic)
        load = Load(region, topic, f"{number:04}", batching=number % 2 == 0, body_bytes=randomness.choice([0, 300, 6000]))
        time.sleep(randomness.uniform(0.1, 0.5))
        region.kill()
        load.end()
        what = f"round {number}"
        newest = newest_with_records(region)
        if newest:
            path, content, found = newest
            acked = {body.encode()[:14] for body in load.confirmed}
            end = max((end for _, end, kind, payload in found
                       if kind == 1 and any(mark in acked for mark in marks(payload))), default=None)
            if end is not None:
                # Groups in front of the last one were synced; only that one can be torn.
                end = max(end, found[-1][0])
                what += ": " + spoil_tail(randomness, path, content, end)
                spoilt += 1
        print(what, len(load.confirmed))
        region.start()
        confirmed += load.confirmed
        check(confirmed, read_bodies(region, topic), what)
    no_panic(region)
    assert spoilt


def marks(payload):
    """The numbers of the messages in a stored entry."""
    at = payload.find(b"<")
    while at >= 0:
        if payload[at + 13:at + 14] == b">" and payload[at + 5:at + 6] == b"-":
            yield payload[at:at + 14]
        at = payload.find(b"<", at + 1)


def test_acks_hold_over_kills_under_load(make_region):
    """Acks older than the beat of the cursors (once a second) hold, those of single messages of a batch too."""
    region = make_region()
    randomness = random.Random(SEED)
    topic = "persistent://public/default/acked"
    held, acked = set(), set()
    for number in range(max(2, ROUNDS // 4)):
        client = region.client(operation_timeout_seconds=10)
        consumer = client.subscribe(topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest,
                                    batch_index_ack_enabled=True, receiver_queue_size=2000)
        for batching in (True, False):
            producer = client.create_producer(topic, batching_enabled=batching, batching_max_publish_delay_ms=100)
            for n in range(200):
                body = f"{number}-{batching}-{n}"
                producer.send_async(body.encode(), None)
                held.add(body)
            producer.flush()
        seen = set()
        while len(seen) < len(held):
            message = consumer.receive(10000)
            body = message.data().decode()
            assert body not in acked, f"round {number}: {body} was acked and comes again"
            seen.add(body)
            if randomness.random() < 0.7:
                consumer.acknowledge(message)
                acked.add(body)
        held -= acked
        time.sleep(2.5)
        load = Load(region, topic + "-beside", f"{number:04}", batching=True)
        time.sleep(randomness.uniform(0.05, 0.3))
        region.kill()
        load.end()
        client.shutdown()
        region.start()
    client = region.client()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, batch_index_ack_enabled=True)
    again = {consumer.receive(10000).data().decode() for _ in held}
    assert again == held
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    client.close()
    no_panic(region)


def test_damage_in_the_middle_of_a_journal_is_reported_and_costs_only_itself(make_region):
    region = make_region()
    topic = "persistent://public/default/hurt"
    client = region.client()
    producer = client.create_producer(topic, batching_enabled=False)
    keep(region, topic)
    bodies = [f"<0000-{n:07}>" for n in range(40)]
    ids = [producer.send(body.encode()) for body in bodies]
    region.kill()
    client.shutdown()
    path, content, _ = newest_with_records(region)
    with open(path, "r+b") as file:
        file.seek(content.index(bodies[20].encode()))
        file.write(b"!")
    region.start()
    assert "journal bytes are damaged" in region.log()
    client = region.client()
    # The only copy is gone: nobody is led past it unasked, but what is around it is there.
    before = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [before.read_next(10000).data().decode() for _ in range(20)] == bodies[:20]
    with pytest.raises(pulsar.Timeout):
        before.read_next(500)
    behind = client.create_reader(topic, ids[21])
    assert [behind.read_next(10000).data().decode() for _ in range(18)] == bodies[22:]
    client.create_producer(topic).send(b"on")
    assert behind.read_next(10000).data() == b"on"
    client.close()
    no_panic(region)


def test_a_full_disk_refuses_clearly_and_comes_back(make_region):
    region = make_region(diskQuotaMB=64, journalMaxSizeMB=8, gcWaitTime=1000, flushInterval=1000,
                         managedLedgerMaxLedgerRolloverTimeSeconds=3)
    topic = "persistent://public/default/full"
    client = region.client(operation_timeout_seconds=30)
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest, receiver_queue_size=100)
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=60000,
                                      block_if_queue_full=True, max_pending_messages=20)
    confirmed, refused = [], []
    filling = os.urandom(50000)
    deadline = time.monotonic() + 60
    sent = 0
    while not refused:
        assert time.monotonic() < deadline, "the disk never filled"
        number = sent

        def done(result, _id, number=number):
            (confirmed if result == pulsar.Result.Ok else refused).append((number, result))

        try:
            producer.send_async(b"%08d" % number + filling, done)
        except pulsar.PulsarException as error:
            refused.append((number, error))
        sent += 1
    # Not a time-out: the client is told why.
    assert refused[0][1] == pulsar.Result.ProducerBlockedQuotaExceededException, refused[0]
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        client.create_producer(topic)
    got = set()
    while not {number for number, _ in confirmed} <= got:
        message = consumer.receive(10000)
        got.add(int(message.data()[:8]))
        consumer.acknowledge(message)

    def writable():
        try:
            client.create_producer(topic).send(b"%08d" % sent)
            return True
        except pulsar.PulsarException:
            return False

    wait_until(writable, 60, "what was acked makes room")
    while int(consumer.receive(10000).data()[:8]) != sent:
        pass
    client.shutdown()
    assert region.stop() == 0
    no_panic(region)


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path):
    region = Region(tmp_path)
    region.log_file = "/dev/full"
    try:
        region.start()
        client = region.client()
        topic = "persistent://public/default/mute"
        client.create_producer(topic).send(b"x")
        client.close()
        assert region.get("/admin/v2/persistent/public/default") == [topic]
        assert region.stop() == 0
    finally:
        region.close()


def test_a_term_signal_under_load_ends_soon_and_a_second_one_at_once(make_region):
    region = make_region()
    topic = "persistent://public/default/term"
    keep(region, topic)
    confirmed = []
    for number, signals in enumerate([1, 2]):
        load = Load(region, topic, f"{number:04}", batching=bool(number), body_bytes=500)
        wait_until(lambda: len(load.confirmed) > 500)
        begun = time.monotonic()
        for _ in range(signals):
            region.process.send_signal(signal.SIGTERM)
            time.sleep(0.002)
        code = region.process.wait(10)
        assert code == 0 or signals == 2, region.log()
        assert time.monotonic() - begun < (8 if signals == 1 else 1)
        load.end()
        confirmed += load.confirmed
        region.start()
        check(confirmed, read_bodies(region, topic), f"after {signals} signals")
    no_panic(region)


def test_a_paused_client_is_given_up_and_its_messages_go_to_others(make_region):
    region = make_region(keepAliveIntervalSeconds=2)
    topic = "persistent://public/default/paused"
    code = ("import pulsar, sys\n"
            "client = pulsar.Client(sys.argv[1])\n"
            "consumer = client.subscribe(sys.argv[2], 's', pulsar.ConsumerType.Shared, receiver_queue_size=100)\n"
            "print('up', flush=True)\n"
            "while True: consumer.receive()\n")
    paused = subprocess.Popen([sys.executable, "-c", code, region.url, topic], stdout=subprocess.PIPE)
    try:
        paused.stdout.readline()
        client = region.client()
        consumer = client.subscribe(topic, "s", ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        before = region.rss_bytes()
        paused.send_signal(signal.SIGSTOP)
        for number in range(2000):
            producer.send_async(b"%04d" % number + b"x" * 10000, None)
        producer.flush()
        got = set()
        while len(got) < 2000:
            message = consumer.receive(20000)
            consumer.acknowledge(message)
            got.add(message.data()[:4])
        assert region.rss_bytes() - before < 300 << 20
        client.close()
    finally:
        paused.kill()
        paused.wait()


def test_a_thousand_connections_are_cheap(make_region):
    region = make_region()
    # CONNECT {client_version: "x", protocol_version: 19}
    command = b"\x08\x02\x12\x05\x0a\x01x\x20\x13"
    frame = struct.pack(">II", len(command) + 4, len(command)) + command
    before = region.rss_bytes()
    connections = []
    try:
        for _ in range(900):
            connection = socket.create_connection(("localhost", region.ready["binary_port"]), timeout=10)
            connection.sendall(frame)
            connections.append(connection)
        assert all(len(connection.recv(100)) > 8 for connection in connections)
        assert region.rss_bytes() - before < len(connections) * (64 << 10)
        client = region.client()
        client.create_producer("persistent://public/default/beside").send(b"x")
        client.close()
    finally:
        for connection in connections:
            connection.close()
    wait_until(lambda: len(os.listdir(f"/proc/{region.process.pid}/fd")) < 200, message="connections are given back")
