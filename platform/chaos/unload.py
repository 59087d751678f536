"""Planned unload of a namespace with many topics: the longest time that a message waits for its confirmation."""
import sys
import time

import program
from traffic import ManyTopics, percentile


def main():
    options = program.arguments(
        __doc__, topics=(1000, "topics, a producer on each"), pause=(0.5, "seconds between two messages of a topic"),
        before=(10.0, "seconds of load before"), brokers=(3, "brokers"), bookies=(5, "bookies")).parse_args()
    with program.running(options, brokers=options.brokers, bookies=options.bookies) as made:
        report = program.Report(f"planned unload of {options.topics} topics", options)
        begun = time.monotonic()
        many = ManyTopics(made, options.topics, options.pause)
        report.add("opening them took", time.monotonic() - begun, "s")
        time.sleep(5)
        steady = time.monotonic()
        time.sleep(options.before)
        owners = {broker.name: broker.metric("pulsar_broker_topics_count") for broker in made.brokers}
        report.say(f"topics by broker before: {owners}")
        asked = time.monotonic()
        program.admin(made.brokers[0], "PUT", f"/admin/v2/namespaces/{program.NAMESPACE}/unload", seconds=300)
        answered = time.monotonic()
        time.sleep(max(5.0, 4 * options.pause))
        open_messages = many.sent - len(many.taken) - len(many.refused)
        report.add("messages without an answer then", open_messages)
        report.must("every message was answered", many.end(), f"{many.sent - len(many.taken) - len(many.refused)} were not")
        before, during = many.waits(steady, asked - 0.1), many.waits(asked)
        report.add("the unload took", answered - asked, "s")
        report.add("errors at the client", len(many.refused), goal=0)
        report.add("longest wait for a confirmation before", max(before.values()) * 1e3, "ms")
        report.add("longest ack gap", max(during.values()) * 1e3, "ms", goal=200)
        report.add("of a topic in the middle", percentile(during.values(), 0.5) * 1e3, "ms")
        report.add("of 99 in 100 topics at most", percentile(during.values(), 0.99) * 1e3, "ms")
        report.must("every topic confirms afterwards", len(during) == options.topics)
        return report.end()


if __name__ == "__main__":
    sys.exit(main())
