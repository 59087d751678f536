"""Replication over crashes, restarts, lost data and refusals: what was not copied is copied, once."""
import pathlib
import shutil
import subprocess
import time

import pulsar
import pytest

from region import BINARY, Region, wait_until
from replicated import (
    SETTINGS, admin, clients, connected, copied, link, make_pair, new_topic, pair, path_of, receive, subscribe, texts,
)


@pytest.mark.parametrize("victim", ["west", "east"])
def test_a_killed_region_comes_back_and_each_message_is_there_once(make_pair, victim):
    pair = make_pair()
    topic = new_topic()
    west, east = pair.west.client(), pair.east.client()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
    acked = []
    region = getattr(pair, victim)
    for i in range(600):
        producer.send_async(str(i).encode(), lambda result, _, i=i: result == pulsar.Result.Ok and acked.append(i))
        if i in (150, 350):
            wait_until(lambda: len(acked) > 20, 30, "some receipts")
            region.kill()
            region.start()
    wait_until(lambda: len(acked) == 600, 60, "all receipts")
    wait_until(lambda: copied(pair.west, topic, "east"), 60, "the copy")
    consumer.close()
    # What the client resends after the region's end may be there twice in its own region, and so in the other one.
    stored = admin(pair.west, "GET", f"{path_of(topic)}/internalStats").json()["numberOfEntries"]
    got = texts(receive(subscribe(pair.east.client(), topic, "fresh"), stored, 30))
    assert sorted(set(got), key=int) == [str(i) for i in range(600)]
    here = texts(receive(subscribe(pair.west.client(), topic, "fresh"), stored, 30))
    assert here == got
    stats = link(pair.west, topic, "east")
    assert stats["gapMessages"] == 0 and stats["expiredBeforeCopy"] == 0, stats


def test_b020_what_was_not_copied_is_copied_without_clients_after_a_restart(make_pair):
    pair = make_pair()
    topic = new_topic()
    client = pair.west.client()
    producer = client.create_producer(topic)
    producer.send(b"0")
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    pair.east.kill()
    for i in range(1, 50):
        producer.send(str(i).encode())
    client.close()
    pair.west.kill()
    pair.east.start()
    pair.west.start()
    consumer = subscribe(pair.east.client(), topic)
    assert texts(receive(consumer, 50, 30)) == [str(i) for i in range(50)]


def test_b009_idle_cleanup_keeps_what_is_not_copied(make_pair):
    pair = make_pair(brokerDeleteInactiveTopicsFrequencySeconds=1, brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=2)
    topic = new_topic()
    client = pair.west.client()
    producer = client.create_producer(topic)
    producer.send(b"a")
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    pair.east.kill()
    producer.send(b"b")
    client.close()
    time.sleep(6)
    assert link(pair.west, topic, "east")["replicationBacklog"] == 1, "the topic is kept for what is not copied"
    assert "disconnected" in link(pair.west, topic, "east")["state"]
    pair.east.start()
    wait_until(lambda: copied(pair.west, topic, "east"), 30, "the copy after the return")


def test_b018_what_outlives_its_time_before_it_is_copied_is_counted(make_pair):
    pair = make_pair(messageExpiryCheckIntervalInSeconds=1)
    topic = new_topic()
    client = pair.west.client()
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"first")
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    admin(pair.west, "POST", "namespaces/geo/both/messageTTL", 2)
    pair.east.kill()
    for i in range(30):
        producer.send(str(i).encode())
    time.sleep(3)
    pair.east.start()
    wait_until(lambda: copied(pair.west, topic, "east"), 40, "the end of the backlog")
    consumer = subscribe(pair.east.client(), topic)
    arrived = 0
    try:
        while True:
            consumer.receive(1500)
            arrived += 1
    except pulsar.Timeout:
        pass
    assert link(pair.west, topic, "east")["expiredBeforeCopy"] == 31 - arrived > 0


def test_b021_a_topic_made_anew_is_copied_from_its_beginning(pair, clients):
    west, east = clients
    topic = new_topic()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic)
    for i in range(20):
        producer.send(f"old-{i}".encode())
    receive(consumer, 20)
    producer.close()
    admin(pair.west, "DELETE", f"{path_of(topic)}?force=true")
    producer = west.create_producer(topic)
    for i in range(10):
        producer.send(f"new-{i}".encode())
    assert texts(receive(consumer, 10, 30)) == [f"new-{i}" for i in range(10)]


