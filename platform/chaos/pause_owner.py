"""SIGSTOP of the broker that serves a topic, SIGCONT later: fenced, nothing lost, nothing doubled beyond what was sent again."""
import sys
import time

import program
from program import wait_until
from traffic import Publisher

TOPIC = f"persistent://{program.NAMESPACE}/pause-owner"


def main():
    options = program.arguments(
        __doc__, seconds=(60.0, "how long it stands still"), rate=(2000, "messages a second"),
        body_bytes=(1024, "size of a message"), brokers=(3, "brokers"), bookies=(5, "bookies")).parse_args()
    with program.running(options, brokers=options.brokers, bookies=options.bookies) as made:
        report = program.Report(f"SIGSTOP of a topic's owner for {options.seconds:g} s", options)
        program.harness.keep(made, TOPIC)
        load = Publisher(made, TOPIC, options.rate, options.body_bytes)
        time.sleep(5)
        owner = program.owner_of(made, TOPIC)
        others = [broker for broker in made.brokers if broker is not owner]
        paused = time.monotonic()
        owner.pause()
        known = len(others)
        wait_until(lambda: all(b.metric("meridian_ownership_brokers") == known for b in others), 60, "the detection")
        report.add("detected after", time.monotonic() - paused, "s")
        time.sleep(max(0.0, paused + options.seconds - time.monotonic()))
        resumed = time.monotonic()
        owner.resume()
        wait_until(lambda: owner.metric("meridian_ownership_stops_total") >= 1, 30, "its stop")
        report.add("it stopped serving after", time.monotonic() - resumed, "s")
        wait_until(lambda: owner.metric("meridian_ownership_in_force") == 1, 60, "its return")
        report.add("its lease is in force again after", time.monotonic() - resumed, "s")
        owned = owner.metric("meridian_ownership_bundles")
        time.sleep(5)
        sent = load.end()
        report.add("errors at the client", len(sent.refused), goal=0)
        report.add("longest ack gap", sent.longest_gap(paused - 0.05), "s")
        report.must("the old owner came back with nothing", owned == 0, f"{owned:.0f} bundles")
        report.must("the same process serves again", owner.process.poll() is None and program.serves(owner))
        numbers = program.check_stored(report, made, TOPIC, sent)
        tell_doubled(report, sent, numbers, paused)
        serve_again(report, made, owner)
        return report.end()


def tell_doubled(report, sent, numbers, paused):
    """A message may be stored twice if it was unanswered when the owner stopped: the client sends it again."""
    seen, doubled = set(), set()
    for number in numbers:
        (doubled if number in seen else seen).add(number)
    answered_before = [n for n in doubled if 0 <= sent.took[n] and sent.due[n] + sent.took[n] < paused]
    report.add("stored twice", len(doubled))
    report.must("only what the client sent again is doubled", not answered_before, f"{len(answered_before)} others")


def serve_again(report, made, owner):
    client = made.client(broker=made.brokers.index(owner))
    for number in range(6):
        client.create_producer(f"{TOPIC}-after-{number}").send(b"x")
    client.close()
    report.must("it answers clients again", True)


if __name__ == "__main__":
    sys.exit(main())
