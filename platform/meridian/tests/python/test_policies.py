"""Policies and live settings as the stock client and the REST API meet them."""
import threading
import time

import pulsar
import pytest

from region import wait_until


def path(topic, rest):
    return topic.replace("persistent://", "/admin/v2/persistent/") + rest


def set_policy(region, where, value):
    answer = region.admin("POST", where, json=value)
    assert answer.status_code in (200, 204), answer.text


def test_a_publish_rate_slows_its_topic_and_no_other(region, client, topic):
    slow = client.create_producer(topic, batching_enabled=False, send_timeout_millis=60000)
    quick = client.create_producer(topic + "-quick", batching_enabled=False)
    set_policy(region, path(topic, "/publishRate"), {"publishThrottlingRateInMsg": 50, "publishThrottlingRateInByte": -1})
    time.sleep(0.5)
    order = []
    begun = time.monotonic()
    for number in range(200):
        slow.send_async(str(number).encode(), lambda result, _, number=number: order.append((number, result)))
    for _ in range(20):
        before = time.monotonic()
        quick.send(b"on time")
        assert time.monotonic() - before < 1
    slow.flush()
    assert time.monotonic() - begun > 2.5, "150 messages over the burst at 50 a second"
    assert [number for number, _ in order] == list(range(200))
    assert all(result == pulsar.Result.Ok for _, result in order)
    assert region.get(path(topic, "/stats"))["publishRateLimitedTimes"] > 0


def test_a_topic_dispatch_rate_counts_once_for_two_subscriptions(region, client, topic):
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(300):
        producer.send_async(b"x", None)
    producer.flush()
    set_policy(region, path(topic, "/dispatchRate"),
               {"dispatchThrottlingRateInMsg": 40, "dispatchThrottlingRateInByte": -1,
                "relativeToPublishRate": False, "ratePeriodInSecond": 1})
    time.sleep(0.5)
    consumers = [client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest)
                 for name in ("one", "other")]
    counts = [0, 0]
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for index, consumer in enumerate(consumers):
            try:
                consumer.receive(10)
                counts[index] += 1
            except pulsar.Timeout:
                pass
    assert 100 <= sum(counts) <= 240 and min(counts) > 20, counts


def test_a_relative_dispatch_rate_lets_pass_what_is_published_on_top(region, client, topic):
    def received(consumer, seconds):
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                consumer.receive(50)
                count += 1
            except pulsar.Timeout:
                pass
        return count

    rate = {"dispatchThrottlingRateInMsg": 20, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    producer = client.create_producer(topic, batching_enabled=False)
    set_policy(region, path(topic, "/subscriptionDispatchRate"), {**rate, "relativeToPublishRate": True})
    assert region.get(path(topic, "/subscriptionDispatchRate?applied=true"))["relativeToPublishRate"] is True
    consumer = client.subscribe(topic, "s", receiver_queue_size=10)
    stop = threading.Event()

    def publish():
        while not stop.wait(0.01):
            producer.send_async(b"x", None)

    thread = threading.Thread(target=publish)
    thread.start()
    received(consumer, 3)
    published = region.get(path(topic, "/stats"))["msgRateIn"]
    assert published > 50, published
    # Who keeps up is not held back to 20 a second.
    got = received(consumer, 4)
    assert got >= 4 * published * 0.8, (got, published)
    set_policy(region, path(topic, "/subscriptionDispatchRate"), {**rate, "relativeToPublishRate": False})
    time.sleep(0.5)
    got = received(consumer, 4)
    stop.set()
    thread.join()
    assert got <= 4 * 20 + 40, got


def test_marks_of_deduplication_are_stored_as_often_as_the_policy_says(region, client, topic):
    client.create_producer(topic).close()
    set_policy(region, path(topic, "/deduplicationEnabled"), True)
    marks = lambda: region.get(path(topic, "/internalStats"))["cursors"].get("pulsar.dedup", {}).get("markDeletePosition")
    wait_until(marks, 10, "deduplication is on")
    producer = client.create_producer(topic)
    begun = marks()
    producer.send(b"x")
    time.sleep(2.5)
    assert marks() == begun, "two minutes are not over"
    set_policy(region, path(topic, "/deduplicationSnapshotInterval"), 1)
    wait_until(lambda: marks() != begun, 10, "a second is")
    producer.close()


def test_a_consumer_that_subscribes_too_often_is_told(region, client, topic):
    client.create_producer(topic).close()
    set_policy(region, path(topic, "/subscribeRate"),
               {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 60})
    time.sleep(0.5)
    client.subscribe(topic, "s", consumer_name="c").close()
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "s", consumer_name="c")
    client.subscribe(topic, "s", consumer_name="d").close()


