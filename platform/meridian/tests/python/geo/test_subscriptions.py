"""Subscriptions and producers that move between regions; tests with a number are named by their field report."""
import time

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from backends import drained, linked
from oracle import Steady, Traffic, parse
from region import wait_until
from scenarios import moving


def path_of(topic):
    return topic.replace("://", "/")


def subscribe(side, topic, kind=ConsumerType.Exclusive, replicated=True, **options):
    client = side.client()
    return client, client.subscribe(topic, "s", kind, initial_position=InitialPosition.Earliest,
                                    replicate_subscription_state_enabled=replicated, **options)


def test_b045_acknowledgements_travel_while_the_consumer_is_behind(pair):
    topic = pair.topic()
    traffic = Traffic(pair["west"], topic, "p", batching=False)
    client, consumer = subscribe(pair["west"], topic)
    traffic.send(10).flush()
    linked(pair, topic, "west", "east")
    acknowledged = {}
    with Steady(traffic, 100):
        for _ in range(60):
            message = consumer.receive(5000)
            consumer.acknowledge(message)
            acknowledged[parse(message.data())] = time.monotonic()
            time.sleep(0.1)
    ended = time.monotonic()
    client.close()
    client, consumer = subscribe(pair["east"], topic)
    again = set(moving.collect(consumer, 3))
    client.close()
    assert not {key for key, at in acknowledged.items() if at < ended - 2} & again


def test_b047_the_last_stretch_is_brought_over_when_traffic_stops(pair):
    result = moving.acked_to_the_end(pair, messages=500, seconds=10)
    assert result["left_in_remote"] == 0, result


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared])
def test_b048_a_consumer_that_moves_sees_nothing_old(pair, kind):
    topic = pair.topic()
    traffic = Traffic(pair["west"], topic, "p", batching=False)
    client, consumer = subscribe(pair["west"], topic, kind)
    for number in range(100):
        traffic.send(1, partition_key=str(number % 7))
    traffic.flush()
    for _ in range(100):
        consumer.acknowledge(consumer.receive(10000))
    linked(pair, topic, "west", "east")
    drained(pair, topic, "west", "east")
    wait_until(lambda: pair["east"].stats(topic)["subscriptions"].get("s", {}).get("msgBacklog") == 0, 20, "no backlog in east")
    client.close()
    client, consumer = subscribe(pair["east"], topic, kind)
    assert moving.collect(consumer, 1) == []
    client.close()


def test_b051_no_messages_and_no_consumer_leave_no_backlog(pair):
    topic = pair.topic()
    traffic = Traffic(pair["west"], topic, "p", batching=False)
    client, consumer = subscribe(pair["west"], topic)
    traffic.send(20).flush()
    linked(pair, topic, "west", "east")
    for _ in range(10):
        consumer.acknowledge(consumer.receive(10000))
    client.close()
    traffic.close()
    time.sleep(3)
    before = pair["west"].stats(topic)["subscriptions"]["s"]
    time.sleep(5)
    after = pair["west"].stats(topic)["subscriptions"]["s"]
    assert (before["msgBacklog"], after["msgBacklog"]) == (10, 10)


def test_b053_b054_a_replicated_subscription_made_by_the_admin_is_one_on_every_partition(pair):
    namespace = pair.namespace()
    topic = f"persistent://{namespace}/t"
    pair["west"].admin("PUT", f"{path_of(topic)}/partitions", 2)
    pair["west"].admin("PUT", f"{path_of(topic)}/subscription/s?replicated=true")
    pair["west"].admin("POST", f"{path_of(topic)}/partitions", 3)
    status = pair["west"].get(f"{path_of(topic)}/subscription/s/replicatedSubscriptionStatus")
    assert len(status) == 3 and all(status.values()), status


@pytest.mark.parametrize("batch", [1, 10])
def test_b056_only_what_was_not_acknowledged_is_delivered_after_a_move(pair, batch):
    result = moving.holes(pair, messages=600, batch=batch, settle_s=3)
    assert result["redelivered"] == 0 and result["lost"] == 0 and result["delivered"] == result["unacknowledged"], result


def test_acknowledgements_travel_while_a_third_region_is_away(make_group):
    group = make_group("west", "east", "north")
    result = moving.holes(group, messages=400, cut_third="north", settle_s=3)
    assert result["redelivered"] == 0 and result["lost"] == 0, result


def test_a_consumer_that_moves_under_load_meets_nothing_that_it_acknowledged(pair):
    result = moving.moved_under_load(pair, seconds=5, settle_s=1.0)
    assert result["redelivered_settled"] == 0, result


def test_a_producer_that_moves_and_sends_again_is_stored_once(pair):
    result = moving.resend(pair, messages=200)
    assert (result["twice_in_west"], result["twice_in_east"], result["missing"]) == (0, 0, 0), result


def test_by_default_equal_names_in_two_regions_are_two_producers(pair):
    result = moving.resend(pair, messages=50, global_producers=False)
    assert result["missing"] == 0 and result["twice_in_west"] == result["twice_in_east"] == 50, result
