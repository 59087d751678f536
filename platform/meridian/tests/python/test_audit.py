"""Every administrative change leaves a record: in the file and in the topic, without secrets, whatever its end."""
import json
import pathlib
import threading

import pulsar
import pytest
import requests

from cluster import Cluster
from region import Region, wait_until
from secured import Keys, bearer, with_tokens

TOPIC = "persistent://pulsar/system/audit"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys"))


def records(region):
    path = region.folder / "data/audit/audit.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def record_of(region, action, **fields):
    def found():
        return [one for one in records(region) if one["action"] == action
                and all(one.get(name) == value for name, value in fields.items())]
    return wait_until(found, message=f"a record of {action} {fields}")[-1]


def test_a_change_is_recorded_with_who_where_before_and_after(make_region, keys):
    region = make_region(**with_tokens(keys))
    head = bearer(keys.token("admin"))
    call = lambda method, path, **options: region.admin(method, path, headers=head, **options)
    assert call("PUT", "/admin/v2/tenants/acme", json={"adminRoles": ["boss"], "allowedClusters": ["standalone"]}).status_code == 204
    made = record_of(region, "PUT /admin/v2/tenants/{tenant}")
    assert made["principal"] == "admin" and made["method"] == "token" and made["source"].startswith("127.0.0.1:")
    assert made["result"] == "done" and made["status"] == 204 and made["path"] == "/admin/v2/tenants/acme"
    assert "before" not in made and made["after"]["adminRoles"] == ["boss"]
    assert call("PUT", "/admin/v2/namespaces/acme/n", json={}).status_code == 204
    assert call("POST", "/admin/v2/namespaces/acme/n/messageTTL", json=60).status_code == 204
    assert call("POST", "/admin/v2/namespaces/acme/n/messageTTL", json=90).status_code == 204
    changed = record_of(region, "POST /admin/v2/namespaces/{tenant}/{namespace}/messageTTL", request=90)
    assert (changed["before"], changed["after"]) == ({"message_ttl_in_seconds": 60}, {"message_ttl_in_seconds": 90})
    # A grant by the tenant's administrator, one that is refused, and one by nobody.
    boss = bearer(keys.token("boss"))
    path = "/admin/v2/namespaces/acme/n/permissions/ann"
    assert region.admin("POST", path, headers=boss, json=["produce"]).status_code == 204
    assert region.admin("POST", path, headers=bearer(keys.token("eve")), json=["consume"]).status_code == 403
    assert region.admin("POST", path, json=["consume"]).status_code == 401
    action = "POST /admin/v2/namespaces/{tenant}/{namespace}/permissions/ann"
    assert record_of(region, action, principal="boss")["result"] == "done"
    refused = record_of(region, action, principal="eve")
    assert refused["result"] == "refused" and refused["status"] == 403 and refused["reason"] and "after" not in refused
    # Topics.
    assert call("PUT", "/admin/v2/persistent/acme/n/t/partitions", json=3).status_code == 204
    topic = record_of(region, "PUT /admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions")
    assert topic["after"]["partitions"] == 3 and "before" not in topic
    assert call("DELETE", "/admin/v2/persistent/acme/n/t/partitions?force=true").status_code == 204
    gone = record_of(region, "DELETE /admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions")
    assert gone["before"]["partitions"] == 3 and "after" not in gone and gone["query"] == {"force": "true"}
    # A setting.
    assert call("POST", "/admin/v2/brokers/configuration/maxProducersPerTopic/7").status_code in (200, 204)
    setting = record_of(region, "POST /admin/v2/brokers/configuration/maxProducersPerTopic/7")
    assert (setting["before"], setting["after"]) == ({"maxProducersPerTopic": "0"}, {"maxProducersPerTopic": "7"})
    # Reads are no changes.
    call("GET", "/admin/v2/tenants")
    assert all(not one["action"].startswith("GET") for one in records(region))
    ids = [one["id"] for one in records(region)]
    assert len(set(ids)) == len(ids)


def test_the_topic_has_what_the_file_has(make_region, keys):
    region = make_region(**with_tokens(keys))
    head = bearer(keys.token("admin"))
    for number in range(20):
        assert region.admin("PUT", f"/admin/v2/namespaces/public/n{number}", headers=head, json={}).status_code == 204
    client = region.client(authentication=pulsar.AuthenticationToken(keys.token("admin")))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    read = []
    while len(read) < 20:
        read.append(json.loads(reader.read_next(10000).data()))
    assert [one["path"] for one in read] == [f"/admin/v2/namespaces/public/n{number}" for number in range(20)]
    assert read == records(region)[:20]
    client.close()
    # Over a restart: the file and the topic go on, and what was there is still there.
    region.stop()
    region.start()
    assert region.admin("PUT", "/admin/v2/namespaces/public/later", headers=head, json={}).status_code == 204
    client = region.client(authentication=pulsar.AuthenticationToken(keys.token("admin")))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    read = []
    while not read or read[-1]["path"] != "/admin/v2/namespaces/public/later":
        read.append(json.loads(reader.read_next(10000).data()))
    assert len(read) == 21 and read == records(region)
    client.close()


