"""What a consumer and a producer meet that move to another region."""
import time

import pulsar
from pulsar import ConsumerType, InitialPosition

from backends import drained, linked
from oracle import Traffic, parse, read_all


def collect(consumer, idle_s=5.0, acknowledge=True):
    """All messages that come, until none came for a while."""
    found = []
    while True:
        try:
            message = consumer.receive(int(idle_s * 1000))
        except pulsar.Timeout:
            return found
        if acknowledge:
            consumer.acknowledge(message)
        found.append(parse(message.data()))


def holes(group, messages=1800, batch=1, cut_third=None, settle_s=10, subscription_type=ConsumerType.Shared):
    """A Shared consumer in `west` acknowledges all but every hundredth message (single messages) or all but one of each batch
    (`batch` > 1, with acknowledgement of batch indexes); then it moves to `east`. Redelivered = acknowledged before
    `settle_s` and delivered again."""
    topic = group.topic()
    traffic = Traffic(group["west"], topic, "p", batching=batch > 1, batching_max_messages=max(batch, 2),
                      batching_max_publish_delay_ms=1000)
    client = group["west"].client()
    consumer = client.subscribe(topic, "s", subscription_type, initial_position=InitialPosition.Earliest,
                                replicate_subscription_state_enabled=True, batch_index_ack_enabled=True,
                                receiver_queue_size=200)
    traffic.send(batch).flush()
    linked(group, topic, "west", "east")
    if cut_third:
        for link in group.around(cut_third):
            link.cut("reset")
    acknowledged, kept = set(), set()
    every = 100 if batch == 1 else batch
    while traffic.next < messages:
        traffic.send(min(batch * 20, messages - traffic.next)).flush()
        while len(acknowledged) + len(kept) < traffic.next:
            message = consumer.receive(20000)
            key = parse(message.data())
            if key[1] % every == (1 if batch > 1 else 0):
                kept.add(key)
            else:
                consumer.acknowledge(message)
                acknowledged.add(key)
        time.sleep(0.05)
    time.sleep(settle_s)
    drained(group, topic, "west", "east", 60)
    client.close()
    moved = group["east"].client()
    consumer = moved.subscribe(topic, "s", subscription_type, initial_position=InitialPosition.Earliest,
                               replicate_subscription_state_enabled=True, batch_index_ack_enabled=True)
    seen = collect(consumer)
    moved.close()
    group.heal()
    return {"acknowledged": len(acknowledged), "unacknowledged": len(kept), "delivered": len(seen),
            "redelivered": len(acknowledged & set(seen)), "lost": len(kept - set(seen))}


def moved_under_load(group, seconds=15, per_second=200, settle_s=1.0, cut=True):
    """The consumer in `west` acknowledges in order while messages come; `west` is cut off and the consumer goes on in `east`.
    Redelivered counts what had been acknowledged `settle_s` before the cut."""
    from oracle import Steady

    topic = group.topic()
    traffic = Traffic(group["west"], topic, "p", batching=False)
    client = group["west"].client()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest,
                                replicate_subscription_state_enabled=True)
    traffic.send(10).flush()
    linked(group, topic, "west", "east")
    acknowledged_at = {}
    with Steady(traffic, per_second):
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            message = consumer.receive(10000)
            consumer.acknowledge(message)
            acknowledged_at[parse(message.data())] = time.monotonic()
    if cut:
        for link in group.between("west", "east"):
            link.cut("reset")
    cut_at = time.monotonic()
    client.close()
    moved = group["east"].client()
    seen = set(collect(moved.subscribe(topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest,
                                       replicate_subscription_state_enabled=True)))
    moved.close()
    group.heal()
    long_ago = {key for key, at in acknowledged_at.items() if at < cut_at - settle_s}
    return {"acknowledged": len(acknowledged_at), "redelivered_settled": len(long_ago & seen),
            "redelivered": len(set(acknowledged_at) & seen)}


