"""Field reports about a stream that stops: each test is named by its report."""
import time

import pytest
from pulsar import ConsumerType, InitialPosition

from backends import backlog, drained, linked
from oracle import Traffic, check, exact
from region import wait_until
from scenarios import delivery


def refused_by_quota(apart, policy):
    """A topic whose remote refuses publishes because its backlog quota is full; its namespace, its traffic, and the
    subscription that holds the backlog there."""
    topic = apart.topic(dedup=True, retention=False)
    namespace = topic.split("://")[1].rsplit("/", 1)[0]
    client = apart["east"].client()
    consumer = client.subscribe(topic, "unread", ConsumerType.Shared, initial_position=InitialPosition.Earliest,
                                receiver_queue_size=1)
    keep = apart["east"].client()
    keep.subscribe(topic, "keep", initial_position=InitialPosition.Earliest, receiver_queue_size=1)
    keep.close()
    traffic = Traffic(apart["west"], topic, "p", batching=False, body_bytes=400)
    traffic.send(10).flush()
    linked(apart, topic, "west", "east")
    drained(apart, topic, "west", "east")
    set_quota(apart, namespace, 1000, policy)
    # The quota is looked at every second; what is sent until it holds is copied.
    deadline = time.monotonic() + 30
    while backlog(apart, topic, "west", "east") == 0:
        assert time.monotonic() < deadline, "the remote never refused"
        traffic.send(1).flush()
        time.sleep(0.2)
    traffic.send(10).flush()
    assert backlog(apart, topic, "west", "east") > 0
    return topic, namespace, traffic, client, consumer


def set_quota(apart, namespace, limit, policy):
    apart["east"].admin("POST", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=destination_storage",
                       {"limitSize": limit, "limit": limit, "policy": policy})


def test_b002_a_refused_publish_is_sent_again_once_the_quota_is_raised(apart):
    topic, namespace, traffic, client, _ = refused_by_quota(apart, "producer_exception")
    set_quota(apart, namespace, 10_000_000, "producer_exception")
    drained(apart, topic, "west", "east", 40)
    client.close()
    assert exact(check(apart["east"], topic, [traffic]))


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
def test_b003_replication_resumes_when_the_remotes_consumers_make_room(apart, policy):
    topic, namespace, traffic, client, consumer = refused_by_quota(apart, policy)
    # Room by consuming: both subscriptions, so that nothing holds the quota.
    other = client.subscribe(topic, "keep", initial_position=InitialPosition.Earliest)
    seen = {"unread": set(), "keep": set()}
    deadline = time.monotonic() + 40
    while min(len(found) for found in seen.values()) < len(traffic.confirmed):
        assert time.monotonic() < deadline, (len(traffic.confirmed), {key: len(found) for key, found in seen.items()})
        for name, taker in (("unread", consumer), ("keep", other)):
            try:
                message = taker.receive(100)
            except Exception:  # nothing there yet
                continue
            taker.acknowledge(message)
            assert message.data() not in seen[name]
            seen[name].add(message.data())
    drained(apart, topic, "west", "east", 10)
    client.close()


def test_b005_a_flapping_link_loses_and_doubles_nothing(pair):
    result = delivery.flapping(pair, messages=6000, per_second=1000)
    assert exact(result) and result["cuts"] >= 3 and result["drain_s"] < 30, result


def test_b006_markers_between_messages_do_not_stop_a_flapping_link(pair):
    result = delivery.flapping_with_markers(pair, seconds=8)
    assert exact(result) and result["drain_s"] < 30, result


def test_b008_an_unload_while_the_link_is_cut_leaves_replication_running(pair):
    topic = pair.topic()
    traffic = Traffic(pair["west"], topic, "p")
    traffic.send(10).flush()
    linked(pair, topic, "west", "east")
    for link in pair.between("west", "east"):
        link.cut("silent")
    traffic.send(100).flush()
    pair["west"].admin("PUT", f"{topic.replace('://', '/')}/unload")
    traffic.send(100).flush()
    pair.heal()
    drained(pair, topic, "west", "east", 60)
    assert exact(check(pair["east"], topic, [traffic]))


def test_b009_a_topic_that_replicates_is_not_idle(make_group):
    group = make_group("west", "east", brokerDeleteInactiveTopicsEnabled="true", brokerDeleteInactiveTopicsFrequencySeconds="1",
                       brokerDeleteInactiveTopicsMaxInactiveDurationSeconds="2")
    topic = group.topic()
    traffic = Traffic(group["west"], topic, "west")
    traffic.send(10).flush()
    linked(group, topic, "west", "east")
    back = Traffic(group["east"], topic, "east")
    back.send(10).flush()
    back.close()
    linked(group, topic, "east", "west")
    # No client is left in east, for several rounds of the clean-up.
    until = time.monotonic() + 8
    while time.monotonic() < until:
        traffic.send(5).flush()
        time.sleep(0.5)
    assert topic in group["east"].get(f"persistent/{topic.split('://')[1].rsplit('/', 1)[0]}")
    drained(group, topic, "east", "west", 20)
    again = Traffic(group["east"], topic, "again")
    again.send(1).flush()
    assert exact(check(group["west"], topic, [traffic, back, again]))
    assert exact(check(group["east"], topic, [traffic, back, again]))


def test_b011_a_silent_link_is_said_to_make_no_progress_and_recovers_alone(pair):
    topic = pair.topic()
    traffic = Traffic(pair["west"], topic, "p")
    traffic.send(10).flush()
    linked(pair, topic, "west", "east")
    drained(pair, topic, "west", "east")
    for link in pair.between("west", "east"):
        link.cut("silent")
    traffic.send(100).flush()
    states = wait_until(lambda: [state for state in [pair["west"].link_stats(topic, "east").get("state", "")]
                                 if "stalled" in state or "disconnected" in state], 30, "a state that tells")
    assert states
    pair.heal()
    drained(pair, topic, "west", "east", 60)
    assert pair["west"].link_stats(topic, "east")["state"] == "running"
    assert exact(check(pair["east"], topic, [traffic]))
