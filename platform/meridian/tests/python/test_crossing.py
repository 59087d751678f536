"""One team's token at another team's tenant, by every door: nothing is read, counted, named or changed, and a refusal does not
tell whether there is anything."""
import contextlib
import http.client
import itertools
import json
import re
import urllib.parse

import pulsar
import pytest

from raw import AUTHORIZATION_ERROR, TOPIC_NOT_FOUND, Raw, refusal
from region import Region, wait_until
from secured import Keys, bearer, with_tokens

SCHEMA = {"type": "STRING", "schema": "", "properties": {"colour": "sekrit"}}
# What stands in the victims' tenants; an answer to somebody else holds such a word only where the question did.
WORDS = ("sekrit", "hush")
# Names of what is there and of what is not, of equal form.
REAL = {"tenant": "ab", "namespace": "orders", "topic": "sekrit", "subscription": "hush-billing"}
GHOSTS = [{"tenant": "zz"}, {"namespace": "ghosts"}, {"topic": "phantom"}, {"subscription": "nobody-billing"}]
# Answered to everybody who is known, or to everybody: they speak of no tenant.
OPEN = {("get", "/status.html"), ("get", "/admin/v2/clusters"), ("get", "/admin/v2/brokers/version"),
        ("get", "/admin/v2/meridian/openapi"), ("get", "/admin/v2/meridian/region-link"), ("get", "/admin/v2/meridian/contact")}


class World:
    """Teams `a`, `ab`, `a-b` with one region: `a` tries, the others have something to lose."""

    def __init__(self, folder):
        self.keys = Keys(folder / "keys")
        self.region = Region(folder / "region", topicLevelPoliciesEnabled="true", metricsRoles="prometheus", diskUsageThreshold=0.99,
                             diskUsageLwmThreshold=0.98, brokerDeleteInactiveTopicsEnabled="false", **with_tokens(self.keys)).start()
        self.tokens = {role: self.keys.token(role) for role in
                       ("admin", "boss-a", "boss-ab", "boss-a-b", "worker-a", "stranger", "prometheus")}
        self.clients = []
        for tenant in ("a", "ab", "a-b"):
            self.make_team(tenant)
        self.done("admin", "PUT", "/admin/v2/resourcegroups/sekrit-group", {"publishRateInMsgs": 5000})
        document = {"owner": "hush-owner", "tenants": {"ab": {"namespaces": {"orders": {"policies": {"retention": {
            "retentionTimeInMinutes": 7, "retentionSizeInMB": 7}}}}}}}
        self.done("boss-ab", "PUT", "/admin/v2/meridian/apply", document)

    def make_team(self, tenant):
        boss, base = f"boss-{tenant}", f"/admin/v2/persistent/{tenant}/orders"
        word = "sekrit" if tenant != "a" else "plain"
        self.done("admin", "PUT", f"/admin/v2/tenants/{tenant}", {"adminRoles": [boss], "allowedClusters": ["standalone"]})
        self.done("admin", "PUT", f"/admin/v2/namespaces/{tenant}/orders", {})
        self.done(boss, "PUT", f"{base}/{word}")
        self.done(boss, "PUT", f"{base}/{word}-parts/partitions", 3)
        self.done(boss, "POST", f"/admin/v2/namespaces/{tenant}/orders/permissions/worker-{tenant}", ["produce", "consume"])
        self.done(boss, "PUT", f"/admin/v2/namespaces/{tenant}/orders/property/{word}/{word}")
        self.done("admin", "PUT", f"/admin/v2/meridian/quotas/tenants/{tenant}", {"producers": 50})
        if tenant == "a":
            return
        self.done(boss, "POST", f"/admin/v2/namespaces/{tenant}/orders/permissions/subscription/hush-billing", ["hush-service"])
        self.done(boss, "POST", f"{base}/sekrit/permissions/hush-role", ["consume"])
        self.done(boss, "POST", f"{base}/sekrit/retention", {"retentionTimeInMinutes": 11, "retentionSizeInMB": 11})
        self.done(boss, "POST", f"/admin/v2/schemas/{tenant}/orders/sekrit/schema", SCHEMA)
        client = self.client(boss)
        consumer = client.subscribe(f"persistent://{tenant}/orders/sekrit", "hush-billing")
        producer = client.create_producer(f"persistent://{tenant}/orders/sekrit", schema=pulsar.schema.StringSchema())
        for number in range(5):
            producer.send(f"hush {number}")
        consumer.acknowledge(consumer.receive(10_000))
        stats = f"/admin/v2/persistent/{tenant}/orders/sekrit/stats"
        # The client gathers acknowledgements for a while.
        wait_until(lambda: self.done("admin", "GET", stats).json()["subscriptions"]["hush-billing"]["msgBacklog"] == 4, 10,
                   "the acknowledgement")

    def call(self, role, method, path, body=None, **more):
        headers = bearer(self.tokens[role]) if role else {}
        data = None if body is None else json.dumps(body)
        return self.region.admin(method, path, headers={"Content-Type": "application/json", **headers, **more}, data=data)

    def done(self, role, method, path, body=None):
        answer = self.call(role, method, path, body)
        assert answer.status_code in (200, 204), (method, path, answer.status_code, answer.text)
        return answer

    def client(self, role, **options):
        client = self.region.client(authentication=pulsar.AuthenticationToken(self.tokens[role]), **options)
        self.clients.append(client)
        return client

    def raw(self, role, **connect):
        return Raw(self.region.ready["binary_port"], self.tokens[role], **connect)

    def snapshot(self):
        """Everything that the operator sees of the victims, but for times and rates."""
        seen = {path: self.done("admin", "GET", path).json() for path in
                ("/admin/v2/tenants", "/admin/v2/resourcegroups", "/admin/v2/meridian/quotas", "/admin/v2/meridian/applied",
                 "/admin/v2/meridian/applied/hush-owner", "/admin/v2/brokers/configuration/values", "/admin/v2/clusters/standalone")}
        for tenant in ("ab", "a-b"):
            base = f"/admin/v2/persistent/{tenant}/orders"
            for path in (f"/admin/v2/tenants/{tenant}", f"/admin/v2/namespaces/{tenant}", f"/admin/v2/namespaces/{tenant}/orders",
                         f"/admin/v2/namespaces/{tenant}/orders/topics?mode=ALL", base, f"{base}/partitioned", f"{base}/sekrit/permissions",
                         f"{base}/sekrit/retention", f"{base}/sekrit/properties", f"{base}/sekrit/subscriptions",
                         f"{base}/sekrit-parts/partitions", f"/admin/v2/schemas/{tenant}/orders/sekrit/schemas",
                         f"/admin/v2/meridian/quotas/tenants/{tenant}", f"/admin/v2/namespaces/{tenant}/orders/bundles"):
                seen[path] = self.done("admin", "GET", path).json()
            stats = self.done("admin", "GET", f"{base}/sekrit/stats").json()
            seen[f"{base}/sekrit/stats"] = (
                stats["msgInCounter"], [one["producerName"] for one in stats["publishers"]],
                {name: (one["msgBacklog"], len(one["consumers"]), one["type"]) for name, one in stats["subscriptions"].items()})
            internal = self.done("admin", "GET", f"{base}/sekrit/internalStats").json()
            seen[f"{base}/sekrit/internalStats"] = (internal["lastConfirmedEntry"], internal["entriesAddedCounter"], internal["state"],
                                                    {name: cursor["markDeletePosition"] for name, cursor in internal["cursors"].items()})
        return seen

    def close(self):
        for client in self.clients:
            with contextlib.suppress(pulsar.PulsarException):
                client.close()
        self.region.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("crossing"))
    yield world
    world.close()


