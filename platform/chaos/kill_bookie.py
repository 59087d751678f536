"""kill -9 of one of five bookies under load: what clients notice, and how copies come back."""
import sys
import time

import program
from traffic import Publisher, percentile

TOPIC = f"persistent://{program.NAMESPACE}/kill-bookie"
POLL_SECONDS = 0.25


def fill(made, mib):
    """Gives every bookie something to lose; what is stored is held by a subscription that reads nothing."""
    topic = TOPIC + "-held"
    program.harness.keep(made, topic)
    body = 32 << 10
    Publisher(made, topic, rate=0, body_bytes=body, limit=mib * (1 << 20) // body).wait()


def busiest(made):
    """The bookie of the running ledgers that writes most."""
    before = {bookie.name: bookie.metric("bookkeeper_server_ADD_ENTRY_count") for bookie in made.bookies}
    time.sleep(1)
    return max(made.bookies, key=lambda bookie: bookie.metric("bookkeeper_server_ADD_ENTRY_count") - before[bookie.name])


class Together:
    """What several publishers saw. A gap of one of them is a gap."""

    def __init__(self, each):
        self.each = each

    def total(self, count):
        return sum(map(count, self.each))

    def longest_gap(self, since, until):
        return max(sent.longest_gap(since, until) for sent in self.each)

    def percentile(self, share, since, until):
        return percentile([took for sent in self.each for took in sent.latencies(since, until)], share)


class Restoring:
    """Follows the copies: when the loss was marked, when bytes moved, when nothing was left to move."""

    def __init__(self, made):
        self.made, self.marked, self.samples, self.done = made, None, [], None
        self.before = program.total(made.bookies, "autorecovery_bytes_replicated_total")

    def look(self):
        now = time.monotonic()
        missing = program.total(self.made.bookies, "autorecovery_bookies_missing")
        waiting = program.total(self.made.bookies, "autorecovery_ledgers_waiting")
        copied = program.total(self.made.bookies, "autorecovery_bytes_replicated_total") - self.before
        self.samples.append((now, copied))
        if self.marked is None and missing:
            self.marked = now
        if self.marked and not missing and not waiting:
            self.done = now
        return self.done

    def follow(self, seconds):
        deadline = time.monotonic() + seconds
        while not self.look() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return self

    def copying(self):
        """When the first and the last bytes moved, and how many there were."""
        last = self.samples[-1][1]
        first = next((moment for moment, copied in self.samples if copied > 0), None)
        end = next((moment for moment, copied in self.samples if copied == last), None)
        return (first - POLL_SECONDS, end, last) if first else (None, None, 0)


def main():
    options = program.arguments(
        __doc__, rate=(20_000, "messages a second"), body_bytes=(1024, "size of a message"), brokers=(3, "brokers"),
        bookies=(5, "bookies"), publishers=(2, "processes that publish, each on a topic of its own"), before=(20.0, "seconds of load before the kill"),
        held_mib=(512, "stored before, so that there is something to copy"), limit=(600.0, "seconds that copying may take")).parse_args()
    with program.running(options, brokers=options.brokers, bookies=options.bookies) as made:
        load = f"{options.rate} msg/s of {options.body_bytes} B"
        report = program.Report(f"kill -9 of one of {options.bookies} bookies, {load}, E=3 Qw=3 Qa=2", options)
        raw = program.raw_write_bytes_per_s(made.folder)
        fill(made, options.held_mib)
        topics = [f"{TOPIC}-{number}" for number in range(options.publishers)]
        for topic in topics:
            program.harness.keep(made, topic)
        publishers = [Publisher(made, topic, options.rate / len(topics), options.body_bytes) for topic in topics]
        time.sleep(3)
        begun = time.monotonic()
        time.sleep(options.before)
        victim = busiest(made)
        killed = time.monotonic()
        victim.kill()
        restoring = Restoring(made).follow(options.limit)
        time.sleep(3)
        sent = Together([publisher.end() for publisher in publishers])
        tell(report, made, sent, begun, killed, restoring, raw)
        for topic, one in zip(topics, sent.each):
            program.check_stored(report, made, topic, one)
        return report.end()


def tell(report, made, sent, begun, killed, restoring, raw):
    first, last, copied = restoring.copying()
    before = sent.percentile(0.99, begun, killed - 0.5)
    report.add("messages sent", sent.total(lambda one: len(one.due)))
    report.add("errors at the client", sent.total(lambda one: len(one.refused)), goal=0)
    report.add("messages without an answer", sent.total(lambda one: len(one.due) - one.resolved), goal=0)
    report.add("longest ack gap before", sent.longest_gap(begun, killed - 0.05) * 1e3, "ms")
    report.add("longest ack gap around the kill", sent.longest_gap(killed - 0.05, killed + 10) * 1e3, "ms", goal=50)
    report.add("publish p50 before", sent.percentile(0.5, begun, killed - 0.5) * 1e3, "ms")
    report.add("publish p99 before", before * 1e3, "ms")
    report.add("publish p99 in the 10 s after the kill", sent.percentile(0.99, killed, killed + 10) * 1e3, "ms")
    report.add("loss marked after", (restoring.marked or float("nan")) - killed, "s")
    if first:
        meanwhile = sent.percentile(0.99, first, last)
        rate = copied / max(last - first, 1e-9)
        report.add("copied", copied / 1e6, "MB")
        report.add("copying took", last - first, "s")
        report.add("raw synced writes of this disk", raw / 1e6, "MB/s")
        report.add("copied per second", rate / 1e6, "MB/s")
        report.add("copied per second of raw", rate / raw, goal=0.25, below=False)
        report.add("publish p99 while copying", meanwhile * 1e3, "ms")
        report.add("publish p99 while copying of before", meanwhile / max(before, 1e-9), goal=2)
    report.must("full copies without a person", restoring.done is not None)
    if restoring.done:
        report.add("full copies after the kill", restoring.done - killed, "s")
        # The audit is ordered when the load has ended: it reads.
        whole, found = program.audited(made)
        report.must("an audit finds all copies", whole, "" if whole else found[:400])


if __name__ == "__main__":
    sys.exit(main())
