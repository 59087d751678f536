"""Quotas by the real terraform: every limit, at every level, seen, repaired, imported, refused; and in modules and documents."""
import subprocess

import pytest

from harness import BINARY, ROOT, Terraform

QUOTAS = "/admin/v2/meridian/quotas"
PLACES = {"cluster", "tenant", "namespace", "topic"}

TREE = """
resource "meridian_tenant" "t" {{ name = "{name}" }}
resource "meridian_namespace" "n" {{
  tenant = meridian_tenant.t.name
  name   = "n"
}}
resource "meridian_topic" "x" {{
  namespace  = meridian_namespace.n.id
  name       = "x"
  partitions = 2
}}
"""

# Where a quota can be, how the configuration names the place, the path of the API, and what it can't limit.
LEVELS = {
    "cluster": ('cluster = "standalone"', "cluster", set()),
    "tenant": ("tenant = meridian_tenant.t.name", "tenants/{name}", set()),
    "namespace": ("namespace = meridian_namespace.n.id", "namespaces/{name}/n", {"namespaces"}),
    "topic": ("topic = meridian_topic.x.id", "topics/persistent/{name}/n/x", {"namespaces", "topics", "connections"}),
}


def limits_of(one):
    attributes = one.schema()["resource_schemas"]["meridian_quota"]["block"]["attributes"]
    return sorted(set(attributes) - PLACES - {"id", "layer"})


def quota(place, limits, name="q"):
    lines = "\n".join(f"  {limit} = {value}" for limit, value in limits.items())
    return f'resource "meridian_quota" "{name}" {{\n  {place}\n{lines}\n}}\n'


@pytest.mark.parametrize("level", LEVELS)
def test_every_limit_is_applied_seen_changed_repaired_and_imported(terraform, region, name, level):
    place, path, without = LEVELS[level]
    path = f"{QUOTAS}/{path.format(name=name)}"
    one = terraform(TREE.format(name=name))
    known = limits_of(one)
    assert len(known) == 15 and without <= set(known)
    # Nothing that the rest of the run needs.
    limits = {limit: 1_000_000_000 + at for at, limit in enumerate(known) if limit not in without}
    one.write(TREE.format(name=name) + quota(place, limits))
    one.apply()
    one.plan_is_empty()
    set_there = region.get(path)["operator"]
    assert sorted(set_there.values()) == sorted(limits.values())
    # All of them are taken away behind its back: it is made anew.
    assert region.admin("DELETE", path).status_code == 204
    assert one.changes()["meridian_quota.q"]["actions"] == ["create"]
    one.apply()
    one.plan_is_empty()
    assert region.get(path)["operator"] == set_there
    # Each is changed: the plan shows exactly those.
    assert region.admin("PUT", path, json={limit: value + 1 for limit, value in set_there.items()}).status_code == 204
    change = one.changes()["meridian_quota.q"]
    assert change["actions"] == ["update"]
    assert {limit for limit in known if change["before"][limit] != change["after"][limit]} == set(limits)
    one.apply()
    one.plan_is_empty()
    assert region.get(path)["operator"] == set_there
    # What nobody asked for is shown and taken away again.
    some = dict(list(limits.items())[:1])
    one.write(TREE.format(name=name) + quota(place, some))
    one.apply()
    assert region.get(path)["operator"] == {limit: value for limit, value in set_there.items() if value in some.values()}
    assert region.admin("PUT", path, json=set_there).status_code == 204
    assert one.changes()["meridian_quota.q"]["actions"] == ["update"]
    one.apply()
    one.plan_is_empty()
    state = one.state()["meridian_quota.q"]
    one.run("state", "rm", "meridian_quota.q")
    assert "There is a quota already" in one.refused("apply", "-auto-approve")
    one.run("import", "-no-color", "meridian_quota.q", state["id"])
    one.plan_is_empty()
    one.destroy()
    if level == "cluster":
        assert region.get(path)["operator"] == {}