@pytest.fixture
def untouched(world):
    """Whatever a test does, the victims have afterwards what they had before."""
    before = world.snapshot()
    yield
    after = world.snapshot()
    assert after == before, {path: (before[path], after.get(path)) for path in before if before[path] != after.get(path)}


def said(text, asked):
    """The words of the victims in an answer that the question did not hold."""
    asked = urllib.parse.unquote(urllib.parse.unquote(asked))
    return [word for word in WORDS if word in text and word not in asked]


def named(pattern, names):
    """A path of the API's document with its parts filled in."""
    filling = {"domain": "persistent", "cluster": "standalone", "broker": "b", "policy": "p", "group": "sekrit-group", "role": "worker-a",
               "key": "sekrit", "value": "x", "bundle": "0x00000000_0xffffffff", "timestamp": "1", "seconds": "1", "count": "1", "nth": "1",
               "ledger": "1", "entry": "0", "version": "0", "owner": "hush-owner", "bookie": "b", "region": "east", "allocator": "x", "rest": "x", **names}
    if pattern.endswith("antiAffinity/{group}"):
        return f"/admin/v2/namespaces/standalone/antiAffinity/g?tenant={filling['tenant']}"
    return re.sub(r"\{(\w+)\}", lambda part: filling[part.group(1)], pattern)


def routes(world):
    """(method, path) of the whole API."""
    document = world.region.admin("GET", "/admin/v2/meridian/openapi").json()
    for pattern, item in sorted(document["paths"].items()):
        for method in item:
            if method != "parameters":
                yield method, pattern


def body_for(pattern, method):
    """A body that would do, had the caller the right."""
    last = pattern.rsplit("/", 1)[-1]
    if method == "get" or method == "delete":
        return None
    return {"permissions": ["consume"], "{role}": ["produce"], "{subscription}": "earliest", "partitions": 5, "resetcursor": "earliest",
            "schema": SCHEMA, "compatibility": SCHEMA, "version": SCHEMA, "replication": ["standalone"], "messageTTL": 5}.get(last)


