"""`meridian regions`: two regions by one command."""
import json
import os
import signal
import subprocess
import time

import pulsar
import pytest
import requests

from region import BINARY, START_SECONDS, wait_until


@pytest.fixture
def regions(tmp_path):
    started = []

    def start(*options):
        ready = tmp_path / "ready.json"
        ready.unlink(missing_ok=True)
        output = open(tmp_path / "output.txt", "w+")
        process = subprocess.Popen([BINARY, "regions", "--data-dir", str(tmp_path / "data"), "--free-ports", "--ready-file",
                                    str(ready), "--set", "diskUsageThreshold=0.99", "--set", "diskUsageLwmThreshold=0.98", *options], stdout=output, stderr=output)
        started.append(process)
        wait_until(lambda: ready.exists() or process.poll() is not None, START_SECONDS, "the start")
        output.seek(0)
        assert ready.exists(), output.read()
        return process, json.loads(ready.read_text()), output.read()

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_both_know_each_other_and_share_one_namespace(regions):
    process, ready, text = regions()
    for name, other in (("west", "east"), ("east", "west")):
        web = f"http://localhost:{ready[name]['web_port']}"
        assert requests.get(f"{web}/admin/v2/clusters/{other}").json()["brokerServiceUrl"] == \
            f"pulsar://localhost:{ready[other]['binary_port']}"
        assert set(requests.get(f"{web}/admin/v2/namespaces/demo/orders/replication").json()) == {"west", "east"}
        assert requests.get(f"{web}/admin/v2/namespaces/public/default/replication").json() in ([], [name])
        assert f"pulsar://localhost:{ready[name]['binary_port']}" in text
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert not alive(ready["west"]["pid"]) and not alive(ready["east"]["pid"])


def test_they_start_again_over_their_data(regions):
    process, ready, _ = regions()
    client = pulsar.Client(f"pulsar://localhost:{ready['west']['binary_port']}")
    client.subscribe("orders", "keep").close()
    client.create_producer("orders").send(b"before")
    client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    _, ready, _ = regions()
    client = pulsar.Client(f"pulsar://localhost:{ready['west']['binary_port']}")
    assert client.subscribe("orders", "keep").receive(10000).data() == b"before"
    client.close()


def test_the_end_of_one_ends_the_other_with_its_reason(regions, tmp_path):
    process, ready, _ = regions()
    os.kill(ready["east"]["pid"], signal.SIGKILL)
    assert process.wait(30) == 1
    assert not alive(ready["west"]["pid"])
    assert "region east ended with signal: 9" in (tmp_path / "output.txt").read_text()


def test_none_outlives_a_parent_that_was_killed(regions):
    process, ready, _ = regions()
    process.kill()
    process.wait()
    wait_until(lambda: not alive(ready["west"]["pid"]) and not alive(ready["east"]["pid"]), 30, "the end of both")


def test_a_port_in_use_is_named(tmp_path):
    begun = time.monotonic()
    with subprocess.Popen([BINARY, "regions", "--data-dir", str(tmp_path), "--free-ports", "--set", "bindAddress=192.0.2.1"],
                          stderr=subprocess.PIPE, text=True) as process:
        _, text = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 1 and time.monotonic() - begun < START_SECONDS
    assert "the port can't be bound" in text and "region west ended" in text
