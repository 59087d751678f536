"""Groups of regions, joined by links that can be shaped and cut. One interface for Meridian, Apache Pulsar and mixed pairs.

A region answers at `url` and `web`; peers reach it through the proxy of their own link: each peer has a listener name of its
own (`from-west`), which the region advertises with the proxy's port and which the peer's cluster entry asks for.
"""
import itertools
import json
import os
import pathlib
import shlex
import signal
import subprocess
import time

import pulsar
import requests

from cluster import ClusterRegion
from links import Link
from ports import free_ports
from region import Region, wait_until

SERVICES = ("binary", "web", "control")
# Brokers of a region that is a cluster.
BROKERS = 2
TENANT = "geo"
# That other programs' files crowd a region out of its disk is no subject here.
CROWDED_DISK = {"diskUsageThreshold": "0.99", "diskUsageLwmThreshold": "0.985"}


def addresses(scheme, ports, service):
    """One URL of all brokers' ports for a service."""
    return f"{scheme}://" + ",".join(f"127.0.0.1:{port}" for name, port in ports.items() if name.split("-")[0] == service)


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Side:
    """A region as scenarios see it. `ports` are those of the region itself, by service."""

    kind = ""
    services = SERVICES

    def __init__(self, name, folder, settings):
        self.name = name
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.ports = dict(zip(self.services, free_ports(len(self.services))))

    @property
    def url(self):
        return addresses("pulsar", self.ports, "binary")

    @property
    def web(self):
        return f"http://127.0.0.1:{self.ports['web']}"

    def listeners(self, incoming, service="binary"):
        """The setting `advertisedListeners` for links that come in, of the broker that has this service."""
        named = [f"internal:pulsar://127.0.0.1:{self.ports[service]}"]
        named += [f"from-{link.source}:pulsar://127.0.0.1:{link.ports[service]}" for link in incoming]
        return ",".join(named)

    def client(self, **options):
        options.setdefault("operation_timeout_seconds", 20)
        options.setdefault("logger", pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.folder / "client.log")))
        return pulsar.Client(self.url, **options)

    def admin(self, method, path, body=None, good=(200, 202, 204), timeout=20):
        answer = requests.request(method, f"{self.web}/admin/v2/{path}", json=body, timeout=timeout)
        assert answer.status_code in good, (self.name, method, path, answer.status_code, answer.text[:500])
        return answer

    def get(self, path):
        return self.admin("GET", path).json()

    def stats(self, topic):
        return self.get(f"{topic.replace('://', '/')}/stats")

    def link_stats(self, topic, remote):
        """What the region says of the topic's link to `remote`; empty before there is one."""
        return self.stats(topic).get("replication", {}).get(remote, {})

    def metrics(self):
        return requests.get(f"{self.web}/metrics/", timeout=20).text

    def cpu_s(self):
        return cpu_seconds(self.pid())

    def global_producers(self, topic):
        """Producers of the topic's namespace are the same in all regions, where the region can do that."""


class MeridianSide(Side):
    kind = "meridian"

    def begin(self, incoming):
        # The clients' side of a test speaks plainly to 127.0.0.1; what comes from outside names its listener.
        settings = {"regionLinkPort": self.ports["control"], **CROWDED_DISK, **self.settings}
        self.process = Region(self.folder, clusterName=self.name, brokerServicePort=self.ports["binary"],
                              webServicePort=self.ports["web"], bindAddress="127.0.0.1",
                              advertisedListeners=self.listeners(incoming), internalListenerName="internal", **settings)
        self.process.start()

    def start(self):
        self.process.start()

    def stop(self):
        self.process.stop()

    def kill(self):
        self.process.kill()

    def close(self):
        self.process.close()

    def pid(self):
        return self.process.process.pid

    def global_producers(self, topic):
        self.admin("POST", f"namespaces/{topic.split('://')[1].rsplit('/', 1)[0]}/globalProducers", True)

    def log(self):
        return self.process.log_file.read_text(errors="replace")


class ClusterSide(MeridianSide):
    """A region of several processes: brokers, bookies, and a metadata store."""

    services = tuple(f"{name}-{number}" if number else name for number in range(BROKERS) for name in SERVICES)

    def begin(self, incoming):
        def own(number):
            binary, web, control = self.services[number * len(SERVICES):][:len(SERVICES)]
            # A group without a region link says so for all brokers.
            link = self.settings.get("regionLinkPort", self.ports[control])
            return {"brokerServicePort": self.ports[binary], "webServicePort": self.ports[web], "regionLinkPort": link,
                    "advertisedListeners": self.listeners(incoming, binary), "internalListenerName": "internal"}

        settings = {key: value for key, value in self.settings.items() if key != "regionLinkPort"}
        self.process = ClusterRegion(self.folder, clusterName=self.name, ports=[own(number) for number in range(BROKERS)],
                                     **{**CROWDED_DISK, **settings})
        self.process.start()

    def pid(self):
        return self.process.pids[-1]

    def cpu_s(self):
        return sum(cpu_seconds(pid) for pid in self.process.pids)

    def metrics(self):
        return "".join(requests.get(f"{broker.web}/metrics/", timeout=20).text for broker in self.process.cluster.brokers)

    def log(self):
        return self.process.log()


