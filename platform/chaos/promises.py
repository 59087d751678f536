"""What clients were promised, and what they saw instead. Knows no network: it is told what was sent, confirmed, delivered,
acknowledged and read, and names every promise that was broken.

1. A confirmed message is stored. 2. It is delivered to every subscription. 3. Of the messages of one key each comes for the
first time after those before it. 4. What was acknowledged and settled does not come again. 5. What was not acknowledged
comes again.

A message may come more than once: a client sends again what was not answered. An acknowledgement is settled when it had
two beats of the cursors in a healthy cluster; `settle` says when. Messages are known by key and number, deliveries by the
position that the server gave them, because a message that was sent twice is two entries.
"""
import threading
import time


class Oracle:
    def __init__(self, topic):
        self.topic, self.lock = topic, threading.Lock()
        self.sent, self.confirmed, self.refused = 0, set(), []
        self.subscriptions = {}
        self.broken = []

    def subscription(self, name, ordered):
        return self.subscriptions.setdefault(name, Subscription(self, name, ordered))

    def complain(self, text):
        with self.lock:
            self.broken.append(f"{self.topic}: {text}")

    def read(self, bodies):
        """All that is stored, as a reader from the beginning sees it."""
        stored = set(bodies)
        lost = self.confirmed - stored
        if lost:
            self.complain(f"{len(lost)} of {len(self.confirmed)} confirmed messages are not stored, as {sorted(lost)[:3]}")
        latest = {}
        for key, number in dict.fromkeys(bodies):
            if number < latest.get(key, -1):
                self.complain(f"stored out of order: {key}:{number} behind {latest[key]}")
                break
            latest[key] = number

    def delivered(self):
        """Whether every subscription saw every confirmed message."""
        return all(self.confirmed <= subscription.seen for subscription in self.subscriptions.values())

    def check_delivered(self):
        for subscription in self.subscriptions.values():
            missing = self.confirmed - subscription.seen
            if missing:
                self.complain(f"{len(missing)} confirmed messages never came to {subscription.name}, as {sorted(missing)[:3]}")


class Subscription:
    def __init__(self, oracle, name, ordered):
        self.oracle, self.name, self.ordered, self.lock = oracle, name, ordered, threading.Lock()
        self.seen, self.latest, self.again, self.since = set(), {}, 0, set()
        # Positions by what became of them; an acknowledgement with the moment when it was given.
        self.acked, self.settled, self.positions = {}, set(), {}

    def received(self, body, position):
        key, number = body
        with self.lock:
            if position in self.settled:
                self.oracle.complain(f"{self.name}: {key}:{number} at {position} was acknowledged and settled and comes again")
            self.positions[position] = body
            self.since.add(body)
            if body in self.seen:
                self.again += 1
                return
            self.seen.add(body)
            if self.ordered and number < self.latest.get(key, -1):
                self.oracle.complain(f"{self.name}: {key}:{number} came for the first time behind {self.latest[key]}")
            self.latest[key] = max(number, self.latest.get(key, -1))

    def acknowledged(self, position):
        with self.lock:
            self.acked[position] = time.monotonic()

    def acknowledged_up_to(self, last):
        now = time.monotonic()
        with self.lock:
            for position in self.positions:
                if position <= last:
                    self.acked.setdefault(position, now)

    def settle(self, before):
        """Acknowledgements given before that moment hold from now on."""
        with self.lock:
            self.settled |= {position for position, moment in self.acked.items() if moment < before}

    def begin_again(self):
        """From now on `since` tells what comes."""
        with self.lock:
            self.since = set()

    def held(self):
        """What was delivered and never acknowledged at any of its positions."""
        with self.lock:
            return set(self.positions.values()) - {self.positions[position] for position in self.acked}

    def check_came_again(self, held):
        missing = held - self.since
        if missing:
            text = f"{len(missing)} messages that nobody acknowledged do not come again, as {sorted(missing)[:3]}"
            self.oracle.complain(f"{self.name}: {text}")
