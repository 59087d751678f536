"""Which broker serves what: moves, losses and returns of brokers, seen by the stock client."""
import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest
import requests

from cluster import Cluster, Load, in_order, keep, read_numbers
from region import wait_until

COUNTER = itertools.count()
TOPICS = int(os.environ.get("OWNERSHIP_TOPICS", "60"))
PAUSE_SECONDS = float(os.environ.get("OWNER_PAUSE_SECONDS", "12"))
LEASE_SECONDS = 3.0
NAMESPACE = "public/default"


@pytest.fixture
def topic():
    return f"persistent://{NAMESPACE}/o{os.getpid()}-{next(COUNTER)}"


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path / "cluster", brokers=2, bookies=3)
    try:
        cluster.start()
        for broker in cluster.brokers:
            wait_until(lambda: broker.metric("meridian_ownership_in_force") == 1, 20, "the lease")
            wait_until(lambda: knows_namespace(broker), 20, "the namespace")
            # Who knows only itself takes all bundles that are asked for.
            wait_until(lambda: broker.metric("meridian_ownership_brokers") == len(cluster.brokers), 20, "all brokers")
        yield cluster
    finally:
        cluster.close()


def knows_namespace(broker):
    return requests.get(f"{broker.web}/admin/v2/namespaces/{NAMESPACE}", timeout=10).status_code == 200


def admin(broker, method, path, body=None, redirects=True):
    answer = requests.request(method, f"{broker.web}{path}", json=body, timeout=60, allow_redirects=redirects)
    assert answer.status_code < 400, (path, answer.status_code, answer.text)
    return answer


def broker_id(broker):
    return broker.web.removeprefix("http://")


def owner_of(cluster, topic):
    """The broker that serves a topic, as HTTP lookups at every broker say; they learn of a move one after the other."""
    path = "/lookup/v2/topic/" + topic.replace("://", "/")

    def agreed():
        named = {admin(broker, "GET", path).json()["brokerUrl"] for broker in cluster.brokers if broker.process.poll() is None}
        return named if len(named) == 1 else None

    (url,) = wait_until(agreed, 10, f"one owner of {topic} in all answers")
    return next(broker for broker in cluster.brokers if broker.url == url)


def bundle_of(broker, topic):
    return admin(broker, "GET", "/lookup/v2/topic/" + topic.replace("://", "/") + "/bundle").text


class Many:
    """A producer on each of many topics; every message is timed from its sending to its confirmation."""

    def __init__(self, cluster, count, pause=0.25, broker=None):
        self.client = cluster.client(broker=broker)
        self.topics = [f"persistent://{NAMESPACE}/many-{number}" for number in range(count)]
        self.producers = [self.client.create_producer(topic, batching_enabled=False, send_timeout_millis=60_000)
                          for topic in self.topics]
        self.pause, self.slow, self.refused = pause, [], []
        self.sent, self.confirmed, self.lock = 0, 0, threading.Lock()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped.is_set():
            begun = time.monotonic()
            for at, producer in enumerate(self.producers):
                self.send(at, producer)
                # Spread over the pause, so that some message is under way at every moment.
                due = begun + self.pause * (at + 1) / len(self.producers)
                time.sleep(max(0.0, due - time.monotonic()))

    def send(self, at, producer):
        begun = time.monotonic()

        def done(result, _id):
            took = time.monotonic() - begun
            with self.lock:
                self.confirmed += 1
                if result != pulsar.Result.Ok:
                    self.refused.append((at, result))
                self.slow.append((took, begun, at))

        self.sent += 1
        producer.send_async(b"x" * 100, done)

    def longest(self, since, until=float("inf")):
        with self.lock:
            return max((took for took, begun, _ in self.slow if since <= begun + took and begun <= until), default=0.0)

    def end(self):
        self.stopped.set()
        self.thread.join(60)
        wait_until(lambda: self.confirmed >= self.sent, 60, "an answer to every message")
        self.client.close()
        assert not self.refused, self.refused[:3]
        return self


