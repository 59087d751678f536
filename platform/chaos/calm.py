"""No false alarm: minutes of load with every core busy, in which no broker may lose its lease and no bookie its place."""
import os
import subprocess
import sys
import time

import program
from traffic import Publisher

TOPIC = f"persistent://{program.NAMESPACE}/calm"
LOOK_SECONDS = 5
ASSIGNED = "meridian_ownership_bundles_assigned_total"


def figures(made):
    """What would show a lease that was lost, or a node that was given up, though nothing failed."""
    return {
        "leases lost": int(program.total(made.brokers, "meridian_ownership_stops_total")),
        "bundles taken from others": int(sum(program.labelled(broker, ASSIGNED, 'reason="broker_lost"') for broker in made.brokers)),
        "bookies given up": int(program.total(made.bookies, "autorecovery_bookies_missing")),
    }


def watch(made, minutes):
    """Worst figures over the time, and the longest time since the store answered a broker."""
    end, worst, oldest = time.monotonic() + minutes * 60, figures(made), 0.0
    while time.monotonic() < end:
        time.sleep(min(LOOK_SECONDS, max(0.0, end - time.monotonic())))
        worst = {what: max(value, worst[what]) for what, value in figures(made).items()}
        oldest = max([oldest] + [broker.metric("meridian_ownership_store_answer_age_seconds") for broker in made.brokers])
    return worst, oldest


def main():
    options = program.arguments(
        __doc__, minutes=(60.0, "how long"), burners=(os.cpu_count(), "processes that only burn CPU"),
        rate=(1000, "messages a second"), body_bytes=(100, "size of a message"), brokers=(3, "brokers"), bookies=(5, "bookies")).parse_args()
    with program.running(options, brokers=options.brokers, bookies=options.bookies) as made:
        report = program.Report(f"{options.minutes:g} minutes with every core busy ({options.burners} burners)", options)
        program.harness.keep(made, TOPIC)
        load = Publisher(made, TOPIC, options.rate, options.body_bytes)
        before = figures(made)
        burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.burners)]
        try:
            worst, oldest = watch(made, options.minutes)
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        sent = load.end()
        for what, value in worst.items():
            report.add(what, value - before[what], goal=0)
        report.add("longest time since the store answered a broker", oldest, "s")
        report.add("renewals without an answer", int(program.total(made.brokers, "meridian_ownership_renewals_failed_total")))
        report.add("errors at the client", len(sent.refused), goal=0)
        report.add("publish p99", sent.p99() * 1e3, "ms")
        report.add("longest ack gap", sent.longest_gap() * 1e3, "ms")
        program.check_stored(report, made, TOPIC, sent)
        return report.end()


if __name__ == "__main__":
    sys.exit(main())
