"""How late, how fast, and at what price in bytes and processor time."""
import multiprocessing
import socket
import threading
import time

import pulsar

from backends import backlog, drained, linked
from links import Link
from oracle import Steady, Traffic, check, parse, percentile


class Arrivals:
    """When each message of a topic arrived in a region: a reader in a thread."""

    def __init__(self, side, topic):
        self.client = side.client()
        self.reader = self.client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=2000)
        self.at, self.sizes = {}, {}
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped.is_set():
            try:
                message = self.reader.read_next(200)
            except pulsar.Timeout:
                continue
            key = parse(message.data())
            self.at[key] = time.monotonic()
            self.sizes[key] = len(message.data())

    def end(self):
        self.stopped.set()
        self.thread.join()
        self.client.close()


def line_error_ms(one_way_ms, pings=200):
    """What the delay line itself adds: half of a round trip over plain sockets, less the delay."""
    server = socket.create_server(("127.0.0.1", 0))
    link = Link("a", "b", {"echo": server.getsockname()[1]})
    link.shape(latency_ms=one_way_ms)
    near = socket.create_connection(("127.0.0.1", link.ports["echo"]))
    far, _ = server.accept()

    def echo():
        while data := far.recv(100):
            far.sendall(data)

    threading.Thread(target=echo, daemon=True).start()
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found = []
    for _ in range(pings):
        begun = time.monotonic()
        near.sendall(b"x" * 50)
        near.recv(100)
        found.append((time.monotonic() - begun) * 500 - one_way_ms)
        time.sleep(0.003)
    near.close()
    server.close()
    link.close()
    return {"line_p50_ms": round(percentile(found, 0.5), 1), "line_p99_ms": round(percentile(found, 0.99), 1)}


def added_lag(group, one_way_ms=0, seconds=10, per_second=200, warm_s=3):
    """Arrival at a reader in the remote, less the local confirmation, less the one-way delay. 1 KB, not batched."""
    topic = group.topic()
    group.shape(latency_ms=one_way_ms)
    traffic = Traffic(group["west"], topic, "p", batching=False, body_bytes=1024)
    traffic.send(1).flush()
    linked(group, topic, "west", "east")
    arrivals = Arrivals(group["east"], topic)
    with Steady(traffic, per_second):
        time.sleep(warm_s + seconds)
    drained(group, topic, "west", "east", 60)
    time.sleep(1 + 2 * one_way_ms / 1000)
    arrivals.end()
    group.shape(latency_ms=0)
    warm = warm_s * per_second
    lags = [(at - traffic.confirmed_at[number]) * 1000 - one_way_ms
            for (_, number), at in arrivals.at.items() if number >= warm]
    return {"one_way_ms": one_way_ms, "samples": len(lags), "p50_ms": round(percentile(lags, 0.5), 1),
            "p99_ms": round(percentile(lags, 0.99), 1), **line_error_ms(one_way_ms)}