def test_b036_a_link_that_begins_at_the_earliest_message_brings_what_is_there(make_pair):
    pair = make_pair(replicationStartAt="earliest", defaultRetentionTimeInMinutes=10, defaultRetentionSizeInMB=100)
    topic = new_topic("geo/later")
    producer = pair.west.client().create_producer(topic)
    for i in range(100):
        producer.send(str(i).encode())
    admin(pair.west, "POST", "namespaces/geo/later/replication", ["west", "east"])
    consumer = subscribe(pair.east.client(), topic)
    assert texts(receive(consumer, 100, 30)) == [str(i) for i in range(100)]


def test_b029_b030_shapes_come_from_the_source(make_pair):
    pair = make_pair(allowAutoTopicCreation="true")
    for region in (pair.east,):
        admin(region, "POST", "namespaces/geo/both/autoTopicCreation", {"allowAutoTopicCreation": False})
    plain, parts = new_topic(), new_topic()
    client = pair.west.client()
    client.create_producer(plain).send(b"x")
    wait_until(lambda: copied(pair.west, plain, "east"), 20, "a topic made there although nobody may make one by using it")
    admin(pair.west, "PUT", f"{path_of(parts)}/partitions", 2)
    client.create_producer(parts).send(b"x")

    def count():
        return admin(pair.east, "GET", f"{path_of(parts)}/partitions", expect=(200, 404)).json().get("partitions", 0)

    wait_until(lambda: count() == 2, 20, "two partitions")
    admin(pair.west, "POST", f"{path_of(parts)}/partitions", 4)
    producer = client.create_producer(parts, batching_enabled=False)
    for i in range(40):
        producer.send(str(i).encode(), partition_key=str(i))
    wait_until(lambda: count() == 4, 30, "four partitions")
    for i in range(4):
        wait_until(lambda: copied(pair.west, f"{parts}-partition-{i}", "east"), 30, "the copy")
    listed = admin(pair.east, "GET", "persistent/geo/both").json()
    assert sorted(listed) == sorted([plain] + [f"{parts}-partition-{i}" for i in range(4)])


def test_an_address_of_another_region_is_refused_and_nothing_is_lost(make_pair):
    pair = make_pair()
    topic = new_topic()
    west, east = pair.west.client(), pair.east.client()
    consumer = subscribe(east, topic)
    producer = west.create_producer(topic)
    producer.send(b"0")
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the first copy")
    entry = lambda region: {"serviceUrl": region.web, "brokerServiceUrl": region.url}
    # West calls itself east.
    admin(pair.west, "POST", "clusters/east", entry(pair.west))
    producer.send(b"1")
    wait_until(lambda: "this is region west" in link(pair.west, topic, "east").get("state", ""), 20, "the refusal")
    admin(pair.west, "POST", "clusters/east", entry(pair.east))
    producer.send(b"2")
    assert texts(receive(consumer, 3)) == ["0", "1", "2"]
    for client in (west, east):
        client.close()


def test_b062_a_region_that_is_built_anew_gets_what_is_still_there(make_pair):
    pair = make_pair(defaultRetentionTimeInMinutes=60, defaultRetentionSizeInMB=100)
    topic = new_topic()
    west, east = pair.west.client(), pair.east.client()
    consumers = [subscribe(client, topic) for client in (west, east)]
    producer = west.create_producer(topic)
    for i in range(40):
        producer.send(str(i).encode())
    for consumer in consumers:
        receive(consumer, 40)
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")
    east.close()
    pair.east.kill()
    shutil.rmtree(pair.east.folder / "data")
    pair.east.start()
    pair.east.put("clusters/west", {"serviceUrl": pair.west.web, "brokerServiceUrl": pair.west.url})
    pair.east.put("tenants/geo", {"allowedClusters": ["west", "east"]})
    pair.east.put("namespaces/geo/both", {"replication_clusters": ["west", "east"]})
    producer.send(b"40")
    wait_until(lambda: copied(pair.west, topic, "east"), 40, "the copy")
    fresh = subscribe(pair.east.client(), topic, "fresh")
    assert texts(receive(fresh, 41)) == [str(i) for i in range(41)]
    assert "the remote has the topic anew" in pathlib.Path(pair.west.log_file).read_text()
    # A restart of either is no new life.
    pair.west.stop()
    pair.west.start()
    wait_until(lambda: copied(pair.west, topic, "east"), 40, "the copy")
    assert link(pair.west, topic, "east")["msgOutCount"] == 0


