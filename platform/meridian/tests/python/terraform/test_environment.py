"""Environments: planned by the region, applied once, raced for, repaired, imported; modules and their tests."""
import subprocess

import pytest

from harness import BINARY, ROOT, Terraform

ENVIRONMENT = """
resource "meridian_environment" "e" {{
  owner    = "{name}"
  document = yamlencode({{
    tenants = {{ "{name}" = {{ namespaces = {{ live = {{
      policies = {{ messageTTL = {ttl} }}
      topics   = {{ {topics} }}
    }} }} }} }}
  }})
}}
"""


def test_an_environment_is_planned_applied_and_repaired(terraform, region, name):
    one = terraform(ENVIRONMENT.format(name=name, ttl=60, topics="a = {}, b = { partitions = 2 }"))
    planned = one.changes()["meridian_environment.e"]["after"]["changes"]
    assert planned == [f"create tenant {name}", f"create namespace {name}/live",
                       f"create topic persistent://{name}/live/a", f"create topic persistent://{name}/live/b"]
    one.apply()
    one.plan_is_empty()
    region.admin("POST", f"/admin/v2/namespaces/{name}/live/messageTTL", json=5)
    assert one.changes()["meridian_environment.e"]["after"]["changes"] == [
        f"update namespace {name}/live: policies.messageTTL"]
    one.apply()
    one.plan_is_empty()
    assert region.get(f"/admin/v2/namespaces/{name}/live/messageTTL") == 60
    one.write(ENVIRONMENT.format(name=name, ttl=60, topics="a = {}"))
    assert one.changes()["meridian_environment.e"]["after"]["changes"] == [
        f"delete topic persistent://{name}/live/b"]
    one.apply()
    one.plan_is_empty()
    one.destroy()
    assert name not in region.get("/admin/v2/tenants")


def test_a_document_that_can_not_be_is_refused_by_the_plan_with_its_path(terraform, region, name):
    one = terraform(ENVIRONMENT.format(name=name, ttl=-1, topics=""))
    assert f"tenants.{name}.namespaces.live.policies.messageTTL: is -1" in one.refused("plan")
    one.write(ENVIRONMENT.format(name=name, ttl=1, topics="x = { partitions = 4 }")).apply()
    one.write(ENVIRONMENT.format(name=name, ttl=1, topics="x = { partitions = 2 }"))
    assert "expected at least 4: partitions only grow" in one.refused("plan")
    one.write(ENVIRONMENT.format(name=name, ttl=1, topics="x = { partitions = 4 }")).destroy()


def test_somebody_else_who_applies_in_between_is_not_overwritten(terraform, region, tmp_path, name):
    one = terraform(ENVIRONMENT.format(name=name, ttl=1, topics=""))
    one.apply()
    one.write(ENVIRONMENT.format(name=name, ttl=2, topics=""))
    one.run("plan", "-no-color", "-out", "tfplan")
    document = tmp_path / "other.yaml"
    document.write_text(f"owner: {name}\ntenants: {{ {name}: {{ namespaces: {{ live: {{ policies: {{ messageTTL: 3 }} }} }} }} }}\n")
    command = [BINARY, "apply", "-f", str(document), "--url", region.web]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "messageTTL: 1 -> 3" in shown and "revision 2" in shown
    told = one.refused("apply", "tfplan")
    assert "revision 2 is in force, not 1" in told
    assert region.get(f"/admin/v2/namespaces/{name}/live/messageTTL") == 3
    one.apply()
    one.plan_is_empty()
    one.destroy()


def test_meridian_apply_plans_applies_and_says_what_is_wrong(region, tmp_path, name):
    document = tmp_path / "environment.yaml"

    def apply(text, *more, good=True):
        document.write_text(text)
        done = subprocess.run([BINARY, "apply", "-f", str(document), "--url", region.web, *more],
                              capture_output=True, text=True)
        assert (done.returncode == 0) == good, done
        return done.stdout + done.stderr

    text = f"owner: {name}\ntenants:\n  {name}:\n    namespaces:\n      n:\n        policies: {{ messageTTL: 5 }}\n"
    assert "2 objects would change" in apply(text, "--dry-run")
    assert "2 objects changed and in force, revision 1" in apply(text, "--revision", "0")
    assert "nothing to do, revision 1" in apply(text)
    assert "revision 1 is in force, not 0" in apply(text, "--revision", "0", good=False)
    told = apply(text.replace("messageTTL: 5", "messageTLL: 5"), good=False)
    assert f"tenants.{name}.namespaces.n.policies.messageTLL: is not known; did you mean messageTTL?" in told
    assert f"namespace {name}/n is not in the document any more; --prune deletes it" in apply(f"owner: {name}\ntenants: {{ {name}: ~ }}\n")
    assert f"- namespace {name}/n" in apply(f"owner: {name}\ntenants: {{ {name}: ~ }}\n", "--prune")
    region.admin("DELETE", f"/admin/v2/meridian/applied/{name}?prune=true")


@pytest.mark.parametrize("module", ["team", "environment", "two-regions"])
def test_modules_pass_their_own_tests(tmp_path, settings, module):
    one = Terraform(tmp_path / "modules", settings).copy(ROOT / "terraform/modules")
    inside = Terraform(one.folder / module, settings)
    inside.init()
    done = inside.run("test", "-no-color")
    assert "0 failed" in done.stdout, done.stdout


def test_the_example_of_one_team(terraform, region):
    one = terraform()
    one.folder = one.folder / "examples" / "one-team"
    one.copy(ROOT / "terraform/examples/one-team")
    Terraform(one.folder.parents[1] / "modules", "unused").copy(ROOT / "terraform/modules")
    one.init().apply()
    one.plan_is_empty()
    assert region.get("/admin/v2/persistent/orders/live/placed/partitions")["partitions"] == 4
    one.destroy()
