"""The two-region environment: made, planned, used, switched, destroyed."""
import json

import pytest

from cycles import Pair, rounds
from region import wait_until


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    pair = Pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.close()


def test_b162_rounds_of_create_plan_and_destroy_leave_nothing_behind(pair):
    rounds(pair, 2)


def test_a_namespace_that_somebody_switched_is_shown_and_switched_back(pair):
    one = pair.terraform
    one.apply()
    path = "/admin/v2/meridian/failover/billing/invoices"
    west = pair.regions["west"]
    assert west.get(path)["active"] == "west"
    # A link that was refused before east knew west tries again after a pause.
    linked = lambda: west.get("/admin/v2/meridian/region-link/peers").get("east", {}).get("state") == "connected"
    wait_until(linked, 30, "the region link to east")
    done = west.admin("POST", f"{path}/switch", json={"to": "east"})
    assert done.status_code == 200, done.text
    change = one.changes()['module.shop.meridian_failover_group.this["money"]']
    assert (change["before"]["active"], change["after"]["active"]) == ("east", "west")
    one.apply()
    one.plan_is_empty()
    assert west.get(path)["active"] == "west"
    one.destroy()


def test_the_document_is_applied_at_home_alone(pair):
    one = pair.terraform
    swapped = {"TF_VAR_west": one.environment["TF_VAR_east"], "TF_VAR_east": one.environment["TF_VAR_west"]}
    kept = {name: one.environment[name] for name in swapped}
    one.environment.update(swapped)
    told = one.refused("plan")
    one.environment.update(kept)
    assert 'home: is "west", but this is region east: apply it there' in told
    assert json.loads(kept["TF_VAR_west"])["admin_url"] == pair.regions["west"].web