def test_a_region_that_is_built_anew_gets_its_own_messages_back_by_order_and_once(make_pair):
    pair = make_pair(defaultRetentionTimeInMinutes=60, defaultRetentionSizeInMB=100)
    topic = new_topic()
    west, east = pair.west.client(), pair.east.client()
    here = subscribe(west, topic)
    from_west, from_east = west.create_producer(topic), east.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50)
    for i in range(20):
        from_west.send(f"w{i}".encode())
        from_east.send_async(f"e{i}".encode(), lambda *_: None)
    from_east.flush()
    for region, remote in ((pair.west, "east"), (pair.east, "west")):
        wait_until(lambda: copied(region, topic, remote), 20, "the copy")
    receive(here, 40)
    east.close()
    pair.east.kill()
    path = f"{path_of(topic)}/restore/east"
    # Which life of the topic it has is known again when it is heard.
    wait_until(lambda: not connected(pair.west, topic, "east"), 30, "the loss is known")
    refused = admin(pair.west, "PUT", path, expect=(409,)).json()["reason"]
    assert "is not connected" in refused and "east" in refused
    shutil.rmtree(pair.east.folder / "data")
    pair.east.start()
    pair.east.put("clusters/west", {"serviceUrl": pair.west.web, "brokerServiceUrl": pair.west.url})
    pair.east.put("tenants/geo", {"allowedClusters": ["west", "east"]})
    pair.east.put("namespaces/geo/both", {"replication_clusters": ["west", "east"]})
    east = pair.east.client()
    fresh = subscribe(east, topic, "fresh")
    east.create_producer(topic).send(b"new")
    from_west.send(b"w20")
    wait_until(lambda: copied(pair.west, topic, "east") and copied(pair.east, topic, "west"), 60, "the copy")
    assert sorted(texts(receive(fresh, 22))) == sorted(["new", *(f"w{i}" for i in range(21))]), "nothing comes back by itself"
    assert sorted(texts(receive(here, 2))) == ["new", "w20"]
    assert admin(pair.west, "GET", path).json()["status"] == "NOT_RUN"

    def restore():
        wait_until(lambda: admin(pair.west, "PUT", path, expect=(200, 204, 409)).status_code != 409, 30, "its beginning")
        done = lambda: admin(pair.west, "GET", path).json()
        wait_until(lambda: done()["status"] != "RUNNING", 30, "its end")
        return done()

    first = restore()
    assert (first["status"], first["lastError"], first["alreadyThere"]) == ("SUCCESS", "", 0)
    assert first["returned"] > 0
    assert texts(receive(fresh, 20)) == [f"e{i}" for i in range(20)], "in order"
    again = restore()
    assert (again["status"], again["returned"], again["alreadyThere"]) == ("SUCCESS", 0, first["returned"])
    # They name their origin, so that nobody sends them on, and the marks that know them outlive a restart.
    wait_until(lambda: copied(pair.east, topic, "west"), 20, "an empty backlog")
    assert link(pair.east, topic, "west")["msgOutCount"] == 1
    with pytest.raises(pulsar.Timeout):
        here.receive(500)
    east.close()
    pair.east.stop()
    pair.east.start()
    wait_until(lambda: copied(pair.west, topic, "east") and connected(pair.west, topic, "east"), 40, "the link")
    # One that meets the connection of before the restart ends with an error, and is begun again.
    third = wait_until(lambda: next((one for one in [restore()] if one["status"] == "SUCCESS"), None), 30, "a pass to its end")
    assert (third["returned"], third["alreadyThere"]) == (0, first["returned"])
    whole = subscribe(pair.east.client(), topic, "whole")
    assert len(receive(whole, 42)) == 42
    admin(pair.west, "PUT", f"{path_of(topic)}/restore/north", expect=(404,))


def test_b041_topics_can_be_deleted_after_this_region_has_left(make_pair):
    pair = make_pair()
    client = pair.west.client()
    producers = [client.create_producer(new_topic()) for _ in range(100)]
    for producer in producers:
        producer.send(b"x")
    wait_until(lambda: all(copied(pair.west, producer.topic(), "east") for producer in producers), 40, "the copies")
    before = pair.west.rss_bytes()
    for region in (pair.east, pair.west):
        admin(region, "POST", "namespaces/geo/both/replication", ["east"])
    for producer in producers:
        producer.close()
        admin(pair.west, "DELETE", path_of(producer.topic()))
    assert pair.west.get("/admin/v2/persistent/geo/both") == []
    assert pair.west.rss_bytes() < before + (16 << 20)


