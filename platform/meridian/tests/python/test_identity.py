"""Who is let in: tokens of every kind, forged and expired ones, passwords, proxies."""
import base64
import hashlib
import hmac
import http.server
import json
import ssl
import threading
import time

import pulsar
import pytest
import requests

from raw import Raw
from region import wait_until
from secured import Keys, bearer, run, with_tokens


def part(value):
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forge(header, claims, secret):
    signed = f"{part(header)}.{part(claims)}"
    return f"{signed}.{part(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def secured(make_region, keys):
    def make(**settings):
        region = make_region(**with_tokens(keys, **settings))
        region.head = bearer(keys.token("admin"))
        return region
    return make


def admin(region, method, path, token=None, **options):
    headers = bearer(token) if token else region.head
    return region.admin(method, path, headers=headers, **options)


def grant(region, role, actions=("produce", "consume")):
    answer = admin(region, "POST", f"/admin/v2/namespaces/public/default/permissions/{role}", json=list(actions))
    assert answer.status_code == 204, answer.text


def produces(region, token, topic="persistent://public/default/id", **options):
    client = region.client(authentication=pulsar.AuthenticationToken(token), operation_timeout_seconds=5, **options)
    try:
        client.create_producer(topic, send_timeout_millis=5000).send(b"x")
        return True
    except pulsar.PulsarException:
        return False
    finally:
        client.close()


def refused_by_binary(region, token):
    """The connection is answered an error, or ended, before anything else is."""
    connection = Raw(region.ready["binary_port"], token)
    kind, fields = connection.connected
    connection.close()
    assert kind != "error" or token.encode() not in fields[3][0] or not token
    return kind in ("error", None)


def test_tokens_are_what_they_say_or_nothing(secured, keys, tmp_path):
    region = secured()
    grant(region, "ann")
    secret = keys.secret.read_bytes()
    good = keys.token("ann")
    head, claims, signature = good.split(".")
    other = Keys(tmp_path / "other")
    bad = {
        "expired": forge({"alg": "HS256"}, {"sub": "admin", "exp": 1000}, secret),
        "not yet": keys.token("admin", not_before_s=3600),
        "alg none": f"{part({'alg': 'none'})}.{part({'sub': 'admin'})}.",
        "alg none with a signature": f"{part({'alg': 'none'})}.{part({'sub': 'admin'})}.{signature}",
        "another key": other.token("admin"),
        "no signature": f"{head}.{claims}",
        "half a signature": f"{head}.{claims}.{signature[:20]}",
        "claims of another": f"{head}.{part({'sub': 'admin'})}.{signature}",
        "critical extension": forge({"alg": "HS256", "crit": ["x"], "x": 1}, {"sub": "admin"}, secret),
        "no role": forge({"alg": "HS256"}, {"aud": "admin"}, secret),
        "time as text": forge({"alg": "HS256"}, {"sub": "admin", "exp": "never"}, secret),
        "huge": forge({"alg": "HS256"}, {"sub": "admin", "pad": "x" * 20_000}, secret),
        "beyond every frame": forge({"alg": "HS256"}, {"sub": "admin", "pad": "x" * 6_000_000}, secret),
        "a header that is no JSON": f"{part(b'{')}.{claims}.{signature}",
        "claims that are no JSON": f"{head}.{part(b'{')}.{signature}",
        "cut in its header": good[:10],
        "cut in its claims": good[:len(head) + 5],
        "nothing": "",
        "garbage": "a.b.c",
    }
    for name, token in bad.items():
        # A head that is larger than a head may be is refused as such.
        if len(token) > 60_000:
            continue
        answer = region.admin("GET", "/admin/v2/tenants", headers=bearer(token) if token else {})
        assert answer.status_code == 401, (name, answer.status_code)
        assert token == "" or token not in answer.text
    for name, token in bad.items():
        assert refused_by_binary(region, token), name
    for name in ("expired", "alg none", "another key"):
        assert not produces(region, bad[name]), name
    assert produces(region, good)
    assert admin(region, "GET", "/admin/v2/tenants").status_code == 200
    refused = admin(region, "PUT", "/admin/v2/tenants/eves", keys.token("eve"), json={})
    assert refused.status_code in (401, 403) and "super" in refused.text
    for token in bad.values():
        assert not token or token not in region.log()


