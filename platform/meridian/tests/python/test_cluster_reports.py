"""Reported faults of clusters, each test named by its report: docs/reference/field-reports.md lists them all."""
import itertools
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest
import requests

from cluster import Cluster, Load, in_order, keep, read_numbers
from region import wait_until

COUNTER = itertools.count()
NAMESPACE = "public/default"
SERVED_WITHIN = 30


@pytest.fixture
def topic():
    return f"persistent://{NAMESPACE}/f{os.getpid()}-{next(COUNTER)}"


@pytest.fixture
def make_cluster(tmp_path):
    made = []

    def make(**options):
        cluster = Cluster(tmp_path / f"cluster-{len(made)}", **options)
        made.append(cluster)
        cluster.start()
        for broker in cluster.brokers:
            ready(broker)
            # Who knows only itself takes all bundles that are asked for.
            wait_until(lambda: broker.metric("meridian_ownership_brokers") == len(cluster.brokers), 20, "all brokers")
        return cluster

    yield make
    for cluster in made:
        cluster.close()


def ready(broker):
    wait_until(lambda: broker.metric("meridian_ownership_in_force") == 1, 30, "the lease")
    wait_until(lambda: requests.get(f"{broker.web}/admin/v2/namespaces/{NAMESPACE}", timeout=10).status_code == 200, 30, "the namespace")


def call(broker, method, path, body=None):
    return requests.request(method, f"{broker.web}/admin/v2/{path}", json=body, timeout=60)


def alive(cluster):
    return [broker for broker in cluster.brokers if broker.process.poll() is None]


def served(cluster, topics):
    """Every topic is looked up at every broker that lives, and all answers agree."""
    begun = time.monotonic()

    def one(topic):
        def agreed():
            named = set()
            for broker in alive(cluster):
                try:
                    answer = requests.get(f"{broker.web}/lookup/v2/topic/{topic.replace('://', '/')}", timeout=30)
                except requests.ConnectionError:
                    # It was sent on to a broker that is lost and not missed yet.
                    return False
                named.add(answer.json().get("brokerUrl") if answer.status_code == 200 else None)
            return None not in named and len(named) == 1
        wait_until(agreed, SERVED_WITHIN, f"an owner of {topic} that all agree on")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, topics))
    return time.monotonic() - begun


