"""Namespaces that are active in one of two regions: switched as planned, by force, and back, with the stock client."""
import json
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest

from cluster import ClusterRegion
from region import BINARY, Region, wait_until

# MERIDIAN_REGION=cluster: each region is two brokers and three bookies.
KIND = ClusterRegion if os.environ.get("MERIDIAN_REGION") == "cluster" else Region

SETTINGS = {"diskUsageThreshold": 0.99, "diskUsageLwmThreshold": 0.98}
ROUNDS = int(os.environ.get("SWITCH_ROUNDS", "4"))
FAILOVER = "/admin/v2/meridian/failover"


class Pair:
    """`west` and `east` with a region link; namespace `geo/orders` is in both, and `west` is active."""

    def __init__(self, folder, west=KIND, **settings):
        self.west = west(folder / "west", clusterName="west", **SETTINGS, **settings)
        self.east = KIND(folder / "east", clusterName="east", **SETTINGS, **settings)
        self.regions = {"west": self.west, "east": self.east}
        for region in self.regions.values():
            region.start()
        for name, region in self.regions.items():
            for other, peer in self.regions.items():
                if other != name:
                    self.put(region, f"clusters/{other}", {
                        "serviceUrl": peer.web,
                        "brokerServiceUrl": peer.url,
                        "regionLinkUrl": f"http://localhost:{peer.ready['region_link_port']}",
                    })
        self.put(self.west, "tenants/geo", {"allowedClusters": ["west", "east"]})
        self.put(self.west, "namespaces/geo/orders", {"replication_clusters": ["west", "east"]})
        wait_until(lambda: self.east.admin("GET", "/admin/v2/namespaces/geo/orders").status_code == 200, 20, "the namespace in east")
        self.cli(self.west, "enable", "geo/orders", "--active", "west")
        wait_until(lambda: self.active(self.east) == "west", 20, "east knows who is active")

    def put(self, region, path, body):
        answer = region.admin("PUT", f"/admin/v2/{path}", json=body)
        assert answer.status_code in (200, 204, 409), (path, answer.status_code, answer.text)

    def active(self, region):
        answer = region.admin("GET", f"{FAILOVER}/geo/orders")
        return answer.json()["active"] if answer.status_code == 200 else None

    def cli(self, region, *arguments, ok=True):
        """`meridian admin failover …`, as an operator types it."""
        command = [BINARY, "admin", "--url", region.web, "failover", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert (done.returncode == 0) == ok, (arguments, done.stdout, done.stderr)
        assert ok or arguments[0] == "plan" or not done.stdout, f"beside an error: {done.stdout}"
        return done.stdout if ok else done.stdout + done.stderr

    def close(self):
        for region in self.regions.values():
            region.close()


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    yield pair
    pair.close()


class Traffic:
    """A producer that sends again what was not acked, and a consumer that acks: what was acked, what was seen."""

    def __init__(self, region, topic, subscription="s"):
        self.client = region.client(operation_timeout_seconds=30)
        self.producer = self.client.create_producer(topic, send_timeout_millis=0, batching_enabled=False)
        self.consumer = self.client.subscribe(topic, subscription, pulsar.ConsumerType.Shared,
                                              initial_position=pulsar.InitialPosition.Earliest,
                                              replicate_subscription_state_enabled=True)
        self.sent, self.acked, self.seen, self.errors = 0, [], [], []
        self.gaps, self.stopping, self.last = [], threading.Event(), time.monotonic()
        self.threads = [threading.Thread(target=self.send), threading.Thread(target=self.receive)]
        for thread in self.threads:
            thread.start()

    def send(self):
        while not self.stopping.is_set():
            text = str(self.sent)
            begun = time.monotonic()
            try:
                self.producer.send(text.encode())
            except Exception as error:  # the test looks at them
                self.errors.append(error)
                continue
            self.gaps.append(time.monotonic() - begun)
            self.acked.append(text)
            self.sent += 1
            time.sleep(0.002)

    def receive(self):
        idle = 0
        while not (self.stopping.is_set() and idle > 10):
            try:
                message = self.consumer.receive(200)
            except pulsar.Timeout:
                idle += 1
                continue
            idle = 0
            self.seen.append(message.data().decode())
            self.consumer.acknowledge(message)

    def finish(self, quiet=True):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        self.client.close()


def test_a_planned_switch_and_the_way_back_lose_and_double_nothing(pair):
    topic = "persistent://geo/orders/planned"
    traffic = Traffic(pair.west, topic)
    wait_until(lambda: traffic.sent > 50, 20, "traffic")
    holds = []
    for round_ in range(ROUNDS):
        to = ("east", "west")[round_ % 2]
        # Right after a switch the links are being opened anew, and the plan says so.
        ready = lambda: subprocess.run([BINARY, "admin", "--url", pair.west.web, "failover", "plan", "geo/orders", "--to", to],
                                       capture_output=True, text=True, timeout=30)
        wait_until(lambda: (plan := ready()).returncode == 0 and f"hand over: {to} is active" in plan.stdout, 20, "nothing in the way")
        before = traffic.sent
        account = json.loads(pair.cli(pair.west, "switch", "geo/orders", "--to", to))[0]["account"]
        holds.append(account["heldMs"])
        assert pair.active(pair.west) == pair.active(pair.east) == to
        wait_until(lambda: traffic.sent > before + 50, 40, f"traffic after the switch to {to}")
    traffic.finish()
    assert sorted(traffic.seen, key=int) == sorted(traffic.acked, key=int), "lost or doubled"
    print("held ms:", holds, "longest send s:", round(max(traffic.gaps), 3))


def test_a_planned_switch_after_the_other_region_acknowledged_the_rest(pair):
    pair.put(pair.west, "namespaces/geo/moved", {"replication_clusters": ["west", "east"]})
    wait_until(lambda: pair.east.admin("GET", "/admin/v2/namespaces/geo/moved").status_code == 200, 20, "the namespace in east")
    topic = "persistent://geo/moved/orders"
    options = dict(consumer_type=pulsar.ConsumerType.Shared, replicate_subscription_state_enabled=True)
    west = pair.west.client()
    consumer = west.subscribe(topic, "s", **options)
    producer = west.create_producer(topic, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    for number in range(10):
        message = consumer.receive(10_000)
        if number not in (3, 7):
            consumer.acknowledge(message)
    peers = lambda: pair.west.get("/admin/v2/persistent/geo/moved/orders/stats")["subscriptions"]["s"]["sharedAcks"]["peers"]
    in_east = lambda: pair.east.admin("GET", "/admin/v2/persistent/geo/moved/orders/stats").json().get("subscriptions", {}).get("s", {})
    wait_until(lambda: in_east().get("msgBacklog") == 2, 20, "east knows what is acknowledged")
    west.close()
    east = pair.east.client()
    consumer = east.subscribe(topic, "s", **options)
    rest = [consumer.receive(10_000) for _ in range(2)]
    assert [message.data() for message in rest] == [b"3", b"7"]
    for message in rest:
        consumer.acknowledge(message)
    wait_until(lambda: [peer["entriesNotConfirmed"] for peer in peers()] == [0], 20, "west knows that east has them all")
    east.close()
    pair.cli(pair.west, "enable", "geo/moved", "--active", "west")
    active = lambda region: region.admin("GET", f"{FAILOVER}/geo/moved")
    wait_until(lambda: active(pair.east).status_code == 200 and active(pair.east).json()["active"] == "west", 20, "east knows who is active")
    plan = lambda: subprocess.run([BINARY, "admin", "--url", pair.west.web, "failover", "plan", "geo/moved", "--to", "east"],
                                  capture_output=True, text=True, timeout=30)
    wait_until(lambda: (now := plan()).returncode == 0 and "hand over: east is active" in now.stdout, 20, "nothing in the way")
    account = json.loads(pair.cli(pair.west, "switch", "geo/moved", "--to", "east"))[0]["account"]
    assert account["heldMs"] < 5000 and active(pair.west).json()["active"] == "east"


def test_clients_that_come_later_are_sent_to_the_active_region(pair):
    topic = "persistent://geo/orders/later"
    with_east = pair.east.client()
    producer = with_east.create_producer(topic)
    producer.send(b"asked in east, stored in west")
    consumer = with_east.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert consumer.receive(10_000).data() == b"asked in east, stored in west"
    stats = pair.west.get("/admin/v2/persistent/geo/orders/later/stats")
    assert len(stats["publishers"]) == 1 and len(stats["subscriptions"]["s"]["consumers"]) == 1
    answer = pair.east.admin("GET", "/meridian/controlled-failover/geo/orders")
    assert answer.json() == {"serviceUrl": pair.west.url}
    with_east.close()


def test_what_is_not_there_is_not_found(pair):
    assert pair.east.admin("GET", "/meridian/controlled-failover/geo/nowhere").status_code == 404
    tail = {"topic": "persistent://geo/orders/later", "epoch": "9-0000002a"}
    for what in ("replay", "drop"):
        answer = pair.west.admin("POST", f"/admin/v2/meridian/failover/geo/orders/tails/{what}", json=tail)
        assert answer.status_code == 404 and answer.json()["reason"], answer.text


def test_links_of_a_namespace_with_an_active_region_stay_open(pair):
    topic = "persistent://geo/orders/steady"
    client = pair.west.client()
    client.create_producer(topic).send(b"x")
    state = lambda: pair.west.get("/admin/v2/persistent/geo/orders/steady/stats")["replication"]["east"]
    wait_until(lambda: state()["connected"], 20, "the link")
    since = state()["outboundConnectedSince"]
    # Three rounds in which the regions tell each other who is active.
    time.sleep(7)
    assert state()["state"] == "running" and state()["outboundConnectedSince"] == since
    client.close()


def test_a_forced_switch_keeps_the_tail_of_the_old_region(pair):
    topic = "persistent://geo/orders/forced"
    west = pair.west.client()
    producer = west.create_producer(topic)
    for i in range(20):
        producer.send(f"both-{i}".encode())
    backlog = lambda: pair.west.get("/admin/v2/persistent/geo/orders/forced/stats")["replication"]["east"]["replicationBacklog"]
    wait_until(lambda: backlog() == 0, 20, "the copy in east")
    # East is away: what follows stays in west alone.
    pair.east.kill()
    for i in range(5):
        producer.send(f"tail-{i}".encode())
    west.close()
    pair.west.kill()
    pair.east.start()
    refused = pair.cli(pair.east, "switch", "geo/orders", "--to", "east", ok=False)
    assert "west can't be reached" in refused, refused
    pair.cli(pair.east, "switch", "geo/orders", "--to", "east", "--force")
    east = pair.east.client()
    producer = east.create_producer(topic)
    producer.send(b"new-0")
    assert "west can't be reached" in pair.cli(pair.east, "settle", "geo/orders", ok=False)

    pair.west.start()
    settled = lambda: (found := pair.east.admin("GET", f"{FAILOVER}/geo/orders/settlement")).status_code == 200 and found.json()
    wait_until(lambda: settled() and settled()["settled"], 40, "west is back and its tail set aside")
    account = json.loads(pair.cli(pair.east, "settle", "geo/orders"))
    assert account["missing"] == 5 and account["dealtWith"] == 0 and account["open"] == [topic], account
    producer.send(b"new-1")
    consumer = east.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    texts = [consumer.receive(10_000).data().decode() for _ in range(22)]
    assert texts == [f"both-{i}" for i in range(20)] + ["new-0", "new-1"], "the tail is not mixed in"

    tails = json.loads(pair.cli(pair.west, "tails", "list", "geo/orders"))
    assert [tail["entries"] for tail in tails] == [5]
    pair.cli(pair.west, "tails", "replay", "geo/orders", "--topic", topic, "--epoch", tails[0]["epoch"])
    replayed = [consumer.receive(10_000) for _ in range(5)]
    assert [message.data().decode() for message in replayed] == [f"tail-{i}" for i in range(5)]
    assert all(message.properties()["meridian.tail.region"] == "west" for message in replayed)
    account = json.loads(pair.cli(pair.east, "settle", "geo/orders"))
    assert account["dealtWith"] == 5 and account["open"] == [], account
    assert "already" in pair.cli(pair.west, "tails", "replay", "geo/orders", "--topic", topic, "--epoch", tails[0]["epoch"], ok=False)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    east.close()
    # Fail-back is the same operation.
    pair.cli(pair.east, "switch", "geo/orders", "--to", "west")
    assert pair.active(pair.west) == "west"


def test_what_nobody_knows_of_a_switch_is_not_called_nothing(pair):
    pair.west.kill()
    # What it heard before is forgotten.
    pair.east.stop()
    pair.east.start()
    report = json.loads(pair.cli(pair.east, "cost", "geo/orders", "--to", "east"))
    assert report["missing"] is None and report["again"] is None and report["exact"] is False, report
    assert "region west does not answer" in report["unknown"][0] and report["blockers"] == report["unknown"], report
    plan = pair.cli(pair.east, "plan", "geo/orders", "--to", "east", ok=False)
    assert "drain an unknown number of messages and an unknown number of acknowledgements" in plan, plan
    assert "! region west does not answer" in plan and "heard last" not in plan, plan
    refused = pair.cli(pair.east, "switch", "geo/orders", "--to", "east", ok=False)
    assert "geo/orders" in refused and "west" in refused and refused.count("\n") == 1, refused
    settled = pair.cli(pair.east, "settle", "geo/orders")
    assert json.loads(settled)["missing"] == 0, "no switch was forced"


def test_a_switch_right_behind_the_policies_waits_until_they_have_arrived(pair):
    """The other region's copy of the policies comes behind the calls that make them; nobody is told of trouble for it."""
    def at_once(name):
        calls = [("PUT", f"/admin/v2/namespaces/{name}", {"replication_clusters": ["west", "east"]}),
                 ("PUT", f"{FAILOVER}/{name}", {"active": "west"}),
                 ("POST", f"{FAILOVER}/{name}/switch", {"to": "east"})]
        answers = [pair.west.admin(method, path, json=body) for method, path, body in calls]
        return [(name, answer.status_code, answer.text) for answer in answers if answer.status_code not in (200, 204)]

    names = [f"geo/fresh{i}" for i in range(160)]
    for some in (names[at:at + 8] for at in range(0, len(names), 8)):
        with ThreadPoolExecutor(len(some)) as pool:
            assert [refused for one in pool.map(at_once, some) for refused in one] == []
    for name in names:
        for region in pair.regions.values():
            assert region.admin("GET", f"{FAILOVER}/{name}").json()["active"] == "east", name
