"""Two regions, each of two brokers, three bookies and a metadata store: what one broker hears concerns topics of the other.

All tests of this folder run against such regions with MERIDIAN_REGION=cluster.
"""
import json
import subprocess

import pytest
import requests
from pulsar import ConsumerType, InitialPosition

from backends import Group, drained, linked
from oracle import Traffic, check, exact, read_all
from region import BINARY, wait_until
from scenarios import moving

# So many that their bundles are over both brokers.
TOPICS = 12


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    group = Group(tmp_path_factory.mktemp("clusters"), {"west": "cluster", "east": "cluster"}).start()
    yield group
    group.close()


def spread_topics(group, **policies):
    """Topics of one namespace; both brokers of both regions serve some of them."""
    topics = [f"persistent://{group.namespace(**policies)}/t{number}" for number in range(TOPICS)]
    traffics = [Traffic(group["west"], topic, "p", batching=False).send(10).flush() for topic in topics]
    for topic in topics:
        linked(group, topic, "west", "east")
        drained(group, topic, "west", "east")
    for side in group.sides.values():
        owners = {requests.get(f"{side.web}/lookup/v2/topic/{topic.replace('://', '/')}", timeout=20).json()["brokerUrl"]
                  for topic in topics}
        assert len(owners) == 2, (side.name, owners)
    return topics, traffics


def test_acknowledgements_reach_the_broker_that_serves_the_topic(clusters):
    topics, traffics = spread_topics(clusters)
    client = clusters["west"].client()
    for topic in topics:
        consumer = client.subscribe(topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest,
                                    replicate_subscription_state_enabled=True)
        for _ in range(10):
            consumer.acknowledge(consumer.receive(10000))
    for topic in topics:
        wait_until(lambda: clusters["east"].stats(topic)["subscriptions"].get("s", {}).get("msgBacklog") == 0, 30,
                   f"no backlog of {topic} in east")
    client.close()
    moved = clusters["east"].client()
    for topic in topics:
        consumer = moved.subscribe(topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        assert moving.collect(consumer, 0.5) == [], topic
    moved.close()
    for topic, traffic in zip(topics, traffics):
        traffic.close()
        assert exact(check(clusters["east"], topic, [traffic]))


def test_a_planned_switch_holds_publishes_at_every_broker(clusters):
    topics, traffics = spread_topics(clusters)
    namespace = topics[0].split("://")[1].rsplit("/", 1)[0]
    cli = lambda *arguments: subprocess.run([BINARY, "admin", "--url", clusters["west"].web, "failover", *arguments],
                                            capture_output=True, text=True, timeout=90)
    enabled = cli("enable", namespace, "--active", "west")
    assert enabled.returncode == 0, enabled.stderr
    active = lambda region: clusters[region].admin("GET", f"meridian/failover/{namespace}", good=(200, 404)).json().get("active")
    wait_until(lambda: active("east") == "west", 20, "east knows who is active")
    # Sent while it is switched: held, then refused here and stored there.
    for number in range(2000):
        traffics[number % TOPICS].send(1)
        if number == 1000:
            switched = None
            for _ in range(5):
                switched = cli("switch", namespace, "--to", "east")
                if switched.returncode == 0:
                    break
            assert switched.returncode == 0, switched.stderr
            account = json.loads(switched.stdout)[0]["account"]
            assert account["heldMs"] < 12_000, account
    for traffic in traffics:
        traffic.close()
    for topic, traffic in zip(topics, traffics):
        wanted = {("p", number) for number in traffic.confirmed}
        found = read_all(clusters["east"], topic, wanted)
        assert wanted <= set(found) and len(found) == len(set(found)), topic
