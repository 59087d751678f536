"""Nodes that can't work yet: an address that is taken, a metadata store that is not up, a disk without room. They say
what is missing, are not healthy, and go on by themselves."""
import os
import re
import signal
import subprocess
import time

import pytest
import requests

from cluster import MINI_TIKV, Cluster, Node, keep, read_numbers
from ports import free_ports
from region import BINARY, wait_until

LEASE_SECONDS = 3.0
DISK_MIB = 96
COUNT = 1200


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


def ready(web, path="ready"):
    """Status and text of a broker's page; none while it answers nobody."""
    try:
        answer = requests.get(f"{web}/admin/v2/brokers/{path}", timeout=5)
    except requests.RequestException:
        return None, ""
    return answer.status_code, answer.text


def lines(node, word):
    text = node.log_file.read_text(errors="replace") if node.log_file.is_file() else ""
    return [line for line in text.splitlines() if word in line]


def test_a_second_broker_with_the_address_of_a_living_one_is_not_ready_and_says_so(make_cluster):
    cluster = make_cluster(brokers=1, bookies=1, managedLedgerDefaultEnsembleSize=1, managedLedgerDefaultWriteQuorum=1,
                           managedLedgerDefaultAckQuorum=1)
    first = cluster.brokers[0]
    address = first.web.removeprefix("http://")
    second = Node("second", "broker", cluster.folder, {**first.settings, "bindAddress": "127.0.0.2",
                                                       "auditLogFile": cluster.folder / "second-audit.log"})
    cluster.brokers.append(second)
    second.begin()
    web = f"http://127.0.0.2:{first.settings['webServicePort']}"
    wait_until(lambda: address in ready(web)[1], 30, "what the second broker waits for")
    # As long as the first lives, whatever time passes.
    deadline = time.monotonic() + 4 * LEASE_SECONDS
    while time.monotonic() < deadline:
        for path in ("ready", "health"):
            status, text = ready(web, path)
            assert status == 503 and address in text and first.url in text, (status, text)
        time.sleep(0.5)
    assert not second.ready_file.exists(), "it is not ready"
    assert second.process.poll() is None
    told = [line for line in lines(second, address) if "WARN" in line or "ERROR" in line]
    assert 1 <= len(told) <= 3, told
    assert "advertisedAddress" in told[-1] and first.url in told[-1], told
    metrics = requests.get(f"{web}/metrics", timeout=10).text
    assert re.search(r"^meridian_ownership_address_taken(\{.*\})? 1$", metrics, re.M), "the metric"
    assert ready(first.web)[0] == 200 and first.metric("meridian_ownership_address_taken") == 0
    # It takes the place of the first when that is gone.
    first.kill()
    second.ready_file = second.folder / "second.ready"
    wait_until(lambda: ready(web)[0] == 200, 30, "the lease")
    wait_until(second.ready_file.exists, 10, "the ready file")
    assert lines(second, "the lease is in force")


def test_a_killed_broker_that_is_started_again_at_once_comes_up_by_itself(make_cluster):
    cluster = make_cluster(brokers=1, bookies=1, managedLedgerDefaultEnsembleSize=1, managedLedgerDefaultWriteQuorum=1,
                           managedLedgerDefaultAckQuorum=1)
    broker = cluster.brokers[0]
    for _ in range(2):
        broker.kill()
        begun = time.monotonic()
        broker.start()
        assert ready(broker.web)[0] == 200, "ready means ready"
        assert time.monotonic() - begun < 3 * LEASE_SECONDS + 10
    with_error = [line for line in lines(broker, "advertisedAddress") if "ERROR" in line]
    assert not with_error, "nobody else lives"
    client = cluster.client()
    client.create_producer("persistent://public/default/again").send(b"1")
    client.close()


