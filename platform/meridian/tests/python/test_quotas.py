"""Quotas: counts, rates and bytes at every level; who may set them; what goes on beside a tenant that is at its limit."""
import threading
import time

import pulsar
import pytest
import requests

from cluster import Cluster
from region import wait_until
from secured import Keys, bearer, with_tokens

QUOTAS = "/admin/v2/meridian/quotas"


def put(region, place, limits, expect=204, **options):
    answer = region.admin("PUT", f"{QUOTAS}/{place}", json=limits, **options)
    assert answer.status_code == expect, answer.text
    return answer


def make_tenant(region, name, namespaces=("n",), **options):
    cluster = region.settings.get("clusterName", "standalone")
    assert region.admin("PUT", f"/admin/v2/tenants/{name}", json={"adminRoles": ["boss-" + name], "allowedClusters": [cluster]},
                        **options).status_code == 204
    for namespace in namespaces:
        assert region.admin("PUT", f"/admin/v2/namespaces/{name}/{namespace}", json={}, **options).status_code == 204


def refused(action):
    with pytest.raises(pulsar.PulsarException) as error:
        action()
    return error.value


def test_counts_bind_at_every_level_and_say_so(region, client):
    make_tenant(region, "counts", ("a", "b"))
    put(region, "tenants/counts", {"producers": 3, "topics": 4, "namespaces": 2, "consumers": 2, "subscriptions": 3, "partitions": 3})
    put(region, "namespaces/counts/a", {"producers": 2})
    topic = lambda namespace, name: f"persistent://counts/{namespace}/{name}"
    kept = [client.create_producer(topic("a", "t1")) for _ in range(2)]
    refused(lambda: client.create_producer(topic("a", "t1")))
    kept.append(client.create_producer(topic("b", "t1")))
    refused(lambda: client.create_producer(topic("b", "t1")))
    shown = region.get(f"{QUOTAS}/tenants/counts")
    assert shown["used"]["producers"] == 3 and shown["effective"]["producers"]["value"] == 3
    assert region.get(f"{QUOTAS}/namespaces/counts/a")["effective"]["producers"] == {
        "value": 2, "place": "namespace counts/a", "layer": "operator"}
    kept.pop().close()
    wait_until(lambda: region.get(f"{QUOTAS}/tenants/counts")["used"]["producers"] == 2)
    kept.append(client.create_producer(topic("b", "t1")))
    # Things that are made.
    full = region.admin("PUT", "/admin/v2/namespaces/counts/c", json={})
    assert full.status_code == 412 and full.json()["reason"] == "quota exceeded: namespaces 2 of 2 of tenant counts"
    assert region.admin("PUT", "/admin/v2/persistent/counts/a/many/partitions", json=4).status_code == 412
    assert region.admin("PUT", "/admin/v2/persistent/counts/a/some/partitions", json=2).status_code == 204
    full = region.admin("PUT", "/admin/v2/persistent/counts/b/more")
    assert full.status_code == 412 and full.json()["reason"] == "quota exceeded: topics 4 of 4 of tenant counts"
    consumers = [client.subscribe(topic("a", "t1"), f"s{number}") for number in range(2)]
    refused(lambda: client.subscribe(topic("a", "t1"), "s2"))
    [one.close() for one in consumers]
    wait_until(lambda: region.get(f"{QUOTAS}/tenants/counts")["used"]["consumers"] == 0)
    client.subscribe(topic("b", "t1"), "s2").close()
    refused(lambda: client.subscribe(topic("b", "t1"), "s3"))
    client.subscribe(topic("b", "t1"), "s2").close()
    full = region.admin("PUT", "/admin/v2/persistent/counts/b/t1/subscription/s4", json="earliest")
    assert full.status_code == 412 and "subscriptions 3 of 3 of tenant counts" in full.text
    metrics = region.admin("GET", "/metrics").text
    assert 'meridian_quota_refused_total{level="tenant",limit="topics"}' in metrics
    assert 'meridian_quota_limit{cluster="standalone",level="tenant",place="tenant counts",limit="producers"} 3' in metrics
    [one.close() for one in kept]