def test_lookups_redirect_and_listings_are_the_same_everywhere(cluster, topic):
    client = cluster.client()
    topics = [f"{topic}-{number}" for number in range(16)]
    producers = [client.create_producer(name) for name in topics]
    owners = {name: owner_of(cluster, name) for name in topics}
    assert set(owners.values()) == set(cluster.brokers), "both serve some"
    name = topics[0]
    other = next(broker for broker in cluster.brokers if broker is not owners[name])
    answer = admin(other, "GET", "/lookup/v2/topic/" + name.replace("://", "/"), redirects=False)
    assert answer.status_code == 200 and answer.json()["brokerUrl"] == owners[name].url, "named, not redirected to"
    stats = admin(other, "GET", f"/admin/v2/{name.replace('://', '/')}/stats", redirects=False)
    assert stats.status_code == 307, "statistics are the owner's to say"
    assert len(admin(other, "GET", f"/admin/v2/{name.replace('://', '/')}/stats").json()["publishers"]) == 1
    lists = [sorted(admin(broker, "GET", f"/admin/v2/persistent/{NAMESPACE}").json()) for broker in cluster.brokers]
    assert lists[0] == lists[1] and set(topics) <= set(lists[0])
    ids = sorted(broker_id(broker) for broker in cluster.brokers)
    leaders = set()
    for broker in cluster.brokers:
        assert sorted(admin(broker, "GET", "/admin/v2/brokers").json()) == ids
        leaders.add(admin(broker, "GET", "/admin/v2/brokers/leaderBroker").json()["brokerId"])
        report = admin(broker, "GET", "/admin/v2/broker-stats/load-report").json()
        assert report["webServiceUrl"] == broker.web
    assert len(leaders) == 1 and leaders <= set(ids)
    owned = [admin(other, "GET", f"/admin/v2/brokers/west/{one}/ownedNamespaces").json() for one in ids]
    assert not set(owned[0]) & set(owned[1]), "a bundle has one owner"
    assert f"{NAMESPACE}/{bundle_of(other, name)}" in {**owned[0], **owned[1]}
    for producer in producers:
        producer.send(b"x")
    client.close()


def test_a_killed_owner_is_replaced(cluster, topic):
    keep(cluster, topic)
    owner = owner_of(cluster, topic)
    left = next(broker for broker in cluster.brokers if broker is not owner)
    # A client that asks a broker that lives: what it waits is the cluster's doing, not that of its own list of hosts.
    many = Many(cluster, TOPICS, broker=cluster.brokers.index(left))
    load = Load(cluster, topic, rate=200)
    time.sleep(3)
    lost = sum(owner_of(cluster, name) is owner for name in many.topics)
    writes = left.metric("meridian_metadata_writes_total")
    loaded = left.metric("pulsar_broker_topics_count")
    killed = time.monotonic()
    owner.kill()
    wait_until(lambda: left.metric("meridian_ownership_brokers") == 1, 30, "the detection")
    detected = time.monotonic()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: admin(left, "GET", f"/admin/v2/{name.replace('://', '/')}/stats"), many.topics))
    served = time.monotonic()
    assert left.metric("pulsar_broker_topics_count") >= TOPICS
    loads = max(1, left.metric("pulsar_broker_topics_count") - loaded)
    per_load = (left.metric("meridian_metadata_writes_total") - writes) / loads
    time.sleep(8)
    outage = many.longest(killed)
    load.end()
    many.end()
    gap = load.longest_gap(since=killed - 0.05)
    print(f"\n{lost} of {TOPICS} topics lost their broker: detected after {detected - killed:.2f} s, {loads:.0f} loaded "
          f"{served - detected:.2f} s later, {per_load:.1f} metadata writes each; longest time to a confirmation "
          f"{outage:.2f} s, less the lease {outage - LEASE_SECONDS:.2f} s; {gap:.2f} s for a client that also asks the dead one")
    assert not load.refused and len(load.confirmed) == load.sent
    numbers, ordered = in_order(read_numbers(cluster, topic))
    assert ordered and set(load.confirmed) <= set(numbers)
    assert left.metric("meridian_ownership_bundles_unowned") == 0
    # It comes back under its name and takes part.
    owner.start()
    wait_until(lambda: owner.metric("meridian_ownership_in_force") == 1, 30, "its lease")
    wait_until(lambda: left.metric("meridian_ownership_brokers") == 2, 30, "the news of it")
    admin(left, "PUT", f"/admin/v2/namespaces/{NAMESPACE}/{bundle_of(left, topic)}/unload?destinationBroker={broker_id(owner)}")
    wait_until(lambda: owner_of(cluster, topic) is owner, 20, "the move")


def test_a_planned_unload_is_hardly_noticed(cluster):
    many = Many(cluster, TOPICS)
    time.sleep(4)
    before = many.longest(0)
    owners = [owner_of(cluster, name) for name in many.topics]
    begun = time.monotonic()
    admin(cluster.brokers[0], "PUT", f"/admin/v2/namespaces/{NAMESPACE}/unload")
    took = time.monotonic() - begun
    time.sleep(4)
    during = many.longest(begun)
    many.end()
    moved = sum(owner_of(cluster, name) is not owner for name, owner in zip(many.topics, owners))
    print(f"\n{moved} of {TOPICS} topics moved in {took:.2f} s; longest time to a confirmation {before * 1e3:.0f} ms "
          f"before, {during * 1e3:.0f} ms during the unload")
    assert moved == TOPICS
    assert during < 5


