"""A cluster of many processes: roles, storage over many bookies, and what happens when a part of it fails."""
import itertools
import os
import shutil
import time

import pulsar
import pytest

from cluster import Cluster, Load, in_order, keep, read_numbers
from region import wait_until

COUNTER = itertools.count()
AWAY_SECONDS = float(os.environ.get("STORE_AWAY_SECONDS", "8"))
PAUSE_SECONDS = float(os.environ.get("OWNER_PAUSE_SECONDS", "15"))
RATE = int(os.environ.get("CLUSTER_RATE", "1000"))


@pytest.fixture
def topic():
    return f"persistent://public/default/c{os.getpid()}-{next(COUNTER)}"


@pytest.fixture
def make_cluster(tmp_path):
    made = []

    def make(started=True, **options):
        cluster = Cluster(tmp_path / f"cluster-{len(made)}", **options)
        made.append(cluster)
        return cluster.start() if started else cluster

    yield make
    for cluster in made:
        cluster.close()


def check_stored(cluster, topic, load):
    """Everything confirmed is there, in order."""
    numbers, ordered = in_order(read_numbers(cluster, topic))
    missing = set(load.confirmed) - set(numbers)
    assert not missing, (len(missing), sorted(missing)[:5])
    assert ordered


def test_clients_reach_every_topic_over_any_broker(make_cluster):
    cluster = make_cluster()
    clients = [cluster.client(broker=number) for number in range(3)]
    topics = [f"persistent://public/default/any-{number}" for number in range(12)]
    consumers = [clients[at % 3].subscribe(topic, "s") for at, topic in enumerate(topics)]
    producers = [clients[(at + 1) % 3].create_producer(topic) for at, topic in enumerate(topics)]
    for producer in producers:
        producer.send(b"hello")
    for consumer in consumers:
        assert consumer.receive(20_000).data() == b"hello"
    # Copies stand in three zones, whoever wrote them.
    for client in clients:
        client.close()
    assert all(bookie.metric("bookie_registered") == 1 for bookie in cluster.bookies)
    assert sum(bookie.metric("bookkeeper_server_ADD_ENTRY_count") > 0 for bookie in cluster.bookies) >= 3


def test_a_killed_bookie_costs_no_error_and_no_message(make_cluster, topic):
    cluster = make_cluster()
    keep(cluster, topic)
    load = Load(cluster, topic, rate=RATE)
    time.sleep(3)
    written = {bookie.name: bookie.metric("bookkeeper_server_ADD_ENTRY_count") for bookie in cluster.bookies}
    time.sleep(1)
    busy = [b for b in cluster.bookies if b.metric("bookkeeper_server_ADD_ENTRY_count") > written[b.name] + 20]
    assert len(busy) == 3, written
    killed = time.monotonic()
    busy[0].kill()
    time.sleep(5)
    load.end()
    before, after = load.longest_gap(until=killed), load.longest_gap(since=killed - 0.05, until=killed + 5)
    print(f"\n{len(load.confirmed)} messages at {RATE}/s; longest ack gap {before * 1e3:.0f} ms before, {after * 1e3:.0f} ms after the kill")
    assert not load.refused and len(load.confirmed) == load.sent
    assert after < 1
    check_stored(cluster, topic, load)
    busy[0].start()
    wait_until(lambda: busy[0].metric("bookie_registered") == 1, 20, "the registration")


def test_b134_b140_a_wiped_bookie_and_a_foreign_one_are_refused(make_cluster, tmp_path, topic):
    cluster = make_cluster(brokers=1, bookies=3)
    keep(cluster, topic)
    load = Load(cluster, topic, rate=100)
    time.sleep(1)
    load.end()
    wiped = cluster.bookies[0]
    wiped.stop()
    shutil.move(wiped.data, tmp_path / "kept")
    assert "counts on data of bookie bookie-0" in wiped.refused()
    # Another cluster in the same store knows nothing of it, and its folders know the other cluster.
    shutil.rmtree(wiped.data)
    shutil.move(tmp_path / "kept", wiped.data)
    other = make_cluster(started=False, brokers=0, bookies=1, store=cluster.store, name="other")
    other.start_store()
    assert "holds no cluster yet" in other.bookies[0].refused()
    assert other.init().returncode == 0
    again = other.init()
    assert again.returncode == 1 and "belongs to cluster other already" in again.stderr
    assert other.init("--if-absent").returncode == 0
    other.bookies[0].settings["clusterName"] = "east"
    assert "belongs to cluster other" in other.bookies[0].refused()
    other.bookies[0].settings["clusterName"] = "other"
    shutil.copytree(wiped.data, other.bookies[0].data, dirs_exist_ok=True)
    assert "instance on disk is" in other.bookies[0].refused()
    # The same disk and id at another address is the same bookie.
    before = wiped.settings["bookiePort"]
    wiped.settings.update(bookiePort=0, bookieControlPort=0, advertisedAddress="localhost")
    wiped.start()
    assert wiped.settings["bookiePort"] != before
    wait_until(lambda: wiped.metric("bookie_registered") == 1, 20, "the registration")
    cluster.bookies[1].kill()
    check_stored(cluster, topic, load)


