"""The wide-area links between regions, as tests and scenarios handle them: each one process of `wan_proxy.py`."""
import json
import pathlib
import subprocess
import sys
import threading

from ports import free_ports

PROXY = pathlib.Path(__file__).with_name("wan_proxy.py")
BOTH = ("forward", "backward")


class Link:
    """Connections that region `source` opens to region `target`. `services`: name → port of the target."""

    def __init__(self, source, target, services):
        self.source, self.target = source, target
        self.ports = dict(zip(services, free_ports(len(services))))
        plan = {name: [self.ports[name], "127.0.0.1", port] for name, port in services.items()}
        self.process = subprocess.Popen([sys.executable, str(PROXY), json.dumps({"services": plan})], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lock = threading.Lock()
        assert json.loads(self.process.stdout.readline())["ready"]

    def command(self, **command):
        with self.lock:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

    def shape(self, ways=BOTH, **shape):
        self.command(do="shape", ways=ways, **shape)

    def cut(self, how="reset", ways=BOTH):
        self.command(do="cut", how=how, ways=ways)

    def heal(self):
        self.command(do="heal")

    def count(self):
        return self.command(do="count")

    def forward_bytes(self, service="binary"):
        counted = self.count()["bytes"]
        return sum(way["forward"] for name, way in counted.items() if name.split("-")[0] == service)

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


class Flapping:
    """Cuts links in a rhythm until it is ended, as a context: down `down_s` in each `period_s`."""

    def __init__(self, links, period_s=1.0, down_s=0.2, how="reset"):
        self.links, self.how = links, how
        self.down_s, self.up_s = down_s, period_s - down_s
        self.stopped = threading.Event()
        self.cuts = 0
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.stopped.wait(self.up_s):
            self.cuts += 1
            for link in self.links:
                link.cut(self.how)
            self.stopped.wait(self.down_s)
            for link in self.links:
                link.heal()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()
        for link in self.links:
            link.heal()
