"""Does everything that was confirmed arrive once and in order?"""
import threading
import time

from backends import backlog, drained, linked
from links import Flapping
from oracle import Steady, Traffic, check
from region import wait_until


def flapping(group, messages=20000, period_s=1.0, down_s=0.2, how="reset", per_second=1000):
    """Two producers, batched and not, while both links between the regions are cut in a rhythm."""
    topic = group.topic()
    traffics = [Traffic(group["west"], topic, "batched"), Traffic(group["west"], topic, "single", batching=False)]
    for traffic in traffics:
        traffic.send(10).flush()
    linked(group, topic, "west", "east")
    with Flapping(group.between("west", "east"), period_s, down_s, how) as flaps:
        with Steady(traffics[0], per_second / 2), Steady(traffics[1], per_second / 2):
            time.sleep(messages / per_second)
    took = drained(group, topic, "west", "east", 120)
    result = check(group["east"], topic, traffics)
    return {**result, "cuts": flaps.cuts, "drain_s": round(took, 1)}


def flapping_with_markers(group, seconds=30, per_second=300):
    """As `flapping`, slower, with a replicated subscription whose snapshots travel between the messages."""
    topic = group.topic()
    client = group["west"].client()
    consumer = client.subscribe(topic, "s", replicate_subscription_state_enabled=True)
    traffic = Traffic(group["west"], topic, "p", batching=False)
    stopped = threading.Event()
    acked = []

    def consume():
        while not stopped.is_set():
            try:
                message = consumer.receive(200)
            except Exception:  # nothing there; the loop ends by the event
                continue
            consumer.acknowledge(message)
            acked.append(message)

    thread = threading.Thread(target=consume)
    thread.start()
    linked(group, topic, "west", "east") if traffic.send(10).flush() else None
    with Flapping(group.between("west", "east"), 2.0, 0.3) as flaps, Steady(traffic, per_second):
        time.sleep(seconds)
    took = drained(group, topic, "west", "east", 120)
    stopped.set()
    thread.join()
    client.close()
    result = check(group["east"], topic, [traffic])
    return {**result, "cuts": flaps.cuts, "drain_s": round(took, 1)}


def refused(group, messages=5000, rounds=1):
    """Single messages are refused by the remote for short spells while the connection stays: its `maxMessageSize` of the topic
    goes below and above the size of every 50th message. `stuck`: rounds after which the link stood still for a
    minute, `waiting`: what they still had to copy, `said`: how often the link said that it is refused."""
    total = {"confirmed": 0, "missing": 0, "doubled": 0, "reordered": 0, "flips": 0, "stuck": 0, "waiting": 0, "said": 0}
    for _ in range(rounds):
        topic = group.topic()
        path = topic.replace("://", "/") + "/maxMessageSize"
        small = Traffic(group["west"], topic, "small", batching=False)
        small.send(1).flush()
        linked(group, topic, "west", "east")
        wait_until(lambda topic=topic: backlog(group, topic, "west", "east") == 0, 30, "the first copy")
        large = Traffic(group["west"], topic, "large", batching=False, body_bytes=2000)
        stopped = threading.Event()

        def flip(topic=topic, path=path, stopped=stopped):
            while not stopped.is_set():
                group["east"].admin("POST", path, 1000)
                stopped.wait(0.3)
                total["said"] += "refused" in group["west"].link_stats(topic, "east").get("state", "")
                group["east"].admin("POST", path, 100000)
                total["flips"] += 1
                stopped.wait(0.3)

        flipper = threading.Thread(target=flip)
        flipper.start()
        for _ in range(messages // 50):
            small.send(49)
            large.send(1)
            time.sleep(0.05)
        small.flush()
        large.flush()
        stopped.set()
        flipper.join()
        try:
            drained(group, topic, "west", "east", 60)
        except AssertionError:
            total["stuck"] += 1
            total["waiting"] += backlog(group, topic, "west", "east")
        result = check(group["east"], topic, [small, large], idle_s=5)
        for key in ("confirmed", "missing", "doubled", "reordered"):
            total[key] += result[key]
    return total


def region_killed(group, seconds=10, per_second=500, back=True):
    """`west` is killed under load. What `east` lacks then, against the backlog that `west` had last reported; and what is
    there when `west` is back."""
    topic = group.topic()
    traffic = Traffic(group["west"], topic, "p", send_timeout_millis=2000)
    traffic.send(10).flush()
    linked(group, topic, "west", "east")
    group.shape(latency_ms=20)
    reported = -1
    with Steady(traffic, per_second, flush=False):
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            reported = backlog(group, topic, "west", "east")
            time.sleep(0.2)
        group["west"].kill()
    lost = check(group["east"], topic, [traffic], idle_s=3)
    traffic.client.shutdown()
    result = {"confirmed": lost["confirmed"], "reported_backlog": reported, "missing_while_down": lost["missing"]}
    if back:
        group["west"].start()
        drained(group, topic, "west", "east", 120)
        after = check(group["east"], topic, [traffic], idle_s=5)
        result.update({key: after[key] for key in ("missing", "doubled", "reordered")})
    group.shape(latency_ms=0)
    return result


def expired_before_copy(group, messages=1000, ttl_s=5, wait_s=90):
    """The link is cut while the source's TTL takes messages. Missing in the remote, and what the source counted."""
    topic = group.topic(messageTTL=ttl_s)
    traffic = Traffic(group["west"], topic, "p", batching=False)
    # The first ones must not outlive their time while the link is being opened.
    linked(group, topic, "west", "east")
    traffic.send(10).flush()
    drained(group, topic, "west", "east")
    for link in group.between("west", "east"):
        link.cut("reset")
    traffic.send(messages).flush()
    begun = time.monotonic()
    while time.monotonic() - begun < wait_s and backlog(group, topic, "west", "east") > 0:
        time.sleep(1)
    group.heal()
    drained(group, topic, "west", "east", 60)
    result = check(group["east"], topic, [traffic], idle_s=5)
    counted = group["west"].link_stats(topic, "east").get("msgExpiredCount", 0)
    return {"confirmed": result["confirmed"], "missing": result["missing"], "counted": counted}


def evicted_before_copy(group, quota_bytes=20000, messages=1000, wait_s=90):
    """The same with a backlog quota that evicts (`consumer_backlog_eviction`)."""
    topic = group.topic()
    namespace = topic.split("://")[1].rsplit("/", 1)[0]
    group["west"].admin("POST", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=destination_storage",
                        {"limitSize": quota_bytes, "limit": quota_bytes, "policy": "consumer_backlog_eviction"})
    traffic = Traffic(group["west"], topic, "p", batching=False)
    traffic.send(10).flush()
    linked(group, topic, "west", "east")
    drained(group, topic, "west", "east")
    for link in group.between("west", "east"):
        link.cut("reset")
    traffic.send(messages).flush()
    begun = time.monotonic()
    while time.monotonic() - begun < wait_s and backlog(group, topic, "west", "east") >= messages:
        time.sleep(1)
    group.heal()
    drained(group, topic, "west", "east", 60)
    result = check(group["east"], topic, [traffic], idle_s=5)
    stats = group["west"].link_stats(topic, "east")
    return {"confirmed": result["confirmed"], "missing": result["missing"], "counted": stats.get("msgExpiredCount", 0)}