def test_nothing_allowed_is_apart_from_not_limited_and_binds(terraform, region, name):
    text = TREE.format(name=name).split('resource "meridian_namespace"')[0]
    one = terraform(text + quota("tenant = meridian_tenant.t.name", {"namespaces": 0, "producers": 5}))
    one.apply()
    one.plan_is_empty()
    assert region.get(f"{QUOTAS}/tenants/{name}")["operator"] == {"namespaces": 0, "producers": 5}
    full = region.admin("PUT", f"/admin/v2/namespaces/{name}/n", json={})
    assert full.status_code == 412 and full.json()["reason"] == f"quota exceeded: namespaces 0 of 0 of tenant {name}"
    one.write(text + quota("tenant = meridian_tenant.t.name", {"producers": 5})).apply()
    one.plan_is_empty()
    assert region.admin("PUT", f"/admin/v2/namespaces/{name}/n", json={}).status_code == 204
    assert region.admin("DELETE", f"/admin/v2/namespaces/{name}/n").status_code == 204
    one.destroy()
    # A tenant of that name that comes later begins without limits.
    assert region.admin("PUT", f"/admin/v2/tenants/{name}", json={"allowedClusters": ["standalone"]}).status_code == 204
    assert region.get(f"{QUOTAS}/tenants/{name}")["operator"] == {}
    region.admin("DELETE", f"/admin/v2/tenants/{name}")


def test_both_layers_of_a_namespace_are_resources_of_their_own(terraform, region, name):
    place = "namespace = meridian_namespace.n.id"
    one = terraform(TREE.format(name=name) + quota(place, {"producers": 10})
                    + quota(place + '\n  layer = "tenant"', {"producers": 3, "topics": 9}, "own"))
    one.apply()
    one.plan_is_empty()
    shown = region.get(f"{QUOTAS}/namespaces/{name}/n")
    assert (shown["operator"], shown["tenant"]) == ({"producers": 10}, {"producers": 3, "topics": 9})
    assert shown["effective"]["producers"]["value"] == 3
    own = one.state()["meridian_quota.own"]["id"]
    assert own == f"namespace:{name}/n|tenant"
    one.run("state", "rm", "meridian_quota.own")
    one.run("import", "-no-color", "meridian_quota.own", own)
    one.plan_is_empty()
    one.destroy()


@pytest.mark.parametrize("lines, attribute, limit", [
    ('tenant = "t"\n  producers = -1', "producers", "expected a whole number from 0 to"),
    ('tenant = "t"\n  producers = 1.5', "producers", "expected a whole number from 0 to"),
    ('tenant = "t"\n  publish_bytes_per_second = 0', "publish_bytes_per_second", "expected a whole number from 1 to"),
    ('namespace = "t/n"\n  namespaces = 1', "namespaces", "is no limit of a namespace"),
    ('topic = "persistent://t/n/x"\n  connections = 1', "connections", "is no limit of a topic"),
    ('topic = "persistent://t/n/x-partition-1"\n  producers = 1', "topic", "is no name that a topic can have"),
    ('tenant = "t"\n  namespace = "t/n"\n  topics = 1', "tenant", "Set one of cluster, tenant, namespace and topic"),
    ("topics = 1", "tenant", "Set one of cluster, tenant, namespace and topic"),
    ('tenant = "t"', "", "A quota that limits nothing is none"),
    ('tenant = "t"\n  layer = "tenant"\n  topics = 1', "layer", "a tenant limits its namespaces and topics"),
    ('cluster = "elsewhere"\n  topics = 1', "cluster", 'cluster is "elsewhere", but the provider asks region standalone'),
])
def test_a_limit_that_can_not_be_is_refused_by_the_plan(terraform, lines, attribute, limit):
    told = terraform(f'resource "meridian_quota" "q" {{\n  {lines}\n}}\n').refused("plan")
    assert limit in told, told
    assert attribute in told, told


def test_a_quota_of_what_is_not_there_says_so(terraform):
    told = terraform('resource "meridian_quota" "q" {\n  tenant = "nobody-at-all"\n  topics = 1\n}\n').refused("apply", "-auto-approve")
    assert "Tenant does not exist" in told


TEAM = """
module "team" {{
  source  = "../modules/team"
  name    = "{name}"
  regions = ["standalone"]
  quota   = {quota}
  namespaces = {{
    live = {{ quota = {of_namespace}, topics = {{ placed = {{ partitions = 2 }} }} }}
  }}
}}
"""


