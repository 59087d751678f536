"""A cluster that can be broken in every way of a schedule, and the hand that does it."""
import os
import shutil
import subprocess
import threading
import time

import program
import requests
from program import harness
from proxy import Loop, Proxy

# Losses are noticed and mended within a round.
SETTINGS = {
    "metadataStoreSessionTimeoutMillis": 6000, "lostBookieRecoveryDelay": 1, "openLedgerRereplicationGracePeriod": 2000,
    "bookkeeperClientHealthCheckQuarantineTimeInSeconds": 3, "keepAliveIntervalSeconds": 5, "managedLedgerMaxEntriesPerLedger": 400,
    "managedLedgerMinLedgerRolloverTimeSeconds": 1, "gcWaitTime": 3000, "flushInterval": 1000, "journalMaxSizeMB": 16,
}
DISK_MIB = 768
PORTS = {"broker": ("binary_port", "web_port"), "bookie": ("bookie_port", "bookie_control_port")}


class Chaos(harness.Cluster):
    """A cluster whose nodes are reached through proxies: each has an address of its own on the loopback."""

    def __init__(self, *arguments, **settings):
        self.loop, self.proxies, self.disks, self.replaced, self.joining = Loop(), {}, [], 0, None
        super().__init__(*arguments, **{**SETTINGS, **settings})

    def bookie(self, number):
        node = super().bookie(number)
        node.settings["advertisedAddress"] = f"127.0.3.{number + 1}"
        return node

    def broker(self, number):
        node = super().broker(number)
        node.settings["advertisedAddress"] = f"127.0.2.{number + 1}"
        return node

    def start(self):
        self.start_store()
        outcome = self.init()
        assert outcome.returncode == 0, outcome.stderr
        self.small_disk(self.bookies[0])
        for nodes in (self.bookies, self.brokers):
            for node in nodes:
                node.begin()
            for node in nodes:
                self.interpose(node.wait())
        return self

    def interpose(self, node):
        host = node.settings["advertisedAddress"]
        self.proxies[node.name] = [Proxy(self.loop, (host, node.ready[port]), ("127.0.0.1", node.ready[port]))
                                   for port in PORTS[node.role]]

    def small_disk(self, node):
        """A disk of its own that can be filled; where that is not allowed, writes fail instead."""
        node.data.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(node.data)]
            mounted = subprocess.run(command, capture_output=True)
            if mounted.returncode == 0:
                self.disks.append(node.data)

    def url(self):
        addresses = (f"{broker.settings['advertisedAddress']}:{broker.ready['binary_port']}" for broker in self.brokers)
        return "pulsar://" + ",".join(addresses)

    def replace(self, at):
        """A new bookie with empty folders in place of one that lost its own."""
        self.replaced += 1
        node = self.bookie(len(self.bookies) - 1 + self.replaced)
        node.settings["metadataStoreUrl"] = self.metadata_url
        self.bookies[at] = node
        if at == 0:
            self.small_disk(node)
        node.begin()
        self.joining = threading.Thread(target=self.join, args=(node,))
        self.joining.start()

    def join(self, node):
        """A process that can't start yet is started again when the round heals."""
        try:
            self.interpose(node.wait())
        except (RuntimeError, AssertionError):
            pass

    def close(self):
        super().close()
        for proxy in sum(self.proxies.values(), []):
            proxy.close()
        for disk in self.disks:
            subprocess.run(["umount", "-l", str(disk)], capture_output=True)
        self.loop.close()


class Faults:
    """Does what a schedule says, and undoes it."""

    def __init__(self, made, traffic):
        self.made, self.traffic, self.lost, self.notes = made, traffic, {}, []

    def node(self, fault):
        return (self.made.brokers if fault.of("broker") else self.made.bookies)[fault.target]

    def play(self, faults):
        begun = time.monotonic()
        events = [(fault.begins, 0, fault) for fault in faults] + [(fault.ends, 1, fault) for fault in faults]
        for due, ends, fault in sorted(events, key=lambda event: event[:2]):
            time.sleep(max(0.0, begun + due - time.monotonic()))
            (self.end if ends else self.begin)(fault)

    def begin(self, fault):
        node = None if fault.kind in ("kill store", "unload", "new consumers") else self.node(fault)
        if fault.kind == "kill store":
            self.made.store.kill()
        elif fault.kind == "unload":
            self.unload()
        elif fault.kind == "new consumers":
            self.traffic[fault.target % len(self.traffic)].renew()
        elif fault.kind.startswith("kill"):
            node.kill()
        elif fault.kind.startswith("pause"):
            node.pause()
        elif fault.kind.startswith("cut"):
            for proxy in self.made.proxies[node.name]:
                proxy.cut(fault.way)
        elif fault.kind == "fill disk":
            self.fill(node)
        else:
            node.kill()
            shutil.rmtree(node.data / "bookie/ledgers")
            self.lost[fault.target] = node

    def end(self, fault):
        if fault.kind in ("unload", "new consumers"):
            return
        node = self.made.store if fault.kind == "kill store" else self.node(fault)
        if fault.kind.startswith("kill"):
            node.begin()
        elif fault.kind.startswith("pause"):
            node.resume()
        elif fault.kind.startswith("cut"):
            for proxy in self.made.proxies[node.name]:
                proxy.heal()
        elif fault.kind == "fill disk":
            self.empty(node)
        else:
            self.made.replace(fault.target)

    def unload(self):
        """Asked of whoever answers; nobody has to."""
        for broker in self.made.brokers:
            try:
                requests.put(f"{broker.web}/admin/v2/namespaces/{program.NAMESPACE}/unload", timeout=3)
                return
            except requests.RequestException:
                continue

    def fill(self, node):
        if node.data not in self.made.disks:
            if node.process.poll() is None:
                node.fail_disks()
            return
        free = os.statvfs(node.data)
        with open(node.data / "filling", "wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
            except OSError:
                pass

    def empty(self, node):
        (node.data / "filling").unlink(missing_ok=True)
        if node.data not in self.made.disks and node.process.poll() is None:
            node.heal_disks()
