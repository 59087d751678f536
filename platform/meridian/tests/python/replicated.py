"""Two regions as processes that replicate to each other, as tests use them: fixtures and what is asked of links."""
import itertools

import pulsar
import pytest
import requests

from region import Region

COUNTER = itertools.count()
SETTINGS = {"replicationStartAt": "latest", "diskUsageThreshold": 0.99, "diskUsageLwmThreshold": 0.98, "backlogQuotaCheckIntervalInSeconds": 1}


class Pair:
    """`west` and `east`, registered with each other; namespace `geo/both` is in both."""

    def __init__(self, folder, **settings):
        self.west = Region(folder / "west", clusterName="west", **{**SETTINGS, **settings})
        self.east = Region(folder / "east", clusterName="east", **{**SETTINGS, **settings})
        for region in (self.west, self.east):
            region.start()
        self.register()
        for region in (self.west, self.east):
            region.put("tenants/geo", {"allowedClusters": ["west", "east"]})
            region.put("namespaces/geo/both", {"replication_clusters": ["west", "east"]})
            region.put("namespaces/geo/later", {"replication_clusters": [region.settings["clusterName"]]})

    def register(self):
        for region, name, other in ((self.west, "east", self.east), (self.east, "west", self.west)):
            region.put(f"clusters/{name}", {
                "serviceUrl": f"http://localhost:{other.ready['web_port']}",
                "brokerServiceUrl": f"pulsar://localhost:{other.ready['binary_port']}",
            })

    def close(self):
        for region in (self.west, self.east):
            region.close()


def admin(region, method, path, body=None, expect=(200, 204)):
    answer = requests.request(method, f"http://localhost:{region.ready['web_port']}/admin/v2/{path}", json=body, timeout=30)
    assert answer.status_code in expect, f"{method} {path}: {answer.status_code} {answer.text}"
    return answer


Region.put = lambda self, path, body: admin(self, "PUT", path, body)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    pair = Pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.close()


@pytest.fixture
def make_pair(tmp_path):
    made = []

    def make(**settings):
        made.append(Pair(tmp_path, **settings))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


@pytest.fixture
def clients(pair):
    clients = pair.west.client(), pair.east.client()
    yield clients
    for client in clients:
        client.close()


def path_of(topic):
    return topic.replace("://", "/")


def new_topic(namespace="geo/both"):
    return f"persistent://{namespace}/t{next(COUNTER)}"


def link(region, topic, remote):
    return admin(region, "GET", f"{path_of(topic)}/stats").json()["replication"].get(remote, {})


def copied(region, topic, remote):
    stats = link(region, topic, remote)
    return stats.get("connected") and stats["replicationBacklog"] == 0


def receive(consumer, count, seconds=20):
    """Exactly `count` messages; none comes behind them."""
    got = []
    for _ in range(count):
        message = consumer.receive(int(seconds * 1000))
        got.append(message)
        consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        message = consumer.receive(300)
        got.append(message)
    return got


def texts(messages):
    return [message.data().decode() for message in messages]


def subscribe(client, topic, name="s", **options):
    return client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest, **options)


def connected(region, topic, remote):
    return link(region, topic, remote).get("connected")
