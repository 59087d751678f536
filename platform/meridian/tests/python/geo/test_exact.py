"""Field reports about lost, doubled or reordered copies: each test is named by its report."""
import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from backends import backlog, drained, linked
from links import Flapping
from oracle import Traffic, check, exact, read_all
from region import wait_until
from scenarios import delivery


class Narrow(Record):
    _avro_namespace = "test"
    number = Integer(required=True)


class Wide(Record):
    _avro_namespace = "test"
    number = Integer(required=True)
    text = String(default="")


def namespace_of(topic):
    return topic.split("://")[1].rsplit("/", 1)[0]


def numbers(side, topic, schema=Narrow):
    """The field `number` of every record of a topic."""
    client = side.client()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(schema))
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(5000).value().number)
    client.close()
    return found


def one_name(pair):
    """Records of both schemas have one name, as versions of one record do."""
    Narrow.__name__ = Wide.__name__ = "Order"
    topic = pair.topic()
    for side in pair.sides.values():
        side.admin("PUT", f"namespaces/{namespace_of(topic)}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    return topic


def test_b012_single_refused_messages_are_not_lost_behind_later_ones(apart):
    result = delivery.refused(apart, messages=1500)
    assert result["said"] and exact(result) and not result["stuck"], result


def test_b014_schemas_that_alternate_keep_their_order(pair):
    topic = one_name(pair)
    client = pair["west"].client()
    producers = [client.create_producer(topic, schema=AvroSchema(kind), producer_name=kind.__qualname__)
                 for kind in (Narrow, Wide)]
    producers[0].send(Narrow(number=0))
    linked(pair, topic, "west", "east")
    with Flapping(pair.between("west", "east")):
        for number in range(1, 400):
            producers[number % 2].send((Narrow, Wide)[number % 2](number=number))
    client.close()
    drained(pair, topic, "west", "east", 60)
    assert numbers(pair["east"], topic) == list(range(400))


def test_b015_a_refused_schema_stops_the_link_with_its_name_and_drops_nothing(apart):
    topic = one_name(apart)
    path = f"namespaces/{namespace_of(topic)}/isAllowAutoUpdateSchema?allowAutoUpdateSchemaWithReplicator="
    client = apart["west"].client()
    narrow = client.create_producer(topic, schema=AvroSchema(Narrow))
    narrow.send(Narrow(number=0))
    linked(apart, topic, "west", "east")
    drained(apart, topic, "west", "east")
    apart["east"].admin("POST", f"{path}false", False)
    wide = client.create_producer(topic, schema=AvroSchema(Wide))
    wide.send(Wide(number=1))
    narrow.send(Narrow(number=2))
    wait_until(lambda: "schema" in apart["west"].link_stats(topic, "east").get("state", ""), 20, "a state that names the schema")
    assert backlog(apart, topic, "west", "east") == 2
    apart["east"].admin("POST", f"{path}true", True)
    drained(apart, topic, "west", "east", 40)
    client.close()
    assert numbers(apart["east"], topic) == [0, 1, 2]


@pytest.mark.parametrize("end", ["unload", "kill"])
def test_b017_replication_of_one_topic_keeps_its_backlog(make_group, end):
    group = make_group("west", "east")
    namespace = group.namespace(["west"])
    group["east"].admin("PUT", f"namespaces/{namespace}", {"replication_clusters": ["east"]}, good=(204, 409))
    topic = f"persistent://{namespace}/t"
    traffic = Traffic(group["west"], topic, "p", send_timeout_millis=20000)
    traffic.send(10).flush()
    group["west"].admin("POST", f"{topic.replace('://', '/')}/replication", ["west", "east"])
    linked(group, topic, "west", "east")
    for link in group.between("west", "east"):
        link.cut("reset")
    traffic.send(2000).flush()
    traffic.close()
    if end == "unload":
        group["west"].admin("PUT", f"{topic.replace('://', '/')}/unload")
    else:
        group["west"].kill()
        group["west"].start()
    group.heal()
    drained(group, topic, "west", "east", 60)
    # The first ten were there before the topic was replicated: they are copied or not, as `replicationStartAt` says.
    seen = {number for _, number in read_all(group["east"], topic, {("p", number) for number in range(10, 2010)})}
    assert set(range(10, 2010)) <= seen


def test_b018_what_its_ttl_takes_before_it_was_copied_is_counted(pair):
    result = delivery.expired_before_copy(pair, messages=300, ttl_s=2, wait_s=4)
    assert result["missing"] == result["counted"] == 300, result


def test_b020_a_lost_region_misses_no_more_than_it_had_reported(make_group):
    group = make_group("west", "east")
    result = delivery.region_killed(group, seconds=4, per_second=300)
    # The report is at most a fifth of a second old.
    assert result["missing_while_down"] <= result["reported_backlog"] + 300, result
    assert exact(result), result


def test_b021_a_topic_made_anew_is_copied_from_its_beginning(pair):
    topic = pair.topic()
    first = Traffic(pair["west"], topic, "first")
    first.send(200).close()
    linked(pair, topic, "west", "east")
    drained(pair, topic, "west", "east")
    pair["west"].admin("DELETE", f"{topic.replace('://', '/')}?force=true")
    again = Traffic(pair["west"], topic, "again")
    again.send(100).flush()
    linked(pair, topic, "west", "east")
    drained(pair, topic, "west", "east")
    again.close()
    assert check(pair["east"], topic, [again])["missing"] == 0


@pytest.mark.parametrize("start, copied", [("earliest", 100), ("latest", 0)])
def test_b023_b036_a_new_remote_starts_where_it_is_told(make_group, start, copied):
    group = make_group("west", "east", replicationStartAt=start)
    namespace = group.namespace(["west"])
    group["east"].admin("PUT", f"namespaces/{namespace}", {"replication_clusters": ["east"]}, good=(204, 409))
    group["east"].admin("POST", f"namespaces/{namespace}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    topic = f"persistent://{namespace}/t"
    fresh = Traffic(group["east"], topic, "fresh").send(50).close()
    old = Traffic(group["west"], topic, "old").send(100).close()
    group["west"].admin("POST", f"namespaces/{namespace}/replication", ["west", "east"])
    linked(group, topic, "west", "east")
    new = Traffic(group["west"], topic, "new").send(10).close()
    drained(group, topic, "west", "east")
    seen = read_all(group["east"], topic, {("new", number) for number in range(10)})
    assert {name: sum(1 for found, _ in seen if found == name) for name in ("fresh", "old", "new")} == \
        {"fresh": 50, "old": copied, "new": 10}
    assert fresh.refused == old.refused == new.refused == []


def test_b024_both_sides_converge_after_a_partition_and_restarts(make_group):
    group = make_group("west", "east")
    topic = group.topic()
    traffics = [Traffic(group[name], topic, name, send_timeout_millis=20000) for name in ("west", "east")]
    for traffic in traffics:
        traffic.send(10).flush()
    linked(group, topic, "west", "east")
    linked(group, topic, "east", "west")
    for link in group.between("west", "east"):
        link.cut("silent")
    for traffic in traffics:
        traffic.send(500).close()
    group["west"].stop()
    group["west"].start()
    group["east"].kill()
    group["east"].start()
    group.heal()
    for source, target in (("west", "east"), ("east", "west")):
        linked(group, topic, source, target, 60)
        drained(group, topic, source, target, 60)
    for side in group.sides.values():
        assert exact(check(side, topic, traffics)), side.name