def test_encryption_required_refuses_a_producer_that_is_in(make_region):
    region = make_region()
    client = region.client()
    producer = client.create_producer("public/default/plain", batching_enabled=False, send_timeout_millis=5000)
    producer.send(b"taken")
    set_policy(region, "/admin/v2/namespaces/public/default/encryptionRequired", True)
    time.sleep(0.5)
    with pytest.raises(Exception):
        producer.send(b"refused")
    assert region.get("/admin/v2/persistent/public/default/plain/stats")["msgInCounter"] == 1
    client.close()


def test_a_live_setting_is_in_force_at_once_and_after_a_restart(make_region):
    region = make_region()
    at = "/admin/v2/brokers/configuration"
    assert "maxProducersPerTopic" in region.get(at)
    assert region.admin("POST", f"{at}/maxProducersPerTopic/1").status_code == 200
    region.kill()
    region.start()
    assert region.get(f"{at}/values") == {"maxProducersPerTopic": "1"}
    client = region.client(operation_timeout_seconds=3)
    client.create_producer("public/default/one")
    with pytest.raises(Exception):
        client.create_producer("public/default/one")
    assert region.admin("DELETE", f"{at}/maxProducersPerTopic").status_code == 200

    def let_in():
        try:
            return client.create_producer("public/default/one")
        except pulsar.ProducerBusy:
            return None

    wait_until(let_in, 2, "the limit is lifted")
    assert region.admin("POST", f"{at}/clusterName/x").status_code == 412
    client.close()


def test_a_topic_over_its_threshold_compacts_itself(make_region):
    region = make_region(brokerServiceCompactionMonitorIntervalInSeconds=1)
    client = region.client()
    topic = "persistent://public/default/compacted"
    producer = client.create_producer(topic)
    client.subscribe(topic, "keeps").close()
    for number in range(200):
        producer.send(b"x" * 200, partition_key=f"k{number % 5}")
    answer = region.admin("POST", path(topic, "/compactionThreshold"), json=10000)
    assert answer.status_code == 204, answer.text
    stats = wait_until(lambda: (found := region.get(path(topic, "/stats")))["compaction"]["lastCompactionSucceedTimestamp"]
                       and found)
    assert stats["compaction"]["lastCompactionRemovedEventCount"] > 100
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    keys = [reader.read_next(5000).partition_key() for _ in range(5)]
    assert sorted(keys) == [f"k{number}" for number in range(5)]
    assert not reader.has_message_available()
    assert region.get(path(topic, "/internalStats"))["compactedLedger"]["entries"] == 5
    client.close()


def test_figures_of_a_backlog(region, client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    begun = int(time.time() * 1000)
    for _ in range(10):
        producer.send(b"x" * 1000)
    for _ in range(4):
        consumer.acknowledge(consumer.receive(5000))

    def half_acked():
        found = region.get(path(topic, "/stats?getEarliestTimeInBacklog=true"))
        return found if found["subscriptions"]["s"]["msgBacklog"] == 6 else None

    stats = wait_until(half_acked)
    one = stats["subscriptions"]["s"]
    assert 6000 <= one["backlogSize"] <= 7000, one
    assert begun <= one["earliestMsgPublishTimeInBacklog"] <= int(time.time() * 1000)
    assert stats["oldestBacklogMessageSubscriptionName"] == "s"
    consumer.close()
    left = wait_until(lambda: (found := region.get(path(topic, "/stats"))["subscriptions"]["s"])
                      and not found["consumers"] and found)
    assert left["lastAckedTimestamp"] >= begun and left["lastConsumedTimestamp"] >= begun
    at = region.get(path(topic, f"/messageid/{begun}"))
    assert at["entryId"] == 0