def test_a_public_key_is_no_secret(make_region, keys, tmp_path):
    private, public = tmp_path / "rs.key", tmp_path / "rs.pub"
    run("tokens", "create-key-pair", "--output-private-key", private, "--output-public-key", public)
    settings = with_tokens(keys, tokenSecretKey="", tokenPublicKey=f"file://{public}", tokenPublicAlg="RS256")
    region = make_region(**settings)
    token = run("tokens", "create", "--private-key", private, "--subject", "admin")
    assert region.admin("GET", "/admin/v2/tenants", headers=bearer(token)).status_code == 200
    assert run("tokens", "validate", "--public-key", public, token).startswith("valid, role admin")
    der = public.read_bytes()
    pem = b"-----BEGIN PUBLIC KEY-----\n" + b"\n".join(
        base64.b64encode(der)[at:at + 64] for at in range(0, len(base64.b64encode(der)), 64)) + b"\n-----END PUBLIC KEY-----\n"
    for secret in (der, pem, pem.strip(), base64.b64encode(der)):
        forged = forge({"alg": "HS256"}, {"sub": "admin"}, secret)
        assert region.admin("GET", "/admin/v2/tenants", headers=bearer(forged)).status_code == 401
        assert not produces(region, forged)


def key_of_a_set(folder, name):
    """A public key as sets hold it, and an operator's token by it."""
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    run("tokens", "create-key-pair", "--algorithm", "es256", "--output-private-key", private, "--output-public-key", public)
    # The last 64 bytes of a P-256 public key are its two coordinates.
    x, y = public.read_bytes()[-64:-32], public.read_bytes()[-32:]
    token = run("tokens", "create", "--private-key", private, "--algorithm", "es256", "--subject", "admin", "--key-id", name)
    return {"kty": "EC", "crv": "P-256", "kid": name, "use": "sig", "alg": "ES256", "x": part(x), "y": part(y)}, token


def test_keys_of_a_set_rotate_while_the_broker_runs(make_region, keys, tmp_path):
    (old, old_token), (new, new_token) = key_of_a_set(tmp_path, "old"), key_of_a_set(tmp_path, "new")
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [old]}))
    region = make_region(**with_tokens(keys, tokenSecretKey="", tokenJwks=f"file://{jwks}"))
    status = lambda token: region.admin("GET", "/admin/v2/tenants", headers=bearer(token)).status_code
    assert (status(old_token), status(new_token)) == (200, 401)
    jwks.write_text(json.dumps({"keys": [old, new]}))
    wait_until(lambda: status(new_token) == 200, message="the new key counts")
    assert status(old_token) == 200
    jwks.write_text("{ half a fi")
    time.sleep(1.5)  # a look at the file, which can't be read: nothing changes
    assert (status(old_token), status(new_token)) == (200, 200)
    jwks.write_text(json.dumps({"keys": [new]}))
    wait_until(lambda: status(old_token) == 401, message="the old key does not count")
    assert status(new_token) == 200