def resend(group, messages=500, global_producers=True):
    """A producer sends in `west`, moves to `east` and sends the same again, by the same sequence numbers (from 1: the Python
    client takes 0 for none) under the same name."""
    topic = group.topic()
    if global_producers:
        for side in group.sides.values():
            side.global_producers(topic)
    for region in ("west", "east"):
        client = group[region].client()
        producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
        for number in range(messages):
            producer.send_async(f"p:{number}:".encode(), lambda *_: None, sequence_id=number + 1)
        producer.flush()
        client.close()
        if region == "west":
            linked(group, topic, "west", "east")
            drained(group, topic, "west", "east")
    linked(group, topic, "east", "west")
    drained(group, topic, "east", "west")
    found = {region: read_all(group[region], topic, idle_s=3) for region in ("west", "east")}
    return {"sent": messages, "twice_in_west": len(found["west"]) - len(set(found["west"])),
            "twice_in_east": len(found["east"]) - len(set(found["east"])),
            "missing": messages - len(set(found["east"]))}


def both_resent(group, messages=500):
    """As `resend`, without a policy."""
    return resend(group, messages, global_producers=False)


def region_lost(group, rounds=5, seconds=3, per_second=300, settle_s=1.0, resent=200):
    """`west` is killed -9 under load, again and again. Batches of up to ten, a Shared consumer that acknowledges by batch index
    and leaves holes; then consumer and producer go on in `east`, the producer with its last `resent` messages once more under
    their numbers (global producers); then `west` comes back and both regions are read. `lost`: confirmed and in neither
    region; `unseen`: in `east`, not acknowledged, and never delivered there; `redelivered_settled`: acknowledged `settle_s` before
    the kill and delivered again; `doubled`: stored twice in either region."""
    total = dict.fromkeys(("confirmed", "acknowledged", "kept", "redelivered_settled", "redelivered", "unseen", "lost",
                           "doubled_west", "doubled_east", "differ"), 0)
    for _ in range(rounds):
        one = one_region_lost(group, seconds, per_second, settle_s, resent)
        for key, value in one.items():
            total[key] += value
    return {"rounds": rounds, **total}


def numbered(traffic, count=1):
    """Sends with sequence numbers that a producer elsewhere can repeat; the Python client takes 0 for none."""
    for _ in range(count):
        traffic.send(1, sequence_id=traffic.next + 1)
    return traffic


def one_region_lost(group, seconds, per_second, settle_s, resent):
    topic = group.topic()
    for side in group.sides.values():
        side.global_producers(topic)
    options = {"initial_position": InitialPosition.Earliest, "replicate_subscription_state_enabled": True,
               "batch_index_ack_enabled": True}
    traffic = Traffic(group["west"], topic, "p", batching_max_messages=10, batching_max_publish_delay_ms=20,
                      send_timeout_millis=3000)
    client = group["west"].client(operation_timeout_seconds=5)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, **options)
    numbered(traffic, 10).flush()
    linked(group, topic, "west", "east")
    acknowledged_at, kept = {}, set()
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        numbered(traffic, max(0, int(passed * per_second) + 10 - traffic.next))
        try:
            message = consumer.receive(20)
        except pulsar.Timeout:
            continue
        key = parse(message.data())
        if key[1] % 10 == 7 or key[1] % 100 == 1:
            kept.add(key)
        else:
            consumer.acknowledge(message)
            acknowledged_at[key] = time.monotonic()
    group["west"].kill()
    killed_at = time.monotonic()
    confirmed = set(traffic.confirmed)
    traffic.client.shutdown()
    client.shutdown()
    moved = group["east"].client()
    producer = moved.create_producer(topic, producer_name="p", batching_enabled=False, block_if_queue_full=True)
    stored = []
    for number in range(max(0, traffic.next - resent), traffic.next + 50):
        producer.send_async(traffic.body(number), lambda result, _, number=number: stored.append((result, number)),
                            sequence_id=number + 1)
    producer.flush()
    confirmed |= {number for result, number in stored if result == pulsar.Result.Ok}
    consumer = moved.subscribe(topic, "s", ConsumerType.Shared, **options)
    seen = set(collect(consumer, 3.0))
    before_return = set(read_all(group["east"], topic, idle_s=1))
    group["west"].start()
    # What `west` alone had comes now.
    linked(group, topic, "east", "west")
    linked(group, topic, "west", "east")
    drained(group, topic, "east", "west")
    drained(group, topic, "west", "east")
    seen |= set(collect(consumer, 2.0))
    moved.close()
    found = {region: read_all(group[region], topic, idle_s=2) for region in ("west", "east")}
    settled = {key for key, at in acknowledged_at.items() if at < killed_at - settle_s}
    everywhere = set(found["west"]) | set(found["east"])
    return {"confirmed": len(confirmed), "acknowledged": len(acknowledged_at), "kept": len(kept),
            "redelivered_settled": len(settled & seen), "redelivered": len(set(acknowledged_at) & seen),
            "unseen": len(before_return - set(acknowledged_at) - seen),
            "lost": len({("p", number) for number in confirmed} - everywhere),
            "doubled_west": len(found["west"]) - len(set(found["west"])),
            "doubled_east": len(found["east"]) - len(set(found["east"])),
            "differ": len(set(found["west"]) ^ set(found["east"]))}