def test_every_call_about_another_tenant_is_refused_alike_whether_it_is_there_or_not(world, untouched):
    asked = 0
    for method, pattern in routes(world):
        if "{tenant}" not in pattern:
            continue
        for body in (body_for(pattern, method), {}):
            path = named(pattern, REAL)
            answer = world.call("boss-a", method.upper(), path, body)
            asked += 1
            assert answer.status_code in (401, 403, 501), (method, path, answer.status_code, answer.text)
            assert not said(answer.text, path), (method, path, answer.text)
            for ghost in GHOSTS:
                (part, name), = ghost.items()
                if "{%s}" % part not in pattern:
                    continue
                other = world.call("boss-a", method.upper(), named(pattern, {**REAL, **ghost}), body)
                assert other.status_code == answer.status_code, (method, path, ghost, answer.text, other.text)
                assert other.text.replace(name, REAL[part]) == answer.text, (method, path, ghost)
            if method == "get":
                break
    assert asked > 400, asked


@pytest.mark.parametrize("role", ["worker-a", "stranger", None])
def test_other_roles_and_nobody_are_refused_too(world, untouched, role):
    for method, pattern in routes(world):
        if "{tenant}" not in pattern or (method, pattern) in OPEN:
            continue
        for tenant in ("ab", "a-b"):
            path = named(pattern, {**REAL, "tenant": tenant})
            answer = world.call(role, method.upper(), path, body_for(pattern, method))
            expected = (401,) if role is None else (401, 403, 501)
            assert answer.status_code in expected, (method, path, answer.status_code, answer.text)
            assert not said(answer.text, path), (method, path, answer.text)


@pytest.mark.parametrize("role", ["boss-a", "worker-a", None])
def test_calls_about_everything_are_the_operators(world, untouched, role):
    for method, pattern in routes(world):
        if "{tenant}" in pattern or (method, pattern) in OPEN:
            continue
        # Its documents name tenants; it has a test of its own.
        if pattern == "/admin/v2/meridian/apply":
            continue
        path = named(pattern, {})
        answer = world.call(role, method.upper(), path)
        assert answer.status_code in (401, 403, 400, 501), (method, path, answer.status_code, answer.text[:300])
        assert not said(answer.text, path), (method, path, answer.text)
    for method, path in OPEN:
        answer = world.call(role, method.upper(), path)
        assert answer.status_code in (200, 401) and not said(answer.text, ""), (path, answer.text)


def test_the_team_may_do_in_its_own_tenant_what_is_refused_elsewhere(world):
    """That refusals are the tenant's and not the token's."""
    for method, path, body in (
            ("GET", "/admin/v2/namespaces/a", None), ("GET", "/admin/v2/namespaces/a/orders", None), ("GET", "/admin/v2/persistent/a/orders", None),
            ("GET", "/admin/v2/persistent/a/orders/plain/stats", None), ("GET", "/admin/v2/meridian/quotas/tenants/a", None),
            ("GET", "/admin/v2/meridian/usage/tenants/a", None), ("GET", "/lookup/v2/topic/persistent/a/orders/plain", None),
            ("POST", "/admin/v2/namespaces/a/orders/messageTTL", 60), ("PUT", "/admin/v2/meridian/quotas/namespaces/a/orders", {"topics": 40}),
            ("PUT", "/admin/v2/meridian/apply", {"owner": "owner-a", "tenants": {"a": {"namespaces": {"orders": None}}}}),
            ("GET", "/admin/v2/meridian/applied/owner-a", None), ("GET", "/meridian/controlled-failover/a/orders", None)):
        world.done("boss-a", method, path, body)
    client = world.client("worker-a")
    client.create_producer("persistent://a/orders/plain").send(b"x")
    client.close()


def test_documents_reach_no_other_tenant(world, untouched):
    tell = lambda tenant, **more: {"tenants": {tenant: {"namespaces": {"orders": {"policies": {"messageTTL": 1}}}}}, **more}
    for query, document in itertools.product(("", "?dryRun=true", "?prune=true", "?leaf=true", "?dryRun=true&prune=true"), (
            tell("ab"), tell("a-b"), {"tenants": {"ab": {"adminRoles": ["boss-a"]}}}, {"tenants": {"ab": None}},
            {"tenants": {"a": None, "ab": {"namespaces": {"orders": {"topics": {"sekrit": None}}}}}},
            {"owner": "hush-owner", "tenants": {"a": None}}, {"owner": "hush-owner"}, {"regions": {"standalone": {"serviceUrl": "http://x:1"}}},
            {"tenants": {"a": {"namespaces": {"orders": {"policies": {"resourcegroup": "sekrit-group"}}}}}})):
        answer = world.call("boss-a", "PUT", f"/admin/v2/meridian/apply{query}", document)
        assert answer.status_code in (401, 403), (query, document, answer.status_code, answer.text)
        assert not said(answer.text, json.dumps(document)), (query, document, answer.text)
    # A tenant that is there and one that is not are refused alike, and so are owners.
    for query in ("", "?dryRun=true"):
        there, absent = (world.call("boss-a", "PUT", f"/admin/v2/meridian/apply{query}", {"tenants": {name: {"namespaces": {"orders": None}}}})
                         for name in ("ab", "zz"))
        assert (there.status_code, there.text) == (absent.status_code, absent.text.replace("zz", "ab"))
    for method in ("GET", "DELETE"):
        there, absent = (world.call("boss-a", method, f"/admin/v2/meridian/applied/{name}") for name in ("hush-owner", "nobodyss"))
        assert there.status_code == absent.status_code == 403
        assert there.text == absent.text.replace("nobodyss", "hush-owner")
    for query in ("namespace=ab/orders", "topic=persistent://ab/orders/sekrit", "tenant=ab", "region=standalone",
                  "topic=persistent://ab/orders/sekrit&subscription=hush-billing"):
        answer = world.call("boss-a", "GET", f"/admin/v2/meridian/export?{query}")
        assert answer.status_code in (401, 403) and not said(answer.text, query), (query, answer.text)


