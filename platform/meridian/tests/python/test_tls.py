"""TLS on every port: certificates and roles, renewal without a restart, named listeners, limits on connections."""
import shutil
import socket
import ssl
import threading
import time

import pulsar
import pytest
import requests

from cluster import Cluster
from ports import free_ports
from region import Region, wait_until
from secured import Keys, bearer, with_tls, with_tokens


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def certs(keys):
    return keys.certificates("admin", "ann", "eve")


def by_certificate(certs, **more):
    return {**with_tls(certs), "authenticationEnabled": "true", "authenticationProviders": "tls", "authorizationEnabled": "true",
            "superUserRoles": "admin", "authenticateMetricsEndpoint": "false", **more}


def secure_client(region, certs, role=None, **options):
    options.setdefault("operation_timeout_seconds", 5)
    if role:
        options["authentication"] = pulsar.AuthenticationTLS(str(certs / f"{role}.pem"), str(certs / f"{role}.key"))
    return pulsar.Client(f"pulsar+ssl://localhost:{region.ready['binary_port_tls']}", tls_trust_certs_file_path=str(certs / "ca.pem"),
                         tls_validate_hostname=True, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(region.folder / "client.log")),
                         **options)


def web(region, certs, role=None, method="GET", path="/admin/v2/clusters", **options):
    cert = (str(certs / f"{role}.pem"), str(certs / f"{role}.key")) if role else None
    return requests.request(method, f"https://localhost:{region.ready['web_port_tls']}{path}", cert=cert, verify=str(certs / "ca.pem"),
                            timeout=10, **options)


def produces(client, topic="persistent://public/default/tls"):
    try:
        client.create_producer(topic, send_timeout_millis=5000).send(b"x")
        return True
    except pulsar.PulsarException:
        return False
    finally:
        client.close()


def refusals(region, reason, kind="meridian_broker_connections_refused_total"):
    text = requests.get(region.web + "/metrics", timeout=10).text
    for line in text.splitlines():
        if line.startswith(kind) and f'reason="{reason}"' in line:
            return float(line.rsplit(" ", 1)[1])
    # Not counted yet; or this very request is refused while connections that were closed still count.
    return 0.0


def test_the_certificate_is_the_role_and_the_authority_counts(make_region, keys, certs):
    region = make_region(**by_certificate(certs))
    answer = web(region, certs, "admin", "POST", "/admin/v2/namespaces/public/default/permissions/ann", json=["produce", "consume"])
    assert answer.status_code == 204
    assert produces(secure_client(region, certs, "ann"))
    assert not produces(secure_client(region, certs, "eve"))
    assert not produces(secure_client(region, certs)), "no certificate, no role"
    assert web(region, certs).status_code == 401
    assert web(region, certs, "ann", "PUT", "/admin/v2/tenants/x", json={}).status_code in (401, 403)
    # Another authority with the same names.
    theirs = Keys(keys.folder / "theirs").certificates("admin", "ann")
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(f"https://localhost:{region.ready['web_port_tls']}/admin/v2/clusters", verify=str(certs / "ca.pem"), timeout=10,
                     cert=(str(theirs / "admin.pem"), str(theirs / "admin.key")))
    before = refusals(region, "tls_handshake")
    impostor = pulsar.Client(f"pulsar+ssl://localhost:{region.ready['binary_port_tls']}", operation_timeout_seconds=3,
                             tls_trust_certs_file_path=str(certs / "ca.pem"),
                             authentication=pulsar.AuthenticationTLS(str(theirs / "ann.pem"), str(theirs / "ann.key")))
    assert not produces(impostor)
    assert refusals(region, "tls_handshake") > before
    # A client checks the server.
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"https://localhost:{region.ready['web_port_tls']}/admin/v2/clusters", verify=str(theirs / "ca.pem"), timeout=10)


def test_roles_may_come_from_alternative_names(make_region, certs):
    region = make_region(**by_certificate(certs, tlsClientRoleFrom="SAN_DNS,CN", superUserRoles="localhost"))
    # The server's certificate has the DNS name localhost; admin's has none, so that its common name counts.
    assert web(region, certs, "server", "PUT", "/admin/v2/tenants/x", json={"allowedClusters": ["standalone"]}).status_code == 204
    assert web(region, certs, "admin", "PUT", "/admin/v2/tenants/y", json={}).status_code in (401, 403)


