"""The region link between two regions as processes: what both share converges, deletions go everywhere."""
import pathlib
import time

import pulsar
import pytest
import requests

from region import wait_until

CERTIFICATES = pathlib.Path(__file__).parents[4] / "replication/link/tests/certs"


def certificates(name):
    return {
        "regionLinkTlsCertificateFilePath": CERTIFICATES / f"{name}.pem",
        "regionLinkTlsKeyFilePath": CERTIFICATES / f"{name}.key",
        "regionLinkTrustCertsFilePath": CERTIFICATES / "authority.pem",
    }


def introduce(here, there, name, **entry):
    cluster = {"serviceUrl": there.web, "brokerServiceUrl": there.url, **entry}
    answer = here.admin("PUT", f"/admin/v2/clusters/{name}", json=cluster)
    assert answer.status_code in (200, 204), answer.text


def link_of(region, peer):
    return region.get("/admin/v2/meridian/region-link/peers").get(peer, {})


def connected(region, peer):
    return wait_until(lambda: link_of(region, peer).get("state") == "connected" and link_of(region, peer), 30,
                      f"the link to {peer}")


def partitions(region, topic):
    answer = region.admin("GET", f"/admin/v2/persistent/{topic}/partitions")
    return answer.json()["partitions"] if answer.status_code == 200 else None


def status(region, path):
    return region.admin("GET", path).status_code


@pytest.fixture
def pair(make_region):
    west, east = make_region(clusterName="west"), make_region(clusterName="east")
    for here, there, name in ((west, east, "east"), (east, west, "west")):
        introduce(here, there, name, regionLinkUrl=f"http://localhost:{there.ready['region_link_port']}")
    connected(west, "east"), connected(east, "west")
    both = ["west", "east"]
    assert west.admin("PUT", "/admin/v2/tenants/t", json={"allowedClusters": both}).status_code == 204
    assert west.admin("PUT", "/admin/v2/namespaces/t/n", json={"replication_clusters": both}).status_code == 204
    wait_until(lambda: status(east, "/admin/v2/namespaces/t/n") == 200, 20, "the namespace in east")
    return west, east


def test_what_both_share_is_in_both_and_what_is_deleted_goes_from_both(pair):
    west, east = pair
    begun = time.monotonic()
    assert west.admin("PUT", "/admin/v2/persistent/t/n/p/partitions", json=3).status_code in (200, 204)
    wait_until(lambda: partitions(east, "t/n/p") == 3, 10, "the partitions")
    assert time.monotonic() - begun < 5
    assert east.admin("POST", "/admin/v2/namespaces/t/n/messageTTL", json=77).status_code == 204
    wait_until(lambda: west.get("/admin/v2/namespaces/t/n").get("message_ttl_in_seconds") == 77, 10, "the policy in west")
    west.admin("PUT", "/admin/v2/namespaces/t/home", json={"replication_clusters": ["west"]})

    client = east.client()
    topic = "persistent://t/n/plain"
    client.create_producer(topic).send(b"x")
    client.subscribe(topic, "s").close()
    west_client = west.client()
    west_client.create_producer(topic).send(b"y")
    assert status(east, "/admin/v2/persistent/t/n/plain/stats") == 200
    client.close(), west_client.close()
    assert west.admin("DELETE", "/admin/v2/persistent/t/n/plain?force=true").status_code == 204
    wait_until(lambda: topic not in east.get("/admin/v2/persistent/t/n"), 20, "the topic is deleted in east")
    assert west.admin("DELETE", "/admin/v2/persistent/t/n/p/partitions").status_code == 204
    wait_until(lambda: east.get("/admin/v2/persistent/t/n/partitioned") == [], 20, "the partitioned topic, too")
    assert west.admin("DELETE", "/admin/v2/namespaces/t/n?force=true").status_code == 204
    wait_until(lambda: status(east, "/admin/v2/namespaces/t/n") == 404, 20, "the namespace, too")
    assert status(east, "/admin/v2/namespaces/t/home") == 404, "what is local stays local"
    metrics = requests.get(f"{west.web}/metrics", timeout=10).text
    assert 'meridian_region_link_connected{remote_cluster="east"} 1' in metrics


class Order(pulsar.schema.Record):
    number = pulsar.schema.Integer()


def versions(region, topic):
    answer = region.admin("GET", f"/admin/v2/schemas/{topic}/schemas")
    return len(answer.json()["getSchemaResponses"]) if answer.status_code == 200 else 0


def test_schemas_travel_and_are_deleted_together(pair):
    west, east = pair
    client = west.client()
    client.create_producer("persistent://t/n/s", schema=pulsar.schema.AvroSchema(Order)).close()
    client.close()
    wait_until(lambda: versions(east, "t/n/s") == 1, 20, "the schema in east")
    assert east.get("/admin/v2/schemas/t/n/s/schema")["data"] == west.get("/admin/v2/schemas/t/n/s/schema")["data"]
    assert east.admin("DELETE", "/admin/v2/schemas/t/n/s/schema").status_code == 200
    wait_until(lambda: status(west, "/admin/v2/schemas/t/n/s/schema") == 404, 20, "the deletion in west")


def test_a_region_that_was_killed_catches_up(pair):
    west, east = pair
    east.kill()
    wait_until(lambda: link_of(west, "east")["state"] == "disconnected", 20, "the loss is seen")
    assert link_of(west, "east")["explanation"] != "disconnected", "with its reason"
    west.admin("PUT", "/admin/v2/persistent/t/n/later/partitions", json=2)
    west.admin("POST", "/admin/v2/namespaces/t/n/messageTTL", json=5)
    east.start()
    wait_until(lambda: partitions(east, "t/n/later") == 2, 30, "the partitions")
    wait_until(lambda: east.get("/admin/v2/namespaces/t/n").get("message_ttl_in_seconds") == 5, 30, "the policy")


def test_mutual_tls_by_the_address_that_the_web_service_says(make_region):
    west = make_region(clusterName="west", **certificates("west"))
    east = make_region(clusterName="east", **certificates("east"))
    said = east.get("/admin/v2/meridian/region-link")
    assert said == {"region": "east", "url": f"https://localhost:{east.ready['region_link_port']}"}
    introduce(west, east, "east"), introduce(east, west, "west")
    assert connected(west, "east")["tls"] and connected(east, "west")["tls"]
    plain = make_region(clusterName="plain")
    introduce(plain, east, "east")
    wait_until(lambda: "regionLinkTlsCertificateFilePath" in link_of(plain, "east").get("explanation", ""), 20, "refused")
    introduce(west, plain, "plain")
    wait_until(lambda: "without TLS" in link_of(west, "plain").get("explanation", ""), 20, "not taken by itself")