def test_a_documents_owner_is_whose_it_was_first(world, untouched):
    apply, owner = "/admin/v2/meridian/apply", "/admin/v2/meridian/applied/platform"
    whole, less = ({"owner": "platform", "tenants": {"a": {"namespaces": named}}} for named in ({"owned": {}}, {}))
    world.done("boss-a", "PUT", apply, whole)
    # A super user who happens to choose the same name deletes nothing of the team's by that.
    for query in ("?prune=true&force=true", "?prune=true&dryRun=true", ""):
        refused = world.call("admin", "PUT", apply + query, less)
        assert refused.status_code == 409 and "applied last by boss-a" in refused.text, (query, refused.text)
    refused = world.call("admin", "DELETE", f"{owner}?prune=true&force=true")
    assert refused.status_code == 409 and "takeOver=true" in refused.text, refused.text
    assert "a/owned" in world.done("boss-a", "GET", "/admin/v2/namespaces/a").json()
    world.done("boss-a", "PUT", apply, whole)
    # Who says so takes it over, and the team has it no more.
    world.done("admin", "PUT", f"{apply}?takeOver=true", whole)
    for method, path, document in (("PUT", apply, whole), ("PUT", f"{apply}?takeOver=true", whole), ("DELETE", owner, None)):
        refused = world.call("boss-a", method, path, document)
        assert refused.status_code == 403 and "may not act for owner platform" in refused.text, (method, path, refused.text)
    world.done("admin", "PUT", apply, whole)
    world.done("admin", "PUT", f"{apply}?prune=true", less)
    assert "a/owned" not in world.done("boss-a", "GET", "/admin/v2/namespaces/a").json()
    world.done("admin", "DELETE", owner)
    # Forgetting takes nothing from anybody.
    world.done("boss-a", "PUT", apply, less)
    world.done("admin", "DELETE", owner)


def test_groups_of_the_operator_are_not_joined_by_making_a_namespace(world, untouched):
    answer = world.call("boss-a", "PUT", "/admin/v2/namespaces/a/grouped", {"resource_group_name": "sekrit-group"})
    assert answer.status_code in (401, 403), answer.text
    assert world.call("boss-a", "POST", "/admin/v2/namespaces/a/orders/resourcegroup/sekrit-group").status_code in (401, 403)
    assert "a/grouped" not in world.done("boss-a", "GET", "/admin/v2/namespaces/a").json()
    # Another's region is not taken either.
    refused = world.call("boss-a", "POST", "/admin/v2/namespaces/a/orders/replication", ["standalone", "east"])
    assert refused.status_code == 403, refused.text


