"""What the programs of this folder share: arguments, the folder that goes away again, the report with its goals."""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HARNESS = pathlib.Path(__file__).resolve().parents[1] / "meridian/tests/python"
sys.path.insert(0, str(HARNESS))

import cluster as harness  # noqa: E402
import region  # noqa: E402
import requests  # noqa: E402
from region import wait_until  # noqa: E402

NAMESPACE = "public/default"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def arguments(description, **options):
    """A parser with what every program takes. `options` are names with their defaults and helps."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--binary", default=region.BINARY, help="the server")
    parser.add_argument("--mini-tikv", help="the metadata store; beside the server if not given")
    parser.add_argument("--dir", help="where the folder of the run is made; else where temporary files go")
    parser.add_argument("--keep", action="store_true", help="leave data and logs there")
    parser.add_argument("--json", help="a file that gets the figures, too")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all nodes")
    for name, (default, text) in options.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default, help=text)
    return parser


def use(options):
    """Makes the harness start the binaries that were named."""
    binary = str(pathlib.Path(options.binary).resolve())
    region.BINARY = harness.BINARY = binary
    harness.MINI_TIKV = options.mini_tikv or str(pathlib.Path(binary).with_name("mini-tikv"))
    for path in (binary, harness.MINI_TIKV):
        if not os.access(path, os.X_OK):
            sys.exit(f"{path} is not there; build it, or name another with --binary and --mini-tikv")


def own_settings(options):
    return dict(pair.split("=", 1) for pair in options.set)


@contextlib.contextmanager
def folder(options):
    """An empty folder that is gone afterwards, also when the program is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    path = pathlib.Path(tempfile.mkdtemp(prefix="meridian-chaos-", dir=options.dir))
    try:
        yield path
    finally:
        if options.keep:
            print(f"kept: {path}")
        else:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def running(options, brokers=3, bookies=5, kind=None, **settings):
    """A cluster that serves, in a folder of its own."""
    use(options)
    with folder(options) as path:
        made = (kind or harness.Cluster)(path / "cluster", brokers=brokers, bookies=bookies, **{**settings, **own_settings(options)})
        try:
            made.start()
            for broker in made.brokers:
                wait_until(lambda: serves(broker), 60, f"{broker.name} serves")
            yield made
        finally:
            made.close()


def serves(broker):
    """It holds its lease and knows the namespace."""
    if broker.metric("meridian_ownership_in_force") != 1:
        return False
    return requests.get(f"{broker.web}/admin/v2/namespaces/{NAMESPACE}", timeout=10).status_code == 200


def admin(broker, method, path, body=None, seconds=60):
    answer = requests.request(method, f"{broker.web}{path}", json=body, timeout=seconds)
    if answer.status_code >= 400:
        raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
    return answer


def owner_of(made, topic):
    """The broker that serves a topic."""
    url = admin(live(made.brokers)[0], "GET", "/lookup/v2/topic/" + topic.replace("://", "/")).json()["brokerUrl"]
    return next(broker for broker in made.brokers if url.rsplit(":", 1)[1] == broker.url.rsplit(":", 1)[1])


def live(nodes):
    return [node for node in nodes if node.process and node.process.poll() is None]


def labelled(node, name, label):
    """A metric of one label, such as `reason="paused"`."""
    port = node.ready.get("stats_port") or node.ready["web_port"]
    text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{") and label in line)


def total(nodes, name):
    return sum(node.metric(name) for node in live(nodes))


def audited(made):
    """Looks at all copies; what it found, and whether all was whole."""
    done = subprocess.run([region.BINARY, "admin", "--url", live(made.brokers)[0].web, "bookies", "audit", "--now"],
                          capture_output=True, text=True, timeout=300)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def cpu_seconds(nodes):
    """CPU time of nodes so far."""
    return cpu_of(node.process.pid for node in live(nodes))


def cpu_of(pids):
    """CPU time of processes so far."""
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / CLOCK_TICKS


def cpu_seconds_exactly(node):
    """CPU time of the threads that a node has, to the nanosecond."""
    spent_ns = 0
    for task in pathlib.Path(f"/proc/{node.process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            spent_ns += int((task / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


def rss_bytes(node):
    return int(pathlib.Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def raw_write_bytes_per_s(path, seconds=2.0, group_bytes=1 << 20, file_bytes=256 << 20):
    """What the disk takes: synced writes of a mebibyte over a file that is already written."""
    name, block = pathlib.Path(path) / "raw", os.urandom(group_bytes)
    with open(name, "w+b", buffering=0) as file:
        for _ in range(file_bytes // group_bytes):
            file.write(block)
        os.fsync(file.fileno())
        begun, written = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            os.pwrite(file.fileno(), block, written % file_bytes)
            os.fdatasync(file.fileno())
            written += group_bytes
        rate = written / (time.monotonic() - begun)
    name.unlink()
    return rate


def check_stored(report, made, topic, sent):
    """Reads the topic from its beginning; gives back the numbers as they are stored."""
    numbers = harness.read_numbers(made, topic)
    seen, ordered = harness.in_order(numbers)
    lost = set(sent.confirmed()) - set(seen)
    report.must("0 of the confirmed messages lost", not lost, f"{len(lost)} of {len(sent.confirmed())}")
    report.must("order kept", ordered)
    return numbers


class Report:
    """Figures with their goals. What must hold decides the exit code; a goal that is missed is only said."""

    def __init__(self, title, options):
        self.title, self.json, self.lines, self.held = title, options.json, [], True
        load = "/".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"{title}\nserver {region.BINARY}, {os.cpu_count()} cores, load average {load} at the start", flush=True)

    def add(self, what, value, unit="", goal=None, below=True):
        """A figure; with a goal that it should not pass (or, with below=False, reach)."""
        verdict = None if goal is None else "hit" if (value <= goal if below else value >= goal) else "missed"
        self.lines.append({"what": what, "value": value, "unit": unit, "goal": goal, "verdict": verdict})
        side = "" if goal is None else f"   goal {'≤' if below else '≥'} {goal:g}{unit and ' ' + unit}: {verdict}"
        shown = f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"
        print(f"  {what}: {shown}{unit and ' ' + unit}{side}", flush=True)

    def must(self, what, holds, detail=""):
        self.lines.append({"what": what, "must": True, "verdict": "holds" if holds else "BROKEN", "detail": detail})
        self.held &= bool(holds)
        print(f"  {what}: {'holds' if holds else 'BROKEN'}{detail and ' (' + str(detail) + ')'}", flush=True)

    def say(self, text):
        print(f"  {text}", flush=True)

    def end(self):
        load = "/".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"  load average {load} at the end")
        if self.json:
            text = json.dumps({"title": self.title, "server": region.BINARY, "load": load, "figures": self.lines}, indent=1)
            pathlib.Path(self.json).write_text(text)
        return 0 if self.held else 1