def test_only_the_stated_versions_of_tls_are_spoken(make_region, certs):
    region = make_region(**with_tls(certs), tlsProtocols="TLSv1.3")
    context = ssl.create_default_context(cafile=str(certs / "ca.pem"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    for port in ("binary_port_tls", "web_port_tls"):
        with socket.create_connection(("localhost", region.ready[port])) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(raw, server_hostname="localhost").recv(1)


def test_certificates_are_renewed_without_a_restart(make_region, keys, tmp_path):
    first = keys.certificates("admin", folder="first")
    used = tmp_path / "used"
    shutil.copytree(first, used)
    region = make_region(**with_tls(used))
    client = secure_client(region, used)
    producer = client.create_producer("persistent://public/default/renewed")

    def shown(port):
        context = ssl.create_default_context(cafile=str(used / "ca.pem"))
        with socket.create_connection(("localhost", region.ready[port])) as raw, context.wrap_socket(raw, server_hostname="localhost") as tls:
            return tls.getpeercert()["serialNumber"]

    old = shown("web_port_tls")
    second = keys.certificates("admin", folder="second")
    shutil.copy(second / "server.pem", used / "server.pem")  # half-way: the key is still the old one
    assert shown("web_port_tls") == old
    shutil.copy(second / "server.key", used / "server.key")
    # Clients that trust the new authority only.
    shutil.copy(second / "ca.pem", used / "ca.pem")
    wait_until(lambda: shown("web_port_tls") != old and shown("binary_port_tls") != old)
    producer.send(b"the connection that was there goes on")
    assert produces(secure_client(region, used))
    client.close()


def test_named_listeners_tell_their_own_addresses(make_region, certs):
    inner, outer, secure = free_ports(3)
    region = make_region(**with_tls(certs), brokerServicePort=inner,
                         advertisedListeners=f"inside:pulsar://localhost:{inner},outside:pulsar://127.0.0.1:{outer},"
                                             f"outside:pulsar+ssl://localhost:{secure}",
                         bindAddresses=f"outside:pulsar://127.0.0.1:{outer},outside:pulsar+ssl://127.0.0.1:{secure}",
                         internalListenerName="inside")
    assert set(region.ready["named_ports"].values()) == {outer, secure}
    topic = "/lookup/v2/topic/persistent/public/default/where"
    client = region.client()
    client.create_producer("persistent://public/default/where")
    assert region.get(topic)["brokerUrl"] == f"pulsar://localhost:{inner}"
    named = region.get(topic + "?listenerName=outside")
    assert (named["brokerUrl"], named["brokerUrlTls"]) == (f"pulsar://127.0.0.1:{outer}", f"pulsar+ssl://localhost:{secure}")
    assert region.admin("GET", topic + "?listenerName=nowhere").status_code in (400, 404, 412, 503)
    for url in (f"pulsar://127.0.0.1:{outer}", f"pulsar+ssl://localhost:{secure}"):
        outside = pulsar.Client(url, tls_trust_certs_file_path=str(certs / "ca.pem"), tls_validate_hostname=True, operation_timeout_seconds=5)
        outside.create_producer("persistent://public/default/where").send(b"x")
        outside.close()
    client.close()


@pytest.mark.parametrize("settings, says", [
    ({"bindAddresses": "out:pulsar://127.0.0.1:0"}, "advertisedListeners has no listener out"),
    ({"tlsProtocols": "SSLv3", "webServicePortTls": 0}, "tlsProtocols"),
    ({"tlsAllowInsecureConnection": "true"}, "tlsAllowInsecureConnection=true"),
    ({"tlsClientRoleFrom": "OU", "authenticationEnabled": "true", "authenticationProviders": "tls"}, "tlsClientRoleFrom=OU"),
    ({"authenticationEnabled": "true", "authenticationProviders": "token", "tokenJwks": "http://x/"}, "https only"),
], ids=["listener", "protocol", "insecure", "field", "plain jwks"])
def test_what_can_not_be_meant_ends_the_start(tmp_path, certs, settings, says):
    region = Region(tmp_path / "r", **{**with_tls(certs), **settings})
    with pytest.raises(RuntimeError) as ended:
        region.start()
    assert says in str(ended.value)


def connected(region, count):
    return [socket.create_connection(("127.0.0.1", region.ready["binary_port"])) for _ in range(count)]


def test_connections_are_limited_and_refusals_say_why(make_region):
    region = make_region(brokerMaxConnectionsPerIp=3)
    first = connected(region, 3)
    # They are counted by tasks of their own, in any order.
    wait_until(lambda: 'pulsar_active_connections{cluster="standalone"} 3' in region.admin("GET", "/metrics").text)
    (more,) = connected(region, 1)
    more.settimeout(5)
    answer = more.recv(1000)
    assert b"Reached the maximum number of connections 3 on address" in answer
    assert refusals(region, "max_connections_per_ip") == 1
    for one in first + [more]:
        one.close()

    client = region.client()
    client.create_producer("persistent://public/default/room").send(b"x")
    client.close()


def test_who_does_not_log_in_makes_room(make_region):
    region = make_region(brokerMaxUnauthenticatedConnections=2, connectionLoginTimeoutSeconds=2)
    client = region.client()
    producer = client.create_producer("persistent://public/default/logged-in")
    idle = connected(region, 2)
    wait_until(lambda: 'meridian_broker_connections_unauthenticated{cluster="standalone"} 2' in region.admin("GET", "/metrics").text)
    (more,) = connected(region, 1)
    more.settimeout(5)
    assert b"that have not logged in" in more.recv(1000)
    assert refusals(region, "max_unauthenticated") == 1
    producer.send(b"who is in goes on")
    begun = time.monotonic()
    for one in idle:
        one.settimeout(10)
        assert one.recv(1000) == b"", "closed"
    assert time.monotonic() - begun < 8
    assert refusals(region, "login_timeout") == 2
    client.close()


def test_a_peer_that_takes_nothing_is_let_go(make_region):
    region = make_region(connectionSlowPeerTimeoutSeconds=2, keepAliveIntervalSeconds=30)
    # Lookups whose answers are never read: more than the sockets' buffers hold.
    raw = socket.create_connection(("127.0.0.1", region.ready["binary_port"]))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connect = bytes([0x08, 0x02, 0x12, 0x05, 0x0a, 0x01]) + b"x" + bytes([0x20, 0x15])
    raw.sendall((len(connect) + 4).to_bytes(4, "big") + len(connect).to_bytes(4, "big") + connect)
    ping = bytes([0x08, 0x12, 0x92, 0x01, 0x00])
    frame = (len(ping) + 4).to_bytes(4, "big") + len(ping).to_bytes(4, "big") + ping

    def flood():
        try:
            while True:
                raw.sendall(frame * 1000)
        except OSError:
            pass
    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    wait_until(lambda: refusals(region, "slow_peer") == 1, 30, "the slow peer is let go")
    thread.join(10)
    assert not thread.is_alive()


def test_web_connections_heads_and_bodies_are_limited(make_region):
    region = make_region(maxHttpServerConnectionsPerIp=3, httpMaxRequestHeaderSize=8192, httpMaxRequestSize=1000, httpHeadTimeoutSeconds=1)
    web = "meridian_web_refused_total"
    large = region.admin("PUT", "/admin/v2/tenants/x", json={"adminRoles": ["r" * 2000]})
    assert large.status_code == 413 and "reason" in large.json()
    assert region.admin("GET", "/admin/v2/tenants", headers={"X-Large": "x" * 20_000}).status_code == 431
    assert refusals(region, "body_too_large", web) >= 1 and refusals(region, "head_too_large", web) >= 1
    slow = socket.create_connection(("127.0.0.1", region.ready["web_port"]))
    slow.sendall(b"GET /admin/v2/ten")
    slow.settimeout(10)
    while slow.recv(1000):
        pass
    wait_until(lambda: refusals(region, "head_timeout", web) >= 1)
    held = [socket.create_connection(("127.0.0.1", region.ready["web_port"])) for _ in range(3)]
    more = socket.create_connection(("127.0.0.1", region.ready["web_port"]))
    more.settimeout(10)
    answer = more.recv(1000)
    assert answer.startswith(b"HTTP/1.1 503") and b"maxHttpServerConnectionsPerIp" in answer
    for one in held + [more]:
        one.close()
    wait_until(lambda: refusals(region, "max_connections_per_ip", web) >= 1)


def test_tokens_over_tls(make_region, keys, certs):
    region = make_region(**with_tls(certs), **with_tokens(keys))
    head = bearer(keys.token("admin"))
    assert web(region, certs, headers=head, path="/admin/v2/tenants").status_code == 200
    client = secure_client(region, certs, authentication=pulsar.AuthenticationToken(keys.token("admin")))
    assert produces(client)
    assert not produces(secure_client(region, certs, authentication=pulsar.AuthenticationToken("x.y.z")))


def test_brokers_and_bookies_speak_tls_with_each_other_only(tmp_path, keys, certs):
    files = {"Certificate": "server.pem", "Key": "server.key", "TrustCerts": "ca.pem"}
    cluster = Cluster(tmp_path / "c", brokers=1, bookies=3, **{f"bookkeeperTLS{name}FilePath": certs / file for name, file in files.items()})
    try:
        cluster.start()
        client = cluster.client()
        topic = "persistent://public/default/tls"
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        for number in range(100):
            producer.send(str(number).encode())
        assert [int(consumer.receive(20_000).data()) for _ in range(100)] == list(range(100))
        client.close()
        for port in ("bookie_port", "bookie_control_port"):
            address = ("127.0.0.1", cluster.bookies[0].ready[port])
            # Without TLS nothing but an alert is answered.
            with socket.create_connection(address) as plain:
                plain.settimeout(15)
                plain.sendall(b"\x00" * 64)
                assert plain.recv(100)[:1] in (b"", b"\x15")
            # With TLS and no certificate, or one of another authority, nobody is let in.
            theirs = Keys(tmp_path / f"theirs-{port}").certificates("x")
            for shown in (None, theirs):
                context = ssl.create_default_context(cafile=str(certs / "ca.pem"))
                if shown:
                    context.load_cert_chain(shown / "x.pem", shown / "x.key")
                with socket.create_connection(address) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
                    with context.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
                        tls.sendall(b"\x00" * 64)
                        if tls.recv(100) == b"":
                            raise ConnectionResetError
    finally:
        cluster.close()