def test_a_tenant_named_like_the_beginning_of_another_has_its_own_limits(region, client):
    for name in ("pre", "pre-x", "prex"):
        make_tenant(region, name)
    put(region, "tenants/pre", {"producers": 0})
    refused(lambda: client.create_producer("persistent://pre/n/t"))
    for name in ("pre-x", "prex"):
        client.create_producer(f"persistent://{name}/n/t").close()


def test_values_that_make_no_sense_are_refused_with_a_reason(region):
    make_tenant(region, "senseless")
    for limits in ({"topics": -1}, {"topics": 1.5}, {"topics": "many"}, {"topic": 1}, {"publishBytesPerSecond": 0}, [1], {"topics": 2 ** 70}):
        answer = region.admin("PUT", f"{QUOTAS}/tenants/senseless", json=limits)
        assert answer.status_code in (400, 412) and answer.json()["reason"], limits
    assert region.admin("PUT", f"{QUOTAS}/namespaces/senseless/n", json={"namespaces": 1}).status_code == 412
    assert region.admin("PUT", f"{QUOTAS}/tenants/nobody", json={}).status_code == 404
    assert region.admin("PUT", f"{QUOTAS}/tenants/senseless", data="{").status_code == 400


def send_for(producer, seconds, size=1000):
    sent, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        producer.send(b"x" * size)
        sent += 1
    return sent


def use_up(producer, messages):
    """What lay ready while nobody sent."""
    for _ in range(messages):
        producer.send_async(b"x", None)
    producer.flush()


def test_a_publish_rate_binds_all_of_a_tenant_together_and_nobody_else(region, client):
    make_tenant(region, "rate", ("a", "b"))
    make_tenant(region, "free")
    put(region, "tenants/rate", {"publishMessagesPerSecond": 50})
    producers = [client.create_producer(f"persistent://rate/{namespace}/t{number}", batching_enabled=False)
                 for namespace in ("a", "b") for number in range(2)]
    other = client.create_producer("persistent://free/n/t", batching_enabled=False)
    use_up(producers[0], 120)
    counts = [0] * 4

    def run(at):
        counts[at] = send_for(producers[at], 6)
    threads = [threading.Thread(target=run, args=(at,)) for at in range(4)]
    [thread.start() for thread in threads]
    # A topic of another tenant on the same connection is not delayed.
    latencies = []
    for _ in range(100):
        begun = time.monotonic()
        other.send(b"x")
        latencies.append(time.monotonic() - begun)
        time.sleep(0.02)
    [thread.join() for thread in threads]
    assert 300 * 0.9 <= sum(counts) <= 300 * 1.1 + 4, counts
    assert min(counts) > 30, "all have their turns"
    assert sorted(latencies)[95] < 0.5
    # Lifted, it binds nobody; at once.
    assert region.admin("DELETE", f"{QUOTAS}/tenants/rate").status_code == 204
    begun = time.monotonic()
    for _ in range(200):
        producers[0].send_async(b"x", None)
    producers[0].flush()
    assert time.monotonic() - begun < 3