def test_a_bookie_whose_disks_fail_turns_read_only_and_says_so(make_cluster, topic):
    cluster = make_cluster(brokers=1, bookies=4)
    keep(cluster, topic)
    load = Load(cluster, topic, rate=500)
    time.sleep(2)
    written = {bookie.name: bookie.metric("bookkeeper_server_ADD_ENTRY_count") for bookie in cluster.bookies}
    time.sleep(1)
    failing = next(b for b in cluster.bookies if b.metric("bookkeeper_server_ADD_ENTRY_count") > written[b.name] + 10)
    failing.fail_disks()
    wait_until(lambda: failing.health().status_code == 503, 20, "an unhealthy bookie")
    assert "journal has failed" in failing.health().text
    time.sleep(3)
    load.end()
    assert not load.refused
    check_stored(cluster, topic, load)
    # Reads are served on; ordinary adds go elsewhere.
    before = failing.metric("bookkeeper_server_ADD_ENTRY_count")
    second = Load(cluster, topic + "-second", rate=200)
    time.sleep(3)
    second.end()
    assert not second.refused
    assert failing.metric("bookkeeper_server_ADD_ENTRY_count") <= before
    failing.kill()
    failing.start()
    wait_until(lambda: failing.health().status_code == 200, 20, "a healthy bookie")


def test_b123_publishing_goes_on_while_the_metadata_store_is_away(make_cluster, topic):
    cluster = make_cluster()
    keep(cluster, topic)
    consumer_client = cluster.client()
    consumer = consumer_client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    load = Load(cluster, topic, rate=RATE)
    time.sleep(3)
    away = time.monotonic()
    cluster.store.kill()
    time.sleep(AWAY_SECONDS / 2)
    assert any(broker.metric("meridian_metadata_available") == 0 for broker in cluster.brokers)
    time.sleep(AWAY_SECONDS / 2)
    back = time.monotonic()
    cluster.store.start()
    wait_until(lambda: all(broker.metric("meridian_metadata_available") == 1 for broker in cluster.brokers), 30, "the store")
    time.sleep(3)
    load.end()
    before, during = load.longest_gap(until=away), load.longest_gap(since=away - 0.05, until=back + 3)
    print(f"\nlongest ack gap {before * 1e3:.0f} ms before, {during * 1e3:.0f} ms while the store was away for {AWAY_SECONDS} s")
    assert not load.refused and len(load.confirmed) == load.sent
    assert during < 1
    received = set()
    while len(received) < load.sent:
        message = consumer.receive(20_000)
        received.add(int(message.data()[:8]))
        consumer.acknowledge(message)
    consumer_client.close()
    check_stored(cluster, topic, load)
    # What needs metadata works again, without a restart.
    fresh = Load(cluster, topic + "-fresh", rate=100)
    time.sleep(1)
    fresh.end()
    assert not fresh.refused
    wait_until(lambda: all(bookie.metric("bookie_registered") == 1 for bookie in cluster.bookies), 30, "registrations")


def test_a_paused_owner_is_fenced_and_turns_clean_by_itself(make_cluster, topic):
    cluster = make_cluster()
    keep(cluster, topic)
    load = Load(cluster, topic, rate=200)
    time.sleep(2)
    owner = max(cluster.brokers, key=lambda broker: broker.metric("pulsar_in_messages_total"))
    paused = time.monotonic()
    owner.pause()
    time.sleep(PAUSE_SECONDS)
    owner.resume()
    time.sleep(5)
    load.end(90)
    print(f"\nlongest ack gap {load.longest_gap(since=paused - 0.05) * 1e3:.0f} ms over a pause of {PAUSE_SECONDS} s")
    assert not load.refused and len(load.confirmed) == load.sent
    numbers = read_numbers(cluster, topic)
    seen, ordered = in_order(numbers)
    assert ordered and set(seen) >= set(load.confirmed)
    # Doubled is at most what the client had in flight and sent again.
    assert len(numbers) - len(seen) <= 200 * 12, len(numbers) - len(seen)
    # The old owner serves again.
    client = cluster.client(broker=cluster.brokers.index(owner))
    for number in range(6):
        client.create_producer(f"{topic}-after-{number}").send(b"x")
    client.close()