def thin_link(group, one_way_ms=150, bytes_per_s=4_000_000, body_bytes=1024, seconds=20, batching=True):
    """More is published than the link carries: payload that arrives, as a share of the link."""
    topic = group.topic()
    traffic = Traffic(group["west"], topic, "p", batching=batching, body_bytes=body_bytes, max_pending_messages=5000,
                      batching_max_messages=100)
    traffic.send(1).flush()
    linked(group, topic, "west", "east")
    drained(group, topic, "west", "east")
    group.shape(latency_ms=one_way_ms, bytes_per_s=bytes_per_s)
    arrivals = Arrivals(group["east"], topic)
    link = group.links["west", "east"]
    carried = link.forward_bytes()
    traffic.send(int(bytes_per_s * seconds / body_bytes)).flush()
    drained(group, topic, "west", "east", seconds * 4)
    time.sleep(2)
    arrivals.end()
    carried = link.forward_bytes() - carried
    group.shape(latency_ms=0, bytes_per_s=0)
    times = sorted((at, arrivals.sizes[key]) for key, at in arrivals.at.items())
    middle = times[len(times) // 5:len(times) * 9 // 10]
    payload = sum(size for _, size in middle[1:])
    goodput = payload / (middle[-1][0] - middle[0][0]) / bytes_per_s
    return {"link_bytes_per_s": bytes_per_s, "one_way_ms": one_way_ms, "body_bytes": body_bytes,
            "goodput": round(goodput, 3), "wan_per_payload": round(carried / sum(size for _, size in times), 3)}


def drain_after_cut(group, cut_s=60, one_way_ms=80, bytes_per_s=2_000_000, per_second=500, how="reset"):
    """A cut under steady traffic; then how much of the link the catching up uses, and whether all is in order."""
    topic = group.topic()
    traffic = Traffic(group["west"], topic, "p", body_bytes=1024)
    traffic.send(1).flush()
    linked(group, topic, "west", "east")
    group.shape(latency_ms=one_way_ms, bytes_per_s=bytes_per_s)
    link = group.links["west", "east"]
    with Steady(traffic, per_second):
        time.sleep(2)
        for each in group.between("west", "east"):
            each.cut(how)
        time.sleep(cut_s)
        group.heal()
        healed, before, first = time.monotonic(), link.forward_bytes(), None
        while True:
            now_bytes = link.forward_bytes() - before
            if first is None and now_bytes > 20000:
                first = time.monotonic()
            left = backlog(group, topic, "west", "east")
            if first is not None and 0 <= left < per_second // 2 or time.monotonic() - healed > 6 * cut_s + 60:
                break
            time.sleep(0.1)
        took, carried = time.monotonic() - healed, link.forward_bytes() - before
    drained(group, topic, "west", "east", 60)
    group.shape(latency_ms=0, bytes_per_s=0)
    result = check(group["east"], topic, [traffic])
    first_s = (first or time.monotonic()) - healed
    return {**result, "cut_s": cut_s, "reconnect_s": round(first_s, 1), "drain_s": round(took, 1),
            "link_use": round(carried / bytes_per_s / took, 2),
            "link_use_once_connected": round(carried / bytes_per_s / (took - first_s), 2)}


def wan_bytes(group, messages=10000, body_bytes=1024, batching=True):
    """Bytes that leave by the link, per byte of payload."""
    topic = group.topic()
    traffic = Traffic(group["west"], topic, "p", batching=batching, body_bytes=body_bytes, batching_max_messages=100,
                      batching_max_publish_delay_ms=10)
    traffic.send(1).flush()
    linked(group, topic, "west", "east")
    drained(group, topic, "west", "east")
    link = group.links["west", "east"]
    before = link.forward_bytes()
    traffic.send(messages).flush()
    drained(group, topic, "west", "east")
    time.sleep(1)
    carried = link.forward_bytes() - before
    return {"body_bytes": body_bytes, "batched": batching,
            "wan_per_payload": round(carried / (messages * len(traffic.body(1))), 3)}


def publish_with_remotes(group, seconds=8, per_second=300):
    """Latency of publishing in `west`, and its processor time per message, with no remote, with all, with one of them down."""
    remotes = [name for name in group.sides if name != "west"]
    found = {}
    for label, clusters, down in [("none", ["west"], None), *[
            (f"{count} attached", ["west", *remotes[:count]], None) for count in range(1, len(remotes) + 1)],
            (f"{remotes[-1]} down", ["west", *remotes], remotes[-1])]:
        topic = group.topic(clusters)
        traffic = Traffic(group["west"], topic, "p", batching=False, body_bytes=1024)
        traffic.send(50).flush()
        for remote in clusters[1:]:
            linked(group, topic, "west", remote)
        if down:
            for link in group.around(down):
                link.cut("reset")
        latencies = []
        cpu = group["west"].cpu_s()
        begun, sent = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            at = time.monotonic()
            traffic.producer.send_async(traffic.body(sent), lambda _r, _i, at=at: latencies.append(time.monotonic() - at))
            sent += 1
            time.sleep(max(0, begun + sent / per_second - time.monotonic()))
        traffic.flush()
        cpu = group["west"].cpu_s() - cpu
        group.heal()
        traffic.close()
        found[label] = {"p50_ms": round(percentile(latencies, 0.5) * 1000, 2),
                        "p99_ms": round(percentile(latencies, 0.99) * 1000, 2),
                        "cpu_us_per_message": round(cpu / sent * 1e6)}
    return found


def cpu_slope(group, seconds=8, per_second=1500, batching=False, turns=3):
    """Processor time of `west` per message: what one more remote adds, against one more local subscription that acknowledges all."""
    remotes = [name for name in group.sides if name != "west"]
    found = {}
    for turn in range(turns):
        for kind in ("remotes", "subscriptions"):
            for count in range(len(remotes) + 1):
                cost = _cpu_us(group, remotes[:count] if kind == "remotes" else [], count if kind == "subscriptions" else 0,
                               seconds, per_second, batching)
                found.setdefault((kind, count), []).append(cost)
    middle = {key: percentile(costs, 0.5) for key, costs in found.items()}
    slope = {kind: (middle[kind, len(remotes)] - middle[kind, 0]) / len(remotes) for kind in ("remotes", "subscriptions")}
    return {"batched": batching, "cpu_us_per_message": {f"{count} {kind}": round(cost, 1) for (kind, count), cost in middle.items()},
            "per_remote_us": round(slope["remotes"], 1), "per_subscription_us": round(slope["subscriptions"], 1),
            "ratio": round(slope["remotes"] / slope["subscriptions"], 2)}


def _acknowledge(url, topic, count, ready):
    """Subscriptions that acknowledge all they get, in a process of its own: in the publisher's it would change its batches."""
    client = pulsar.Client(url)
    for number in range(count):
        client.subscribe(topic, f"s{number}", consumer_type=pulsar.ConsumerType.Shared,
                         message_listener=lambda consumer, message: consumer.acknowledge(message))
    ready.set()
    threading.Event().wait()


def _cpu_us(group, remotes, subscriptions, seconds, per_second, batching):
    topic = group.topic(["west", *remotes])
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    consumers = spawn.Process(target=_acknowledge, args=(group["west"].url, topic, subscriptions, ready), daemon=True)
    consumers.start()
    if not ready.wait(60):
        raise TimeoutError("the subscriptions")
    # Batches are full, never timed out: each run has the same entries.
    traffic = Traffic(group["west"], topic, "p", batching=batching, body_bytes=1024, batching_max_messages=20,
                      batching_max_publish_delay_ms=10_000)
    traffic.send(100).flush()
    for remote in remotes:
        linked(group, topic, "west", remote)
        drained(group, topic, "west", remote)
    cpu = group["west"].cpu_s()
    with Steady(traffic, per_second):
        time.sleep(seconds)
    for remote in remotes:
        drained(group, topic, "west", remote)
    cpu = group["west"].cpu_s() - cpu
    sent = len(traffic.confirmed_at) - 100
    traffic.close()
    consumers.kill()
    consumers.join()
    return cpu / sent * 1e6
