"""Faults that people who run such systems report, each test named by its report: docs/reference/field-reports.md lists them all."""
import itertools
import os
import pathlib
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest

from region import Region, wait_until
from secured import Keys, bearer, with_tokens

ROOT = pathlib.Path(__file__).parents[4]
PAGE = ROOT / "docs/reference/field-reports.md"
COUNTER = itertools.count()
RATE_SECONDS = float(os.environ.get("RATE_SECONDS", "12"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    region = Region(tmp_path_factory.mktemp("reports"), backlogQuotaCheckIntervalInSeconds=1, ttlDurationDefaultInSeconds=0,
                    messageExpiryCheckIntervalInMinutes=1, diskUsageThreshold=0.99, diskUsageLwmThreshold=0.98,
                    brokerDeleteInactiveTopicsEnabled="false").start()
    done(region, "PUT", "tenants/reports", {"allowedClusters": ["standalone"]})
    yield region
    region.close()


@pytest.fixture
def client(place):
    client = place.client()
    yield client
    client.close()


@pytest.fixture
def namespace(place):
    name = f"reports/n{next(COUNTER)}"
    done(place, "PUT", f"namespaces/{name}", {})
    return name


def done(region, method, path, body=None, headers=None):
    answer = region.admin(method, f"/admin/v2/{path}", json=body, headers=headers or {})
    assert answer.status_code in (200, 204), (method, path, answer.status_code, answer.text)
    return answer


def stats(region, topic):
    return region.get(f"/admin/v2/{topic.replace('://', '/')}/stats")


def sample(text, name, **labels):
    """The sum of a family's samples that have these labels."""
    found = 0.0
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")) and all(f'{key}="{value}"' in line for key, value in labels.items()):
            found += float(line.rsplit(" ", 1)[1])
    return found


def test_the_page_names_a_test_that_is_there_for_every_report():
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in PAGE.read_text().splitlines()
            if re.match(r"\| B\d{3} \|", line)]
    assert len(rows) == len({row[0] for row in rows}) == 48
    for report, _, where in rows:
        if where.startswith("does not apply"):
            assert len(where) > len("does not apply: "), report
            continue
        places = re.findall(r"`([\w/.-]+)::([\w]+)`", where)
        assert places, (report, where)
        for file, test in places:
            text = (ROOT / file).read_text()
            assert re.search(rf"(fn|def) {test}\b", text), (report, file, test)
        # By its name, or by what stands above it.
        assert any(report.lower() in test.lower() or report in (ROOT / file).read_text() for file, test in places), report


@pytest.mark.timeout(240)
def test_b098_time_to_live_and_retention_take_effect_on_loaded_and_unloaded_topics(place, client, namespace):
    topics = [f"persistent://{namespace}/{name}" for name in ("loaded", "unloaded")]
    for topic in topics:
        client.subscribe(topic, "s").close()
        producer = client.create_producer(topic)
        for number in range(10):
            producer.send(str(number).encode())
        producer.close()
    done(place, "PUT", f"{topics[1].replace('://', '/')}/unload")
    done(place, "POST", f"namespaces/{namespace}/messageTTL", 1)
    done(place, "POST", f"namespaces/{namespace}/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 3})
    assert place.get(f"/admin/v2/namespaces/{namespace}/messageTTL") == 1
    for topic in topics:
        # Asking loads it.
        stats(place, topic)
    for topic in topics:
        path = topic.replace("://", "/")
        assert place.get(f"/admin/v2/{path}/retention?applied=true") == {"retentionTimeInMinutes": 5, "retentionSizeInMB": 3}
        assert place.get(f"/admin/v2/{path}/messageTTL?applied=true") == 1
        # One interval of the look for expired messages.
        wait_until(lambda: stats(place, topic)["subscriptions"]["s"]["msgBacklog"] == 0, 90, f"the expiry in {topic}")
        # Kept by the retention all the same.
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [reader.read_next(5000).data() for _ in range(10)] == [str(number).encode() for number in range(10)]
        reader.close()


def test_b102_backlog_quotas_bind_by_age_and_by_size(place, client, namespace):
    old, large = f"persistent://{namespace}/old", f"persistent://{namespace}/large"
    for topic, quota in ((old, {"type": "message_age", "limitTime": 3, "policy": "producer_exception"}),
                         (large, {"type": "destination_storage", "limitSize": 500_000, "policy": "producer_request_hold"})):
        client.subscribe(topic, "s").close()
        kind = quota.pop("type")
        done(place, "POST", f"{topic.replace('://', '/')}/backlogQuota?backlogQuotaType={kind}", {"limitSize": -1, "limitTime": -1, **quota})
    producer = client.create_producer(old, send_timeout_millis=1000)
    producer.send(b"never acked")
    begun = time.monotonic()

    def refused(topic):
        try:
            client.create_producer(topic, send_timeout_millis=1000).close()
            return False
        except pulsar.PulsarException:
            return True

    wait_until(lambda: refused(old), 15, "a refusal by age")
    assert time.monotonic() - begun >= 2, "not before its time"
    producer = client.create_producer(large, batching_enabled=False, send_timeout_millis=2000, max_pending_messages=5)
    with pytest.raises(pulsar.PulsarException):
        # Held at the first look behind the quota.
        for _ in range(3000):
            producer.send(b"x" * 10_000)
            time.sleep(0.005)
    kept = stats(place, large)["storageSize"]
    assert 500_000 < kept < 15_000_000
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"x" * 10_000)
    assert stats(place, large)["storageSize"] == kept


def teams(make_region, tmp_path, **settings):
    keys = Keys(tmp_path / "keys")
    region = make_region(diskUsageThreshold=0.99, diskUsageLwmThreshold=0.98, **with_tokens(keys, **settings))
    heads = {role: bearer(keys.token(role)) for role in ("admin", "boss", "worker")}
    done(region, "PUT", "tenants/t", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}, heads["admin"])
    done(region, "PUT", "namespaces/t/n", {}, heads["boss"])
    return region, keys, heads


