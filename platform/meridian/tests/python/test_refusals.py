"""What can't be is refused at once, with the field and its limit: by the admin API with a status, to clients for good."""
import http.client
import json
import re
import time

import pulsar
import pytest
import requests


def asking(region):
    return lambda method, path, **options: region.admin(method, "/admin/v2/" + path, **options)


def refused(answer, status, *words):
    assert answer.status_code == status, (answer.status_code, answer.text[:500])
    reason = answer.json()["reason"]
    assert all(word in reason for word in words), reason
    assert len(reason) < 1200, "what was sent is not sent back as a whole"


@pytest.mark.parametrize("length", [1_000, 3_000, 5_000], ids=["1000", "3000", "5000"])
def test_names_that_are_too_long_are_refused_with_their_limit(region, topic, length):
    long = "x" * length
    admin = asking(region)
    assert admin("PUT", f"persistent/public/default/{topic.rsplit('/', 1)[1]}").status_code == 204
    under = f"persistent/public/default/{topic.rsplit('/', 1)[1]}"
    refused(admin("PUT", f"tenants/{long}", json={"allowedClusters": ["standalone"]}), 412, "tenant", "128 bytes")
    refused(admin("PUT", f"clusters/{long}", json={"serviceUrl": "http://x:1"}), 412, "cluster", "128 bytes")
    refused(admin("PUT", f"namespaces/public/{long}"), 412, "namespace", "128 bytes")
    refused(admin("PUT", f"persistent/public/default/{long}"), 412, "topic", "750 bytes")
    refused(admin("PUT", f"persistent/public/default/{long}/partitions", json=2), 412, "topic", "750 bytes")
    refused(admin("GET", f"persistent/public/default/{long}/stats"), 412, "topic", "750 bytes")
    refused(admin("POST", f"persistent/public/default/{long}/maxProducers", json=3), 412, "topic", "750 bytes")
    refused(admin("PUT", f"{under}/subscription/{long}", json="latest"), 412, "subscription", "500 bytes")
    assert admin("GET", f"{under}/subscriptions").json() == []


def test_properties_that_are_too_large_are_refused_with_their_limit(region, topic):
    large = {"name": "v" * 300_000}
    local = topic.rsplit("/", 1)[1]
    admin = asking(region)
    words = ("properties", "262144 bytes")
    refused(admin("PUT", f"persistent/public/default/{local}", json=large), 412, *words)
    assert admin("GET", f"persistent/public/default/{local}/stats").status_code == 404, "nothing was made"
    assert admin("PUT", f"persistent/public/default/{local}").status_code == 204
    refused(admin("PUT", f"persistent/public/default/{local}/properties", json=large), 412, *words)
    refused(admin("PUT", "namespaces/public/default/properties", json=large), 412, *words)
    place = {"ledgerId": -1, "entryId": -1, "properties": large}
    refused(admin("PUT", f"persistent/public/default/{local}/subscription/s", json=place), 412, *words)
    assert admin("GET", f"persistent/public/default/{local}/subscriptions").json() == []
    assert admin("PUT", f"persistent/public/default/{local}/properties", json={"a": "v" * 200_000}).status_code == 204


@pytest.mark.parametrize("length", [1_000, 5_000], ids=["1000", "5000"])
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_client_is_told_for_good_that_a_name_is_too_long(region, domain, length):
    client = pulsar.Client(region.url, operation_timeout_seconds=20)
    name = f"{domain}://public/default/" + "x" * length
    begun = time.monotonic()
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(name)
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(name, "s")
    assert time.monotonic() - begun < 5, "it was repeated"
    client.close()


def test_a_client_is_told_for_good_that_a_subscription_is_too_long(region, client, topic):
    begun = time.monotonic()
    for length in (501, 5_000):
        with pytest.raises(pulsar.NotAllowedError):
            client.subscribe(topic, "s" * length)
    assert time.monotonic() - begun < 5, "it was repeated"
    assert client.subscribe(topic, "s" * 500).subscription_name() == "s" * 500


