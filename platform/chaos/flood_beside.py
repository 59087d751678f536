"""A tenant with many flooding producers beside a quiet tenant on the same brokers: what the quiet one feels of it.

Turns alone and beside the flood alternate while the quiet publisher goes on at its rate. First the operator's limit
binds the flooding tenant; at the end it is lifted, so that only what the broker does by itself stands between them.
"""
import sys
import time

import program
from tenants import Flood, make_tenant, set_quota, tell_all
from traffic import Publisher, percentile

QUIET = "persistent://quiet/n/t"


class Turn:
    """A stretch of time, and what was spent in it."""

    def __init__(self, kind, made, flooders, quiet, seconds):
        self.kind = kind
        pids = {"flooding clients": [flooder.process.pid for flooder in flooders], "quiet client": [quiet.process.pid]}
        spent = lambda: {**{what: program.cpu_of(ids) for what, ids in pids.items()},  # noqa: E731
                         "brokers": program.cpu_seconds(made.brokers), "bookies": program.cpu_seconds(made.bookies)}
        self.begun, before = time.monotonic(), spent()
        time.sleep(seconds)
        self.ended, after = time.monotonic(), spent()
        self.cores = {what: (after[what] - before[what]) / (self.ended - self.begun) for what in after}


def play(made, options):
    """All turns; what the quiet publisher saw, and what of the flood was confirmed."""
    share, rest = divmod(options.flooders, options.processes)
    topics = [f"persistent://flood/n/t{number}" for number in range(options.topics)]
    flooders = [Flood(made, number, topics[number:] + topics[:number], share + (number < rest), options.window, options.body_bytes)
                for number in range(options.processes)]
    quiet = Publisher(made, QUIET, options.rate, options.body_bytes)
    turns = []

    def turn(kind, flooding, seconds):
        if flooding:
            tell_all(flooders, "go")
        time.sleep(options.settle)
        turns.append(Turn(kind, made, flooders, quiet, seconds))
        if flooding:
            tell_all(flooders, "pause")

    limits = {"publishMessagesPerSecond": options.limit}
    set_quota(made, "tenants/flood", limits)
    for _ in range(options.rounds):
        turn("alone", False, options.seconds)
        turn("limited", True, options.seconds)
    set_quota(made, "tenants/flood", None)
    turn("alone", False, options.seconds)
    turn("unlimited", True, options.seconds)
    return turns, quiet.end(), [flooder.end() for flooder in flooders]


def tell(report, options, turns, sent, flood):
    """The figures of each kind of turn, against those alone."""
    alone = percentile([sent.p99(turn.begun, turn.ended) for turn in turns if turn.kind == "alone"], 0.5)
    report.add("quiet alone, publish p99", alone * 1e3, "ms")
    for kind in ("limited", "unlimited"):
        own = [turn for turn in turns if turn.kind == kind]
        seconds = sum(turn.ended - turn.begun for turn in own)
        p99s = [sent.p99(turn.begun, turn.ended) for turn in own]
        done = sum(len(sent.latencies(turn.begun, turn.ended)) for turn in own)
        moments = [moment for moment in sent.moments if any(turn.begun <= moment < turn.ended for turn in own)]
        came = sum(counted.between(turn.begun, turn.ended) for counted, _ in flood for turn in own)
        goal = kind == "limited"
        report.say(f"beside {options.flooders} flooding producers, {kind}:")
        report.add("  flood confirmed", came / seconds, "/s")
        report.add("  quiet publish p99", percentile(p99s, 0.5) * 1e3, "ms")
        report.add("  quiet publish p99, of alone", percentile(p99s, 0.5) / alone, goal=1.5 if goal else None)
        report.add("  quiet rate, of asked", len(moments) / seconds / options.rate, goal=0.99 if goal else None, below=False)
        report.add("  quiet sends of that time confirmed", done / (seconds * options.rate))
        for what in own[0].cores:
            report.add(f"  CPU of {what}", sum(turn.cores[what] for turn in own) / len(own), "cores")
    report.say("quiet publish p99 of each turn: " +
               ", ".join(f"{turn.kind} {sent.p99(turn.begun, turn.ended) * 1e3:.1f} ms" for turn in turns))


def main():
    options = program.arguments(
        __doc__, flooders=(200, "flooding producers"), processes=(4, "processes that they run in"),
        topics=(20, "topics that they send to"), window=(20, "messages that each has under way"),
        limit=(2000, "messages a second that the flooding tenant may publish, while limited"),
        rate=(500, "messages a second of the quiet tenant"), body_bytes=(1024, "size of a message"),
        seconds=(15.0, "length of a turn"), settle=(4.0, "seconds before each turn that do not count"),
        rounds=(3, "turns alone and limited"), brokers=(1, "brokers"), bookies=(3, "bookies")).parse_args()
    with program.running(options, brokers=options.brokers, bookies=options.bookies) as made:
        report = program.Report(f"{options.flooders} flooding producers beside a quiet tenant", options)
        for tenant in ("flood", "quiet"):
            make_tenant(made, tenant)
        turns, sent, flood = play(made, options)
        tell(report, options, turns, sent, flood)
        report.must("nothing of the quiet tenant was refused", not sent.refused, sent.refused[:3] or "")
        report.must("everything it sent was confirmed", len(sent.confirmed()) == len(sent.due), f"{len(sent.due):,} messages")
        refused = [one for _, list_of in flood for one in list_of]
        report.must("nothing of the flood was refused: it waits", not refused, refused[:3] or "")
        return report.end()


if __name__ == "__main__":
    sys.exit(main())
