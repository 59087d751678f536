"""`meridian admin`: nouns and verbs, tables and JSON, contexts."""
import json
import os
import shutil
import subprocess

import pytest

from region import BINARY


@pytest.fixture
def meridian(region, tmp_path):
    environment = {**os.environ, "MERIDIAN_CONTEXTS": str(tmp_path / "contexts.json")}

    def run(*words, url=True, code=0):
        before = ["--url", region.web] if url else []
        done = subprocess.run([BINARY, "admin", *before, *words], capture_output=True, text=True, env=environment, timeout=30)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr

    return run


def test_what_a_team_needs_is_made_and_shown(meridian):
    meridian("tenants", "create", "cli", "--allowed-clusters", "standalone", "--admin-roles", "a,b")
    assert json.loads(meridian("tenants", "get", "cli", "-o", "json")) == {"adminRoles": ["a", "b"], "allowedClusters": ["standalone"]}
    meridian("namespaces", "create", "cli/ns", "--clusters", "standalone")
    assert meridian("namespaces", "list", "cli") == "cli/ns\n"
    meridian("namespaces", "set-retention", "cli/ns", "--time", "60", "--size", "-1")
    assert "retentionTimeInMinutes  60" in meridian("namespaces", "get-retention", "cli/ns")
    meridian("topics", "create-partitioned-topic", "cli/ns/t", "2")
    assert meridian("topics", "list", "cli/ns").splitlines() == ["persistent://cli/ns/t-partition-0", "persistent://cli/ns/t-partition-1"]
    meridian("topic-policies", "set-max-producers", "cli/ns/t", "3")
    assert meridian("topic-policies", "get-max-producers", "cli/ns/t", "--applied") == "3\n"
    meridian("topics", "create-subscription", "cli/ns/t", "s", "earliest")
    assert meridian("topics", "subscriptions", "cli/ns/t") == "s\n"
    meridian("namespaces", "grant-permission", "cli/ns", "role", "produce,consume")
    assert json.loads(meridian("namespaces", "permissions", "cli/ns", "-o", "json"))["role"] == ["produce", "consume"]
    meridian("tenants", "delete", "cli", "--force")


def test_a_refusal_is_one_line_with_the_reason(meridian):
    error = meridian("tenants", "get", "nobody", code=1)
    assert "404" in error and "Tenant does not exist" in error and error.count("\n") == 1
    assert "whole number" in meridian("namespaces", "set-message-ttl", "public/default", "soon", code=2)


def test_contexts_name_regions(meridian, region):
    meridian("context", "set", "here", "--url", region.web, url=False)
    meridian("context", "set", "nowhere", "--url", "http://127.0.0.1:1", url=False)
    assert "standalone" in meridian("clusters", "list", url=False)
    meridian("context", "use", "nowhere", url=False)
    meridian("clusters", "list", url=False, code=1)
    assert "standalone" in meridian("--context", "here", "clusters", "list", url=False)
    assert "* nowhere" in meridian("context", "list", url=False)
    assert "there is no context" in meridian("--context", "other", "clusters", "list", url=False, code=1)


def test_the_document_is_the_same_from_the_command_and_the_region(meridian, region):
    document = json.loads(meridian("openapi", url=False))
    assert document == region.get("/admin/v2/meridian/openapi")
    assert document["openapi"].startswith("3.") and len(document["paths"]) > 200


@pytest.mark.parametrize("words, expected", [
    (["meridian", "adm"], "admin"),
    (["meridian", "admin", "namespaces", "set-ret"], "set-retention"),
    (["meridian", "admin", "topics", "create-part"], "create-partitioned-topic"),
    (["meridian", "apply", "--dry"], "--dry-run"),
    (["meridian", "completion", "ba"], "bash"),
])
def test_bash_completes_words(tmp_path, words, expected):
    script = tmp_path / "meridian.bash"
    script.write_bytes(subprocess.run([BINARY, "completion", "bash"], check=True, capture_output=True).stdout)
    line = " ".join(words)
    program = f"""source {script}
COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}
_meridian meridian {words[-1]} {words[-2]}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", program], check=True, capture_output=True, text=True)
    assert expected in done.stdout.split(), (done.stdout, done.stderr)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_of_completion_are_well_formed(tmp_path, shell):
    script = tmp_path / "script"
    script.write_bytes(subprocess.run([BINARY, "completion", shell], check=True, capture_output=True).stdout)
    assert b"create-partitioned-topic" in script.read_bytes()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True)
    # A reader that goes away is no crash.
    gone = subprocess.run(f"{BINARY} completion {shell} | head -c 1 >/dev/null", shell=True, capture_output=True, text=True)
    assert "panicked" not in gone.stderr
