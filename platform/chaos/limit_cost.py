"""What limits that are in force but not reached cost: CPU of the broker per message, in turns with and without.

With = messages and bytes, publishing and dispatch, at the tenant, the namespace and the topic (twelve limits). Each
message is published and consumed once. Turns alternate (without, with, with, without, …), so that what else the machine
does meets both.
"""
import signal
import subprocess
import sys

import program
import region
from program import wait_until
from tenants import make_tenant, set_quota
from traffic import percentile

TENANT, NAMESPACE = "cost", "cost/n"
LIMITS = {f"{way}{unit}PerSecond": 10 ** 12 for way in ("publish", "dispatch") for unit in ("Messages", "Bytes")}


def perf(made, *arguments):
    out = open(made.folder / "perf.log", "ab")
    return subprocess.Popen([region.BINARY, "perf", *arguments, "--url", made.url().split(",")[0]], stdout=out, stderr=out)


def topic_of(batch):
    return f"persistent://{NAMESPACE}/batch-{batch}"


def counters(made, topic):
    """Messages published, and not acknowledged."""
    shown = program.admin(made.brokers[0], "GET", f"/admin/v2/{topic.replace('://', '/')}/stats").json()
    return shown["msgInCounter"], sum(one["msgBacklog"] for one in shown["subscriptions"].values())


def limit(made, topic, limits):
    for place in (f"tenants/{TENANT}", f"namespaces/{NAMESPACE}", f"topics/{topic.replace('://', '/')}"):
        set_quota(made, place, limits)


def turn(made, batch, messages, rate, options):
    """CPU seconds of the broker per million messages, published and consumed."""
    topic, broker = topic_of(batch), made.brokers[0]
    before, spent = counters(made, topic), program.cpu_seconds_exactly(broker)
    consumer = perf(made, "consume", topic, "--subscription", "perf", "--permits", "5000")
    try:
        wait_until(lambda: consumers(made, topic) == 1, 20, "the consumer is there")
        produce = perf(made, "produce", topic, "--rate", str(rate), "--batch", str(batch),
                       "--size", str(options.body_bytes), "--messages", str(messages))
        if produce.wait(600) != 0:
            raise RuntimeError(f"perf produce failed, see {made.folder}/perf.log")
        wait_until(lambda: counters(made, topic)[1] == 0, 60, "all of it was acknowledged")
    finally:
        consumer.send_signal(signal.SIGINT)
        consumer.wait(30)
    done = counters(made, topic)[0] - before[0]
    if done != messages:
        raise RuntimeError(f"{done} messages were published, not {messages}")
    return (program.cpu_seconds_exactly(broker) - spent) / messages * 1e6


def consumers(made, topic):
    shown = program.admin(made.brokers[0], "GET", f"/admin/v2/{topic.replace('://', '/')}/stats").json()
    return sum(len(one["consumers"]) for one in shown["subscriptions"].values())


def compare(made, report, batch, options):
    """The ratio with and without of each block of four turns."""
    topic = topic_of(batch)
    messages, rate = options.entries, options.rate
    if batch:
        messages, rate = messages // 4 * batch, rate // 4 * batch
    program.admin(made.brokers[0], "PUT", f"/admin/v2/{topic.replace('://', '/')}")
    program.admin(made.brokers[0], "PUT", f"/admin/v2/{topic.replace('://', '/')}/subscription/perf", "latest")
    turn(made, batch, messages, rate, options)
    took = {False: [], True: []}
    for block in range(options.blocks):
        for with_limits in (False, True, True, False) if block % 2 == 0 else (True, False, False, True):
            limit(made, topic, LIMITS if with_limits else None)
            took[with_limits].append(turn(made, batch, messages, rate, options))
    ratios = [sum(took[True][at:at + 2]) / sum(took[False][at:at + 2]) for at in range(0, 2 * options.blocks, 2)]
    what = f"batches of {batch}" if batch else "no batches"
    report.add(f"{what}, without", percentile(took[False], 0.5), "CPU-s per million")
    report.add(f"{what}, with twelve limits", percentile(took[True], 0.5), "CPU-s per million")
    report.say(f"{what}, with / without of each block: {', '.join(f'{ratio:.3f}' for ratio in sorted(ratios))}")
    cost = (sum(took[True]) / sum(took[False]) - 1) * 100
    report.add(f"{what}, the limits cost", cost, "%", goal=3)


def main():
    options = program.arguments(
        __doc__, entries=(100_000, "messages of a turn; a quarter as many batches"),
        rate=(10_000, "messages a second; a quarter as many batches"), batches=("0,100", "messages of a batch; 0 = none"),
        body_bytes=(100, "size of a message"), blocks=(6, "blocks of four turns"),
        bookies=(3, "bookies")).parse_args()
    with program.running(options, brokers=1, bookies=options.bookies) as made:
        report = program.Report("the cost of limits that are not reached", options)
        make_tenant(made, TENANT, bundles=1)
        for batch in options.batches.split(","):
            compare(made, report, int(batch), options)
        shown = program.admin(made.brokers[0], "GET", f"/admin/v2/meridian/quotas/tenants/{TENANT}").json()
        report.must("the limits of the last turn are as they were set", shown["operator"] in ({}, LIMITS))
        return report.end()


if __name__ == "__main__":
    sys.exit(main())