def test_a_team_has_its_quota_and_gives_it_back(terraform, region, name):
    one = terraform()
    Terraform(one.folder.parent / "modules", "unused").copy(ROOT / "terraform/modules")
    attributes = set(limits_of(terraform("")))
    told = (ROOT / "terraform/modules/team/variables.tf").read_text()
    for limit in attributes:
        assert told.count(f"    {limit} ") + told.count(f"      {limit} ") >= 1, f"the module lacks {limit}"
    write = lambda quota, of_namespace: one.write(TEAM.format(name=name, quota=quota, of_namespace=of_namespace))
    write("{ topics = 10, connections = 0, stored_bytes = 1000 }", "{ producers = 4 }")
    one.init().apply()
    one.plan_is_empty()
    assert region.get(f"{QUOTAS}/tenants/{name}")["operator"] == {"topics": 10, "connections": 0, "storedBytes": 1000}
    assert region.get(f"{QUOTAS}/namespaces/{name}/live")["operator"] == {"producers": 4}
    write("{ topics = 20 }", "null").apply()
    one.plan_is_empty()
    assert region.get(f"{QUOTAS}/tenants/{name}")["operator"] == {"topics": 20}
    assert region.get(f"{QUOTAS}/namespaces/{name}/live")["operator"] == {}
    write("null", "null").apply()
    assert region.get(f"{QUOTAS}/tenants/{name}")["operator"] == {}
    one.destroy()


ENVIRONMENT = """
module "shop" {{
  source  = "../modules/environment"
  name    = "{name}"
  regions = ["standalone"]
  {quotas}
  teams   = {{
    "{name}" = {{
      {of_team}
      namespaces = {{ live = {{
        quotas = {{ producers = 9 }}
        topics = {{ placed = {{ quotas = {{ consumers = 3 }} }} }}
      }} }}
    }}
  }}
}}
"""


def test_an_environment_holds_quotas_at_every_level(terraform, region, name):
    one = terraform()
    Terraform(one.folder.parent / "modules", "unused").copy(ROOT / "terraform/modules")
    write = lambda of_team, quotas="": one.write(ENVIRONMENT.format(name=name, of_team=of_team, quotas=quotas))
    write("quotas = { topics = 12, publishBytesPerSecond = 5000 }", "quotas = { connections = 900 }")
    one.init().apply()
    one.plan_is_empty()
    at = lambda place: region.get(f"{QUOTAS}/{place}")["operator"]
    assert at("cluster") == {"connections": 900}
    assert at(f"tenants/{name}") == {"topics": 12, "publishBytesPerSecond": 5000}
    assert at(f"namespaces/{name}/live") == {"producers": 9}
    assert at(f"topics/persistent/{name}/live/placed") == {"consumers": 3}
    # Behind its back.
    assert region.admin("DELETE", f"{QUOTAS}/cluster").status_code == 204
    assert region.admin("PUT", f"{QUOTAS}/tenants/{name}", json={"topics": 13, "producers": 1}).status_code == 204
    assert one.changes()["module.shop.meridian_environment.this"]["after"]["changes"] == [
        "update the cluster's limits: quotas.connections",
        f"update tenant {name}: quotas.publishBytesPerSecond, quotas.topics, quotas.producers"]
    one.apply()
    one.plan_is_empty()
    assert at("cluster") == {"connections": 900}
    # What the document does not say any more is taken away.
    write("").apply()
    one.plan_is_empty()
    assert at("cluster") == {} and at(f"tenants/{name}") == {}
    assert f"tenants.{name}.quotas.topics: is -1" in write("quotas = { topics = -1 }").refused("plan")
    write("").destroy()


def test_meridian_apply_sets_and_unsets_limits(region, tmp_path, name):
    document = tmp_path / "environment.yaml"

    def apply(text, *more):
        document.write_text(text)
        done = subprocess.run([BINARY, "apply", "-f", str(document), "--url", region.web, *more], capture_output=True, text=True)
        return done.stdout + done.stderr

    text = f"owner: {name}\ntenants:\n  {name}:\n    quotas: {{ topics: 3 }}\n    namespaces:\n      n:\n        tenantQuotas: {{ producers: 2 }}\n"
    assert "2 objects would change" in apply(text, "--dry-run")
    assert region.admin("GET", f"{QUOTAS}/tenants/{name}").status_code == 404, "a plan does nothing"
    assert "2 objects changed and in force" in apply(text)
    assert "nothing to do" in apply(text)
    assert region.get(f"{QUOTAS}/namespaces/{name}/n")["tenant"] == {"producers": 2}
    assert "quotas.topics: 3 -> 0" in apply(text.replace("topics: 3", "topics: 0"))
    shown = apply(text.replace("quotas: { topics: 3 }", "quotas: {}"))
    assert "quotas.topics" in shown and region.get(f"{QUOTAS}/tenants/{name}")["operator"] == {}
    assert "quotas.topic: is not known; there are" in apply(text.replace("topics: 3", "topic: 3"))
    region.admin("DELETE", f"/admin/v2/meridian/applied/{name}?prune=true")