def test_b107_patterns_that_would_not_mean_what_they_look_like_are_refused(make_region, tmp_path):
    region, keys, heads = teams(make_region, tmp_path, authorizationAllowWildcardsMatching="true")
    grant = lambda role, at: region.admin("POST", f"/admin/v2/{at}/permissions/{role}", json=["produce"], headers=heads["boss"])
    done(region, "PUT", "persistent/t/n/x", None, heads["boss"])
    for at in ("namespaces/t/n", "persistent/t/n/x"):
        for role in ("a*b", "**", "*a*"):
            refused = grant(role, at)
            assert refused.status_code == 412 and "pattern" in refused.json()["reason"], (at, role, refused.text)
    assert grant("a*", "namespaces/t/n").status_code == 204 and grant("*b", "namespaces/t/n").status_code == 204
    roles = ["a", "ab", "abc", "ba", "b", "bb", "ab-c", "x", "a-b", "xa", "A", "B", "aa", "c", "bc", "cb", "*", "a*", "xb", "bx"]
    for role in roles:
        expected = role.startswith("a") or role.endswith("b")
        answer = region.admin("GET", "/lookup/v2/topic/persistent/t/n/x", headers=bearer(keys.token(role)))
        assert (answer.status_code == 200) == expected, (role, answer.status_code)
    assert grant("*", "namespaces/t/n").status_code == 204
    for method, path in (("GET", "tenants"), ("GET", "namespaces/t"), ("DELETE", "persistent/t/n/x"), ("POST", "namespaces/t/n/messageTTL")):
        answer = region.admin(method, f"/admin/v2/{path}", json=1, headers=bearer(keys.token("anybody")))
        assert answer.status_code in (401, 403), (path, answer.status_code)


