"""Rounds of random faults against a cluster under traffic, with an oracle: 0 confirmed messages lost, 0 acknowledged and
settled ones delivered again, order per key kept. A round is played again by its seed: `--seed N --rounds 1`."""
import random
import shutil
import sys
import time

import program
import requests
import schedule
from clients import Traffic
from faults import Chaos, Faults
from program import wait_until

# Acknowledgements hold two beats of the cursors after they were given.
SETTLE_SECONDS = 2.5
CALM_SECONDS = 4.0
HEAL_SECONDS = 120


class Round:
    """One seed: traffic, faults, healing, and the questions to the oracle."""

    def __init__(self, made, seed, seconds=10.0, topics=3, rate=150):
        self.made, self.seed, self.notes = made, seed, []
        self.faults = schedule.plan(seed, seconds, len(made.brokers), len(made.bookies))
        self.randomness = random.Random(seed + 1)
        self.begun = time.monotonic()
        self.traffic = []
        self.topics, self.rate = topics, rate

    def play(self):
        """What was broken; nothing if all held."""
        try:
            for number in range(self.topics):
                topic = f"persistent://{program.NAMESPACE}/chaos-{self.seed}-{number}"
                self.traffic.append(Traffic(self.made, topic, self.rate, batching=number % 2 == 0))
            time.sleep(CALM_SECONDS)
            self.settle()
            faults = Faults(self.made, self.traffic)
            faults.play(self.faults)
            self.heal(faults)
            self.check()
            if not self.broken():
                self.remove()
            return self.broken()
        finally:
            for traffic in self.traffic:
                traffic.close()

    def settle(self):
        for traffic in self.traffic:
            traffic.settle(time.monotonic() - SETTLE_SECONDS)

    def broken(self):
        return [text for traffic in self.traffic for text in traffic.oracle.broken] + panics(self.made)

    def until(self, condition, what, seconds=HEAL_SECONDS):
        """Waits, and counts it as broken if it does not come."""
        try:
            wait_until(lambda: answered(condition), seconds, what)
        except AssertionError as error:
            self.traffic[0].oracle.complain(str(error))

    def heal(self, faults):
        """Everything runs again, and the cluster mends itself."""
        began = time.monotonic()
        if self.made.joining:
            self.made.joining.join()
        for node in [self.made.store, *self.made.nodes()]:
            self.revive(node)
        for node in self.made.bookies + self.made.brokers:
            if node.name not in self.made.proxies:
                self.made.interpose(node)
        for bookie in self.made.bookies:
            self.mend(bookie)
        for broker in self.made.brokers:
            self.until(lambda: program.serves(broker), f"{broker.name} serves")
        for traffic in self.traffic:
            traffic.producing.stop()
        self.until(lambda: all(traffic.producing.all_answered() for traffic in self.traffic), "an answer to every message")
        self.until(lambda: all(traffic.oracle.delivered() for traffic in self.traffic), "the delivery of what was confirmed")
        self.healed = time.monotonic() - began
        for node in faults.lost.values():
            self.restored(node)

    def revive(self, node):
        """A process that ended because what it needs was away is started again, as by any supervisor."""
        deadline, again = time.monotonic() + HEAL_SECONDS, 0
        while True:
            if node.process.poll() is not None:
                again += 1
                time.sleep(0.5)
                node.begin()
            if node.ready_file.exists():
                node.read_ready(node.ready_file.read_text())
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{node.name} does not start:\n{node.log()}")
            time.sleep(0.02)
        if again:
            self.notes.append(f"{node.name} started again {again} times")

    def mend(self, bookie):
        """Where the disk failed, the bookie is started again unless it turns whole by itself."""
        try:
            wait_until(lambda: answered(lambda: healthy(bookie)), 15, "health")
        except AssertionError:
            self.notes.append(f"{bookie.name} restarted: {answered(lambda: bookie.health().text.strip()[:100])}")
            bookie.kill()
            bookie.start()
            self.until(lambda: healthy(bookie), f"{bookie.name} is healthy")

    def restored(self, node):
        """What a lost bookie held has full copies again, and it does not come back as if it were whole."""
        began, name = time.monotonic(), node.settings["bookieId"]

        def gone():
            lines = program.admin(self.made.brokers[0], "GET", "/admin/v2/meridian/bookies").json()
            return not any(line["id"] == name and line["ledgers"] for line in lines)

        self.until(gone, f"{name} holds nothing any more", 240)
        self.notes.append(f"{name} refused: {node.refused()[-120:]}; copied after {time.monotonic() - began:.0f} s")
        if node.data not in self.made.disks:
            shutil.rmtree(node.data, ignore_errors=True)

    def check(self):
        # Acknowledgements that were given settle; then brokers are killed or topics moved, and more is sent.
        self.until(self.caught_up, "no backlog", 30)
        time.sleep(SETTLE_SECONDS + 0.2)
        self.settle()
        held = [traffic.shared.held() for traffic in self.traffic]
        for traffic in self.traffic:
            traffic.shared.begin_again()
        self.last = self.randomness.choice(["brokers killed", "unloaded"])
        if self.last == "unloaded":
            Faults(self.made, self.traffic).unload()
        else:
            for broker in self.made.brokers:
                broker.kill()
            for broker in self.made.brokers:
                broker.begin()
            for broker in self.made.brokers:
                self.revive(broker)
        for traffic in self.traffic:
            traffic.producing.send_last()
        self.until(lambda: all(t.producing.all_answered() and t.oracle.delivered() for t in self.traffic), "the last messages")
        self.until(lambda: all(h <= t.shared.since for h, t in zip(held, self.traffic)), "what nobody acknowledged", 30)
        for traffic, waits in zip(self.traffic, held):
            traffic.oracle.check_delivered()
            traffic.shared.check_came_again(waits)
            traffic.oracle.read(read_bodies(self.made, traffic.oracle.topic))

    def remove(self):
        """Topics of a round go when it has held, so that ledgers are deleted and collected meanwhile, too."""
        for traffic in self.traffic:
            path = f"/admin/v2/{traffic.oracle.topic.replace('://', '/')}?force=true"
            self.until(lambda: program.admin(self.made.brokers[0], "DELETE", path), f"the removal of {traffic.oracle.topic}", 30)

    def caught_up(self):
        for traffic in self.traffic:
            path = f"/admin/v2/{traffic.oracle.topic.replace('://', '/')}/stats"
            subscriptions = program.admin(self.made.brokers[0], "GET", path).json()["subscriptions"]
            if any(subscriptions[name]["msgBacklog"] for name in ("ordered", "keyed")):
                return False
        return True

    def told(self):
        oracles = [traffic.oracle for traffic in self.traffic]
        again = sum(subscription.again for oracle in oracles for subscription in oracle.subscriptions.values())
        return (f"seed {self.seed}: {'; '.join(map(str, self.faults))}; at the end {getattr(self, 'last', '?')} | "
                f"{sum(len(oracle.confirmed) for oracle in oracles)} confirmed, {sum(len(oracle.refused) for oracle in oracles)} refused, "
                f"{again} delivered again, healed in {getattr(self, 'healed', float('nan')):.1f} s, {time.monotonic() - self.begun:.0f} s"
                + "".join(f"\n    {note}" for note in self.notes))


