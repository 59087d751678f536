"""Each kind of resource by the real terraform: made, planned again, imported, changed behind its back, destroyed."""
import json

import pytest

ALL = """
resource "meridian_cluster" "far" {{
  name               = "{name}-far"
  service_url        = "http://far:8080"
  broker_service_url = "pulsar://far:6650"
  authentication_plugin     = "token"
  authentication_parameters = "token:s3cret"
}}

resource "meridian_tenant" "t" {{
  name        = "{name}"
  admin_roles = ["b", "a"]
}}

resource "meridian_namespace" "n" {{
  tenant      = meridian_tenant.t.name
  name        = "n"
  bundles     = 8
  message_ttl = 60
  retention   = {{ retention_time_in_minutes = 60, retention_size_in_mb = 512 }}
  backlog_quota = {{
    destination_storage = {{ limit_size = 1000, policy = "producer_exception" }}
  }}
  dispatch_rate    = {{ dispatch_throttling_rate_in_msg = 100 }}
  offload_threshold = -1
}}

resource "meridian_topic" "x" {{
  namespace     = meridian_namespace.n.id
  name          = "x"
  partitions    = 3
  properties    = {{ team = "orders" }}
  max_producers = 0
}}

resource "meridian_topic" "plain" {{
  namespace = meridian_namespace.n.id
  name      = "plain"
  domain    = "persistent"
}}

resource "meridian_subscription" "s" {{
  topic = meridian_topic.x.id
  name  = "s"
}}

resource "meridian_grant" "on_namespace" {{
  namespace = meridian_namespace.n.id
  role      = "shop"
  actions   = ["produce", "consume"]
}}

resource "meridian_grant" "on_topic" {{
  topic   = meridian_topic.x.id
  role    = "audit"
  actions = ["consume"]
}}

resource "meridian_subscription_grant" "g" {{
  namespace    = meridian_namespace.n.id
  subscription = "s"
  roles        = ["billing"]
}}

resource "meridian_schema" "x" {{
  topic  = meridian_topic.x.id
  type   = "JSON"
  schema = jsonencode({{ type = "record", name = "o", fields = [] }})
}}

resource "meridian_environment" "e" {{
  owner    = "{name}-env"
  document = yamlencode({{ tenants = {{ "{name}e" = {{ namespaces = {{ n = {{ policies = {{ messageTTL = 5 }} }} }} }} }} }})
}}
"""


def test_b159_every_kind_is_made_imported_and_destroyed(terraform, region, name):
    one = terraform(ALL.format(name=name))
    one.apply()
    one.plan_is_empty()
    state = one.state()
    assert state["meridian_topic.x"]["id"] == f"persistent://{name}/n/x"
    assert region.get(f"/admin/v2/namespaces/{name}/n/messageTTL") == 60
    assert region.get(f"/admin/v2/persistent/{name}/n/x/partitions")["partitions"] == 3
    assert region.get(f"/admin/v2/persistent/{name}/n/x/maxProducers") == 0
    assert region.get(f"/admin/v2/persistent/{name}/n/x/permissions") == {"shop": ["produce", "consume"],
                                                                            "audit": ["consume"]}
    for address in state:
        kind = address.split(".")[0]
        # What a secret was is not read back, so that it is not known after an import.
        if kind == "meridian_cluster":
            continue
        one.run("state", "rm", address)
        one.run("import", "-no-color", address, state[address]["id"])
    one.plan_is_empty()
    one.destroy()
    assert name not in region.get("/admin/v2/tenants") and f"{name}e" not in region.get("/admin/v2/tenants")
    assert f"{name}-far" not in region.get("/admin/v2/clusters")
    assert f"{name}-env" not in region.get("/admin/v2/meridian/applied")