def test_b108_a_tenants_administrator_lifts_nothing_that_the_operator_limits(make_region, tmp_path):
    region, _, heads = teams(make_region, tmp_path)
    done(region, "PUT", "clusters/east", {"serviceUrl": "http://east:8080"}, heads["admin"])
    done(region, "PUT", "resourcegroups/slow", {"publishRateInMsgs": 10}, heads["admin"])
    limits = {"publishMessagesPerSecond": 100, "dispatchMessagesPerSecond": 100, "storedBytes": 10_000_000, "backlogBytes": 10_000_000, "topics": 2}
    for place in ("tenants/t", "namespaces/t/n"):
        done(region, "PUT", f"meridian/quotas/{place}", limits, heads["admin"])
    refused = [
        ("PUT", "meridian/quotas/tenants/t", {"topics": 1000}), ("DELETE", "meridian/quotas/tenants/t", None),
        ("PUT", "meridian/quotas/namespaces/t/n?layer=operator", {"topics": 1000}), ("PUT", "meridian/quotas/cluster", {}),
        ("POST", "namespaces/t/n/replication", ["standalone", "east"]), ("PUT", "clusters/east", {"serviceUrl": "http://x:1"}),
        ("POST", "tenants/t", {"adminRoles": ["boss"], "allowedClusters": ["standalone", "east"]}), ("PUT", "resourcegroups/slow", {"publishRateInMsgs": 9999}),
        ("POST", "namespaces/t/n/resourcegroup/slow", None), ("DELETE", "namespaces/t/n/resourcegroup", None),
        ("POST", "clusters/standalone/namespaceIsolationPolicies/p", {"namespaces": [".*"], "primary": [".*"], "secondary": []}),
        ("POST", "brokers/configuration/maxTopicsPerNamespace/0", None),
    ]
    for method, path, body in refused:
        answer = region.admin(method, f"/admin/v2/{path}", json=body, headers=heads["boss"])
        assert answer.status_code in (401, 403), (method, path, answer.status_code, answer.text)
    # What is its own it sets; where it names more than the operator gives, the operator's counts.
    for method, path, body in (
            ("POST", "namespaces/t/n/permissions/worker", ["produce", "consume"]), ("POST", "namespaces/t/n/messageTTL", 60),
            ("POST", "namespaces/t/n/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}),
            ("POST", "namespaces/t/n/maxTopicsPerNamespace", 1000), ("POST", "namespaces/t/n/publishRate", {"publishThrottlingRateInMsg": 100_000}),
            ("PUT", "meridian/quotas/namespaces/t/n", {"topics": 1000, "storedBytes": 10 ** 12})):
        done(region, method, path, body, heads["boss"])
    shown = region.admin("GET", "/admin/v2/meridian/quotas/namespaces/t/n", headers=heads["boss"]).json()
    assert {name: shown["effective"][name]["value"] for name in limits} == limits
    for number in range(2):
        done(region, "PUT", f"persistent/t/n/x{number}", None, heads["boss"])
    full = region.admin("PUT", "/admin/v2/persistent/t/n/x2", headers=heads["boss"])
    assert full.status_code == 412 and "topics 2 of 2" in full.json()["reason"]


def test_b110_namespaces_are_deleted_whole_by_a_super_user_and_their_names_are_free_at_once(make_region, tmp_path):
    region, keys, heads = teams(make_region, tmp_path)
    client = region.client(authentication=pulsar.AuthenticationToken(keys.token("admin")))

    def round_of(number):
        base = f"t/gone{number}"
        for _ in range(2):
            done(region, "PUT", f"namespaces/{base}", {}, heads["admin"])
            done(region, "PUT", f"persistent/{base}/x", None, heads["admin"])
            done(region, "PUT", f"persistent/{base}/p/partitions", 2, heads["admin"])
            done(region, "POST", f"persistent/{base}/x/maxProducers", 3, heads["admin"])
            if number % 10 == 0:
                client.create_producer(f"persistent://{base}/x").send(b"x")
            done(region, "DELETE", f"namespaces/{base}?force=true", None, heads["admin"])
            left = region.admin("GET", f"/admin/v2/persistent/{base}", headers=heads["admin"])
            assert left.status_code == 404, left.text

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(round_of, range(100)))
    listed = region.admin("GET", "/admin/v2/namespaces/t", headers=heads["admin"]).json()
    assert listed == ["t/n"]
    client.close()


def test_b111_a_namespace_goes_as_soon_as_its_topics_have_gone(place, client):
    for number in range(int(os.environ.get("B111_ROUNDS", "12"))):
        name = f"reports/emptied{number % 2}"
        done(place, "PUT", f"namespaces/{name}", {})

        def make_and_delete(at):
            topic = f"persistent/{name}/t{at}"
            done(place, "PUT", topic)
            done(place, "POST", f"{topic}/maxProducers", 3)
            if at % 5 == 0:
                client.create_producer(topic.replace("persistent/", "persistent://", 1)).close()
            done(place, "DELETE", f"{topic}?force=true")

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(make_and_delete, range(20)))
        assert place.get(f"/admin/v2/persistent/{name}") == []
        done(place, "DELETE", f"namespaces/{name}")