def test_a_dispatch_rate_counts_messages_of_batches_over_subscriptions(region, client):
    make_tenant(region, "read")
    topic = "persistent://read/n/t"
    consumers = [client.subscribe(topic, f"s{number}", receiver_queue_size=10) for number in range(2)]
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=20)
    put(region, "namespaces/read/n", {"dispatchMessagesPerSecond": 100})
    for _ in range(1000):
        producer.send_async(b"x", None)
    producer.flush()
    got = [0, 0]

    def run(at):
        until = time.monotonic() + 6
        while time.monotonic() < until:
            try:
                consumers[at].acknowledge(consumers[at].receive(200))
                got[at] += 1
            except pulsar.Timeout:
                pass
    threads = [threading.Thread(target=run, args=(at,)) for at in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    # Six seconds, one second's worth that lay ready, and a batch for each.
    assert 500 <= sum(got) <= 700 + 80, got


def test_at_a_limit_of_bytes_publishing_stops_and_the_rest_goes_on(make_region):
    region = make_region(managedLedgerMaxEntriesPerLedger=10, managedLedgerMinLedgerRolloverTimeSeconds=1, managedLedgerMaxLedgerRolloverTimeSeconds=1)
    client = region.client()
    make_tenant(region, "bytes")
    make_tenant(region, "beside")
    topic = "persistent://bytes/n/t"
    consumer = client.subscribe(topic, "s")
    put(region, "tenants/bytes", {"storedBytes": 200_000})
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=3000)
    failed = None
    for _ in range(400):
        try:
            producer.send(b"x" * 10_000)
            time.sleep(0.02)
        except pulsar.PulsarException as error:
            failed = error
            break
    assert failed is not None
    stored = region.get(f"{QUOTAS}/tenants/bytes")["used"]["storedBytes"]
    assert 200_000 <= stored < 1_500_000
    refused(lambda: client.create_producer(topic, send_timeout_millis=3000))
    refused(lambda: client.create_producer("persistent://bytes/n/other", send_timeout_millis=3000).send(b"x" * 1000))
    assert "quota exceeded: storedBytes" in region.log() and "of 200000 of tenant bytes" in region.log()
    client.create_producer("persistent://beside/n/t").send(b"others go on")
    # Reads, acknowledgements and deletions go on, and make room.
    received = 0
    while True:
        try:
            consumer.acknowledge(consumer.receive(2000))
            received += 1
        except pulsar.Timeout:
            break
    assert received > 10
    region.admin("POST", "/admin/v2/persistent/bytes/n/t/trim")

    def publishes():
        try:
            again = client.create_producer(topic, send_timeout_millis=2000)
            again.send(b"room")
            again.close()
            return True
        except pulsar.PulsarException:
            return False
    wait_until(publishes, 30, "publishing goes on once there is room")
    client.close()


def fill(client, topic, **options):
    """Publishes until it is refused."""
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=3000, **options)
    for _ in range(600):
        try:
            producer.send(b"x" * 10_000)
            time.sleep(0.02)
        except pulsar.PulsarException:
            return
    raise AssertionError(f"{topic} was never refused")