@pytest.mark.timeout(240)
def test_b113_isolation_moves_what_is_placed_already_and_goes_to_secondary_brokers_alone(make_cluster):
    cluster = make_cluster(brokers=3, bookies=3)
    stranger, primary, secondary = cluster.brokers
    path = "clusters/west/namespaceIsolationPolicies"
    assert call(stranger, "PUT", "namespaces/public/apart", {"bundles": {"numBundles": 12}}).status_code == 204
    names = [f"persistent://public/apart/t-{number}" for number in range(12)]

    def publish(broker=None):
        client = cluster.client(broker=broker)
        for name in names:
            client.create_producer(name).send(b"x")
        client.close()

    def owners():
        served(cluster, names)
        url = lambda name: requests.get(f"{alive(cluster)[0].web}/lookup/v2/topic/{name.replace('://', '/')}", timeout=30).json()["brokerUrl"]
        return {broker.name for broker in cluster.brokers if broker.url in set(map(url, names))}
    publish()
    assert owners() - {primary.name}, "somebody else serves some"
    rule = {"namespaces": ["public/apart"], "primary": ["zone=zone-1"], "secondary": ["zone=zone-2"],
            "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}}}
    for bad in ({**rule, "primary": ["["]}, {**rule, "namespaces": []}, {**rule, "primary": []}):
        refused = call(stranger, "POST", f"{path}/apart", bad)
        assert refused.status_code in (400, 412) and refused.json()["reason"], (bad, refused.status_code, refused.text)
    assert call(stranger, "POST", f"{path}/apart", rule).status_code == 204
    wait_until(lambda: all("apart" in call(broker, "GET", path).json() for broker in cluster.brokers), 10, "the policy")
    begun = time.monotonic()
    wait_until(lambda: owners() == {primary.name}, 60, "all on the primary broker")
    print(f"\nall moved to the primary broker {time.monotonic() - begun:.1f} s after the policy was known")
    names.append("persistent://public/apart/later")
    publish(broker=0)
    assert owners() == {primary.name}
    shown = call(stranger, "GET", f"{path}/brokers/{primary.web.removeprefix('http://')}").json()
    assert shown["isPrimary"] and shown["policyName"] == "apart"
    primary.kill()
    wait_until(lambda: stranger.metric("meridian_ownership_brokers") == 2, 30, "the loss")
    publish(broker=0)
    assert owners() == {secondary.name}


@pytest.mark.timeout(400)
def test_b125_no_bundle_is_left_between_two_owners(make_cluster, topic):
    cluster = make_cluster(brokers=3, bookies=3)
    topics = [f"{topic}-{number}" for number in range(12)]
    client = cluster.client()
    for name in topics:
        client.subscribe(name, "keeps")  # what nobody holds is trimmed
        client.create_producer(name).send(b"x")
    client.close()
    stopped = threading.Event()

    def unload():
        while not stopped.is_set():
            for broker in alive(cluster):
                try:
                    call(broker, "PUT", f"namespaces/{NAMESPACE}/unload")
                except requests.RequestException:
                    pass  # it was killed meanwhile
            time.sleep(0.3)

    thread = threading.Thread(target=unload, daemon=True)
    thread.start()
    try:
        leader = call(cluster.brokers[0], "GET", "brokers/leaderBroker").json()["brokerId"]
        first = next(broker for broker in cluster.brokers if broker.web.endswith(leader.rsplit(":", 1)[1]))
        others = [broker for broker in cluster.brokers if broker is not first]
        took = []
        for killed in ([first], [others[0]], [others[1], first], [others[0]]):
            for broker in killed:
                broker.kill()
            took.append(served(cluster, topics) if alive(cluster) else 0)
            for broker in killed:
                broker.begin()
            for broker in killed:
                ready(broker.wait())
        # All of them, the last one too.
        for broker in cluster.brokers:
            broker.kill()
        for broker in cluster.brokers:
            broker.begin()
        for broker in cluster.brokers:
            ready(broker.wait())
        took.append(served(cluster, topics))
    finally:
        stopped.set()
        thread.join(60)
    print(f"\nall lookups agree again after {', '.join(f'{seconds:.1f}' for seconds in took)} s")
    client = cluster.client()
    for name in topics:
        client.create_producer(name).send(b"y")
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        assert [reader.read_next(20_000).data() for _ in range(2)] == [b"x", b"y"]
        reader.close()
    client.close()


@pytest.mark.timeout(300)
def test_b128_when_all_brokers_come_back_at_once_every_client_goes_on(make_cluster, topic):
    count = int(os.environ.get("B128_TOPICS", "120"))
    cluster = make_cluster(brokers=2, bookies=3, maxConcurrentTopicLoadRequest=20)
    clients = [cluster.client() for _ in range(6)]
    with ThreadPoolExecutor(12) as threads:
        producers = list(threads.map(lambda at: clients[at % 6].create_producer(f"{topic}-{at % count}", send_timeout_millis=0), range(count * 2)))
    for broker in cluster.brokers:
        broker.kill()
    for broker in cluster.brokers:
        broker.begin()
    begun = time.monotonic()
    for broker in cluster.brokers:
        broker.wait()
    with ThreadPoolExecutor(24) as threads:
        list(threads.map(lambda producer: producer.send(b"again"), producers))
    took = time.monotonic() - begun
    print(f"\n{len(producers)} producers of {count} topics publish again after {took:.1f} s")
    assert took < 120
    assert all(broker.process.poll() is None for broker in cluster.brokers)
    for client in clients:
        client.close()


@pytest.mark.timeout(300)
def test_b131_a_broker_killed_in_the_middle_of_writes_leaves_no_key_locked(make_cluster):
    cluster = make_cluster(brokers=2, bookies=1, managedLedgerDefaultEnsembleSize=1, managedLedgerDefaultWriteQuorum=1,
                           managedLedgerDefaultAckQuorum=1)
    first, second = cluster.brokers
    for number in range(20):
        assert call(second, "PUT", f"namespaces/public/locks{number}", {}).status_code == 204
    for round_number in range(int(os.environ.get("B131_ROUNDS", "4"))):
        stopped, written = threading.Event(), [0]

        def write(thread):
            while not stopped.is_set():
                at = random.randrange(20)
                try:
                    call(first, "POST", f"namespaces/public/locks{at}/messageTTL", random.randrange(1, 1000))
                    call(first, "PUT", f"persistent/public/locks{at}/t{round_number}-{thread}-{written[0]}")
                    written[0] += 1
                except requests.RequestException:
                    return
        threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(8)]
        [thread.start() for thread in threads]
        time.sleep(random.uniform(0.3, 1.0))
        first.kill()
        killed = time.monotonic()
        stopped.set()

        def usable(at):
            path = f"namespaces/public/locks{at}/messageTTL"
            wait_until(lambda: call(second, "POST", path, 77).status_code == 204 and call(second, "GET", path).json() == 77, 30, path)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(usable, range(20)))
        print(f"\nround {round_number}: {written[0]} writes before the kill, all keys are written again {time.monotonic() - killed:.1f} s later")
        [thread.join(60) for thread in threads]
        ready(first.start())
    listed = [[name for number in range(20) for name in call(broker, "GET", f"persistent/public/locks{number}").json()] for broker in cluster.brokers]
    assert listed[0] == listed[1]

    def opens(name):
        answer = call(second, "GET", f"{name.replace('://', '/')}/internalStats")
        assert answer.status_code == 200, (name, answer.text)

    # What is listed is whole.
    chosen = random.sample(listed[0], min(100, len(listed[0])))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(opens, chosen))


