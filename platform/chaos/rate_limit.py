"""How exactly a rate limit holds: publishing and dispatch, messages and bytes, set at a topic, a namespace and a tenant.

All cases of publishing run at once, each a tenant of its own, then all of dispatch: producers that send as fast as they are
answered, and consumers with a backlog. A `policy` is Pulsar's rate of one topic; the others are quotas, which bind all
brokers together: each case has topics at every broker.
"""
import sys
import time

import program
from program import wait_until
from tenants import QUOTAS, Flood, Taker, fill, make_tenant, set_quota, spread, tell_all

LEVELS = ("policy", "topic", "namespace", "tenant")
POLICY_FIELDS = {"publish": ("publishThrottlingRateInMsg", "publishThrottlingRateInByte"),
                 "dispatch": ("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte")}


class Case:
    """One limit with its topics."""

    def __init__(self, made, number, way, level, unit, options):
        self.made, self.way, self.level, self.unit = made, way, level, unit
        self.name = f"{way} {unit} at a {level}"
        self.tenant = f"{way[0]}{number}-{level}"
        self.options = options
        namespaces = ("a", "b") if level == "tenant" else ("a",)
        make_tenant(made, self.tenant, namespaces, bundles=4 * len(made.brokers))
        self.topics, self.served = self.choose([f"{self.tenant}/{namespace}" for namespace in namespaces])
        # Messages a second if the limit is on messages, so many as fit if it is on bytes.
        self.limit = options.limit if unit == "messages" else options.limit * options.body_bytes

    def choose(self, namespaces):
        if self.level not in ("policy", "topic"):
            return spread(self.made, namespaces, self.options.topics)
        base, broker = f"persistent://{namespaces[0]}/t", self.made.brokers[0]
        if self.level == "policy" or len(self.made.brokers) == 1:
            program.admin(broker, "PUT", "/admin/v2/" + base.replace("://", "/"))
            return [base], {program.owner_of(self.made, base).name: 1}
        partitions = 4 * len(self.made.brokers)
        program.admin(broker, "PUT", f"/admin/v2/{base.replace('://', '/')}/partitions", partitions)
        topics = [f"{base}-partition-{number}" for number in range(partitions)]
        owners = [program.owner_of(self.made, topic).name for topic in topics]
        return topics, {broker.name: owners.count(broker.name) for broker in self.made.brokers}

    def put(self):
        """Sets the limit and waits until every broker shows it."""
        if self.level == "policy":
            return self.put_policy()
        place = {"topic": f"topics/persistent/{self.tenant}/a/t", "namespace": f"namespaces/{self.tenant}/a",
                 "tenant": f"tenants/{self.tenant}"}[self.level]
        name = f"{self.way}{self.unit.capitalize()}PerSecond"
        set_quota(self.made, place, {name: self.limit})
        for broker in self.made.brokers:
            shown = lambda: program.admin(broker, "GET", f"{QUOTAS}/{place}").json()["operator"]  # noqa: E731
            wait_until(lambda: shown() == {name: self.limit}, 10, f"{broker.name} knows the limit")

    def put_policy(self):
        rate = [-1, -1]
        rate["messages bytes".split().index(self.unit)] = self.limit
        body = dict(zip(POLICY_FIELDS[self.way], rate))
        path = "publishRate" if self.way == "publish" else "dispatchRate"
        if self.way == "dispatch":
            body.update({"relativeToPublishRate": False, "ratePeriodInSecond": 1})
        program.admin(program.owner_of(self.made, self.topics[0]), "POST",
                      f"/admin/v2/{self.topics[0].replace('://', '/')}/{path}", body)

    def bytes_a_message(self):
        """As the brokers count them."""
        counts = [0, 0]
        for topic in self.topics:
            path = f"/admin/v2/{topic.replace('://', '/')}/stats"
            shown = program.admin(program.owner_of(self.made, topic), "GET", path).json()
            way = "In" if self.way == "publish" else "Out"
            counts = [counts[0] + shown[f"bytes{way}Counter"], counts[1] + shown[f"msg{way}Counter"]]
        return counts[0] / max(1, counts[1])

    def judge(self, report, counted, begun):
        """The rate of each window against the limit; the worst of them is the figure."""
        options, size = self.options, 1.0 if self.unit == "messages" else self.bytes_a_message()
        rates = [counted.between(begun + at * options.seconds, begun + (at + 1) * options.seconds) * size / options.seconds
                 for at in range(options.windows)]
        off = [rate / self.limit - 1 for rate in rates]
        worst = max(off, key=abs)
        shown = ", ".join(f"{rate:,.0f}" for rate in rates)
        spread_out = "/".join(str(count) for count in self.served.values())
        report.add(f"{self.name}, topics at brokers {spread_out}: {shown} of {self.limit:,}/s, off by", worst * 100, "%")
        return abs(worst)