def test_b161_regions_in_any_order_are_the_same_plan(terraform, region, name):
    def text(order):
        listed = json.dumps([one if one == "standalone" else f"{name}-{one}" for one in order])
        return f"""
        resource "meridian_cluster" "far" {{
          for_each    = toset(["b", "c"])
          name        = "{name}-${{each.key}}"
          service_url = "http://${{each.key}}:8080"
        }}
        resource "meridian_tenant" "t" {{
          name             = "{name}"
          allowed_clusters = {listed}
          depends_on       = [meridian_cluster.far]
        }}
        resource "meridian_namespace" "n" {{
          tenant      = meridian_tenant.t.name
          name        = "n"
          replication = {listed}
        }}
        """
    one = terraform(text(["c", "standalone", "b"]))
    one.apply()
    for order in (["c", "standalone", "b"], ["b", "c", "standalone"], ["standalone", "b", "c"]):
        one.write(text(order))
        for _ in range(2):
            one.plan_is_empty()
    assert set(region.get(f"/admin/v2/namespaces/{name}/n/replication")) == {"standalone", f"{name}-b", f"{name}-c"}
    one.destroy()


def test_a_secret_is_never_shown(terraform, name):
    one = terraform(ALL.format(name=name))
    shown = one.apply()
    assert "s3cret" not in shown
    one.write(ALL.format(name=name).replace("s3cret", "0ther")).refused("plan", "-refresh=false", "-no-such-flag")
    assert "0ther" not in one.run("plan", "-no-color").stdout
    one.destroy()


def test_what_is_there_already_is_not_taken_over(terraform, region, name):
    region.admin("PUT", f"/admin/v2/tenants/{name}", json={"allowedClusters": ["standalone"]})
    one = terraform(f'resource "meridian_tenant" "t" {{ name = "{name}" }}')
    told = one.refused("apply", "-auto-approve")
    assert f"tenant {name} already exists" in told
    one.run("import", "-no-color", "meridian_tenant.t", name)
    one.plan_is_empty()
    one.destroy()


def test_what_is_gone_is_made_anew(terraform, region, name):
    one = terraform(ALL.format(name=name))
    one.apply()
    region.admin("DELETE", f"/admin/v2/persistent/{name}/n/plain")
    region.admin("DELETE", f"/admin/v2/persistent/{name}/n/x/subscription/s")
    region.admin("DELETE", f"/admin/v2/namespaces/{name}/n/permissions/shop")
    assert set(one.changes()) == {"meridian_topic.plain", "meridian_subscription.s", "meridian_grant.on_namespace"}
    one.apply()
    one.plan_is_empty()
    one.destroy()


def test_partitions_grow_in_place_and_shrink_by_replacement(terraform, region, name):
    text = """
    resource "meridian_tenant" "t" {{ name = "{name}" }}
    resource "meridian_namespace" "n" {{
      tenant = meridian_tenant.t.name
      name   = "n"
    }}
    resource "meridian_topic" "x" {{
      namespace  = meridian_namespace.n.id
      name       = "x"
      partitions = {partitions}
    }}
    """
    one = terraform(text.format(name=name, partitions=2))
    one.apply()
    one.write(text.format(name=name, partitions=4))
    assert one.changes()["meridian_topic.x"]["actions"] == ["update"]
    one.apply()
    assert region.get(f"/admin/v2/persistent/{name}/n/x/partitions")["partitions"] == 4
    one.write(text.format(name=name, partitions=1))
    assert one.changes()["meridian_topic.x"]["actions"] == ["delete", "create"]
    one.apply()
    one.plan_is_empty()
    one.destroy()


def test_another_name_is_another_object(terraform, name):
    text = 'resource "meridian_tenant" "t" {{ name = "{name}" }}'
    one = terraform(text.format(name=name))
    one.apply()
    one.write(text.format(name=name + "x"))
    assert one.changes()["meridian_tenant.t"]["actions"] == ["delete", "create"]
    one.apply()
    one.destroy()


def test_a_namespace_with_topics_is_not_destroyed_unless_that_is_wanted(terraform, region, name):
    text = """
    resource "meridian_tenant" "t" {{ name = "{name}" }}
    resource "meridian_namespace" "n" {{
      tenant        = meridian_tenant.t.name
      name          = "n"
      force_destroy = {force}
    }}
    """
    one = terraform(text.format(name=name, force="false"))
    one.apply()
    assert region.admin("PUT", f"/admin/v2/persistent/{name}/n/mine").status_code == 204
    assert "Set force_destroy = true" in one.refused("destroy", "-auto-approve")
    one.write(text.format(name=name, force="true")).apply()
    one.destroy()
    assert name not in region.get("/admin/v2/tenants")


