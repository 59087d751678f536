"""Settings as an operator meets them: bad values, unknown keys, ports in use."""
import subprocess

from region import BINARY


def run(tmp_path, *arguments):
    command = [BINARY, "standalone", "--data-dir", str(tmp_path / "data"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_a_bad_value_ends_the_start(tmp_path):
    done = run(tmp_path, "--set", "brokerServicePort=70000")
    assert done.returncode == 1
    assert "brokerServicePort=70000: expected a port" in done.stderr


def test_a_port_in_use_is_named(region, tmp_path):
    done = run(tmp_path, "--set", f"brokerServicePort={region.ready['binary_port']}", "--set", "webServicePort=0")
    assert done.returncode == 1
    assert "brokerServicePort" in done.stderr and str(region.ready["binary_port"]) in done.stderr


def test_a_pulsar_configuration_is_taken_with_notices(make_region, tmp_path):
    region = make_region(zookeeperServers="zk:2181", brokerServicPort=1)
    log = region.log()
    assert "zookeeperServers is a Pulsar setting without meaning here" in log
    assert "did you mean brokerServicePort?" in log


def test_settings_are_printed():
    done = subprocess.run([BINARY, "settings"], capture_output=True, text=True, timeout=30)
    assert "maxMessageSize = 5242880" in done.stdout