@pytest.mark.timeout(300)
def test_b135_a_corrupt_log_is_no_missing_entry(make_cluster, topic):
    cluster = make_cluster(brokers=1, bookies=3)
    keep(cluster, topic)
    load = Load(cluster, topic, rate=400)
    time.sleep(3)
    damaged = cluster.bookies[0]
    damaged.stop()
    logs = sorted(damaged.data.rglob("*.log"))
    assert logs
    for path in logs:
        content = bytearray(path.read_bytes())
        for at in range(200, len(content), 997):
            content[at] ^= 0xFF
        path.write_bytes(content)
    damaged.start()
    time.sleep(2)
    load.end()
    # The writer goes without closing its ledger; what is recovered is not cut where the damage is.
    cluster.brokers[0].kill()
    ready(cluster.brokers[0].start())
    numbers, ordered = in_order(read_numbers(cluster, topic))
    assert ordered and set(load.confirmed) <= set(numbers)
    assert not load.refused


@pytest.mark.timeout(400)
def test_b137_after_crashes_in_any_order_every_topic_opens(make_cluster, topic):
    cluster = make_cluster(brokers=2, bookies=4)
    topics = [f"{topic}-{number}" for number in range(4)]
    loads = []
    for name in topics:
        keep(cluster, name)
        loads.append(Load(cluster, name, rate=50))
    time.sleep(2)
    source = random.Random(11)
    for _ in range(int(os.environ.get("B137_ROUNDS", "4"))):
        victims = source.sample(cluster.bookies, 2) + source.sample(cluster.brokers, 1)
        source.shuffle(victims)
        for node in victims:
            node.kill()
            time.sleep(source.uniform(0, 0.5))
        source.shuffle(victims)
        for node in victims:
            node.start()
            time.sleep(source.uniform(0, 0.5))
    begun = time.monotonic()
    for broker in cluster.brokers:
        ready(broker)

    def opens(name):
        def answered():
            answer = call(cluster.brokers[0], "GET", f"{name.replace('://', '/')}/internalStats")
            return answer.status_code == 200
        wait_until(answered, 60, f"{name} opens")

    for name in topics:
        opens(name)
    print(f"\nall open {time.monotonic() - begun:.1f} s after the last start")
    for name, load in zip(topics, loads):
        load.end(120)
        numbers, ordered = in_order(read_numbers(cluster, name))
        assert ordered and set(load.confirmed) <= set(numbers), name


