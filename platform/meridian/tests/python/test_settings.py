"""Settings as an operator meets them: bad values, unknown keys, ports in use."""
import subprocess

import pytest

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


def refused(tmp_path, *settings):
    arguments = ["--set", "brokerServicePort=0", "--set", "webServicePort=0"]
    for setting in settings:
        arguments += ["--set", setting]
    done = run(tmp_path, *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


def test_authentication_without_providers_is_refused(tmp_path):
    assert "authenticationProviders is empty" in refused(tmp_path, "authenticationEnabled=true")


def test_token_authentication_without_a_key_names_the_settings(tmp_path):
    text = refused(tmp_path, "authenticationEnabled=true", "authenticationProviders=token")
    assert "tokenSecretKey" in text and "tokenPublicKey" in text


def test_a_tls_port_without_a_certificate_names_the_settings(tmp_path):
    text = refused(tmp_path, "brokerServicePortTls=0")
    assert "brokerServicePortTls" in text and "tlsCertificateFilePath and tlsKeyFilePath" in text


def test_a_disk_threshold_that_is_no_share_is_named(tmp_path):
    assert "diskUsageThreshold=95: expected a share" in refused(tmp_path, "diskUsageThreshold=95")


def test_a_second_process_on_a_data_folder_is_refused(region):
    done = run(region.folder, "--set", "brokerServicePort=0", "--set", "webServicePort=0")
    assert done.returncode == 1
    assert "in use by another process" in done.stderr and str(region.folder / "data") in done.stderr


@pytest.mark.parametrize("setting, expected", [
    ("maxMessageSize=0", "from 1 to 2000000000"), ("maxMessageSize=4294967296", "from 1 to 2000000000"),
    ("httpMaxRequestSize=0", "from 1, or -1"), ("advertisedAddress=a b", "a host name or an IP address"),
    ("advertisedListeners=xx", "name:pulsar://host:port"), ("keepAliveIntervalSeconds=0", "of seconds from 1"),
    ("bookies=0", "from 1"), ("clusterName=", "1 to 128 letters"), ("clusterName=a/b", "1 to 128 letters"),
    ("clusterName=a b", "1 to 128 letters"), ("clusterName=a\x01b", "1 to 128 letters"),
    ("clusterName=" + "x" * 129, "1 to 128 letters"),
])
def test_what_can_not_be_meant_is_named_with_what_is_expected(tmp_path, setting, expected):
    text = refused(tmp_path, setting)
    assert f"{setting}: expected" in text and expected in text, text
    assert not (tmp_path / "data").exists(), "nothing was made"


def test_disk_thresholds_the_wrong_way_round_are_named(tmp_path):
    text = refused(tmp_path, "diskUsageThreshold=0.8", "diskUsageLwmThreshold=0.9")
    assert "diskUsageLwmThreshold=0.9: expected at most diskUsageThreshold=0.8" in text


def test_a_cluster_is_not_initialised_under_a_bad_name(tmp_path):
    for name in ("", "a/b", "a b", "x" * 129):
        store = f"metadataStoreUrl=rocksdb://{tmp_path}/store"
        command = [BINARY, "cluster", "init", "--set", store, "--set", f"clusterName={name}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and f"clusterName={name}: expected 1 to 128 letters" in done.stderr, done.stderr
    assert not (tmp_path / "store").exists()