def test_limits_of_the_operator_outlive_what_the_team_deletes(world, untouched):
    base, quotas = "/admin/v2/namespaces/a/limited", "/admin/v2/meridian/quotas"
    places = {f"{quotas}/namespaces/a/limited": {"topics": 3}, f"{quotas}/topics/persistent/a/limited/t": {"producers": 2},
              f"{quotas}/topics/persistent/a/limited/p": {"producers": 1}}
    whole, less = ({"owner": "team-a", "tenants": {"a": {"namespaces": named}}} for named in ({"limited": {}}, {}))
    world.done("boss-a", "PUT", base, {})
    for path, limits in places.items():
        world.done("admin", "PUT", path, limits)
        world.done("boss-a", "PUT", path, {"consumers": 4})

    def make():
        world.done("boss-a", "PUT", "/admin/v2/persistent/a/limited/t")
        world.done("boss-a", "PUT", "/admin/v2/persistent/a/limited/p/partitions", 1)

    def by_document():
        world.done("boss-a", "PUT", "/admin/v2/meridian/apply", whole)
        world.done("boss-a", "PUT", "/admin/v2/meridian/apply?prune=true&force=true", less)

    deletions = {
        "a topic": lambda: [world.done("boss-a", "DELETE", f"/admin/v2/persistent/a/limited/{name}") for name in ("t", "p/partitions")],
        "a namespace by force": lambda: world.done("boss-a", "DELETE", f"{base}?force=true"),
        "a document": by_document,
    }
    make()
    for way, delete in deletions.items():
        delete()
        if way != "a topic":
            assert "a/limited" not in world.done("boss-a", "GET", "/admin/v2/namespaces/a").json(), way
            world.done("boss-a", "PUT", base, {})
        make()
        for path, limits in places.items():
            shown = world.done("boss-a", "GET", path).json()
            assert shown["operator"] == limits, (way, path, shown)
            kept = {} if way != "a topic" or "topics" in path else {"consumers": 4}
            assert shown["tenant"] == kept, (way, path, shown)
        refused = world.call("boss-a", "PUT", "/admin/v2/persistent/a/limited/more/partitions", 2)
        assert refused.status_code == 412 and "topics" in refused.text, (way, refused.text)
    # Nor does the namespace leave its group by that way.
    world.done("admin", "POST", f"{base}/resourcegroup/sekrit-group")
    world.done("boss-a", "PUT", "/admin/v2/meridian/apply", whole)
    for answer in (world.call("boss-a", "DELETE", f"{base}?force=true"),
                   world.call("boss-a", "PUT", "/admin/v2/meridian/apply?prune=true&force=true", less)):
        assert answer.status_code in (401, 403) and "sekrit-group and is deleted by super users" in answer.text, answer.text
    assert world.done("boss-a", "GET", base).json()["resource_group_name"] == "sekrit-group"
    # Whoever administers all that an owner owns may forget it, its tenant included.
    world.done("boss-a", "DELETE", "/admin/v2/meridian/applied/team-a")
    # The operator's own deletion takes the limits along.
    world.done("admin", "DELETE", f"{base}?force=true")
    assert [one for one in world.done("admin", "GET", quotas).json() if "a/limited" in one["place"]] == []


def exactly(world, role, method, path):
    """A request whose path is sent as it stands."""
    connection = http.client.HTTPConnection("localhost", world.region.ready["web_port"], timeout=15)
    try:
        connection.putrequest(method, path, skip_host=False, skip_accept_encoding=True)
        connection.putheader("Authorization", f"Bearer {world.tokens[role]}")
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


TRICKS = [
    "/admin/v2/namespaces/a/../ab/orders", "/admin/v2/namespaces/a/%2e%2e/ab/orders", "/admin/v2/namespaces/a%2F..%2Fab/orders",
    "/admin/v2/namespaces/a%252F..%252Fab/orders", "/admin/v2/namespaces/a/..%2Fab%2Forders", "/admin/v2/namespaces/a%2Forders/..%2F..%2Fab",
    "/admin/v2/namespaces/ab%2Forders", "/admin/v2//namespaces//ab//orders", "/admin/v2/namespaces/ab/orders/", "/admin/v2/NAMESPACES/ab/orders",
    "/admin/v2/namespaces/AB/orders", "/admin/v2/namespaces/Ab/orders", "/admin/v2/namespaces/ab%00/orders", "/admin/v2/namespaces/ab%20/orders",
    "/admin/v2/namespaces/ab;a/orders", "/admin/v2/namespaces/a%2Cab/orders", "/admin/v2/namespaces/*/orders", "/admin/v2/namespaces/a*/orders",
    "/admin/v2/namespaces/ab/orders?tenant=a", "/admin/v2/namespaces/ab/orders/retention?tenant=a&namespace=orders",
    "/admin/v2/namespaces/%EF%BD%81%EF%BD%82/orders", "/admin/v2/./namespaces/ab/orders", "/admin/v2/tenants/a/../ab", "/admin/v2/tenants/a%2F..%2Fab",
    "/admin/v2/persistent/a/orders/..%2F..%2Fab%2Forders%2Fsekrit/stats", "/admin/v2/persistent/a/orders/%252e%252e%252F%252e%252e%252Fab%252Forders%252Fsekrit/stats",
    "/admin/v2/persistent/a/%2E%2E/ab/orders/sekrit/stats", "/admin/v2/persistent/a%2Forders/..%2F..%2Fab/orders/sekrit/stats",
    "/admin/v2/persistent/ab%2Forders/sekrit/stats", "/admin/v2/persistent/a/orders/persistent:%2F%2Fab%2Forders%2Fsekrit/stats",
    "/admin/v2/persistent/a/orders/plain/subscription/..%2F..%2F..%2Fab%2Forders%2Fsekrit%2Fsubscription%2Fhush-billing",
    "/admin/v2/persistent/ab/orders/sekrit%2Fstats", "/admin/v2/Persistent/ab/orders/sekrit/stats", "/admin/v2/persistent/ab/orders/sekrit-parts-partition-0/stats",
    "/admin/v2/persistent/ab/orders/sekrit-partition-0/stats", "/admin/v2/non-persistent/ab/orders/sekrit/stats",
    "/admin/v2/schemas/a/orders/..%2F..%2Fab%2Forders%2Fsekrit/schema", "/admin/v2/schemas/ab/orders/sekrit%2Fschema",
    "/admin/v2/meridian/quotas/tenants/a%2F..%2Fab", "/admin/v2/meridian/quotas/namespaces/a/..%2Fab%2Forders", "/admin/v2/meridian/usage/tenants/a%2F..%2Fab",
    "/admin/v2/meridian/quotas/topics/persistent/a/orders/..%2F..%2Fab%2Forders%2Fsekrit",
    "/lookup/v2/topic/persistent/a/orders/..%2F..%2Fab%2Forders%2Fsekrit", "/lookup/v2/topic/persistent/ab/orders/sekrit",
    "/admin/persistent/ab/standalone/orders/sekrit/stats", "/admin/namespaces/ab/standalone/orders", "/admin/v1/namespaces/ab/orders",
    "/admin/v2/namespaces/ab/standalone/orders", "/admin/v2/persistent/ab/standalone/orders/sekrit",
    "/meridian/controlled-failover/a/..%2Fab%2Forders", "http://localhost/admin/v2/namespaces/ab/orders",
]


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "PUT"])
def test_tricks_with_paths_reach_nothing(world, untouched, method):
    for trick in TRICKS:
        # Names with slashes and dots are names of the team's own topics; they may not be there.
        if method == "PUT" and "/persistent/a/orders/" in trick:
            continue
        status, text = exactly(world, "boss-a", method, trick)
        own = method != "GET" and "/topics/persistent/a/orders/" in trick
        assert 400 <= status < 500 or status == 501 or (own and status in (200, 204)), (method, trick, status, text)
        assert not said(text, trick) and "boss-ab" not in text, (method, trick, text)