@pytest.mark.timeout(300)
def test_b141_b150_ledgers_are_copied_after_a_blip_of_the_store_and_readers_follow_them(make_cluster, topic):
    cluster = make_cluster(brokers=1, bookies=4, lostBookieRecoveryDelay=2)
    keep(cluster, topic)
    load = Load(cluster, topic, rate=300)
    time.sleep(3)
    load.end()
    broker = cluster.brokers[0]
    # A closed ledger that the broker has known from its beginning, members and all.
    assert call(broker, "PUT", f"{topic.replace('://', '/')}/unload").status_code == 204
    client = cluster.client()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10)
    first = [int(reader.read_next(20_000).data()[:8]) for _ in range(5)]
    process = broker.process.pid
    cluster.store.kill()
    time.sleep(5)
    cluster.store.start()
    wait_until(lambda: broker.metric("meridian_metadata_available") == 1, 30, "the store")
    wait_until(lambda: all(bookie.metric("bookie_registered") == 1 for bookie in cluster.bookies), 60, "registrations")

    def left_on(bookie):
        shown = call(broker, "GET", "meridian/bookies")
        assert shown.status_code == 200, shown.text
        return next((one["ledgers"] for one in shown.json() if one["id"] == bookie.name), 0)

    held = {bookie.name: left_on(bookie) for bookie in cluster.bookies}
    victim = max(cluster.bookies, key=lambda bookie: held[bookie.name])
    assert held[victim.name] > 0, held
    victim.kill()
    wait_until(lambda: left_on(victim) == 0, 90, "nothing is left on the lost bookie")
    # Another of the old members goes: what is left was copied, and the same broker finds it.
    second = max((bookie for bookie in cluster.bookies if bookie is not victim), key=lambda bookie: held[bookie.name])
    second.kill()
    rest = [int(reader.read_next(30_000).data()[:8]) for _ in range(len(load.confirmed) - 5)]
    seen, ordered = in_order(first + rest)
    assert ordered and set(seen) == set(load.confirmed)
    assert broker.process.pid == process and broker.process.poll() is None
    client.close()


def test_b165_what_one_broker_made_the_others_know(make_cluster):
    cluster = make_cluster(brokers=2, bookies=1, managedLedgerDefaultEnsembleSize=1, managedLedgerDefaultWriteQuorum=1,
                           managedLedgerDefaultAckQuorum=1)
    policies = (("maxProducers", 3), ("messageTTL", 60), ("retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
                ("deduplicationEnabled", True), ("maxConsumers", 5))
    tries = 0
    for number in range(int(os.environ.get("B165_TOPICS", "100"))):
        one, other = cluster.brokers[number % 2], cluster.brokers[1 - number % 2]
        path = f"persistent/{NAMESPACE}/made{number}"
        partitioned = number % 3 == 0
        made = call(one, "PUT", f"{path}/partitions", 2) if partitioned else call(one, "PUT", path)
        assert made.status_code == 204, made.text
        for policy, value in policies:
            answer = call(other, "POST", f"{path}/{policy}", value)
            assert answer.status_code == 204, (number, policy, answer.status_code, answer.text)
            tries += 1
    for number in range(10):
        one, other = cluster.brokers[number % 2], cluster.brokers[1 - number % 2]
        assert call(one, "PUT", f"namespaces/public/made{number}", {}).status_code == 204
        assert call(other, "PUT", f"persistent/public/made{number}/t").status_code == 204
        assert call(one, "POST", f"namespaces/public/made{number}/messageTTL", 5).status_code == 204
    print(f"\n{tries} tries")