def test_no_secret_is_recorded(make_region, keys):
    region = make_region(**with_tokens(keys))
    token = keys.token("admin")
    head = bearer(token)
    body = {"serviceUrl": "http://east:8080", "brokerServiceUrl": "pulsar://east:6650",
            "authenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "authenticationParameters": f"token:{token}"}
    assert region.admin("PUT", "/admin/v2/clusters/east", headers=head, json=body).status_code in (200, 204)
    assert region.admin("PUT", f"/admin/v2/clusters/x{token}", headers=head, json=body).status_code in (200, 204, 412)
    region.admin("PUT", f"/admin/v2/tenants/x?token={token}&password=hunter2", headers=head, json={"note": token})
    region.admin("POST", "/admin/v2/namespaces/public/default/properties", headers=head, json={"db_password": "hunter2"})
    made = record_of(region, "PUT /admin/v2/clusters/{cluster}", path="/admin/v2/clusters/east")
    assert made["request"]["authenticationParameters"] == "***" and made["after"]["authenticationParameters"] == "***"
    assert made["request"]["serviceUrl"] == "http://east:8080"
    wait_until(lambda: len(records(region)) >= 4)
    text = (region.folder / "data/audit/audit.log").read_text()
    assert token not in text and token.split(".")[2] not in text and "hunter2" not in text


def test_what_can_not_be_recorded_is_not_done(make_region):
    region = make_region(auditQueueSize=1)
    folder = region.folder / "data/audit"
    assert region.admin("PUT", "/admin/v2/namespaces/public/first", json={}).status_code == 204
    wait_until(lambda: len(records(region)) == 1)
    statuses = []
    lock = threading.Lock()

    def create(number):
        status = region.admin("PUT", f"/admin/v2/namespaces/public/m{number}", json={}).status_code
        with lock:
            statuses.append((number, status))
    threads = [threading.Thread(target=create, args=(number,)) for number in range(30)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert {status for _, status in statuses} <= {204, 503}
    done = {f"/admin/v2/namespaces/public/m{number}" for number, status in statuses if status == 204}
    wait_until(lambda: done <= {one["path"] for one in records(region)})
    there = set(region.get("/admin/v2/namespaces/public"))
    for number, status in statuses:
        assert (f"public/m{number}" in there) == (status == 204)
    assert folder.exists()


def test_a_log_that_can_not_be_written_ends_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    region = Region(tmp_path / "r", auditLogFile=tmp_path / "file/audit.log")
    with pytest.raises(RuntimeError, match="auditLogFile="):
        region.start()


def test_switched_off_nothing_is_recorded(make_region):
    region = make_region(auditEnabled="false")
    assert region.admin("PUT", "/admin/v2/namespaces/public/quiet", json={}).status_code == 204
    assert not pathlib.Path(region.folder / "data/audit").exists()


def test_a_broker_without_a_data_folder_records_in_the_topic_alone_and_says_so(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    cluster = Cluster(tmp_path / "cluster", brokers=1, bookies=1, managedLedgerDefaultEnsembleSize=1, managedLedgerDefaultWriteQuorum=1,
                      managedLedgerDefaultAckQuorum=1)
    broker = cluster.brokers[0]
    del broker.settings["auditLogFile"]
    try:
        cluster.start()
        assert f"recorded in {TOPIC} alone: auditLogFile is not set, and there is no data folder" in broker.log()
        for number in range(3):
            made = requests.put(f"{broker.web}/admin/v2/namespaces/public/alone{number}", json={}, timeout=30)
            assert made.status_code == 204, made.text
        client = cluster.client()
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        paths = [json.loads(reader.read_next(20_000).data())["path"] for _ in range(3)]
        assert paths == [f"/admin/v2/namespaces/public/alone{number}" for number in range(3)]
        client.close()
        # A file that is asked for is there, and nothing else.
        broker.stop()
        broker.settings["auditLogFile"] = tmp_path / "kept.log"
        broker.start()
        wait_until(lambda: requests.put(f"{broker.web}/admin/v2/namespaces/public/filed", json={}, timeout=30).status_code == 204, 20)
        wait_until(lambda: "public/filed" in (tmp_path / "kept.log").read_text(), 10, "the record")
        broker.stop()
        del broker.settings["auditLogFile"]
        broker.settings["auditTopicEnabled"] = "false"
        assert "records have no place" in broker.refused()
    finally:
        cluster.close()
    assert list(here.iterdir()) == []
