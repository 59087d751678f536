"""How fast a broker's topics are served again: `python takeover.py --topics 4000` kills one of two brokers with -9 while a
client waits on every topic; `--unload` moves all topics from their brokers instead. One line of JSON each."""
import argparse
import json
import pathlib
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pulsar
import requests

from cluster import Cluster
from region import wait_until

NAMESPACE = "public/many"
BUNDLES = 32
LEASE_SECONDS = 3.0
PATIENCE_SECONDS = 600
FIGURES = {
    "metadata_writes": "meridian_metadata_writes_total",
    "metadata_reads": "meridian_metadata_reads_total",
    "transactions": "meridian_metadata_tikv_commits_total",
    "conflicts": "meridian_metadata_tikv_conflicts_total",
}


def figures(broker):
    text = requests.get(f"{broker.web}/metrics", timeout=60).text
    found = dict.fromkeys(FIGURES, 0.0)
    for line in text.splitlines():
        name = line.split("{")[0].split(" ")[0]
        for key, wanted in FIGURES.items():
            if name == wanted:
                found[key] += float(line.rsplit(" ", 1)[1])
    return found


def share(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


class Clients:
    """A producer on each of many topics, over some connections."""

    def __init__(self, cluster, topics, broker, connections=4):
        self.clients = [cluster.client(broker=broker, operation_timeout_seconds=120) for _ in range(connections)]

        def create(number):
            client = self.clients[number % connections]
            producer = client.create_producer(f"persistent://{NAMESPACE}/many-{number}", batching_enabled=False,
                                              send_timeout_millis=0, max_pending_messages=1000)
            producer.send(b"x" * 100)
            return producer

        with ThreadPoolExecutor(32) as threads:
            self.producers = list(threads.map(create, range(topics)))
        self.lock, self.taken, self.refused = threading.Lock(), {}, []

    def send(self, number):
        """One message; when it was sent and confirmed is noted under its number."""
        begun = time.monotonic()

        def done(result, _id):
            ended = time.monotonic()
            with self.lock:
                if result == pulsar.Result.Ok:
                    self.taken.setdefault(number, []).append((begun, ended))
                else:
                    self.refused.append((number, result))

        self.producers[number].send_async(b"x" * 100, done)

    def answered(self):
        with self.lock:
            return sum(map(len, self.taken.values())) + len(self.refused)

    def close(self):
        for client in self.clients:
            client.close()


def killed(cluster, clients, topics):
    left, lost = cluster.brokers
    before = figures(left)
    begun = time.monotonic()
    lost.kill()
    for number in range(topics):
        clients.send(number)
    ids = lambda: requests.get(f"{left.web}/admin/v2/brokers", timeout=30).json()
    wait_until(lambda: len(ids()) == 1, 60, "the detection")
    detected = time.monotonic()
    wait_until(lambda: clients.answered() == topics, PATIENCE_SECONDS, "every message")
    assert not clients.refused, clients.refused[:3]
    ends = sorted(times[0][1] for times in clients.taken.values())
    # The other broker's topics answered at once.
    loads = [end for end in ends if end - begun > LEASE_SECONDS / 2]
    after = figures(left)
    per_load = {key: round((after[key] - before[key]) / max(1, len(loads)), 2) for key in FIGURES}
    assert loads, "the broker that was killed served nothing"
    since = [end - max(detected, begun) for end in loads]
    outages = [end - begun for end in loads]
    return {
        "case": "killed", "topics": topics, "loaded": len(loads), "detected_s": round(detected - begun, 2),
        "topics_per_s": round(len(loads) / max(since), 1) if loads else None,
        "after_detection_s": {"first": round(min(since), 2), "p50": round(share(since, 0.5), 2),
                              "p99": round(share(since, 0.99), 2), "last": round(max(since), 2)},
        "outage_less_lease_s": {"p50": round(share(outages, 0.5) - LEASE_SECONDS, 2),
                                "max": round(max(outages) - LEASE_SECONDS, 2)},
        "per_load": per_load,
    }


def unloaded(cluster, clients, topics, rate):
    stopped = threading.Event()
    sent = 0

    def run():
        nonlocal sent
        begun = time.monotonic()
        while not stopped.is_set():
            due = int((time.monotonic() - begun) * rate)
            for number in range(sent, due):
                clients.send(number % topics)
            sent = max(sent, due)
            time.sleep(0.002)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(max(3, 2 * topics / rate))
    begun = time.monotonic()
    answer = requests.put(f"{cluster.brokers[0].web}/admin/v2/namespaces/{NAMESPACE}/unload", timeout=120)
    assert answer.status_code < 300, answer.text
    took = time.monotonic() - begun
    time.sleep(2)
    stopped.set()
    thread.join()
    wait_until(lambda: clients.answered() == sent, PATIENCE_SECONDS, "every message")
    assert not clients.refused, clients.refused[:3]
    waits = lambda since, until: [end - at for times in clients.taken.values() for at, end in times if end >= since and at <= until]
    before, during = waits(0, begun - 0.5), waits(begun, begun + took + 2)
    return {
        "case": "unloaded", "topics": topics, "took_s": round(took, 2),
        "longest_ms": {"before": round(1e3 * max(before)), "during": round(1e3 * max(during))},
        "p99_ms": {"before": round(1e3 * share(before, 0.99)), "during": round(1e3 * share(during, 0.99))},
    }


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--topics", type=int, default=100)
    options.add_argument("--unload", action="store_true")
    options.add_argument("--rate", type=int, default=500, help="messages per second over all topics while they move")
    options.add_argument("--folder", type=pathlib.Path)
    options = options.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        cluster = Cluster(pathlib.Path(folder) / "cluster", brokers=2, bookies=3)
        try:
            cluster.start()
            for broker in cluster.brokers:
                wait_until(lambda: broker.metric("meridian_ownership_in_force") == 1, 30, "the lease")
            made = requests.put(f"{cluster.brokers[0].web}/admin/v2/namespaces/{NAMESPACE}",
                                json={"bundles": {"numBundles": BUNDLES}}, timeout=30)
            assert made.status_code < 300, made.text
            time.sleep(1)
            clients = Clients(cluster, options.topics, broker=0)
            time.sleep(2)
            case = unloaded(cluster, clients, options.topics, options.rate) if options.unload else \
                killed(cluster, clients, options.topics)
            print(json.dumps(case), flush=True)
            clients.close()
        finally:
            cluster.close()


if __name__ == "__main__":
    main()