class Issuer:
    """Serves a set of keys by https, with a certificate of the development authority."""

    def __init__(self, certs, *keys):
        self.answer, self.asked = (200, {"keys": list(keys)}), []
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.asked.append(self.path)
                status, body = issuer.answer
                body = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs / "server.pem", certs / "server.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.server.server_port}/keys?of=region"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def test_a_set_behind_https_rotates_and_holds_while_its_issuer_is_down(make_region, keys, tmp_path):
    certs = keys.certificates("admin", folder="issuer")
    (old, old_token), (new, new_token) = key_of_a_set(tmp_path, "old"), key_of_a_set(tmp_path, "new")
    _, strange_token = key_of_a_set(tmp_path, "strange")
    issuer = Issuer(certs, old)
    # Only tokens of unknown keys make it ask again.
    settings = {"tokenSecretKey": "", "tokenJwks": issuer.url, "tokenJwksRefreshSeconds": 3600}
    region = make_region(**with_tokens(keys, tokenJwksTrustCertsFilePath=certs / "ca.pem", **settings))
    status = lambda token, at=region: at.admin("GET", "/admin/v2/tenants", headers=bearer(token)).status_code
    wait_until(lambda: status(old_token) == 200, 20, "the set is there")
    assert set(issuer.asked) == {"/keys?of=region"} and status(new_token) == 401
    issuer.answer = (200, {"keys": [old, new]})
    wait_until(lambda: status(new_token) == 200, 20, "the new key counts")
    # An issuer that stumbles takes nothing away, and nobody gets in by it.
    asked = len(issuer.asked)
    for answer in ((500, {"keys": []}), (200, {"keys": []}), (302, {})):
        issuer.answer = answer
        wait_until(lambda: status(strange_token) == 401 and len(issuer.asked) > asked, 20, "it is asked again")
        asked = len(issuer.asked)
        assert (status(old_token), status(new_token)) == (200, 200), answer
    issuer.answer = (200, {"keys": [new]})
    wait_until(lambda: status(strange_token) == 401 and status(old_token) == 401, 20, "the old key does not count")
    # Who does not trust the issuer's authority takes no key from it.
    theirs = Keys(tmp_path / "theirs").certificates("admin")
    wary = make_region(**with_tokens(keys, tokenJwksTrustCertsFilePath=theirs / "ca.pem", **settings))
    wait_until(lambda: "UnknownIssuer" in wary.log() or "certificate" in wary.log(), 20, "the reason is told")
    assert status(new_token, wary) == 401
    issuer.close()
    assert (status(new_token), status(strange_token)) == (200, 401), "the last good set holds"


def test_b104_a_token_that_ends_closes_what_it_opened(secured, keys):
    region = secured(authenticationRefreshCheckSeconds=1)
    grant(region, "ann")
    topic = "persistent://public/default/ends"
    stats = lambda: admin(region, "GET", "/admin/v2/persistent/public/default/ends/stats").json()
    # A client that renews: the supplier is asked for each challenge.
    asked = []

    def supply():
        asked.append(1)
        return keys.token("ann", expiry_s=3)

    renewing = region.client(authentication=pulsar.AuthenticationToken(supply))
    lasting = renewing.create_producer(topic, producer_name="renewing")
    fixed = keys.token("ann", expiry_s=3)
    ending = region.client(authentication=pulsar.AuthenticationToken(fixed), operation_timeout_seconds=3)
    producer = ending.create_producer(topic, producer_name="ending", send_timeout_millis=3000)
    producer.send(b"in time")
    begun = time.monotonic()
    wait_until(lambda: [one["producerName"] for one in stats()["publishers"]] == ["renewing"], 15,
               "the producer of the ended token is gone")
    assert time.monotonic() - begun < 10
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    for _ in range(20):
        lasting.send(b"goes on")
        time.sleep(0.2)
    assert len(asked) >= 2
    renewing.close()


def test_a_renewal_by_another_role_ends_the_connection(secured, keys):
    region = secured(authenticationRefreshCheckSeconds=1)
    grant(region, "ann")
    roles = iter(["ann"])
    client = region.client(authentication=pulsar.AuthenticationToken(lambda: keys.token(next(roles, "admin"), expiry_s=2)),
                           operation_timeout_seconds=3)
    client.create_producer("persistent://public/default/swap", producer_name="swap")
    wait_until(lambda: "another role" in region.log() or not admin(
        region, "GET", "/admin/v2/persistent/public/default/swap/stats").json()["publishers"], 15)
    client.close()


def test_an_audience_and_the_tolerance_for_clocks(make_region, keys):
    region = make_region(**with_tokens(keys, tokenAudienceClaim="aud", tokenAudience="west", tokenAllowedClockSkewSeconds=60))
    status = lambda token: region.admin("GET", "/admin/v2/tenants", headers=bearer(token)).status_code
    secret = keys.secret.read_bytes()
    assert status(keys.token("admin", audience="west")) == 200
    assert status(keys.token("admin", audience="east")) == 401
    assert status(keys.token("admin")) == 401
    late = lambda by: forge({"alg": "HS256"}, {"sub": "admin", "aud": "west", "exp": int(time.time()) - by}, secret)
    assert (status(late(30)), status(late(120))) == (200, 401)