def test_b114_publish_rates_hold_by_messages_and_bytes_whatever_the_batches_and_the_producers(place, namespace):
    """Long-run averages; what lies ready when a topic was idle is used up first."""
    messages, size, byte_rate = 100, 200, 40_000
    cases = list(itertools.product(("messages", "bytes", "both"), (1, 100), (1, 10)))
    clients = [place.client() for _ in range(4)]
    stopped, producers, topics = threading.Event(), [], []
    for at, (kind, batch, count) in enumerate(cases):
        topic = f"persistent://{namespace}/r{at}"
        rate = {"publishThrottlingRateInMsg": messages if kind != "bytes" else -1,
                "publishThrottlingRateInByte": byte_rate if kind != "messages" else -1}
        done(place, "PUT", topic.replace("://", "/"))
        done(place, "POST", f"{topic.replace('://', '/')}/publishRate", rate)
        topics.append(topic)
        for number in range(count):
            producers.append(clients[(at + number) % 4].create_producer(
                topic, batching_enabled=batch > 1, batching_max_messages=max(2, batch), batching_max_publish_delay_ms=5, send_timeout_millis=0,
                max_pending_messages=200, block_if_queue_full=False))

    def flood(mine):
        while not stopped.is_set():
            for producer in mine:
                for _ in range(20):
                    try:
                        producer.send_async(b"x" * size, lambda *_: None)
                    except pulsar.PulsarException:
                        break
            time.sleep(0.01)

    threads = [threading.Thread(target=flood, args=(producers[at::3],), daemon=True) for at in range(3)]
    [thread.start() for thread in threads]
    time.sleep(5)

    def taken():
        seen = {}
        for topic in topics:
            one = stats(place, topic)
            seen[topic] = (time.monotonic(), one["msgInCounter"], one["bytesInCounter"])
        return seen

    before = taken()
    time.sleep(RATE_SECONDS)
    after = taken()
    stopped.set()
    [thread.join(10) for thread in threads]
    for client in clients:
        client.close()
    for topic, (kind, batch, count) in zip(topics, cases):
        took = after[topic][0] - before[topic][0]
        by_messages, by_bytes = ((after[topic][at] - before[topic][at]) / took for at in (1, 2))
        # A batch is taken whole: one of a hundred messages may stand at either edge.
        slack = batch * 2 / took
        if kind != "bytes":
            assert by_messages <= messages * 1.05 + slack, (topic, kind, batch, count, by_messages)
        if kind != "messages":
            assert by_bytes <= byte_rate * 1.05 + slack * size * 1.5, (topic, kind, batch, count, by_bytes)
        reached = max(by_messages / messages if kind != "bytes" else 0, by_bytes / byte_rate if kind != "messages" else 0)
        assert reached >= 0.75 - slack / messages, (topic, kind, batch, count, by_messages, by_bytes)


def test_b116_a_topics_dispatch_rate_counts_messages_over_five_subscriptions_of_batches(place, client, namespace):
    topic = f"persistent://{namespace}/fan-out"
    done(place, "PUT", topic.replace("://", "/"))
    consumers = [client.subscribe(topic, f"s{number}", receiver_queue_size=1000) for number in range(5)]
    done(place, "POST", f"{topic.replace('://', '/')}/dispatchRate",
         {"dispatchThrottlingRateInMsg": 100, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1})
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=100, batching_max_publish_delay_ms=1000,
                                      block_if_queue_full=True)
    for _ in range(3000):
        producer.send_async(b"x", lambda *_: None)
    producer.flush()
    out = lambda: sum(one["msgOutCounter"] for one in stats(place, topic)["subscriptions"].values())
    wait_until(lambda: out() >= 200, 20, "the beginning")
    begun, before = time.monotonic(), out()
    time.sleep(RATE_SECONDS)
    took, sent = time.monotonic() - begun, out() - before
    print(f"\n{sent / took:.1f} messages a second over {took:.1f} s")
    # A batch that has begun is sent whole, so that one of a hundred may stand at the edge.
    assert sent <= 100 * 1.05 * took + 100, sent / took
    assert sent >= 100 * 0.75 * took - 100, sent / took
    [consumer.close() for consumer in consumers]