@pytest.mark.parametrize("headers", [
    {"X-Original-Principal": "boss-ab"}, {"X-Original-Principal": "admin"}, {"X-Forwarded-User": "admin"}, {"X-HTTP-Method-Override": "GET"},
    {"X-Original-URL": "/admin/v2/namespaces/ab/orders"}, {"X-Forwarded-For": "127.0.0.1"}, {"X-Pulsar-ListenerName": "internal"},
], ids=lambda headers: next(iter(headers)))
def test_headers_lend_no_rights(world, untouched, headers):
    for path in ("/admin/v2/namespaces/ab/orders", "/admin/v2/persistent/ab/orders/sekrit/stats", "/admin/v2/tenants",
                 "/lookup/v2/topic/persistent/ab/orders/sekrit"):
        answer = world.call("boss-a", "GET", path, **headers)
        assert answer.status_code in (401, 403) and not said(answer.text, path), (path, answer.status_code, answer.text)


def requests_of(topic, namespace):
    """Name → (kind, fields) of every command that names a topic or a namespace."""
    pair = lambda key, value: {1: key, 2: value}
    return {
        "lookup": ("lookup", {1: topic, 2: 1}),
        "authoritative lookup": ("lookup", {1: topic, 2: 1, 3: 1, 7: "internal"}),
        "lookup for another": ("lookup", {1: topic, 2: 1, 4: "boss-ab"}),
        "lookup of a link": ("lookup", {1: topic, 2: 1, 8: pair("meridian.link", "1")}),
        "partitions": ("partitions", {1: topic, 2: 1}),
        "partitions without creation": ("partitions", {1: topic, 2: 1, 6: 0}),
        "partitions for another": ("partitions", {1: topic, 2: 1, 3: "boss-ab"}),
        "producer": ("producer", {1: topic, 2: 1, 3: 1}),
        "exclusive producer": ("producer", {1: topic, 2: 1, 3: 1, 10: 3, 4: "mine"}),
        "producer with a subscription": ("producer", {1: topic, 2: 1, 3: 1, 13: "hush-billing"}),
        "producer with a schema": ("producer", {1: topic, 2: 1, 3: 1, 7: {1: "s", 3: b"", 4: 1}}),
        "a link's producer": ("producer", {1: topic, 2: 1, 3: 1, 4: "pulsar.repl.east-->standalone", 6: pair("meridian.link", "1")}),
        "consumer": ("subscribe", {1: topic, 2: "hush-billing", 3: 1, 4: 1, 5: 1}),
        "consumer of a new subscription": ("subscribe", {1: topic, 2: "mine", 3: 0, 4: 1, 5: 1, 13: 1}),
        "consumer that creates nothing": ("subscribe", {1: topic, 2: "hush-billing", 3: 1, 4: 1, 5: 1, 15: 0}),
        "reader": ("subscribe", {1: topic, 2: "reader-1", 3: 0, 4: 1, 5: 1, 8: 0, 9: {1: 0, 2: 0}}),
        "compacted reader": ("subscribe", {1: topic, 2: "reader-1", 3: 0, 4: 1, 5: 1, 8: 0, 11: 1}),
        "schema": ("get_schema", {1: 1, 2: topic}),
        "version of a schema": ("get_schema", {1: 1, 2: topic, 3: (0).to_bytes(8, "big")}),
        "schema to create": ("get_or_create_schema", {1: 1, 2: topic, 3: {1: "s", 3: b"", 4: 1}}),
        "topics": ("topics", {1: 1, 2: namespace, 3: 0}),
        "all topics": ("topics", {1: 1, 2: namespace, 3: 2}),
        "topics by a pattern": ("topics", {1: 1, 2: namespace, 3: 0, 4: ".*"}),
        "topics that have changed": ("topics", {1: 1, 2: namespace, 3: 0, 5: "00000000"}),
        "a watch": ("watch", {1: 1, 2: 1, 3: namespace, 4: ".*"}),
        "a watch of a name": ("watch", {1: 1, 2: 1, 3: namespace, 4: "persistent://ab/orders/s.*"}),
    }