def test_passwords_and_who_shows_nothing(make_region, keys, tmp_path):
    file = tmp_path / "htpasswd"
    file.write_text("admin:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/\n")
    region = make_region(authenticationEnabled="true", authenticationProviders="basic", basicAuthConf=f"file://{file}",
                         authorizationEnabled="true", superUserRoles="admin", anonymousUserRole="guest")
    status = lambda name, word: requests.get(region.web + "/admin/v2/tenants", auth=(name, word), timeout=10).status_code
    assert (status("admin", "myPassword"), status("admin", "other"), status("eve", "myPassword")) == (200, 401, 401)
    guest = region.admin("PUT", "/admin/v2/tenants/guests", json={"allowedClusters": ["standalone"]})
    assert guest.status_code in (401, 403)
    answer = requests.post(region.web + "/admin/v2/namespaces/public/default/permissions/guest", auth=("admin", "myPassword"),
                           json=["produce"], timeout=10)
    assert answer.status_code == 204
    client = region.client()
    client.create_producer("persistent://public/default/open").send(b"x")
    client.close()
    named = region.client(authentication=pulsar.AuthenticationBasic("admin", "myPassword"))
    named.create_producer("persistent://public/default/closed").send(b"x")
    named.close()
    # The file is read again.
    file.write_text("admin:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/\neve:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/\n")
    known = lambda: requests.get(region.web + "/admin/v2/brokers/health", auth=("eve", "myPassword"), timeout=10)
    wait_until(lambda: "Authentication" not in known().text)


def test_proxies_speak_for_others_and_only_they(secured, keys):
    region = secured(proxyRoles="gate")
    grant(region, "gate")
    grant(region, "ann")
    path = "/admin/v2/persistent/public/default/through"
    def status(token, original, method="PUT", at=path):
        headers = {**bearer(token), **({"X-Original-Principal": original} if original else {})}
        return region.admin(method, at, headers=headers).status_code
    assert status(keys.token("gate"), None) in (401, 403), "a proxy speaks for somebody"
    assert status(keys.token("gate"), "gate") in (401, 403), "and not for a proxy"
    assert status(keys.token("ann"), "admin") in (401, 403), "others speak for themselves"
    assert status(keys.token("gate"), "admin") in (401, 403), "both need the right"
    assert admin(region, "GET", "/admin/v2/namespaces/public/default/permissions").status_code == 200


def test_path_tricks_reach_nobody_elses_things(secured, keys):
    region = secured()
    for tenant, boss in (("a", "boss-a"), ("a-b", "boss-b")):
        assert admin(region, "PUT", f"/admin/v2/tenants/{tenant}",
                     json={"adminRoles": [boss], "allowedClusters": ["standalone"]}).status_code == 204
        assert admin(region, "PUT", f"/admin/v2/namespaces/{tenant}/n", json={}).status_code == 204
    mine = keys.token("boss-a")
    assert admin(region, "PUT", "/admin/v2/persistent/a/n/t", mine).status_code == 204
    for trick in ("/admin/v2/namespaces/a-b/n/permissions", "/admin/v2/namespaces/a/../a-b/n", "/admin/v2/namespaces/a%2F..%2Fa-b/n",
                  "/admin/v2/namespaces/a%2Fn/..%2F..%2Fa-b", "/admin/v2/persistent/a/n/..%2F..%2Fa-b%2Fn%2Ft/stats",
                  "/admin/v2/persistent/a-b/n/t/stats", "/admin/v2/persistent/a/%2E%2E/a-b/n/t", "/admin/v2/tenants/a-b",
                  "/admin/v2//namespaces//a-b//n", "/admin/v2/namespaces/A-B/n", "/admin/v2/namespaces/a-b%00/n"):
        session = requests.Session()
        request = requests.Request("GET", region.web + trick, headers=bearer(mine)).prepare()
        request.url = region.web + trick
        answer = session.send(request, timeout=10)
        assert answer.status_code in (400, 401, 403, 404, 405, 412), (trick, answer.status_code, answer.text)
        assert "boss-b" not in answer.text, trick
    for topic in ("persistent://a-b/n/t", "persistent://a/../a-b/n/t"):
        assert not produces(region, mine, topic), topic