def test_a_broker_that_ends_hands_over(cluster, topic):
    keep(cluster, topic)
    load = Load(cluster, topic, rate=200)
    time.sleep(2)
    owner = owner_of(cluster, topic)
    begun = time.monotonic()
    owner.stop()
    took = time.monotonic() - begun
    time.sleep(2)
    load.end()
    gap = load.longest_gap(since=begun - 0.05)
    print(f"\nended in {took:.2f} s; longest ack gap {gap * 1e3:.0f} ms")
    assert not load.refused
    assert gap < LEASE_SECONDS, "no lease has to run out"
    numbers, ordered = in_order(read_numbers(cluster, topic))
    assert ordered and set(load.confirmed) <= set(numbers)


def test_b119_a_paused_owner_is_fenced_and_comes_back_clean(cluster, topic):
    keep(cluster, topic)
    load = Load(cluster, topic, rate=100)
    time.sleep(2)
    owner = owner_of(cluster, topic)
    left = next(broker for broker in cluster.brokers if broker is not owner)
    paused = time.monotonic()
    owner.pause()
    wait_until(lambda: left.metric("meridian_ownership_brokers") == 1, 30, "the detection")
    time.sleep(max(0.0, PAUSE_SECONDS - (time.monotonic() - paused)))
    resumed = time.monotonic()
    owner.resume()
    wait_until(lambda: owner.metric("meridian_ownership_stops_total") == 1, 10, "its stop")
    wait_until(lambda: owner.metric("meridian_ownership_in_force") == 1, 20, "its return")
    back = time.monotonic()
    assert owner.metric("meridian_ownership_bundles") == 0, "it came back with nothing"
    assert owner.process.poll() is None
    time.sleep(2)
    load.end(90)
    numbers = read_numbers(cluster, topic)
    seen, ordered = in_order(numbers)
    print(f"\npaused for {resumed - paused:.0f} s: in force again {back - resumed:.2f} s after its return; longest ack gap "
          f"{load.longest_gap(since=paused - 0.05):.2f} s; {len(numbers) - len(seen)} doubled of {load.sent}")
    assert not load.refused
    assert ordered and set(load.confirmed) <= set(seen)
    # At most what the client had under way when it lost its broker, once per try.
    assert len(numbers) - len(seen) <= 100 * (PAUSE_SECONDS + 10)


def test_b126_bundles_are_split_and_merged_under_load(cluster, topic):
    keep(cluster, topic)
    load = Load(cluster, topic, rate=200)
    time.sleep(2)
    path = f"/admin/v2/namespaces/{NAMESPACE}"
    before = admin(cluster.brokers[0], "GET", f"{path}/bundles").json()["numBundles"]
    for _ in range(5):
        bundle = bundle_of(cluster.brokers[0], topic)
        admin(cluster.brokers[1], "PUT", f"{path}/{bundle}/split")
        wait_until(lambda: all(bundle_of(broker, topic) != bundle for broker in cluster.brokers), 10, "the cut")
    assert admin(cluster.brokers[1], "GET", f"{path}/bundles").json()["numBundles"] == before + 5
    load.end()
    print(f"\nlongest ack gap over 5 splits {load.longest_gap() * 1e3:.0f} ms")
    assert not load.refused
    numbers, ordered = in_order(read_numbers(cluster, topic))
    assert ordered and set(load.confirmed) <= set(numbers)


def test_isolation_policies_keep_namespaces_on_brokers(cluster):
    path = "/admin/v2/clusters/west/namespaceIsolationPolicies"
    admin(cluster.brokers[0], "PUT", "/admin/v2/namespaces/public/apart")
    rule = {"namespaces": ["public/apart"], "primary": ["zone=zone-1"], "secondary": [],
            "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}}}
    admin(cluster.brokers[0], "POST", f"{path}/apart", rule)
    wait_until(lambda: "apart" in admin(cluster.brokers[1], "GET", path).json(), 10, "the policy")
    client = cluster.client()
    for number in range(8):
        name = f"persistent://public/apart/t-{number}"
        client.create_producer(name).send(b"x")
        assert owner_of(cluster, name) is cluster.brokers[1]
    shown = admin(cluster.brokers[0], "GET", f"{path}/brokers/{broker_id(cluster.brokers[1])}").json()
    assert shown["isPrimary"] and shown["policyName"] == "apart"
    client.close()
    admin(cluster.brokers[0], "DELETE", f"{path}/apart")