PLACES = [("persistent://ab/orders/sekrit", "ab/orders"), ("persistent://a-b/orders/sekrit", "a-b/orders"),
          ("persistent://ab/orders/sekrit-parts", "ab/orders"), ("persistent://ab/orders/sekrit-parts-partition-1", "ab/orders"),
          ("non-persistent://ab/orders/sekrit", "ab/orders")]
ABSENT = [("persistent://ab/orders/phantm", "ab/ghosts"), ("persistent://zz/orders/sekrit", "zz/orders")]


@pytest.mark.parametrize("role", ["boss-a", "worker-a", "stranger"])
def test_every_command_about_another_tenant_is_refused_alike_whether_it_is_there_or_not(world, untouched, role):
    connection = world.raw(role)
    assert connection.connected[0] == "connected"
    answers = {}
    for topic, namespace in PLACES + ABSENT:
        for name, (kind, fields) in requests_of(topic, namespace).items():
            refused = refusal(connection.ask(kind, fields))
            if kind == "partitions" and namespace.startswith("zz/"):
                # A tenant that does not exist is told as such to a client's first request, and to no other.
                assert refused == (TOPIC_NOT_FOUND, f"Tenant or namespace or topic does not exist: {topic}"), (role, name, refused)
                continue
            assert refused and refused[0] == AUTHORIZATION_ERROR, (role, name, topic, refused)
            assert not said(refused[1], topic + str(fields)), (name, refused)
            answers.setdefault(name, set()).add(refused[1].replace(topic, "TOPIC").replace(namespace, "NAMESPACE"))
    # One text for each command, whatever there is.
    assert all(len(texts) == 1 for texts in answers.values()), {name: texts for name, texts in answers.items() if len(texts) > 1}
    connection.close()


def test_handles_of_other_connections_are_not_reached_by_their_numbers(world, untouched):
    victim = world.raw("boss-ab")
    topic = "persistent://ab/orders/sekrit"
    assert victim.ask("subscribe", {1: topic, 2: "hush-billing", 3: 1, 4: 0, 5: 7})[0] in ("success", "error")
    attacker = world.raw("boss-a")
    for kind, fields in (("seek", {1: 0, 2: 1, 3: {1: 0, 2: 0}}), ("seek", {1: 0, 2: 1, 4: 1}), ("unsubscribe", {1: 0, 2: 1}),
                         ("unsubscribe", {1: 0, 2: 1, 3: 1}), ("last_id", {1: 0, 2: 1}), ("consumer_stats", {1: 1, 4: 0})):
        refused = refusal(attacker.ask(kind, fields))
        assert refused and "not found" in refused[1] and not said(refused[1], ""), (kind, refused)
    # Nothing comes of permits and acks for it either: the next answer is the pong.
    attacker.send("flow", {1: 0, 2: 100})
    attacker.send("ack", {1: 0, 2: 0, 3: {1: 0, 2: 0}})
    attacker.send("redeliver", {1: 0})
    assert attacker.ask("close_consumer", {1: 0, 2: 3})[0] == "success"
    assert attacker.ask("close_producer", {1: 0, 2: 4})[0] == "success"
    attacker.close()
    victim.close()


def test_a_connection_speaks_for_nobody_else(world, untouched):
    for said_role in ("boss-ab", "admin", "worker-ab"):
        for fields in ({7: said_role}, {7: said_role, 11: "5.0"}, {7: said_role, 8: world.tokens["worker-a"], 9: "token"}):
            connection = world.raw("boss-a", fields=fields)
            assert refusal(connection.connected), fields
            connection.close()