def cases(made, way, options):
    chosen = [(level, unit) for level in options.levels.split(",") for unit in ("messages", "bytes")]
    return [Case(made, number, way, level, unit, options) for number, (level, unit) in enumerate(chosen)]


def measured(report, options, all_cases, sides, ending):
    """Waits for the windows, ends the sides and gives back the worst deviation."""
    time.sleep(options.settle)
    begun = time.monotonic()
    time.sleep(options.windows * options.seconds)
    return max(case.judge(report, ending(side), begun) for case, side in zip(all_cases, sides))


def publishing(made, report, options):
    all_cases = cases(made, "publish", options)
    for case in all_cases:
        case.put()
    producers = [max(options.producers, len(case.topics)) for case in all_cases]
    sides = [Flood(made, case.tenant, case.topics, count, options.window, options.body_bytes)
             for case, count in zip(all_cases, producers)]
    tell_all(sides, "go")
    refused = []

    def ended(side):
        counted, not_taken = side.end()
        refused.extend(not_taken)
        return counted

    worst = measured(report, options, all_cases, sides, ended)
    report.must("nothing was refused: it waits", not refused, refused[:3] or "")
    return worst


def dispatching(made, report, options):
    all_cases = cases(made, "dispatch", options)
    seconds = options.settle + options.windows * options.seconds + 10
    for case in all_cases:
        # Enough for the broker whose topics are fewest.
        at_each = [count for count in case.served.values() if count]
        fill(made, case.topics, int(1.2 * seconds * options.limit / len(at_each) / min(at_each)), options.body_bytes, options.batch)
        case.put()
    sides = [Taker(made, case.tenant, case.topics) for case in all_cases]
    tell_all(sides, "go")
    return measured(report, options, all_cases, sides, Taker.end)


def main():
    options = program.arguments(
        __doc__, limit=(300, "messages a second of each limit; those of bytes allow as many messages"),
        levels=(",".join(LEVELS), "where the limits are set"), ways=("publish,dispatch", "what is limited"),
        topics=(12, "topics of a namespace's or tenant's limit at least"), producers=(12, "producers of each case at least"),
        window=(10, "messages that each has under way"), body_bytes=(1024, "size of a message"),
        batch=(5, "messages of a batch that is dispatched"), seconds=(10.0, "length of a window"),
        windows=(2, "windows"), settle=(6.0, "seconds before: what lay ready is used up, brokers have their parts"),
        brokers=(3, "brokers"), bookies=(3, "bookies")).parse_args()
    with program.running(options, brokers=options.brokers, bookies=options.bookies) as made:
        report = program.Report(f"rate limits over {options.brokers} brokers, windows of {options.seconds:g} s", options)
        ways = {"publish": publishing, "dispatch": dispatching}
        worst = max(ways[way](made, report, options) for way in options.ways.split(","))
        report.add("worst deviation", worst * 100, "%", goal=5)
        return report.end()


if __name__ == "__main__":
    sys.exit(main())
