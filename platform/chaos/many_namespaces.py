"""Many namespaces with policies in metadata: the start of a broker, its memory, and how soon a change is in force.

With `--standalone 1` it is one process on RocksDB that is started again; changes are not timed then.
"""
import http.client
import json
import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import program
import pulsar
import region
import requests
from program import wait_until
from tenants import make_tenant, spread
from traffic import percentile

A_TENANT = 100


def name(number):
    return f"team-{number // A_TENANT:05d}/space-{number % A_TENANT:03d}"


def policies(made, number):
    """What a namespace of a usual team says; no two are the same."""
    rate = {"publishThrottlingRateInMsg": 1000 + number % 97, "publishThrottlingRateInByte": 1_000_000}
    quota = {"limitSize": 100_000_000 + number, "limitTime": -1, "policy": "producer_request_hold"}
    return {
        "auth_policies": {"namespace_auth": {f"app-{number:06d}": ["produce", "consume"]}},
        "replication_clusters": [made.name],
        "bundles": {"numBundles": 4},
        "message_ttl_in_seconds": 3600 + number,
        "retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 512},
        "backlog_quota_map": {"destination_storage": quota},
        "publishMaxMessageRate": {made.name: rate},
        "max_producers_per_topic": 100,
    }


class Maker:
    """Creates tenants with their namespaces over connections that stay open, one of each thread."""

    def __init__(self, made):
        self.made, self.own, self.put_off = made, threading.local(), 0

    def put(self, tenant, path, body):
        if not hasattr(self.own, "connection"):
            broker = self.made.brokers[tenant % len(self.made.brokers)]
            self.own.connection = http.client.HTTPConnection("127.0.0.1", broker.ready["web_port"], timeout=60)
        for attempt in range(20):
            self.own.connection.request("PUT", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = self.own.connection.getresponse()
            text = answer.read()
            # One that was told to come again may have been made all the same.
            if answer.status < 300 or attempt and answer.status == 409:
                return
            if answer.status != 503:
                break
            self.put_off += 1
            time.sleep(0.1 * (attempt + 1))
        raise RuntimeError(f"PUT {path}: {answer.status} {text[:300]}")

    def tenant(self, tenant, first, last):
        self.put(tenant, f"/admin/v2/tenants/team-{tenant:05d}", {"allowedClusters": [self.made.name]})
        for number in range(first, last):
            self.put(tenant, f"/admin/v2/namespaces/{name(number)}", policies(self.made, number))


def make(made, have, want, threads):
    """Namespaces of one tenant are made one after the other, of many tenants at once."""
    maker = Maker(made)
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(maker.tenant, first // A_TENANT, first, min(first + A_TENANT, want))
                for first in range(have, want, A_TENANT)]
        for job in jobs:
            job.result()
    return maker.put_off


def started(broker, last, settle):
    """Starts a broker: seconds until it is ready and until it tells the last namespace; its memory and CPU when it has settled."""
    begun = time.monotonic()
    broker.start()
    ready = time.monotonic() - begun
    path = f"{broker.web}/admin/v2/namespaces/{last}"
    wait_until(lambda: requests.get(path, timeout=60).status_code == 200, 120, "its first answer")
    answered = time.monotonic() - begun
    time.sleep(settle)
    spent = program.cpu_seconds([broker])
    time.sleep(settle)
    idle = (program.cpu_seconds([broker]) - spent) / settle
    return ready, answered, program.rss_bytes(broker), idle


def start(made, number, last, settle):
    """A new broker."""
    broker = made.broker(number)
    broker.settings["metadataStoreUrl"] = made.metadata_url
    try:
        measured = started(broker, last, settle)
        broker.stop()
        return measured
    finally:
        if broker.process.poll() is None:
            broker.kill()


def starts(made, count, last, settle):
    """Medians of several starts."""
    one = made.start_again if isinstance(made, Alone) else lambda *how: start(made, *how)
    return [statistics.median(column) for column in zip(*(one(100 + at, last, settle) for at in range(count)))]


class Alone:
    """One process in place of a cluster."""

    def __init__(self, folder, settings):
        self.name, self.store = "standalone", None
        self.region = region.Region(folder, **settings)
        self.region.name = self.name
        self.brokers = [self.region.start()]

    def start_again(self, _, last, settle):
        assert self.region.stop() == 0, self.region.log()
        return started(self.region, last, settle)


def servers(made):
    """Whose CPU it takes to make a namespace."""
    return made.brokers + ([made.store] if made.store else [])


def told(broker, path):
    """What a broker answers, also that it does not know."""
    return requests.get(broker.web + path, timeout=60).text


def until_told(broker, path, as_wanted, seconds):
    """Waits for an answer, and says the last one if it does not come."""
    deadline = time.monotonic() + seconds
    while not as_wanted(answer := told(broker, path)):
        assert time.monotonic() < deadline, f"{broker.name} still answers after {seconds} s to {path}: {answer[:300]}"
        time.sleep(0.02)


def known_everywhere(made, name_of_last):
    """Seconds until every broker tells a namespace that was just made."""
    begun = time.monotonic()
    for broker in made.brokers:
        until_told(broker, f"/admin/v2/namespaces/{name_of_last}", lambda answer: "replication_clusters" in answer, 120)
    return time.monotonic() - begun


def seen(made, number, seconds):
    """Until every broker shows a changed policy of a namespace, and as the merged one of a topic in it."""
    path, topic = f"/admin/v2/namespaces/{name(number)}", f"/admin/v2/persistent/{name(number)}/t"
    program.admin(made.brokers[0], "PUT", topic)
    begun = time.monotonic()
    program.admin(made.brokers[number % len(made.brokers)], "POST", f"{path}/messageTTL", seconds)
    written = time.monotonic() - begun
    for broker in made.brokers:
        for asked in (f"{path}/messageTTL", f"{topic}/messageTTL?applied=true"):
            until_told(broker, asked, lambda answer: answer == str(seconds), 30)
    return written, time.monotonic() - begun


class Effect:
    """A namespace with topics at every broker, where a second producer is let in or not."""

    def __init__(self, made):
        self.made = made
        make_tenant(made, "effect", bundles=12)
        topics, _ = spread(made, ["effect/n"], 3)
        owners = {program.owner_of(made, topic).name: topic for topic in topics}
        self.topics = list(owners.values())
        self.client = made.client()
        self.first = [self.client.create_producer(topic) for topic in self.topics]

    def allow(self, most):
        program.admin(self.made.brokers[0], "POST", "/admin/v2/namespaces/effect/n/maxProducersPerTopic", most)

    def is_let_in(self, topic):
        try:
            self.client.create_producer(topic).close()
        except pulsar.PulsarException:
            return False
        return True

    def takes(self):
        """Seconds until no broker lets one more in, and until all do again."""
        took = []
        for most, wanted in ((1, False), (10, True)):
            begun = time.monotonic()
            self.allow(most)
            for topic in self.topics:
                wait_until(lambda: self.is_let_in(topic) == wanted, 30, f"the change is in force for {topic}")
            took.append(time.monotonic() - begun)
        return took


def changes(made, report, options, first):
    randomness = random.Random(7)
    chosen = [randomness.randrange(first, options.namespaces) for _ in range(options.changes)]
    effect = Effect(made)
    taken = [seen(made, number, 60 + at) for at, number in enumerate(chosen)]
    report.add("a change is answered after, median", percentile([written for written, _ in taken], 0.5), "s")
    report.add(f"and seen by {len(made.brokers)} brokers, median", percentile([all_see for _, all_see in taken], 0.5), "s")
    report.add("at most", max(all_see for _, all_see in taken), "s", goal=1)
    took = [one for _ in range(max(1, options.changes // 5)) for one in effect.takes()]
    effect.client.close()
    report.add("a limit on producers has its effect at all brokers, median", percentile(took, 0.5), "s")
    report.add("at most", max(took), "s", goal=1)


def main():
    options = program.arguments(
        __doc__, namespaces=(100_000, "namespaces"), few=(100, "namespaces that memory and start are compared with"),
        threads=(48, "tenants that are made at once"), starts=(3, "starts that are timed"),
        settle=(6.0, "seconds before memory and CPU are looked at"), changes=(30, "changes that are timed"),
        brokers=(3, "brokers"), bookies=(3, "bookies"),
        standalone=(0, "1: one process on RocksDB in place of a cluster")).parse_args()
    if options.standalone:
        program.use(options)
        with program.folder(options) as folder:
            made = Alone(folder, program.own_settings(options))
            try:
                return measure(made, options)
            finally:
                made.region.close()
    with program.running(options, brokers=options.brokers, bookies=options.bookies) as made:
        return measure(made, options)


def measure(made, options):
    report = program.Report(f"{options.namespaces:,} namespaces with policies", options)
    make(made, 0, options.few, options.threads)
    few = starts(made, options.starts, name(options.few - 1), options.settle)
    lived = [program.rss_bytes(broker) for broker in made.brokers]
    before, begun = program.cpu_seconds(servers(made)), time.monotonic()
    first = -(-options.few // A_TENANT) * A_TENANT
    put_off = make(made, first, options.namespaces, options.threads)
    made_in = time.monotonic() - begun
    count = options.namespaces - first + options.few
    report.add("making them took", made_in, "s")
    report.add("made a second", count / made_in)
    report.add("calls that were told to come again", put_off)
    spent = program.cpu_seconds(servers(made)) - before
    report.add("CPU of brokers and store for one", spent / count * 1e3, "ms")
    last = name(options.namespaces - 1)
    report.add("known at all brokers after another", known_everywhere(made, last), "s")
    ready, answered, memory, idle = starts(made, options.starts, last, options.settle)
    report.add(f"start at {options.few:,} namespaces, ready", few[0], "s")
    report.add(f"start at {count:,} namespaces, ready", ready, "s", goal=5)
    report.add(f"start at {count:,} namespaces, the last one told", answered, "s", goal=5)
    report.add("resident of a broker that started with few", few[2] / 2**20, "MiB")
    report.add("resident of a broker that started with all", memory / 2**20, "MiB")
    report.add("resident, a namespace", (memory - few[2]) / count, "B", goal=1024)
    report.add("CPU of an idle broker with few", few[3] * 100, "% of a core")
    report.add("CPU of an idle broker with all", idle * 100, "% of a core")
    if made.store:
        grown = [program.rss_bytes(broker) - before for broker, before in zip(made.brokers, lived)]
        report.add("grown of the brokers that made them, a namespace", max(grown) / count, "B")
        changes(made, report, options, first)
    all_there = program.admin(made.brokers[-1], "GET", f"/admin/v2/namespaces/{last.split('/')[0]}").json()
    report.must("the last tenant's namespaces are all told", last in all_there and len(all_there) == min(A_TENANT, count))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
