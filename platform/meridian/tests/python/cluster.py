"""A cluster of many processes on loopback: a metadata store, bookies over three zones, brokers."""
import json
import os
import pathlib
import resource
import signal
import subprocess
import threading
import time

import pulsar
import requests

from ports import with_ports
from region import BINARY, Asked, wait_until

MINI_TIKV = os.environ.get("MINI_TIKV_BINARY", str(pathlib.Path(BINARY).with_name("mini-tikv")))
START_SECONDS = 60
# Disks of machines that run tests may be fuller than those of bookies.
DISK = {"diskUsageThreshold": 0.99, "diskUsageLwmThreshold": 0.98}


# Setting → its name in the ready file.
PORTS = {"brokerServicePort": "binary_port", "webServicePort": "web_port", "bookiePort": "bookie_port",
         "bookieControlPort": "bookie_control_port", "prometheusStatsHttpPort": "stats_port", "regionLinkPort": "region_link_port"}


class Node(Asked):
    """One process. Its ports stay the same over a restart."""

    def __init__(self, name, role, folder, settings):
        self.name, self.role, self.folder, self.settings = name, role, pathlib.Path(folder), dict(settings)
        self.data, self.log_file = self.folder / name, self.folder / f"{name}.log"
        self.process, self.ready = None, {}

    def command(self):
        command = [BINARY, self.role]
        if self.role in ("bookie", "node"):
            command += ["--data-dir", str(self.data)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command

    def begin(self):
        """Starts the process and does not wait."""
        self.ready_file = self.folder / f"{self.name}.ready"
        self.ready_file.unlink(missing_ok=True)
        self.settings = with_ports(self.settings, PORTS)
        log = open(self.log_file, "ab")
        # Signals stay ignored that Python ignores, so that a limit on files is an error of a write and no end.
        self.process = subprocess.Popen(self.command() + ["--ready-file", str(self.ready_file)], stdout=log, stderr=log,
                                        restore_signals=False)
        return self

    def wait(self):
        deadline = time.monotonic() + START_SECONDS
        while not self.ready_file.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.log()}")
            assert time.monotonic() < deadline, f"{self.name} was not ready:\n{self.log()}"
            time.sleep(0.01)
        self.read_ready(self.ready_file.read_text())
        return self

    def read_ready(self, text):
        self.ready = json.loads(text)
        self.settings.update({key: self.ready[name] for key, name in PORTS.items() if self.ready.get(name)})

    def start(self):
        return self.begin().wait()

    def refused(self):
        """What the process says that does not start."""
        with open(self.folder / f"{self.name}.refused", "w+b") as out:
            process = subprocess.run(self.command(), stdout=out, stderr=out, timeout=START_SECONDS)
            out.seek(0)
            text = out.read().decode(errors="replace")
        assert process.returncode == 1, text
        return text.strip().splitlines()[-1]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, seconds=60):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(seconds) == 0, self.log()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def fail_disks(self):
        """Every write to a file is an error from now on."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def heal_disks(self):
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def log(self):
        return self.log_file.read_text(errors="replace")[-4000:] if self.log_file.is_file() else ""

    @property
    def url(self):
        return f"pulsar://127.0.0.1:{self.ready['binary_port']}"

    @property
    def web(self):
        return f"http://127.0.0.1:{self.ready['web_port']}"

    def health(self):
        return requests.get(f"http://127.0.0.1:{self.ready['stats_port']}/health", timeout=10)

    def metric(self, name):
        port = self.ready.get("stats_port") or self.ready["web_port"]
        text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)


class Store(Node):
    """The metadata store: the project's own server of TiKV's protocol."""

    def __init__(self, folder):
        super().__init__("store", "store", folder, {})
        self.address = "127.0.0.1:0"

    def command(self):
        return [MINI_TIKV, "--listen", self.address, "--data-dir", str(self.data)]

    def read_ready(self, text):
        self.address = text.strip()


class Cluster:
    """`settings` are key=value pairs of all nodes."""

    def __init__(self, folder, brokers=3, bookies=5, name="west", store=None, **settings):
        self.folder, self.name = pathlib.Path(folder), name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.owns_store = store is None
        self.store = store or Store(self.folder)
        self.settings = {**DISK, "clusterName": name, "advertisedAddress": "127.0.0.1", "bindAddress": "127.0.0.1", **settings}
        self.bookies = [self.bookie(number) for number in range(bookies)]
        self.brokers = [self.broker(number) for number in range(brokers)]

    def bookie(self, number):
        own = {"bookieId": f"bookie-{number}", "bookieLocations": f"/zone-{number % 3}", "bookiePort": 0,
               "bookieControlPort": 0, "prometheusStatsHttpPort": 0}
        return Node(f"bookie-{number}", "bookie", self.folder, {**self.settings, **own})

    def broker(self, number):
        own = {"brokerLocation": f"/zone-{number % 3}", "brokerServicePort": 0, "webServicePort": 0, "regionLinkPort": "",
               "auditLogFile": self.folder / f"broker-{number}-audit.log"}
        return Node(f"broker-{number}", "broker", self.folder, {**self.settings, **own})

    @property
    def metadata_url(self):
        return f"tikv://{self.store.address}/{self.name}"

    def nodes(self):
        return self.bookies + self.brokers

    def init(self, *options):
        command = [BINARY, "cluster", "init", "--set", f"metadataStoreUrl={self.metadata_url}", "--set",
                   f"clusterName={self.name}", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)

    def start_store(self):
        if self.owns_store:
            self.store.start()
        for node in self.nodes():
            node.settings["metadataStoreUrl"] = self.metadata_url
        return self

    def start(self):
        self.start_store()
        outcome = self.init()
        assert outcome.returncode == 0, outcome.stderr
        return self.start_nodes()

    def start_again(self):
        """After a stop or a kill of everything."""
        return self.start_store().start_nodes()

    def start_nodes(self):
        for nodes in (self.bookies, self.brokers):
            for node in nodes:
                node.begin()
            for node in nodes:
                node.wait()
        return self

    def stop(self):
        for node in self.brokers + self.bookies:
            node.stop()
        self.store.kill()

    def kill(self):
        for node in self.nodes() + [self.store]:
            node.kill()

    def close(self):
        for node in self.nodes() + ([self.store] if self.owns_store else []):
            if node.process and node.process.poll() is None:
                node.kill()

    def url(self):
        return "pulsar://" + ",".join(broker.url.removeprefix("pulsar://") for broker in self.brokers)

    def client(self, broker=None, **options):
        options.setdefault("operation_timeout_seconds", 30)
        options.setdefault("logger", pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.folder / "client.log")))
        return pulsar.Client(self.brokers[broker].url if broker is not None else self.url(), **options)


class ClusterRegion(Asked):
    """A region of two brokers and three bookies, as tests handle one that is a process (`region.Region`).

    `ports` are those of the brokers, one dict of settings each; free ones by default."""

    def __init__(self, folder, clusterName="west", ports=({}, {}), **settings):
        self.folder = pathlib.Path(folder)
        self.cluster = Cluster(folder, brokers=len(ports), bookies=3, name=clusterName, **settings)
        for broker, own in zip(self.cluster.brokers, ports):
            broker.settings.update({"regionLinkPort": 0, **own})
        self.started = False

    def start(self):
        self.cluster.start_again() if self.started else self.cluster.start()
        self.started = True
        return self

    def stop(self):
        self.cluster.stop()

    def kill(self):
        self.cluster.kill()

    def close(self):
        self.cluster.close()

    @property
    def ready(self):
        return self.cluster.brokers[0].ready

    @property
    def url(self):
        return self.cluster.url()

    @property
    def web(self):
        return self.cluster.brokers[0].web

    @property
    def pids(self):
        return [node.process.pid for node in self.cluster.nodes()]

    def client(self, **options):
        options.setdefault("operation_timeout_seconds", 20)
        return self.cluster.client(**options)

    def log(self):
        return "".join(f"--- {node.name}\n{node.log()}" for node in self.cluster.brokers)


class Load:
    """Sends numbered messages at a rate until it is stopped; notes when each was confirmed."""

    def __init__(self, cluster, topic, rate=1000, body_bytes=100, batching=True):
        self.client = cluster.client()
        self.producer = self.client.create_producer(
            topic, batching_enabled=batching, batching_max_publish_delay_ms=2, send_timeout_millis=120_000,
            block_if_queue_full=True, max_pending_messages=10_000)
        self.rate, self.filling = rate, "x" * body_bytes
        self.confirmed, self.refused, self.times, self.sent = [], [], [], 0
        self.stopped = threading.Event()
        self.begun = time.monotonic()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped.is_set():
            due = int((time.monotonic() - self.begun) * self.rate)
            for number in range(self.sent, due):
                self.send(number)
            self.sent = max(self.sent, due)
            time.sleep(0.002)

    def send(self, number):
        def done(result, _id):
            if result == pulsar.Result.Ok:
                self.confirmed.append(number)
                self.times.append(time.monotonic())
            else:
                self.refused.append((number, result))

        self.producer.send_async(f"{number:08}{self.filling}".encode(), done)

    def longest_gap(self, since=0.0, until=float("inf")):
        """Longest time in which nothing was confirmed, in seconds."""
        times = [moment for moment in self.times if since <= moment <= until]
        return max((after - before for before, after in zip(times, times[1:])), default=0.0)

    def end(self, seconds=60):
        self.stopped.set()
        self.thread.join(seconds)
        wait_until(lambda: len(self.confirmed) + len(self.refused) >= self.sent, seconds, "an answer to every message")
        self.client.close()
        return self


def read_numbers(cluster, topic):
    client = cluster.client()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5000)
    numbers = []
    while reader.has_message_available():
        numbers.append(int(reader.read_next(30_000).data()[:8]))
    client.close()
    return numbers


def keep(cluster, topic):
    """A subscription that never acks: without one, what is stored may be dropped at once."""
    client = cluster.client()
    client.subscribe(topic, "keep", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1)
    client.close()


def in_order(numbers):
    """First occurrences, and whether they ascend."""
    seen = list(dict.fromkeys(numbers))
    return seen, seen == sorted(seen)
