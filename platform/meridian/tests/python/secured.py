"""Regions with authentication and TLS: keys, tokens, certificates and password files, made by the binary itself."""
import pathlib
import subprocess

from region import BINARY


def run(*arguments):
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Keys:
    """A folder with a secret key, tokens by it, and certificates of an authority of its own."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.secret = self.folder / "secret.key"
        run("tokens", "create-secret-key", "--output", self.secret)

    def token(self, role, **options):
        arguments = ["tokens", "create", "--secret-key", self.secret, "--subject", role]
        for name, value in options.items():
            arguments += ["--" + name.replace("_", "-"), str(value)]
        return run(*arguments)

    def certificates(self, *roles, regions=(), folder="certs"):
        arguments = ["certs", "dev", "--output", self.folder / folder]
        for role in roles:
            arguments += ["--client", role]
        for name in regions:
            arguments += ["--region", name]
        run(*arguments)
        return self.folder / folder


def with_tokens(keys, **more):
    return {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{keys.secret}",
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
        **more,
    }


def with_tls(certs, **more):
    return {
        "brokerServicePortTls": 0,
        "webServicePortTls": 0,
        "tlsCertificateFilePath": certs / "server.pem",
        "tlsKeyFilePath": certs / "server.key",
        "tlsTrustCertsFilePath": certs / "ca.pem",
        "tlsCertRefreshCheckDurationSec": 0,
        **more,
    }


def bearer(token):
    return {"Authorization": f"Bearer {token}"}