def waiting_cluster(make_cluster, **settings):
    """A cluster whose store has been initialised and is away."""
    quorums = {f"managedLedgerDefault{name}": 1 for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")}
    cluster = make_cluster(started=False, brokers=1, bookies=1, **quorums, **settings)
    cluster.start_store()
    assert cluster.init().returncode == 0
    cluster.store.kill()
    return cluster


def test_nodes_wait_for_a_metadata_store_that_is_not_up_yet(make_cluster):
    cluster = waiting_cluster(make_cluster)
    recovery = Node("autorecovery", "autorecovery", cluster.folder, {**cluster.settings, "prometheusStatsHttpPort": 0,
                                                                      "metadataStoreUrl": cluster.metadata_url})
    bookie, broker = cluster.bookies[0], cluster.brokers[0]
    nodes = [bookie, broker, recovery]
    for node, port in zip(nodes, free_ports(3)):
        node.settings["webServicePort" if node is broker else "prometheusStatsHttpPort"] = port
    cluster.bookies.append(recovery)
    for node in nodes:
        node.begin()

    def health(node):
        try:
            return requests.get(f"http://127.0.0.1:{node.settings['prometheusStatsHttpPort']}/health", timeout=5)
        except requests.RequestException:
            return None

    web = f"http://127.0.0.1:{broker.settings['webServicePort']}"
    for node in (bookie, recovery):
        wait_until(lambda: (answer := health(node)) is not None and answer.status_code == 503
                   and "metadata store" in answer.text and cluster.store.address in answer.text, 30, "health")
    wait_until(lambda: ready(web)[0] == 503 and "metadata store" in ready(web)[1], 30, "ready")
    time.sleep(21)
    for node in nodes:
        assert node.process.poll() is None, node.log()
        told = [line for line in lines(node, "metadata store") if "WARN" in line]
        assert 2 <= len(told) <= 4 and all(cluster.store.address in line for line in told), told
    cluster.store.start()
    for node in nodes:
        node.wait()
    wait_until(lambda: ready(broker.web)[0] == 200, 30, "ready")
    assert bookie.health().status_code == 200 and recovery.health().status_code == 200
    client = cluster.client()
    client.create_producer("persistent://public/default/late").send(b"1")
    client.close()


def test_the_wait_for_the_store_ends_by_a_signal_or_its_limit(make_cluster):
    cluster = waiting_cluster(make_cluster)
    for node in cluster.nodes():
        node.begin()
        wait_until(lambda: lines(node, "metadata store"), 30, "the first line")
        begun = time.monotonic()
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(10) == 0, node.log()
        assert time.monotonic() - begun < 3
    for node in cluster.nodes():
        node.settings["metadataStoreStartTimeoutSeconds"] = 2
        assert "metadataStoreStartTimeoutSeconds" in node.refused() and cluster.store.address in node.refused()


def test_a_store_of_another_cluster_or_of_none_ends_the_start_at_once(make_cluster):
    cluster = waiting_cluster(make_cluster)
    cluster.store.start()
    node = cluster.brokers[0]
    node.settings["clusterName"] = "east"
    begun = time.monotonic()
    assert "belongs to cluster west" in node.refused()
    node.settings["metadataStoreUrl"] = cluster.metadata_url.replace("/west", "/nowhere")
    assert "meridian cluster init" in node.refused()
    assert time.monotonic() - begun < 20


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own for one bookie."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("a disk of its own can't be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], capture_output=True)


def fill(folder):
    """Until not a byte fits."""
    with open(folder / "ballast", "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    usage = os.statvfs(folder)
    assert usage.f_bavail == 0, usage


def test_a_bookie_without_a_byte_of_room_starts_serves_reads_and_comes_back(make_cluster, small_disk):
    # What is read comes from the bookie: the broker's cache holds less.
    sizes = {"journalMaxSizeMB": 8, "dbStorage_writeCacheMaxSizeMb": 8, "managedLedgerCacheSizeMB": 1,
             "catchUpCacheSizeMB": 1}
    quorums = {f"managedLedgerDefault{name}": 1 for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")}
    cluster = make_cluster(started=False, brokers=1, bookies=1, **quorums, **sizes)
    bookie = cluster.bookies[0]
    bookie.data = small_disk / "bookie"
    cluster.start()
    topic = "persistent://public/default/full"
    keep(cluster, topic)
    client = cluster.client()
    producer = client.create_producer(topic, send_timeout_millis=60_000)
    for number in range(COUNT):
        producer.send(f"{number:08d}".encode() + b"x" * 4000)
    client.close()
    # What is in the journal alone is read as well: the bookie dies with a full disk.
    fill(small_disk)
    bookie.kill()
    for _ in range(2):
        bookie.start()
        wait_until(lambda: bookie.health().status_code == 503, 20, "it says that it is read-only")
        assert "full" in bookie.health().text, bookie.health().text
        numbers = [int(number) for number in read_numbers(cluster, topic)]
        assert numbers == list(range(COUNT)), (len(numbers), numbers[:3])
        assert bookie.metric("bookkeeper_server_READ_ENTRY_count") > COUNT / 4
        bookie.kill()
        fill(small_disk)
    bookie.start()
    time.sleep(8)
    noise = [line for line in lines(bookie, "ERROR") + lines(bookie, "WARN")]
    assert len(noise) < 40, (len(noise), noise[-10:])
    (small_disk / "ballast").unlink()
    wait_until(lambda: bookie.health().status_code == 200, 30, "it takes entries again")
    client = cluster.client()
    producer = client.create_producer(topic, send_timeout_millis=60_000)
    for number in range(COUNT, COUNT + 100):
        producer.send(f"{number:08d}".encode() + b"x" * 4000)
    client.close()
    bookie.stop()
    bookie.start()
    numbers = [int(number) for number in read_numbers(cluster, topic)]
    assert numbers == list(range(COUNT + 100)), (len(numbers), numbers[:3], numbers[-3:])


def test_a_disk_that_fills_up_is_told_once_and_counted(make_cluster, small_disk):
    sizes = {"journalMaxSizeMB": 8, "dbStorage_writeCacheMaxSizeMb": 8, "flushInterval": 1000}
    quorums = {f"managedLedgerDefault{name}": 1 for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")}
    cluster = make_cluster(started=False, brokers=1, bookies=1, **quorums, **sizes)
    bookie = cluster.bookies[0]
    bookie.data = small_disk / "bookie"
    cluster.start()
    client = cluster.client()
    producer = client.create_producer("persistent://public/default/fills", send_timeout_millis=5_000)
    producer.send(b"before")
    fill(small_disk)
    with pytest.raises(Exception):
        for _ in range(10_000):
            producer.send(b"x" * 200_000)
    time.sleep(10)
    told = lines(bookie, "ERROR")
    assert 1 <= len(told) <= 6, (len(told), told[:12])
    assert 1 <= len(lines(bookie, "the bookie is read-only")) <= 3, told
    (small_disk / "ballast").unlink()
    wait_until(lambda: bookie.health().status_code == 200, 30, "it takes entries again")
    wait_until(lambda: lines(bookie, "takes entries again"), 10, "the line that says so")
    client.close()


def test_a_second_demo_in_one_folder_is_refused_and_touches_nothing_of_the_first(tmp_path):
    folder, ready_file = tmp_path / "demo", tmp_path / "ready.json"
    command = [BINARY, "cluster", "demo", "--data-dir", str(folder), "--brokers", "1", "--bookies", "3", "--free-ports",
               "--mini-tikv", MINI_TIKV]
    with open(tmp_path / "demo.log", "wb") as log:
        first = subprocess.Popen([*command, "--ready-file", str(ready_file)], stdout=log, stderr=log)
    try:
        wait_until(ready_file.exists, 90, "the cluster")
        held = {path: path.read_bytes() for path in folder.glob("*.ready")}
        assert len(held) >= 5, held
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert second.returncode == 1 and "the folder is in use by another process" in second.stderr, second
        assert str(folder) in second.stderr
        assert {path: path.read_bytes() for path in folder.glob("*.ready")} == held
        assert not [line for path in folder.glob("*.log") for line in path.read_text().splitlines()
                    if "in use" in line or "can't be bound" in line]
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGTERM)
        first.wait(90)
