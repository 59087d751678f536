"""The metadata store is killed and comes back later: publishing and delivery on loaded topics meanwhile."""
import sys
import time

import program
from program import wait_until
from traffic import Consumer, Publisher, percentile

TOPIC = f"persistent://{program.NAMESPACE}/store-away"
SETTLE_SECONDS = 5


def main():
    options = program.arguments(
        __doc__, seconds=(60.0, "how long it is away"), before=(30.0, "seconds of load before"), rate=(5000, "messages a second"),
        body_bytes=(1024, "size of a message"), brokers=(3, "brokers"), bookies=(5, "bookies")).parse_args()
    with program.running(options, brokers=options.brokers, bookies=options.bookies) as made:
        load = f"{options.rate} msg/s of {options.body_bytes} B"
        report = program.Report(f"metadata store away for {options.seconds:g} s, {load}", options)
        program.harness.keep(made, TOPIC)
        consumer = Consumer(made, TOPIC)
        publisher = Publisher(made, TOPIC, options.rate, options.body_bytes)
        time.sleep(SETTLE_SECONDS)
        begun = time.monotonic()
        time.sleep(options.before)
        away = time.monotonic()
        made.store.kill()
        time.sleep(options.seconds)
        report.must("brokers say that it is away", all(b.metric("meridian_metadata_available") == 0 for b in made.brokers))
        back = time.monotonic()
        made.store.start()
        wait_until(lambda: all(b.metric("meridian_metadata_available") == 1 for b in made.brokers), 60, "the store")
        report.add("brokers have it again after", time.monotonic() - back, "s")
        time.sleep(SETTLE_SECONDS * 2)
        sent = publisher.end()
        numbers, moments = consumer.end()
        tell(report, made, sent, dict(zip(numbers, moments)), begun, away, back)
        return report.end()


def tell(report, made, sent, came, begun, away, back):
    before, during = sent.p99(begun, away), sent.p99(away, back)
    report.add("errors at the client", len(sent.refused), goal=0)
    report.add("publish p99 before", before * 1e3, "ms")
    report.add("publish p99 meanwhile", during * 1e3, "ms")
    report.add("publish p99 meanwhile of before", during / max(before, 1e-9), goal=1.3)
    report.add("publish p99 in the 10 s after its return", sent.p99(back, back + 10) * 1e3, "ms")
    report.add("longest ack gap before", sent.longest_gap(begun, away) * 1e3, "ms")
    report.add("longest ack gap meanwhile", sent.longest_gap(away - 0.05, back + 10) * 1e3, "ms")
    ends = [delivered(sent, came, begun, away), delivered(sent, came, away, back)]
    report.add("end to end p99 before", ends[0] * 1e3, "ms")
    report.add("end to end p99 meanwhile", ends[1] * 1e3, "ms")
    report.add("end to end p99 meanwhile of before", ends[1] / max(ends[0], 1e-9), goal=1.3)
    for reason in ("session_expired", "cut_off", "no_contact", "paused"):
        stops = sum(program.labelled(broker, "meridian_ownership_stops_total", f'reason="{reason}"') for broker in made.brokers)
        report.add(f"brokers that stopped serving, {reason}", int(stops), goal=0)
    report.must("every confirmed message was delivered", set(sent.confirmed()) <= set(came))
    program.check_stored(report, made, TOPIC, sent)
    client = made.client()
    client.create_producer(TOPIC + "-fresh").send(b"x")
    client.close()
    report.must("new topics can be made again", True)


def delivered(sent, came, since, until):
    return percentile([came[n] - due for n, due in enumerate(sent.due) if since <= due <= until and n in came], 0.99)


if __name__ == "__main__":
    sys.exit(main())