def test_b147_compaction_that_is_killed_again_and_again_takes_no_room_for_good(make_region):
    """Live and dead data stand in the same logs; the process is killed while it rewrites them."""
    region = make_region(logSizeLimit=1 << 20, gcWaitTime=100, minorCompactionInterval=1, minorCompactionThreshold=0.8,
                         majorCompactionInterval=1, majorCompactionThreshold=0.9, flushInterval=100, diskUsageThreshold=0.99,
                         diskUsageLwmThreshold=0.98, brokerDeleteInactiveTopicsEnabled="false")
    client = region.client()
    topics = [f"persistent://public/default/mix{number}" for number in range(8)]
    [client.subscribe(topic, "keep").close() for topic in topics]
    producers = [client.create_producer(topic, batching_enabled=False, block_if_queue_full=True) for topic in topics]
    for number in range(400):
        for producer in producers:
            producer.send_async(f"{number:04}".encode() + b"x" * 5000, lambda *_: None)
    [producer.flush() for producer in producers]
    client.close()
    live = topics[:2]
    for topic in topics[2:]:
        done(region, "DELETE", topic.replace("://", "/") + "?force=true")
    used = lambda: sum(path.stat().st_size for path in region.folder.rglob("*.log") if path.is_file() and "ledgers" in path.parts)
    kept = 2 * 400 * 5100
    sizes = []
    for number in range(int(os.environ.get("B147_KILLS", "12"))):
        time.sleep(0.05 * (number % 7))
        region.kill()
        sizes.append(used())
        region.start()
    wait_until(lambda: used() <= kept * 1.5 + (2 << 20), 60, f"room again: {used()} bytes for {kept}, {sizes}")
    client = region.client()
    for topic in live:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [int(reader.read_next(20_000).data()[:4]) for _ in range(400)] == list(range(400))
    client.close()


def test_b164_grants_that_come_at_once_are_all_kept(place, namespace):
    for number in range(50):
        done(place, "PUT", f"persistent/{namespace}/g{number}")
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(lambda at: place.admin(
            "POST", f"/admin/v2/persistent/{namespace}/g{at}/permissions/role{at}", json=["produce"]), range(50)))
        answers += list(threads.map(lambda at: place.admin(
            "POST", f"/admin/v2/namespaces/{namespace}/permissions/role{at}", json=["consume"]), range(50)))
    assert {answer.status_code for answer in answers} <= {200, 204}, [answer.text for answer in answers if answer.status_code >= 400][:3]
    for number in range(50):
        shown = place.get(f"/admin/v2/persistent/{namespace}/g{number}/permissions")
        assert set(shown[f"role{number}"]) == {"produce", "consume"}
    assert len(place.get(f"/admin/v2/namespaces/{namespace}/permissions")) == 50


