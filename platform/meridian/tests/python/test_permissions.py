"""Every cell of docs/reference/permissions.md by REST and by the binary protocol."""
import base64
import hashlib
import hmac
import json
import pathlib

import pulsar
import pytest

from region import Region, wait_until

PAGE = pathlib.Path(__file__).parents[4] / "docs/reference/permissions.md"
KEY = b"a key of thirty-two bytes for HS"
TOPIC, PATH = "persistent://team/orders/placed", "/admin/v2/persistent/team/orders/placed"
SCHEMA = {"type": "STRING", "schema": "", "properties": {}}


def token(role):
    part = lambda value: base64.urlsafe_b64encode(value).rstrip(b"=")
    signed = part(json.dumps({"alg": "HS256", "typ": "JWT"}).encode()) + b"." + part(json.dumps({"sub": role}).encode())
    return (signed + b"." + part(hmac.new(KEY, signed, hashlib.sha256).digest())).decode()


def table():
    """(role, column, allowed) of every cell."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in PAGE.read_text().splitlines() if line.startswith("|")]
    head = rows[0]
    for row in rows[2:]:
        if len(row) != len(head):
            break
        for column, cell in zip(head[2:], row[2:]):
            yield row[1].strip("`—"), column, cell == "yes"


class Doors:
    """A region with the grants of the page, and what each column is tried by."""

    def __init__(self, region):
        self.region, self.clients = region, {}

    def call(self, role, method, path, body=None):
        headers = {"Authorization": f"Bearer {token(role)}"} if role else {}
        return self.region.admin(method, path, headers=headers, json=body) if body is not None else self.region.admin(method, path, headers=headers)

    def client(self, role):
        if role not in self.clients:
            # The client tries again until its time is over where its connection is refused.
            options = {"authentication": pulsar.AuthenticationToken(token(role))} if role else {"operation_timeout_seconds": 3}
            self.clients[role] = self.region.client(**options)
        return self.clients[role]

    def rest(self, role, column):
        method, path, body = {
            "produce, topic": ("POST", "/admin/v2/schemas/team/orders/placed/schema", SCHEMA),
            "consume, topic": ("GET", PATH + "/ledger/999999/entry/0", None),
            "consume, subscription": ("POST", PATH + "/subscription/billing/skip_all", None),
            "look up, namespace": ("GET", "/admin/v2/persistent/team/orders", None),
            "look up, topic": ("GET", PATH + "/stats", None),
            "administer, tenant": ("GET", "/admin/v2/namespaces/team", None),
            "administer, namespace": ("GET", "/admin/v2/namespaces/team/orders/retention", None),
            "administer, topic": ("GET", PATH + "/retention", None),
            "operate, cluster": ("GET", "/admin/v2/tenants", None),
        }[column]
        answer = self.call(role, method, path, body)
        assert answer.status_code < 500, (role, column, answer.text)
        assert answer.status_code not in (401, 403) or answer.json()["reason"], (role, column)
        return answer.status_code not in (401, 403)

    def binary(self, role, column):
        client = self.client(role)
        tries = {
            "produce, topic": lambda: client.create_producer(TOPIC, schema=pulsar.schema.StringSchema()),
            "consume, subscription": lambda: client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared),
            "look up, topic": lambda: client.get_topic_partitions(TOPIC),
        }
        if column not in tries:
            return None
        try:
            made = tries[column]()
        except (pulsar.AuthorizationError, pulsar.AuthenticationError, pulsar.ConnectError):
            return False
        except pulsar.Timeout:
            assert not role, (role, column)
            return False
        if hasattr(made, "close"):
            made.close()
        return True


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("permissions")
    (folder / "secret.key").write_bytes(KEY)
    region = Region(folder, authenticationEnabled="true", authorizationEnabled="true", authenticationProviders="token",
                    tokenSecretKey=f"file://{folder}/secret.key", superUserRoles="operator", diskUsageThreshold=0.99, diskUsageLwmThreshold=0.98).start()
    doors = Doors(region)

    def done(method, path, body=None):
        answer = doors.call("operator", method, path, body)
        assert answer.status_code in (200, 204), (path, answer.text)

    for tenant, role in (("team", "team-admin"), ("team-two", "team-two-admin")):
        done("PUT", f"/admin/v2/tenants/{tenant}", {"adminRoles": [role], "allowedClusters": ["standalone"]})
        done("PUT", f"/admin/v2/namespaces/{tenant}/orders")
    done("PUT", PATH)
    done("PUT", PATH + "/subscription/billing")
    done("POST", "/admin/v2/schemas/team/orders/placed/schema", SCHEMA)
    for role, what in (("ns-producer", "produce"), ("ns-consumer", "consume"), ("billing-service", "consume"), ("function-runner", "functions")):
        done("POST", f"/admin/v2/namespaces/team/orders/permissions/{role}", [what])
    for role, what in (("topic-producer", "produce"), ("topic-consumer", "consume")):
        done("POST", f"{PATH}/permissions/{role}", [what])
    done("POST", "/admin/v2/namespaces/team/orders/permissions/subscription/billing", ["billing-service"])
    yield doors
    for client in doors.clients.values():
        client.close()
    region.close()


def test_the_page_has_every_principal_and_column():
    cells = list(table())
    assert len({role for role, _, _ in cells}) == 11
    assert len({column for _, column, _ in cells}) == 10


@pytest.mark.parametrize("role", sorted({role for role, _, _ in table()}))
def test_every_cell_by_both_doors(doors, role):
    for cell_role, column, allowed in table():
        # Functions are served to nobody.
        if cell_role != role or column.startswith("functions"):
            continue
        assert doors.rest(role, column) == allowed, (role, column, "rest")
        by_binary = doors.binary(role, column)
        assert by_binary in (None, allowed), (role, column, "binary")


def test_a_withdrawn_grant_closes_the_door_within_a_second(doors):
    doors.call("operator", "POST", "/admin/v2/namespaces/team/orders/permissions/passing", ["produce"])
    assert doors.binary("passing", "produce, topic")
    doors.call("operator", "DELETE", "/admin/v2/namespaces/team/orders/permissions/passing")
    wait_until(lambda: not doors.binary("passing", "produce, topic"), 2, "a refusal")
    assert not doors.rest("passing", "produce, topic")