def acked_to_the_end(group, messages=1000, seconds=15):
    """Everything is acknowledged in `west` and traffic stops: what the subscription's backlog in `east` is then."""
    topic = group.topic()
    traffic = Traffic(group["west"], topic, "p", batching=False)
    client = group["west"].client()
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest,
                                replicate_subscription_state_enabled=True)
    traffic.send(10).flush()
    linked(group, topic, "west", "east")
    traffic.send(messages - 10).flush()
    for _ in range(messages):
        consumer.acknowledge(consumer.receive(20000))
    begun = time.monotonic()
    left = messages
    while left and time.monotonic() - begun < seconds:
        subscription = group["east"].stats(topic)["subscriptions"].get("s")
        left = subscription["msgBacklog"] if subscription else messages
        time.sleep(0.1)
    client.close()
    return {"acknowledged": messages, "left_in_remote": left, "seconds": round(time.monotonic() - begun, 1)}


def migrated(group, source="west", target="east", backlog_messages=500, per_second=100, settle_s=5):
    """The migration guide's way: a topic with a backlog in `source` gets `target` as its second cluster; its consumer moves,
    then its producer, while messages go on; then the clusters part. What was lost, seen again, or not copied."""
    from oracle import Steady

    namespace = group.namespace([source])
    topic = f"persistent://{namespace}/t"
    group[target].admin("PUT", f"namespaces/{namespace}", {"replication_clusters": [target]}, good=(204, 409))
    client = group[source].client()
    options = {"initial_position": InitialPosition.Earliest, "replicate_subscription_state_enabled": True}
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, **options)
    old = Traffic(group[source], topic, "old", batching=False)
    old.send(backlog_messages).flush()
    for _ in range(backlog_messages // 2):
        consumer.acknowledge(consumer.receive(10000))
    # Both directions: subscriptions are only brought over between clusters that replicate to each other.
    for region in (target, source):
        group[region].admin("POST", f"namespaces/{namespace}/replication", [source, target])
    linked(group, topic, source, target)
    acknowledged, seen = {}, []
    with Steady(old, per_second):
        until = time.monotonic() + settle_s
        while time.monotonic() < until:
            message = consumer.receive(5000)
            consumer.acknowledge(message)
            acknowledged[parse(message.data())] = time.monotonic()
        time.sleep(settle_s)
        moved_at = time.monotonic()
        client.close()
        moved = group[target].client()
        consumer = moved.subscribe(topic, "s", ConsumerType.Shared, **options)
        until = time.monotonic() + settle_s
        while time.monotonic() < until:
            message = consumer.receive(20000)
            consumer.acknowledge(message)
            seen.append(parse(message.data()))
    old.close()
    drained(group, topic, source, target)
    seen += collect(consumer, 3.0)
    new = Traffic(group[target], topic, "new", batching=False)
    new.send(backlog_messages).close()
    seen += collect(consumer, 3.0)
    moved.close()
    linked(group, topic, target, source)
    drained(group, topic, target, source)
    for region in (source, target):
        group[region].admin("POST", f"namespaces/{namespace}/replication", [region])
    wanted = {("old", number) for number in old.confirmed} | {("new", number) for number in new.confirmed}
    early = {("old", number) for number in range(backlog_messages // 2)}
    long_ago = {key for key, at in acknowledged.items() if at < moved_at - settle_s + 0.5}
    return {"confirmed": len(wanted), "never_delivered": len(wanted - early - set(acknowledged) - set(seen)),
            "acknowledged_before": len(acknowledged), "seen_again": len(set(acknowledged) & set(seen)),
            "seen_again_though_settled": len(long_ago & set(seen)),
            "seen_twice_in_target": len(seen) - len(set(seen))}
