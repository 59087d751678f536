"""Field reports about topics, schemas, policies and clusters over regions: each test is named by its report."""
import time

import pulsar
import pytest
from pulsar.schema import JsonSchema, Record, String

from backends import backlog, drained, linked
from oracle import Traffic, check, exact
from region import wait_until


def namespace_of(topic):
    return topic.split("://")[1].rsplit("/", 1)[0]


def path_of(topic):
    return topic.replace("://", "/")


def partitions(side, topic):
    """The topic's partition count; `None` while the region does not know the topic."""
    answer = side.admin("GET", f"{path_of(topic)}/partitions", good=(200, 404))
    return answer.json()["partitions"] if answer.status_code == 200 else None


class Order(Record):
    text = String()


def test_b027_a_schema_that_is_enforced_does_not_keep_the_link_out(pair):
    topic = pair.topic()
    for side in pair.sides.values():
        side.admin("POST", f"namespaces/{namespace_of(topic)}/schemaValidationEnforced", True)
    remote, local = pair["east"].client(), pair["west"].client()
    remote.create_producer(topic, schema=JsonSchema(Order)).send(Order(text="east"))
    local.create_producer(topic, schema=JsonSchema(Order)).send(Order(text="west"))
    linked(pair, topic, "west", "east", 10)
    drained(pair, topic, "west", "east", 10)
    reader = remote.create_reader(topic, pulsar.MessageId.earliest, schema=JsonSchema(Order))
    assert sorted(reader.read_next(5000).value().text for _ in range(2)) == ["east", "west"]
    local.close()
    remote.close()


def test_b029_a_partitioned_topic_made_at_first_use_has_the_same_shape_in_the_remote(make_group):
    group = make_group("west", "east", allowAutoTopicCreationType="partitioned", defaultNumPartitions="3")
    group["east"].admin("PUT", "tenants/other", {"adminRoles": [], "allowedClusters": ["west", "east"]}, good=(204, 409))
    topic = group.topic()
    traffic = Traffic(group["west"], topic, "p", batching=False)
    traffic.send(30).flush()
    base = f"persistent/{namespace_of(topic)}"
    wait_until(lambda: partitions(group["east"], topic) == 3, 20, "three partitions")
    for index in range(3):
        drained(group, f"{topic}-partition-{index}", "west", "east", 30)
    traffic.close()
    wait_until(lambda: len(group["east"].get(base)) == 3, 20, "three topics")
    assert sorted(group["east"].get(base)) == [f"{topic}-partition-{index}" for index in range(3)]
    assert group["east"].get(f"{base}/partitioned") == [topic]


def test_b030_replication_of_one_partitioned_topic_makes_its_parent(apart):
    namespace = apart.namespace(["west"])
    apart["east"].admin("PUT", f"namespaces/{namespace}", {"replication_clusters": ["east"]}, good=(204, 409))
    topic = f"persistent://{namespace}/t"
    apart["west"].admin("PUT", f"{path_of(topic)}/partitions", 2)
    apart["west"].admin("POST", f"{path_of(topic)}/replication", ["west", "east"])
    client = apart["east"].client()
    traffic = Traffic(apart["west"], topic, "p", batching=False)
    traffic.send(10).flush()
    wait_until(lambda: partitions(apart["east"], topic) == 2, 20, "the parent in the remote")
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    traffic.send(10).close()
    # Those sent before the subscription was made may be gone there: nothing kept them.
    assert len({consumer.receive(20000).data() for _ in range(10)}) == 10
    client.close()


def test_b032_a_partition_count_that_differs_is_said(apart):
    namespace = apart.namespace(["west"])
    apart["east"].admin("PUT", f"namespaces/{namespace}", {"replication_clusters": ["east"]}, good=(204, 409))
    topic = f"persistent://{namespace}/t"
    Traffic(apart["east"], topic, "plain").send(1).close()
    apart["west"].admin("PUT", f"{path_of(topic)}/partitions", 4)
    Traffic(apart["west"], topic, "p", batching=False).send(8).close()
    answer = apart["west"].admin("POST", f"{path_of(topic)}/replication", ["west", "east"], good=(204, 409, 412))
    if answer.status_code == 204:
        wait_until(lambda: "partition" in apart["west"].link_stats(f"{topic}-partition-0", "east").get("state", ""), 20,
                   "a state that names the partitions")


def test_b033_a_cluster_that_leaves_takes_its_cursors_with_it(make_group):
    group = make_group("west", "east", "north")
    topic = group.topic()
    traffic = Traffic(group["west"], topic, "p", send_timeout_millis=20000)
    traffic.send(10).flush()
    for remote in ("east", "north"):
        linked(group, topic, "west", remote)
    group["north"].kill()
    traffic.send(100).close()
    group["west"].admin("POST", f"namespaces/{namespace_of(topic)}/replication", ["west", "east"])
    group["west"].admin("DELETE", "clusters/north", good=(204, 412))
    group["west"].stop()
    group["west"].start()
    drained(group, topic, "west", "east")
    wait_until(lambda: not any("north" in name for name in group["west"].get(f"{path_of(topic)}/internalStats")["cursors"]),
               20, "the end of the cursor")
    assert "north" not in group["west"].stats(topic).get("replication", {})
    assert exact(check(group["east"], topic, [traffic]))


def test_b035_one_call_ends_replication(pair):
    topic = pair.topic()
    traffic = Traffic(pair["west"], topic, "p")
    traffic.send(10).flush()
    linked(pair, topic, "west", "east")
    drained(pair, topic, "west", "east")
    pair["west"].admin("POST", f"namespaces/{namespace_of(topic)}/replication", ["west"])
    wait_until(lambda: not pair["west"].stats(topic).get("replication"), 20, "the end of the link")
    later = Traffic(pair["west"], topic, "later").send(10).close()
    wait_until(lambda: not any("pulsar.repl" in name for name in pair["west"].get(f"{path_of(topic)}/internalStats")["cursors"]),
               20, "the end of the cursor")
    assert check(pair["east"], topic, [traffic], idle_s=2)["missing"] == 0
    assert check(pair["east"], topic, [later], idle_s=2)["missing"] == 10
    traffic.close()


@pytest.mark.parametrize("limit_bytes", [200_000])
def test_b044_the_limit_of_a_link_holds_when_it_catches_up(pair, limit_bytes):
    topic = pair.topic()
    traffic = Traffic(pair["west"], topic, "p", batching=False, body_bytes=1000)
    traffic.send(10).flush()
    linked(pair, topic, "west", "east")
    for link in pair.between("west", "east"):
        link.cut("reset")
    pair["west"].admin("POST", f"namespaces/{namespace_of(topic)}/replicatorDispatchRate",
                       {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": limit_bytes, "ratePeriodInSecond": 1})
    traffic.send(2000).flush()
    pair.heal()
    link = pair.links["west", "east"]
    wait_until(lambda: backlog(pair, topic, "west", "east") < 1800, 30, "the first copies")
    before, begun = link.forward_bytes(), time.monotonic()
    drained(pair, topic, "west", "east", 60)
    rate = (link.forward_bytes() - before) / (time.monotonic() - begun)
    traffic.close()
    assert 0.6 * limit_bytes < rate < 1.4 * limit_bytes, rate
