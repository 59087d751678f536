"""The admin API beside Pulsar's: answers that were recorded there, and every path that its tools call."""
import pathlib
import re

import pytest

from admin_api import compare

ROUTES = pathlib.Path(__file__).parent / "admin_api/routes.tsv"
SAMPLES = {"domain": "persistent", "tenant": "public", "namespace": "default", "cluster": "standalone", "clusterName": "standalone",
           "configName": "maxProducersPerTopic", "configValue": "0"}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    from region import Region
    region = Region(tmp_path_factory.mktemp("admin"), defaultNumberOfNamespaceBundles=4, brokerDeleteInactiveTopicsEnabled="false",
                    diskUsageThreshold=0.99, diskUsageLwmThreshold=0.98).start()
    yield region
    region.close()


def test_answers_are_pulsars_but_for_what_is_meant_to_be_otherwise(fresh):
    found, gone, used = compare.unexpected(fresh.web)
    assert not found, "\n".join(f"{call}\n    {difference}" for call, difference in found[:40])
    assert not gone, f"differences that are listed and there no more: {gone[:20]}"
    idle = [compare.ROWS[row][:2] for row in range(len(compare.ROWS)) if row not in used]
    assert not idle, f"differences that there are none of any more: {idle}"


def test_the_page_of_differences_is_made_from_the_list():
    assert compare.PAGE.read_text() == compare.page(), "compare.py page writes it anew"


def test_every_call_of_pulsars_tools_is_answered_with_a_reason_if_not_served(fresh):
    unanswered = []
    for line in ROUTES.read_text().splitlines():
        method, path = line.split("\t")
        sample = re.sub(r"\{([^}]+)\}", lambda part: SAMPLES.get(part.group(1), "1"), path)
        answer = fresh.admin(method, sample, data=b"")
        absent = answer.status_code in (404, 405) and "HTTP 40" in answer.text
        if absent or answer.status_code in (500, 501) and not answer.json().get("reason"):
            unanswered.append((method, path, answer.status_code, answer.text))
        assert answer.status_code != 500, (method, path, answer.text)
    assert not unanswered, unanswered


BODIES = [b"{", b"[1", b'"x"', b"-1", b"9223372036854775808", b"1e400", b"1.5", b"null", b"[]", b"{}", b"true", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 5_000,
          b'{"limitSize": -9223372036854775809, "policy": 7}', b'[null]', b'{"partitions": 4294967296}', b'"' + b"x" * 100_000 + b'"']


def test_no_body_makes_an_error_of_the_server(make_region):
    """Whatever is sent to whatever changes something: a reason, never 500, and the region lives on."""
    region = make_region(diskUsageThreshold=0.99, diskUsageLwmThreshold=0.98)
    region.admin("PUT", "/admin/v2/persistent/public/default/t")
    for line in ROUTES.read_text().splitlines():
        method, path = line.split("\t")
        if method not in ("PUT", "POST") or "shutdown" in path:
            continue
        sample = path.replace("{topic}", "t")
        sample = re.sub(r"\{([^}]+)\}", lambda part: SAMPLES.get(part.group(1), "1"), sample)
        for body in BODIES:
            answer = region.admin(method, sample, data=body, headers={"Content-Type": "application/json"})
            assert answer.status_code < 500 or answer.status_code == 501, (method, sample, body[:40], answer.status_code, answer.text)
            if answer.status_code >= 400:
                assert answer.json()["reason"].strip(), (method, sample, body[:40])
    assert region.admin("GET", "/admin/v2/brokers/health").text == "ok"


def own_routes(region):
    """(method, path) of everything in the document of the API."""
    for path, item in sorted(region.get("/admin/v2/meridian/openapi")["paths"].items()):
        for method in item:
            if method != "parameters":
                yield method.upper(), path


def filled(path, **more):
    names = {**SAMPLES, "topic": "t", "subscription": "s", "role": "r", "group": "g", "owner": "o", "bookie": "b", "broker": "b", "policy": "p",
             "key": "k", "value": "v", "rest": "x", "bundle": "0x00000000_0xffffffff", "seconds": "1", "timestamp": "1", "count": "1", "nth": "1",
             "ledger": "1", "entry": "1", "version": "1", "allocator": "a", "region": "east", **more}
    return re.sub(r"\{(\w+)\}", lambda part: names[part.group(1)], path)


def has_a_reason(answer, what):
    assert answer.status_code < 500 or answer.status_code == 501, (what, answer.status_code, answer.text[:300])
    if answer.status_code >= 400:
        assert answer.json()["reason"].strip(), what


@pytest.fixture(scope="module")
def battered(tmp_path_factory):
    from region import Region
    region = Region(tmp_path_factory.mktemp("battered"), diskUsageThreshold=0.99, diskUsageLwmThreshold=0.98).start()
    region.admin("PUT", "/admin/v2/persistent/public/default/t")
    yield region
    region.close()


def test_no_body_of_the_own_calls_makes_an_error_of_the_server(battered):
    asked = 0
    for method, path in own_routes(battered):
        if method not in ("PUT", "POST") or not ("/meridian/" in path or "resourcegroup" in path):
            continue
        for body in BODIES:
            answer = battered.admin(method, filled(path), data=body, headers={"Content-Type": "application/json"})
            has_a_reason(answer, (method, path, body[:40]))
            asked += 1
    assert asked > 200
    assert battered.admin("GET", "/admin/v2/brokers/health").text == "ok"


NUMBERS = ["-1", "0", "18446744073709551616", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1e400", "1.5", "NaN", "x", "%20",
           "%00", "%2B1", "0x10", "%D9%A3", "9" * 3000]


def test_no_number_of_a_path_makes_an_error_of_the_server(battered):
    asked = 0
    for method, path in own_routes(battered):
        parts = {"seconds", "timestamp", "count", "nth", "ledger", "entry", "version", "bundle"} & set(re.findall(r"\{(\w+)\}", path))
        for part in parts:
            for number in NUMBERS:
                answer = battered.admin(method, filled(path, **{part: number}))
                has_a_reason(answer, (method, path, part, number[:40]))
                asked += 1
    assert asked > 200
    for path, names in (("/admin/v2/meridian/usage/tenants/public", ("from", "to", "period")), ("/admin/v2/meridian/applied/o", ("revision",)),
                        ("/admin/v2/persistent/public/default/t/stats", ("getPreciseBacklog",)), ("/admin/v2/persistent/public/default", ("bundle",)),
                        ("/admin/v2/namespaces/public/default/topics", ("mode",))):
        for name in names:
            for number in NUMBERS[:-1]:
                has_a_reason(battered.admin("GET", f"{path}?{name}={number}"), (path, name, number))
    for number in NUMBERS:
        has_a_reason(battered.admin("PUT", f"/admin/v2/meridian/apply?revision={number}", data="tenants: {}"), number)
        has_a_reason(battered.admin("POST", f"/admin/v2/brokers/configuration/maxProducersPerTopic/{number}"), number)
    battered.admin("DELETE", "/admin/v2/brokers/configuration/maxProducersPerTopic")
    assert battered.admin("GET", "/admin/v2/brokers/health").text == "ok"