def answered(condition):
    """What can't be asked yet does not hold yet."""
    try:
        return condition()
    except (requests.RequestException, RuntimeError):
        return False


def healthy(bookie):
    return bookie.health().status_code == 200 and bookie.metric("bookie_registered") == 1


def read_bodies(made, topic):
    client = made.client()
    reader = client.create_reader(topic, program.harness.pulsar.MessageId.earliest, receiver_queue_size=5000)
    bodies = []
    while reader.has_message_available():
        key, number = reader.read_next(30_000).data().split(b":", 2)[:2]
        bodies.append((key.decode(), int(number)))
    client.close()
    return bodies


def panics(made):
    """What no process may say."""
    found = []
    for path in sorted(made.folder.glob("*.log")):
        text = path.read_text(errors="replace")
        at = text.find("panicked")
        if at >= 0:
            found.append(f"{path.name}: {text[max(0, at - 200):at + 600]}")
    return found


def main():
    options = program.arguments(
        __doc__, rounds=(100, "rounds"), seed=(0, "of the first round; each next one counts on"), seconds=(10.0, "of faults in a round"),
        per_cluster=(10, "rounds on one cluster, then a fresh one"), topics=(3, "topics of a round"),
        rate=(150, "messages a second and topic"), brokers=(3, "brokers"), bookies=(5, "bookies"),
        minutes=(0.0, "begin no round after so long; 0 = all of them")).parse_args()
    program.use(options)
    report = program.Report(f"chaos rounds from seed {options.seed}", options)
    begun, played, broken, seed = time.monotonic(), 0, [], options.seed
    end = options.seed + options.rounds

    def more():
        return seed < end and not (options.minutes and time.monotonic() - begun > options.minutes * 60)

    while more():
        last = seed + options.per_cluster
        with program.running(options, options.brokers, options.bookies, Chaos) as made:
            while seed < last and more():
                one = Round(made, seed, options.seconds, options.topics, options.rate)
                try:
                    found = one.play()
                except Exception as error:
                    found = [*one.broken(), f"the round ended with {type(error).__name__}: {error}"]
                report.say(one.told())
                for text in found:
                    report.say(f"  BROKEN: {text}")
                played, seed = played + 1, seed + 1
                if found:
                    broken.append(one.seed)
                    break
            else:
                whole, said = program.audited(made)
                if not whole:
                    report.say(f"the audit after round {seed - 1}: {said}")
    report.add("rounds", played)
    report.must("0 lost, 0 acknowledged and settled delivered again, order per key kept, everything served again", not broken,
                f"seeds {broken}" if broken else "")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
