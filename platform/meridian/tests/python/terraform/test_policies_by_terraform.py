"""Every policy: an attribute of its own, applied, read back, shown by the plan when others change it, and repaired."""
import json

import pytest

# Values that fit each other or that no rule makes up.
SPECIAL = {
    "persistence": {"bookkeeper_ensemble": 3, "bookkeeper_write_quorum": 2, "bookkeeper_ack_quorum": 1},
    "retention": {"retention_time_in_minutes": 600, "retention_size_in_mb": 600},
    "replication": None,
    "allowed_clusters": ["standalone"],
    "backlog_quota": {"destination_storage": {"limit_size": 77, "policy": "producer_exception"},
                      "message_age": {"limit_time": 88, "policy": "consumer_backlog_eviction"}},
    "schema_compatibility_strategy": "FULL",
    "schema_auto_update_compatibility_strategy": "Forward",
    "subscription_auth_mode": "Prefix",
    "subscription_types_enabled": ["Shared"],
    "entry_filters": {"entry_filter_names": "x"},
    "auto_topic_creation": {"allow_auto_topic_creation": True, "topic_type": "partitioned", "default_num_partitions": 3},
    "auto_subscription_creation": {"allow_auto_subscription_creation": False},
    "inactive_topic_policies": {"max_inactive_duration_seconds": 77},
    "offload_policies": json.dumps({"driver": "x"}),
    "is_allow_auto_update_schema_with_replicator": False,
}
NAMES = {"id", "tenant", "name", "namespace", "domain", "partitions", "bundles", "force_destroy"}


def value_of(name, attribute):
    if name in SPECIAL:
        return SPECIAL[name]
    if "nested_type" in attribute:
        fields = attribute["nested_type"]["attributes"]
        return {field: value_of(field, one) for field, one in fields.items() if one["type"] == "number"}
    return {"bool": True, "number": 7, "string": "text"}.get(attribute["type"] if isinstance(attribute["type"], str) else "",
                                                             {"a": "b"} if attribute["type"] == ["map", "string"] else ["x"])


def policies_of(one, kind):
    attributes = one.schema()["resource_schemas"][kind]["block"]["attributes"]
    return {name: value_of(name, attribute) for name, attribute in attributes.items()
            if name not in NAMES and not (kind == "meridian_topic" and name == "properties")}


def hcl(values):
    return "\n".join(f"  {name} = jsondecode({json.dumps(json.dumps(value))})" for name, value in values.items()
                     if value is not None)


@pytest.mark.parametrize("kind", ["meridian_namespace", "meridian_topic"])
def test_b159_b167_every_policy_is_applied_seen_changed_and_repaired(terraform, region, name, kind):
    # A namespace is bound to a group that is there.
    assert region.admin("PUT", "/admin/v2/resourcegroups/text", json={"publishRateInMsgs": 1000000}).status_code == 204
    one = terraform("").run("version") and terraform("")
    policies = policies_of(one, kind)
    assert len(policies) >= (45 if kind == "meridian_namespace" else 30), sorted(policies)
    on = {"meridian_namespace": "", "meridian_topic": ""} | {kind: hcl(policies)}
    one.write(f"""
    resource "meridian_tenant" "t" {{ name = "{name}" }}
    resource "meridian_namespace" "n" {{
      tenant = meridian_tenant.t.name
      name   = "n"
      {on["meridian_namespace"]}
    }}
    resource "meridian_topic" "x" {{
      namespace = meridian_namespace.n.id
      name      = "x"
      {on["meridian_topic"]}
    }}
    """)
    one.apply()
    one.plan_is_empty()
    # All of them are taken away behind its back.
    place = {"n": {"policies": {}}} if kind == "meridian_namespace" else {"n": {"topics": {"x": {"policies": {}}}}}
    done = region.admin("PUT", "/admin/v2/meridian/apply", json={"tenants": {name: {"namespaces": place}}})
    assert done.status_code == 200, done.text
    address = {"meridian_namespace": "meridian_namespace.n", "meridian_topic": "meridian_topic.x"}[kind]
    change = one.changes()[address]
    assert change["actions"] == ["update"]
    shown = {attribute for attribute in policies if change["before"][attribute] != change["after"][attribute]}
    expected = {attribute for attribute, value in policies.items() if value is not None}
    assert shown == expected, (sorted(expected - shown), sorted(shown - expected))
    one.apply()
    one.plan_is_empty()
    # And all are unset by leaving them out.
    one.write(f"""
    resource "meridian_tenant" "t" {{ name = "{name}" }}
    resource "meridian_namespace" "n" {{
      tenant = meridian_tenant.t.name
      name   = "n"
    }}
    resource "meridian_topic" "x" {{
      namespace = meridian_namespace.n.id
      name      = "x"
    }}
    """)
    one.apply()
    one.plan_is_empty()
    query = f"namespace={name}/n" if kind == "meridian_namespace" else f"topic=persistent://{name}/n/x"
    assert region.get(f"/admin/v2/meridian/export?{query}")["policies"] == {}
    one.destroy()