def test_the_longest_names_serve(region, client):
    tenant, namespace, local = "t" * 128, "n" * 128, "é" * 375
    assert region.admin("PUT", f"/admin/v2/tenants/{tenant}",
                        json={"allowedClusters": ["standalone"]}).status_code == 204
    assert region.admin("PUT", f"/admin/v2/namespaces/{tenant}/{namespace}").status_code == 204
    path = f"/admin/v2/persistent/{tenant}/{namespace}/{local}"
    assert region.admin("PUT", f"{path}/partitions", json=2).status_code == 204
    name = f"persistent://{tenant}/{namespace}/{local}"
    consumer = client.subscribe(name, "é" * 250)
    client.create_producer(name).send(b"x")
    consumer.acknowledge(consumer.receive(10_000))
    assert region.admin("POST", f"{path}/maxProducers", json=3).status_code == 204
    assert region.admin("DELETE", f"{path}/partitions?force=true").status_code == 204


def test_more_copies_than_bookies_are_refused_with_the_reason(region, client, topic):
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for _ in range(3):
        producer.send(b"x")
    consumer.close()
    wanted = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2,
              "managedLedgerMaxMarkDeleteRate": 1.0}
    assert region.admin("POST", f"{path}/persistence", json=wanted).status_code == 204
    time.sleep(0.5)
    calls = [("POST", "subscription/s/resetcursor/0"), ("POST", "subscription/s/expireMessages/1"),
             ("POST", "subscription/s/skip/1"), ("POST", "subscription/s/skip_all"),
             ("POST", "all_subscription/expireMessages/1"), ("DELETE", "subscription/s"),
             ("PUT", "subscription/other"), ("POST", "terminate"), ("PUT", "unload"), ("GET", "stats"),
             ("GET", "internalStats")]
    for method, call in calls:
        answer = region.admin(method, f"{path}/{call}")
        print(call, answer.status_code, answer.text[:200])
        assert answer.status_code < 500 or answer.status_code == 503, (call, answer.status_code, answer.text)
        if answer.status_code == 503:
            assert "3 writable bookies are needed, 1 are there" in answer.text, (call, answer.text)


def test_the_answer_to_a_body_that_is_too_large_can_be_read(region):
    """Also by clients that send all of it first, and on a connection that is used again."""
    body = json.dumps({"adminRoles": ["x" * (9 << 20)]})
    host = region.web.split("://")[1]
    for _ in range(20):
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request("GET", "/admin/v2/clusters")
        connection.getresponse().read()
        connection.request("PUT", "/admin/v2/tenants/large", body=body)
        answer = connection.getresponse()
        assert (answer.status, b"reason" in answer.read()) == (413, True)
        connection.close()
    with requests.Session() as session:
        for _ in range(5):
            assert session.get(region.web + "/admin/v2/clusters").status_code == 200
            assert session.put(region.web + "/admin/v2/tenants/large", data=body).status_code == 413


def test_no_call_fails_by_a_part_of_its_path_that_is_too_long(make_region):
    """Every path of the API, each of its parts in turn: refused or done, but never an error of the server."""
    region = make_region()
    made = {"tenant": "t", "namespace": "n", "topic": "x", "subscription": "s", "domain": "persistent",
            "cluster": "standalone", "bundle": "0x00000000_0xffffffff"}
    region.admin("PUT", "/admin/v2/tenants/t", json={"allowedClusters": ["standalone"]})
    region.admin("PUT", "/admin/v2/namespaces/t/n")
    region.admin("PUT", "/admin/v2/persistent/t/n/x")
    assert region.admin("PUT", "/admin/v2/persistent/t/n/x/subscription/s", json="latest").status_code == 204
    asked, failed = 0, []
    for path, methods in region.get("/admin/v2/meridian/openapi")["paths"].items():
        parts = re.findall(r"{([^}]+)}", path)
        for method in set(methods) & {"get", "put", "post", "delete"}:
            for long in set(parts) - {"domain"}:
                at = path
                for part in parts:
                    at = at.replace("{%s}" % part, "y" * 5_000 if part == long else made.get(part, "1"))
                for body in [None] if method in ("get", "delete") else ["3", '"latest"', "{}", '{"a":"b"}']:
                    asked += 1
                    answer = region.admin(method, at, data=body)
                    if answer.status_code >= 500 and answer.status_code != 501:
                        failed.append((method, path, long, body, answer.status_code, answer.text[:200]))
    assert asked > 2_000 and not failed, (asked, failed)