class PulsarSide(Side):
    """The real thing, by the command that the environment's PULSAR_PEER names."""

    kind = "pulsar"

    def begin(self, incoming):
        self.advertised = self.listeners(incoming)
        self.start()

    def start(self):
        command = shlex.split(os.environ["PULSAR_PEER"])
        settings = {"advertisedAddress": "", "advertisedListeners": self.advertised, "internalListenerName": "internal",
                    "allowLoopback": "true", "diskUsageWarnThreshold": "0.98", **CROWDED_DISK, **self.settings}
        memory = os.environ.get("PULSAR_PEER_MEMORY", "1g")
        subprocess.run([*command, "start", "--dir", str(self.folder), "--cluster", self.name, "--binary",
                        str(self.ports["binary"]), "--web", str(self.ports["web"]), "--mem", memory,
                        *(f"{key}={value}" for key, value in settings.items())], check=True)

    def stop(self):
        subprocess.run([*shlex.split(os.environ["PULSAR_PEER"]), "stop", "--dir", str(self.folder)], check=True)

    def kill(self):
        os.kill(self.pid(), signal.SIGKILL)
        wait_until(lambda: not alive(self.pid()), 20, "the end of the broker")

    def close(self):
        if (self.folder / "pid").exists():
            self.stop()

    def pid(self):
        return int((self.folder / "pid").read_text())

    def log(self):
        return (self.folder / "log").read_text(errors="replace")


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# MERIDIAN_REGION=cluster: every Meridian region is a cluster.
KINDS = {"meridian": ClusterSide if os.environ.get("MERIDIAN_REGION") == "cluster" else MeridianSide, "cluster": ClusterSide,
         "pulsar": PulsarSide}


class Group:
    """Regions by name, each joined with each other by a link per direction."""

    def __init__(self, folder, kinds, **settings):
        """`kinds`: name of the region → "meridian" or "pulsar"; `settings` go to every region."""
        self.folder = pathlib.Path(folder)
        self.sides = {name: KINDS[kind](name, self.folder / name, dict(settings)) for name, kind in kinds.items()}
        # Without a port for the region link regions share nothing but messages, as with Pulsar.
        self.shares_policies = settings.get("regionLinkPort", 1) != ""
        self.links = {}
        self.counter = itertools.count()

    def start(self):
        for source, target in itertools.permutations(self.sides, 2):
            self.links[source, target] = Link(source, target, self.sides[target].ports)
        try:
            for name, side in self.sides.items():
                side.begin([link for (_, target), link in self.links.items() if target == name])
            for source, target in itertools.permutations(self.sides, 2):
                self.register(source, target)
            for side in self.sides.values():
                side.admin("PUT", f"tenants/{TENANT}", {"adminRoles": [], "allowedClusters": list(self.sides)},
                           good=(204, 409))
        except BaseException:
            self.close()
            raise
        return self

    def register(self, source, target):
        link = self.links[source, target]
        entry = {"serviceUrl": addresses("http", link.ports, "web"),
                 "brokerServiceUrl": addresses("pulsar", link.ports, "binary"),
                 "listenerName": f"from-{source}"}
        if self.sides[source].kind == self.sides[target].kind == "meridian" and self.shares_policies:
            entry["regionLinkUrl"] = addresses("http", link.ports, "control")
        self.sides[source].admin("PUT", f"clusters/{target}", entry)

    def __getitem__(self, name):
        return self.sides[name]

    def between(self, one, other):
        """Both links between two regions: what a cable carries."""
        return [self.links[one, other], self.links[other, one]]

    def around(self, name):
        """All links from and to a region."""
        return [link for pair, link in self.links.items() if name in pair]

    def shape(self, **shape):
        for link in self.links.values():
            link.shape(**shape)

    def heal(self):
        for link in self.links.values():
            link.heal()

    def namespace(self, clusters=None, dedup=True, retention=True, **policies):
        """A new namespace, replicated between `clusters` (all by default); returns its name."""
        clusters = list(clusters or self.sides)
        name = f"{TENANT}/n{os.getpid()}-{next(self.counter)}"
        for region in clusters:
            side = self.sides[region]
            # Where the regions share their policies the second one may know the namespace already.
            side.admin("PUT", f"namespaces/{name}", {"replication_clusters": clusters}, good=(204, 409))
            side.admin("POST", f"namespaces/{name}/replication", clusters)
            if dedup:
                side.admin("POST", f"namespaces/{name}/deduplication", True)
            if retention:
                side.admin("POST", f"namespaces/{name}/retention",
                           {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
            for path, body in policies.items():
                side.admin("POST", f"namespaces/{name}/{path}", body)
        return name

    def topic(self, clusters=None, **policies):
        return f"persistent://{self.namespace(clusters, **policies)}/t"

    def close(self):
        for side in self.sides.values():
            try:
                side.close()
            except Exception as error:  # the others must still be ended
                print(f"{side.name}: {error}")
        for link in self.links.values():
            link.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()


def linked(group, topic, source, target, seconds=30):
    """Waits until the topic's link says that it is connected."""
    return wait_until(lambda: group[source].link_stats(topic, target).get("connected"), seconds,
                      f"the link {source} → {target}")


def backlog(group, topic, source, target):
    return group[source].link_stats(topic, target).get("replicationBacklog", -1)


def drained(group, topic, source, target, seconds=60):
    """Waits until nothing is left to copy; the seconds that took."""
    begun = time.monotonic()
    wait_until(lambda: backlog(group, topic, source, target) == 0, seconds,
               f"an empty backlog {source} → {target} of {json.dumps(group[source].link_stats(topic, target))}")
    return time.monotonic() - begun
