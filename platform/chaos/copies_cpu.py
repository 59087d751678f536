"""CPU of brokers and bookies together for a million messages with three copies, published in batches and consumed once."""
import sys
import time

import program
from traffic import Consumer, Publisher

TOPIC = f"persistent://{program.NAMESPACE}/copies-cpu"


def main():
    options = program.arguments(
        __doc__, messages=(1_000_000, "messages that are counted"), body_bytes=(1024, "size of a message"),
        warm_up=(100_000, "messages before"), rate=(0, "messages a second; 0 = as fast as the client goes"),
        brokers=(1, "brokers"), bookies=(3, "bookies")).parse_args()
    with program.running(options, brokers=options.brokers, bookies=options.bookies) as made:
        what = f"{options.messages:,} x {options.body_bytes} B, batched, consumed once"
        report = program.Report(f"CPU with three copies, {what}", options)
        run(made, TOPIC + "-warm", options.warm_up, options)
        idle, begun = program.cpu_seconds(made.nodes()), time.monotonic()
        time.sleep(5)
        idle = (program.cpu_seconds(made.nodes()) - idle) / (time.monotonic() - begun)
        brokers, bookies, begun = program.cpu_seconds(made.brokers), program.cpu_seconds(made.bookies), time.monotonic()
        sent, read = run(made, TOPIC, options.messages, options)
        took = time.monotonic() - begun
        brokers, bookies = program.cpu_seconds(made.brokers) - brokers, program.cpu_seconds(made.bookies) - bookies
        million = options.messages / 1e6
        report.add("messages a second", options.messages / took)
        report.add("CPU before, nothing to do", idle, "CPU-s per s")
        report.add("brokers", brokers / million, "CPU-s per million")
        report.add("bookies", bookies / million, "CPU-s per million")
        report.add("together", (brokers + bookies) / million, "CPU-s per million", goal=12)
        confirmed = len(sent.confirmed())
        report.must("everything was confirmed and read", confirmed == len(read) == options.messages, f"{confirmed:,} and {len(read):,}")
        return report.end()


def run(made, topic, messages, options):
    consumer = Consumer(made, topic, limit=messages)
    sent = Publisher(made, topic, options.rate, options.body_bytes, limit=messages).wait()
    return sent, set(consumer.wait(600)[0])


if __name__ == "__main__":
    sys.exit(main())
