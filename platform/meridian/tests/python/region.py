"""One region as a process: started on free ports, killed, started again."""
import json
import os
import pathlib
import signal
import subprocess
import time

import pulsar
import requests

from ports import with_ports

BINARY = os.environ.get("MERIDIAN_BINARY", str(pathlib.Path(__file__).parents[4] / "target/debug/meridian"))
START_SECONDS = 30
PORTS = ("brokerServicePort", "webServicePort", "regionLinkPort", "brokerServicePortTls", "webServicePortTls")


class Asked:
    """What has an admin API at `web`."""

    def admin(self, method, path, **options):
        return requests.request(method, self.web + path, timeout=20, **options)

    def get(self, path):
        answer = self.admin("GET", path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.json()


class Region(Asked):
    """A standalone region over a data folder. `settings` are key=value pairs."""

    def __init__(self, folder, bookies=1, **settings):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.bookies = bookies
        defaults = {"brokerServicePort": 0, "webServicePort": 0, "regionLinkPort": 0, "advertisedAddress": "localhost"}
        self.settings = with_ports({**defaults, **settings}, PORTS)
        self.log_file = self.folder / "log.txt"
        self.process = None
        self.ready = {}

    def start(self):
        ready_file = self.folder / "ready.json"
        ready_file.unlink(missing_ok=True)
        command = [BINARY, "standalone", "--data-dir", str(self.folder / "data"), "--ready-file", str(ready_file),
                   "--bookies", str(self.bookies)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        log = open(self.log_file, "ab")
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not ready_file.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"the region ended with {self.process.returncode}:\n{self.log()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the region was not ready in {START_SECONDS} s:\n{self.log()}")
            time.sleep(0.01)
        self.ready = json.loads(ready_file.read_text())
        # The ports stay the same over a restart, so that clients find it again.
        self.settings["brokerServicePort"] = self.ready["binary_port"]
        self.settings["webServicePort"] = self.ready["web_port"]
        self.settings["regionLinkPort"] = self.ready["region_link_port"] or ""
        for key, name in (("brokerServicePortTls", "binary_port_tls"), ("webServicePortTls", "web_port_tls")):
            if self.ready.get(name):
                self.settings[key] = self.ready[name]
        return self

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, seconds=30):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def close(self):
        if self.process and self.process.poll() is None:
            self.kill()

    def log(self):
        path = pathlib.Path(self.log_file)
        return path.read_text(errors="replace")[-4000:] if path.is_file() else ""

    @property
    def url(self):
        return f"pulsar://localhost:{self.ready['binary_port']}"

    @property
    def web(self):
        return f"http://localhost:{self.ready['web_port']}"

    def client(self, **options):
        options.setdefault("operation_timeout_seconds", 20)
        options.setdefault("logger", pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.folder / "client.log")))
        return pulsar.Client(self.url, **options)

    def rss_bytes(self):
        return int(open(f"/proc/{self.process.pid}/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def wait_until(condition, seconds=20, message="the condition"):
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"{message} did not hold within {seconds} s"
        time.sleep(0.02)
