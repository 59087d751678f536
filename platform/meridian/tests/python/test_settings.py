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