def test_b168_a_backlog_is_the_same_number_everywhere_and_nothing_is_zero(make_region):
    region = make_region(diskUsageThreshold=0.99, diskUsageLwmThreshold=0.98)
    topic, path = "persistent://public/default/backlog", "/admin/v2/persistent/public/default/backlog"
    client = region.client()
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=50)
    other = client.subscribe(topic, "reset", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(300):
        producer.send(str(number).encode())
    left = set(range(300))
    for _ in range(300):
        message = consumer.receive(10_000)
        number = int(message.data())
        if number % 3:
            consumer.acknowledge(message)
            left.discard(number)
    consumer.close()

    def agree(region, expected, name="s"):
        def seen():
            shown = region.get(f"{path}/stats")["subscriptions"][name]["msgBacklog"]
            precise = region.get(f"{path}/stats?getPreciseBacklog=true")["subscriptions"][name]["msgBacklog"]
            counted = sample(region.admin("GET", "/metrics").text, "pulsar_subscription_back_log", subscription=name)
            return {shown, precise, int(counted)}
        wait_until(lambda: seen() == {expected}, 20, f"{expected} everywhere, not {seen()}")

    agree(region, len(left))
    assert region.admin("PUT", f"{path}/unload").status_code == 204
    agree(region, len(left))
    client.close()
    assert region.stop() == 0
    region.start()
    agree(region, len(left))
    agree(region, 300, "reset")
    for _ in range(3):
        assert region.admin("POST", f"{path}/subscription/reset/resetcursor", json="latest").status_code == 204
        agree(region, 0, "reset")
        assert region.admin("POST", f"{path}/subscription/reset/resetcursor", json="earliest").status_code == 204
    client = region.client()
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    for _ in range(len(left)):
        consumer.acknowledge(consumer.receive(10_000))
    agree(region, 0)
    assert region.admin("POST", f"{path}/subscription/reset/skip_all").status_code == 204
    agree(region, 0, "reset")
    assert sample(region.admin("GET", "/metrics").text, "pulsar_msg_backlog", topic=topic) == 0
    client.close()


def test_b170_many_topics_are_told_by_namespace_and_the_broker_as_a_whole(make_region):
    topics = int(os.environ.get("B170_TOPICS", "400"))
    region = make_region(exposeTopicLevelMetricsInPrometheus="false", diskUsageThreshold=0.99, diskUsageLwmThreshold=0.98,
                         brokerDeleteInactiveTopicsEnabled="false", auditTopicEnabled="false")
    done(region, "PUT", "namespaces/public/other", {})
    client = region.client()
    for namespace, count in (("default", topics), ("other", 3)):
        for number in range(count):
            producer = client.create_producer(f"persistent://public/{namespace}/many-{number}")
            if number < 5:
                producer.send(b"x" * 100)
    client.subscribe("persistent://public/default/many-0", "s", initial_position=pulsar.InitialPosition.Earliest)
    begun = time.monotonic()
    text = region.admin("GET", "/metrics").text
    took = time.monotonic() - begun
    print(f"\n{topics} topics: {len(text)} bytes in {took * 1e3:.0f} ms")
    assert took < 2 and len(text) < 1_000_000
    assert "many-" not in text
    shown = region.get("/admin/v2/broker-stats/topics")
    of = lambda namespace: [one for bundle in shown[f"public/{namespace}"].values() for domain in bundle.values() for one in domain.values()]
    for namespace in ("default", "other"):
        all_of = of(namespace)
        for family, field in (("pulsar_in_messages_total", "msgInCounter"), ("pulsar_storage_size", "storageSize")):
            assert sample(text, family, namespace=f"public/{namespace}") == sum(one[field] for one in all_of), (namespace, family)
        assert sample(text, "pulsar_topics_count", namespace=f"public/{namespace}") == len(all_of)
        assert sample(text, "pulsar_producers_count", namespace=f"public/{namespace}") == sum(len(one["publishers"]) for one in all_of)
    everything = of("default") + of("other")
    assert sample(text, "pulsar_broker_producers_count") == topics + 3 == sum(len(one["publishers"]) for one in everything)
    assert sample(text, "pulsar_broker_storage_size") == sum(one["storageSize"] for one in everything)
    assert sample(text, "pulsar_broker_subscriptions_count") == 1
    client.close()


def test_b171_a_quota_says_how_near_it_is_and_what_it_took(place, client, namespace):
    topic = f"persistent://{namespace}/near"
    path = topic.replace("://", "/")
    client.subscribe(topic, "s").close()
    done(place, "POST", f"{path}/backlogQuota", {"limitSize": 100_000, "policy": "consumer_backlog_eviction"})
    producer = client.create_producer(topic, batching_enabled=False)
    told = lambda name: sample(place.admin("GET", "/metrics").text, name, topic=topic)
    sent = 0
    while told("meridian_backlog_quota_used_ratio") < 0.78:
        producer.send(b"x" * 1000)
        sent += 1
        assert sent < 100
    assert told("meridian_backlog_quota_used_ratio") == pytest.approx(0.8, abs=0.04)
    assert told("pulsar_storage_backlog_quota_limit") == 100_000
    assert told("meridian_backlog_quota_evicted_by_size_entries_total") == 0
    for _ in range(60):
        producer.send(b"x" * 1000)
        sent += 1
    wait_until(lambda: told("meridian_backlog_quota_evicted_by_size_entries_total") > 0, 20, "an eviction")
    wait_until(lambda: told("meridian_backlog_quota_used_ratio") <= 1, 20, "room")
    lost = sent - stats(place, topic)["subscriptions"]["s"]["msgBacklog"]
    assert told("meridian_backlog_quota_evicted_by_size_entries_total") == lost
    # How far ahead messages reach that wait for their time.
    later = f"persistent://{namespace}/later"
    consumer = client.subscribe(later, "s", pulsar.ConsumerType.Shared)
    due = int(time.time() * 1000) + 600_000
    delayed = client.create_producer(later)
    delayed.send(b"x", deliver_at=due - 60_000)
    delayed.send(b"x", deliver_at=due)
    until = lambda: sample(place.admin("GET", "/metrics").text, "meridian_subscription_delayed_until_timestamp", topic=later)
    wait_until(lambda: abs(until() - due) <= 2000, 10, f"the last one's time {due}, not {until()}")
    consumer.close()