def used(web, place, what="storedBytes"):
    answer = requests.get(f"{web}{QUOTAS}/{place}", timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()["used"][what]


def publishes(client, topic):
    try:
        producer = client.create_producer(topic, send_timeout_millis=2000)
        producer.send(b"room")
        producer.close()
        return True
    except pulsar.PulsarException:
        return False


def test_bytes_of_topics_that_nobody_opened_again_count_after_a_crash(make_region):
    region = make_region(managedLedgerMaxEntriesPerLedger=10, managedLedgerMinLedgerRolloverTimeSeconds=1, managedLedgerMaxLedgerRolloverTimeSeconds=1)
    client = region.client()
    for tenant in ("stored", "backlog", "later"):
        make_tenant(region, tenant)
    put(region, "tenants/stored", {"storedBytes": 200_000, "subscriptions": 1})
    put(region, "namespaces/backlog/n", {"backlogBytes": 200_000})
    readers = [client.subscribe(f"persistent://{tenant}/n/t", "s") for tenant in ("stored", "backlog")]
    fill(client, "persistent://stored/n/t")
    fill(client, "persistent://backlog/n/t")
    # Nobody counts this one yet.
    late = client.create_producer("persistent://later/n/t", batching_enabled=False)
    for _ in range(30):
        late.send(b"x" * 10_000)
    before = [used(region.web, "tenants/stored"), used(region.web, "namespaces/backlog/n", "backlogBytes")]
    client.close()
    region.kill()
    region.start()
    client = region.client()
    assert [used(region.web, "tenants/stored"), used(region.web, "namespaces/backlog/n", "backlogBytes")] == before
    assert used(region.web, "namespaces/stored/n") == before[0] and used(region.web, "tenants/backlog") > 0
    for tenant in ("stored", "backlog"):
        refused(lambda: client.create_producer(f"persistent://{tenant}/n/other", send_timeout_millis=3000).send(b"x"))
    refused(lambda: client.subscribe("persistent://stored/n/other", "second"))
    # A limit that comes when the topic is not open counts it, too.
    put(region, "tenants/later", {"storedBytes": 200_000})
    wait_until(lambda: used(region.web, "tenants/later") >= 300_000, 20, "what is stored is counted")
    refused(lambda: client.create_producer("persistent://later/n/other", send_timeout_millis=3000).send(b"x"))
    # What is deleted counts no more, and not after another crash.
    assert region.admin("DELETE", "/admin/v2/persistent/stored/n/t?force=true").status_code == 204
    wait_until(lambda: publishes(client, "persistent://stored/n/other"), 20, "publishing goes on")
    consumer = client.subscribe("persistent://backlog/n/t", "s")
    for _ in range(int(before[1] // 10_000)):
        consumer.acknowledge(consumer.receive(5000))
    wait_until(lambda: publishes(client, "persistent://backlog/n/other"), 20, "publishing goes on")
    time.sleep(2)
    client.close()
    region.kill()
    region.start()
    client = region.client()
    assert used(region.web, "tenants/stored") < 10_000
    assert publishes(client, "persistent://stored/n/third") and publishes(client, "persistent://backlog/n/third")
    client.close()


def test_bytes_bind_over_three_brokers_and_count_once_when_topics_move(tmp_path):
    cluster = Cluster(tmp_path / "c", brokers=3, bookies=3)
    try:
        cluster.start()
        web = cluster.brokers[0].web
        call = lambda method, path, body=None: requests.request(method, web + path, json=body, timeout=20)
        assert call("PUT", "/admin/v2/tenants/wide", {"allowedClusters": ["west"]}).status_code == 204
        assert call("PUT", "/admin/v2/namespaces/wide/n", {"bundles": {"numBundles": 12}}).status_code == 204
        assert call("PUT", f"{QUOTAS}/tenants/wide", {"storedBytes": 900_000}).status_code == 204
        client = cluster.client()
        names = [f"persistent://wide/n/t{number}" for number in range(9)]
        # Each is far below the limit, and so is what a single broker serves. What nobody has read is kept.
        for name in names:
            client.subscribe(name, "s").close()
            producer = client.create_producer(name, batching_enabled=False)
            for _ in range(10):
                producer.send(b"x" * 9_000)
            producer.close()
        sums = lambda: [used(broker.web, "tenants/wide") for broker in cluster.brokers if broker.process.poll() is None]
        whole = lambda: len(set(sums())) == 1 and sums()[0] >= 9 * 90_000
        wait_until(whole, 20, "all brokers count all topics")
        total = sums()[0]
        fill(client, names[0])
        assert max(sums()) < 2 * total
        wait_until(lambda: not publishes(client, names[5]), 10, "the others are kept out")
        # Topics move, and a broker dies: nothing is counted twice, nothing is forgotten.
        wait_until(lambda: len(set(sums())) == 1, 20, "all brokers agree")
        full = sums()[0]
        assert call("PUT", "/admin/v2/namespaces/wide/n/unload").status_code == 204
        for name in names[:4]:
            call("GET", f"/admin/v2/persistent/{name.split('://')[1]}/stats")
        wait_until(lambda: set(sums()) == {full}, 20, f"{full} are counted after the move")
        cluster.brokers[2].kill()
        assert set(sums()) == {full}
        refused(lambda: client.create_producer("persistent://wide/n/new", send_timeout_millis=10_000).send(b"x"))
        client.close()
    finally:
        cluster.close()


def test_a_tenant_tightens_its_limits_and_never_lifts_the_operators(make_region, tmp_path):
    keys = Keys(tmp_path / "keys")
    region = make_region(**with_tokens(keys))
    root, boss, other = (bearer(keys.token(role)) for role in ("admin", "boss-acme", "boss-other"))
    for name in ("acme", "other"):
        make_tenant(region, name, headers=root)
    put(region, "namespaces/acme/n", {"topics": 3}, headers=root)
    # The tenant's own layer.
    put(region, "namespaces/acme/n", {"topics": 100, "producers": 5}, headers=boss)
    shown = region.admin("GET", f"{QUOTAS}/namespaces/acme/n", headers=boss).json()
    assert shown["operator"] == {"topics": 3} and shown["tenant"] == {"topics": 100, "producers": 5}
    assert shown["effective"]["topics"] == {"value": 3, "place": "namespace acme/n", "layer": "operator"}
    assert region.admin("DELETE", f"{QUOTAS}/namespaces/acme/n", headers=boss).status_code == 204
    assert region.admin("GET", f"{QUOTAS}/namespaces/acme/n", headers=boss).json()["effective"]["topics"]["value"] == 3
    # Which group binds a namespace is the operator's to say, by every way.
    assert region.admin("PUT", "/admin/v2/resourcegroups/g", headers=root, json={"publishRateInMsgs": 1000000}).status_code == 204
    assert region.admin("POST", "/admin/v2/namespaces/acme/n/resourcegroup/g", headers=boss).status_code in (401, 403)
    assert region.admin("POST", "/admin/v2/namespaces/acme/n/resourcegroup/g", headers=root).status_code == 204
    document = lambda policies: {"tenants": {"acme": {"namespaces": {"n": {"policies": policies}}}}}
    for policies, status in (({}, (401, 403)), ({"resourcegroup": "g", "messageTTL": 5}, (200,))):
        assert region.admin("PUT", "/admin/v2/meridian/apply", headers=boss, json=document(policies)).status_code in status
    assert region.admin("PUT", "/admin/v2/namespaces/acme/m", headers=boss, json={"resource_group_name": "g"}).status_code in (401, 403)
    assert region.admin("DELETE", "/admin/v2/namespaces/acme/n/resourcegroup", headers=boss).status_code in (401, 403)
    assert region.admin("DELETE", "/admin/v2/namespaces/acme/n/resourcegroup", headers=root).status_code == 204
    for method, place in (("PUT", "tenants/acme"), ("DELETE", "tenants/acme"), ("PUT", "cluster"), ("GET", "cluster"),
                          ("PUT", "namespaces/acme/n?layer=operator"), ("PUT", "namespaces/other/n"), ("GET", "tenants/other")):
        answer = region.admin(method, f"{QUOTAS}/{place}", headers=boss, json={})
        assert answer.status_code in (401, 403), (method, place, answer.status_code)
    assert region.admin("GET", QUOTAS, headers=boss).status_code in (401, 403)
    assert region.admin("GET", f"{QUOTAS}/namespaces/acme/n", headers=other).status_code in (401, 403)
    assert region.admin("GET", "/admin/v2/meridian/usage/tenants/acme", headers=other).status_code in (401, 403)
    assert region.admin("PUT", "/admin/v2/resourcegroups/g", headers=boss, json={"publishRateInMsgs": 1}).status_code in (401, 403)
    # The same by a document: each layer is whose it is.
    def apply(key, headers):
        document = {"tenants": {"acme": {"namespaces": {"n": {key: {"producers": 4}}}}}}
        return region.admin("PUT", "/admin/v2/meridian/apply", headers=headers, json=document)
    assert apply("tenantQuotas", boss).status_code == 200
    told = apply("quotas", boss)
    assert told.status_code in (401, 403) and "tenantQuotas are the tenant's own" in told.json()["reason"]
    assert apply("tenantQuotas", other).status_code in (401, 403)
    shown = region.admin("GET", f"{QUOTAS}/namespaces/acme/n", headers=boss).json()
    assert shown["operator"] == {"topics": 3} and shown["tenant"] == {"producers": 4}
    # A namespace that is made anew begins without limits.
    assert region.admin("DELETE", "/admin/v2/namespaces/acme/n", headers=root).status_code == 204
    assert region.admin("PUT", "/admin/v2/namespaces/acme/n", headers=root, json={}).status_code == 204
    assert region.admin("GET", f"{QUOTAS}/namespaces/acme/n", headers=root).json()["operator"] == {}


def test_usage_is_told_by_tenant_and_period_and_survives_a_restart(make_region):
    region = make_region()
    make_tenant(region, "used")
    client = region.client()
    topic = "persistent://used/n/t"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(50):
        producer.send(b"x" * 100)
        consumer.acknowledge(consumer.receive(5000))
    usage = lambda: region.get("/admin/v2/meridian/usage/tenants/used?period=day&from=0")
    total = usage()["total"]
    assert (total["messages_in"], total["messages_out"]) == (50, 50)
    assert total["bytes_in"] >= 5000 and total["stored_bytes_max"] >= 5000
    assert usage()["total"] == total, "looking counts nothing"
    metrics = region.admin("GET", "/metrics").text
    assert 'meridian_tenant_messages_in_total{cluster="standalone",tenant="used"} 50' in metrics
    client.close()
    region.stop()
    region.start()
    client = region.client()
    client.create_producer(topic).send(b"one more")
    again = usage()
    assert again["total"]["messages_in"] == 51 and len(again["periods"]) == 1
    assert region.admin("GET", "/admin/v2/meridian/usage/tenants/used?period=week").status_code == 400
    client.close()


def test_b117_a_resource_group_binds_the_namespaces_that_name_it(region, client):
    make_tenant(region, "grouped", ("a", "b"))
    group = "/admin/v2/resourcegroups/slow"
    # A group that is not there limits nothing: by no way is it named.
    missing = region.admin("POST", "/admin/v2/namespaces/grouped/a/resourcegroup/slow")
    assert (missing.status_code, missing.json()["reason"]) == (412, "ResourceGroup does not exist")
    assert region.admin("PUT", "/admin/v2/namespaces/grouped/c", json={"resource_group_name": "slow"}).status_code == 412
    document = {"tenants": {"grouped": {"namespaces": {"a": {"policies": {"resourcegroup": "slow"}}}}}}
    assert region.admin("PUT", "/admin/v2/meridian/apply", json=document).status_code == 412
    assert region.admin("GET", "/admin/v2/namespaces/grouped/a/resourcegroup").text in ("", "null")
    assert region.admin("PUT", group, json={"publishRateInMsgs": 40, "dispatchRateInMsgs": -1}).status_code == 204
    assert region.get(group) == {"publishRateInMsgs": 40}
    assert "slow" in region.get("/admin/v2/resourcegroups")
    for namespace in ("a", "b"):
        assert region.admin("POST", f"/admin/v2/namespaces/grouped/{namespace}/resourcegroup/slow").status_code == 204
    producers = [client.create_producer(f"persistent://grouped/{namespace}/t", batching_enabled=False) for namespace in ("a", "b")]
    use_up(producers[0], 100)
    counts = [0, 0]

    def run(at):
        counts[at] = send_for(producers[at], 5)
    threads = [threading.Thread(target=run, args=(at,)) for at in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert 200 * 0.85 <= sum(counts) <= 200 * 1.15, counts
    used = region.admin("DELETE", group)
    assert used.status_code == 412 and "in use by namespace grouped/" in used.text
    for namespace in ("a", "b"):
        assert region.admin("DELETE", f"/admin/v2/namespaces/grouped/{namespace}/resourcegroup").status_code == 204
    assert region.admin("DELETE", group).status_code == 204
    assert region.admin("GET", group).status_code == 404
    begun = time.monotonic()
    for _ in range(200):
        producers[0].send_async(b"x", None)
    producers[0].flush()
    assert time.monotonic() - begun < 3


def test_a_rate_binds_over_three_brokers_and_a_crash_mints_no_budget(tmp_path):
    cluster = Cluster(tmp_path / "c", brokers=3, bookies=3)
    try:
        cluster.start()
        web = cluster.brokers[0].web
        put = lambda path, body: requests.put(web + path, json=body, timeout=20)
        assert put("/admin/v2/tenants/wide", {"allowedClusters": ["west"]}).status_code == 204
        assert put("/admin/v2/namespaces/wide/n", {"bundles": {"numBundles": 12}}).status_code == 204
        assert put(f"{QUOTAS}/tenants/wide", {"publishMessagesPerSecond": 300, "producers": 20}).status_code == 204
        client = cluster.client()
        producers = [client.create_producer(f"persistent://wide/n/t{number}", batching_enabled=False, max_pending_messages=20,
                                            block_if_queue_full=True) for number in range(12)]
        confirmed, lock, stop = [], threading.Lock(), threading.Event()

        def run(producer):
            while not stop.is_set():
                try:
                    producer.send(b"x")
                    with lock:
                        confirmed.append(time.monotonic())
                except pulsar.PulsarException:
                    time.sleep(0.1)
        threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in producers]
        [thread.start() for thread in threads]
        time.sleep(6)

        def rate(seconds):
            begun = time.monotonic()
            time.sleep(seconds)
            with lock:
                return sum(begun <= at < begun + seconds for at in confirmed) / seconds
        steady = rate(10)
        assert 300 * 0.85 <= steady <= 300 * 1.05, steady
        cluster.brokers[2].kill()
        after = rate(8)
        assert after <= 300 * 1.05, after
        stop.set()
        print(f"asked without end: {steady:.0f} messages/s of 300 over three brokers, {after:.0f} while one is gone")
    finally:
        cluster.close()