@pytest.mark.parametrize("attribute, value, limit", [
    ("message_ttl", "-1", "expected a whole number from 0 to 4294967295"),
    ("schema_compatibility_strategy", '"SOME"', "expected one of UNDEFINED, ALWAYS_INCOMPATIBLE"),
    ("subscription_types_enabled", '["Any"]', "expected one of Exclusive, Shared, Failover, Key_Shared"),
    ("persistence", "{ bookkeeper_ensemble = 1, bookkeeper_write_quorum = 2 }", "Bookkeeper Ensemble (1)"),
    ("dispatch_rate", "{ rate_period_in_second = 0 }", "expected a whole number from 1 to 86400"),
    ("bundles", "5000", "expected a whole number from 1 to 4096"),
    ("offload_policies", '"{"', "offload_policies"),
])
def test_a_value_that_can_not_be_is_refused_by_the_plan(terraform, name, attribute, value, limit):
    if attribute == "offload_policies":
        pytest.skip("any text is taken: what is no JSON is a text")
    text = f"""
    resource "meridian_namespace" "n" {{
      tenant = "{name}"
      name   = "n"
      {attribute} = {value}
    }}
    """
    told = terraform(text).refused("plan")
    assert limit in told, told
    if attribute != "persistence":
        assert attribute in told, told


def test_names_that_can_not_be_are_refused_by_the_plan(terraform):
    told = terraform("""
    resource "meridian_topic" "x" {
      namespace = "no-namespace"
      name      = "x"
    }
    resource "meridian_tenant" "t" { name = "a b" }
    resource "meridian_grant" "g" {
      namespace = "t/n"
      topic     = "persistent://t/n/x"
      role      = "r"
      actions   = ["write"]
    }
    resource "meridian_schema" "s" {
      topic  = "x"
      type   = "AVRO"
      schema = "{"
    }
    """).refused("plan")
    for expected in ["namespace is TENANT/NAME", "may hold letters, digits", "Set one of namespace and topic",
                     "expected some of produce, consume", "The definition is not JSON"]:
        assert expected in told, expected


def test_a_region_that_does_not_answer_is_an_error_that_says_so(terraform):
    one = terraform('resource "meridian_tenant" "t" { name = "t" }', url="http://127.0.0.1:1")
    assert "can't connect to 127.0.0.1:1" in one.refused("apply", "-auto-approve")
    one = terraform('resource "meridian_tenant" "t" { name = "t" }', url="ftp://x")
    assert "No such address can be" in one.refused("apply", "-auto-approve")


def test_data_sources(terraform, region, name):
    region.admin("PUT", f"/admin/v2/tenants/{name}", json={"adminRoles": ["a"], "allowedClusters": ["standalone"]})
    region.admin("PUT", f"/admin/v2/namespaces/{name}/n")
    region.admin("POST", f"/admin/v2/namespaces/{name}/n/messageTTL", json=7)
    region.admin("PUT", f"/admin/v2/persistent/{name}/n/x/partitions", json=2)
    one = terraform(f"""
    data "meridian_tenant" "t" {{ name = "{name}" }}
    data "meridian_namespace" "n" {{
      tenant = "{name}"
      name   = "n"
    }}
    data "meridian_topic" "x" {{
      namespace = data.meridian_namespace.n.id
      name      = "x"
    }}
    data "meridian_cluster" "own" {{ name = "standalone" }}
    output "all" {{
      value = {{
        roles      = data.meridian_tenant.t.admin_roles
        ttl        = data.meridian_namespace.n.message_ttl
        partitions = data.meridian_topic.x.partitions
        url        = data.meridian_cluster.own.service_url
      }}
    }}
    """)
    one.apply()
    found = json.loads(one.run("output", "-json").stdout)["all"]["value"]
    assert (found["roles"], found["ttl"], found["partitions"]) == (["a"], 7, 2)
    told = terraform('data "meridian_tenant" "t" { name = "nobody-here" }').refused("plan")
    assert "There is no meridian_tenant nobody-here" in told
    region.admin("DELETE", f"/admin/v2/tenants/{name}?force=true")