def test_b050_an_idle_replicated_subscription_writes_nothing(make_pair):
    pair = make_pair()
    topic = new_topic()
    west = pair.west.client()
    consumer = west.subscribe(topic, "s", replicate_subscription_state_enabled=True)
    producer = west.create_producer(topic)
    producer.send(b"x")
    consumer.acknowledge(consumer.receive(10_000))
    wait_until(lambda: copied(pair.west, topic, "east"), 20, "the copy")

    def entries():
        return [region.get(f"/admin/v2/{path_of(topic)}/internalStats")["numberOfEntries"] for region in (pair.west, pair.east)]

    # One snapshot follows the last message: a request, answers, the snapshot, and their copies.
    seen = [None]

    def still():
        seen.append(entries())
        return seen[-1] == seen[-2] and time.monotonic() > settled

    settled = time.monotonic() + 4
    wait_until(still, 20, "markers end")
    before, until = entries(), time.monotonic() + 5
    assert max(before) <= 10
    reader = west.create_reader(topic, pulsar.MessageId.latest)
    while time.monotonic() < until:
        asked = time.monotonic()
        assert not reader.has_message_available()
        assert time.monotonic() - asked < 1
        time.sleep(0.2)
    assert entries() == before


def tokens(*words):
    return subprocess.run([BINARY, "tokens", *map(str, words)], check=True, capture_output=True, text=True).stdout.strip()


def test_b038_a_remote_with_keys_of_its_own_and_a_token_that_is_changed(tmp_path):
    key = tmp_path / "key"
    tokens("create-secret-key", "--output", key)
    first, second, root = (tokens("create", "--secret-key", key, "--subject", name) for name in ("link", "link2", "root"))
    west = Region(tmp_path / "west", clusterName="west", **SETTINGS).start()
    east = Region(tmp_path / "east", clusterName="east", authenticationEnabled="true", authorizationEnabled="true",
                  authenticationProviders="token", tokenSecretKey=f"file://{key}", superUserRoles="root",
                  replicatorRoles="link,link2", **SETTINGS).start()
    try:
        def put(region, path, body):
            headers = {"Authorization": f"Bearer {root}"} if region is east else {}
            answer = region.admin("PUT", f"/admin/v2/{path}", json=body, headers=headers)
            assert answer.status_code in (200, 204), answer.text

        def there(token):
            return {"serviceUrl": east.web, "brokerServiceUrl": east.url, "authenticationPlugin": "token",
                    "authenticationParameters": f"token:{token}"}

        put(west, "clusters/east", there("not-a-token"))
        put(east, "clusters/west", {"serviceUrl": west.web, "brokerServiceUrl": west.url})
        for region in (west, east):
            put(region, "tenants/geo", {"allowedClusters": ["west", "east"]})
            put(region, "namespaces/geo/both", {"replication_clusters": ["west", "east"]})
        for role in ("link", "link2"):
            answer = east.admin("POST", f"/admin/v2/namespaces/geo/both/permissions/{role}", json=["produce", "consume"],
                                headers={"Authorization": f"Bearer {root}"})
            assert answer.status_code in (200, 204), answer.text
        topic = new_topic()
        producer = west.client().create_producer(topic)
        producer.send(b"0")
        wait_until(lambda: link(west, topic, "east").get("state", "").startswith(("refused", "disconnected")), 20, "a refusal")
        admin(west, "POST", "clusters/east", there(first))
        wait_until(lambda: copied(west, topic, "east"), 20, "the copy")
        # Changed while the link runs: the next messages go over with the new one.
        connected = link(west, topic, "east")["outboundConnectedSince"]
        admin(west, "POST", "clusters/east", there(second))
        wait_until(lambda: link(west, topic, "east").get("outboundConnectedSince", connected) != connected, 20, "a new connection")
        producer.send(b"1")
        wait_until(lambda: copied(west, topic, "east"), 20, "the copy")
        client = east.client(authentication=pulsar.AuthenticationToken(root))
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [reader.read_next(10_000).data() for _ in range(2)] == [b"0", b"1"]
    finally:
        west.close()
        east.close()