def test_the_stock_client_gets_nothing_either(world, untouched):
    client = world.client("boss-a", operation_timeout_seconds=3)
    denied = pulsar.PulsarException
    for topic in ("persistent://ab/orders/sekrit", "persistent://a-b/orders/sekrit-parts", "non-persistent://ab/orders/sekrit"):
        for action in (lambda: client.create_producer(topic), lambda: client.subscribe(topic, "hush-billing"),
                       lambda: client.create_reader(topic, pulsar.MessageId.earliest), lambda: client.get_topic_partitions(topic),
                       lambda: client.subscribe([topic, "persistent://a/orders/plain"], "mixed")):
            with pytest.raises(denied):
                action()
    with pytest.raises(denied):
        client.subscribe(re.compile("persistent://ab/orders/.*"), "by-pattern")
    # A pattern is about one namespace, whatever it says.
    with contextlib.suppress(pulsar.PulsarException):
        consumer = client.subscribe(re.compile("persistent://a/orders/.*|persistent://ab/orders/.*"), "by-pattern")
        with pytest.raises(pulsar.Timeout):
            consumer.receive(1000)
        consumer.unsubscribe()


def test_lists_and_sums_hold_the_own_tenant_alone(world, untouched):
    client = world.client("worker-a")
    producers = [client.create_producer("persistent://a/orders/plain") for _ in range(2)]
    producers[0].send(b"one")
    listed = world.done("boss-a", "GET", "/admin/v2/namespaces/a").json()
    assert listed and all(name.startswith("a/") for name in listed)
    for path in ("/admin/v2/persistent/a/orders", "/admin/v2/namespaces/a/orders/topics?mode=ALL", "/admin/v2/persistent/a/orders/partitioned"):
        topics = world.done("boss-a", "GET", path).json()
        assert topics and all("://a/orders/" in topic for topic in topics), topics
    kind, fields = world.raw("boss-a").ask("topics", {1: 1, 2: "a/orders", 3: 2})
    assert kind == "topics_answer" and all(b"://a/orders/" in topic for topic in fields[2])
    used = lambda tenant: world.done("admin", "GET", f"/admin/v2/meridian/quotas/tenants/{tenant}").json()["used"]["producers"]
    wait_until(lambda: used("a") == 2, message="two producers of a")
    assert (used("ab"), used("a-b")) == (1, 1)
    for path in ("/admin/v2/meridian/usage/tenants/a", "/admin/v2/meridian/quotas/tenants/a", "/admin/v2/persistent/a/orders/plain/stats"):
        assert not said(world.done("boss-a", "GET", path).text, ""), path
    counted = lambda tenant: world.done("admin", "GET", f"/admin/v2/meridian/usage/tenants/{tenant}").json()["total"]["messages_in"]
    before = {tenant: counted(tenant) for tenant in ("ab", "a-b")}
    for _ in range(20):
        producers[1].send(b"x")
    wait_until(lambda: counted("a") >= 21, 30, "the messages are counted")
    assert {tenant: counted(tenant) for tenant in ("ab", "a-b")} == before
    client.close()


def test_the_metrics_page_is_for_who_is_named_for_it(world):
    for role, expected in (("admin", 200), ("prometheus", 200), ("boss-a", 403), ("worker-a", 403), ("stranger", 403), (None, 401)):
        for path in ("/metrics", "/metrics/"):
            answer = world.call(role, "GET", path)
            assert answer.status_code == expected, (role, path, answer.status_code)
            assert ("sekrit" in answer.text) == (expected == 200), (role, answer.text[:300])
    refused = world.call("prometheus", "GET", "/metrics", **{"X-Original-Principal": "boss-a"})
    assert refused.status_code in (401, 403)
    assert world.call("prometheus", "GET", "/admin/v2/tenants").status_code in (401, 403), "and for nothing else"


def test_the_audit_log_is_the_operators(world, untouched):
    connection = world.raw("boss-a")
    for topic, namespace in [("persistent://pulsar/system/audit", "pulsar/system")]:
        for name, (kind, fields) in requests_of(topic, namespace).items():
            refused = refusal(connection.ask(kind, fields))
            assert refused and refused[0] == AUTHORIZATION_ERROR, (name, refused)
    connection.close()


def test_deleting_a_namespace_leaves_those_of_like_names(world, untouched):
    for namespace in ("a/orders2", "a/order"):
        world.done("boss-a", "PUT", f"/admin/v2/namespaces/{namespace}", {})
        world.done("boss-a", "PUT", f"/admin/v2/persistent/{namespace}/t")
        world.done("boss-a", "PUT", f"/admin/v2/persistent/{namespace}/p/partitions", 2)
    world.done("boss-a", "DELETE", "/admin/v2/namespaces/a/order?force=true")
    assert len(world.done("boss-a", "GET", "/admin/v2/persistent/a/orders2").json()) == 3
    world.done("boss-a", "DELETE", "/admin/v2/namespaces/a/orders2?force=true")
    assert "persistent://a/orders/plain" in world.done("boss-a", "GET", "/admin/v2/persistent/a/orders").json()
