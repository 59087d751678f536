"""What goes wrong in a round, and when: drawn from a seed alone, so that the seed plays it again."""
import dataclasses
import random

import proxy

# How often each is drawn, of their sum.
KINDS = {
    "kill broker": 4, "pause broker": 3, "cut broker": 3, "kill bookie": 4, "pause bookie": 3, "cut bookie": 3, "fill disk": 3,
    "lose ledgers": 2, "kill store": 3, "unload": 1, "new consumers": 2,
}
SHORTEST_SECONDS, LONGEST_SECONDS = 0.3, 6.0
BROKERS_AWAY, BOOKIES_AWAY = 2, 2
FAULTS = (2, 5)


@dataclasses.dataclass(frozen=True)
class Fault:
    begins: float
    lasts: float
    kind: str
    target: int = 0
    way: str = ""

    @property
    def ends(self):
        return self.begins + self.lasts

    def of(self, role):
        return self.kind.endswith(role) or (role == "bookie" and self.kind in ("fill disk", "lose ledgers"))

    def __str__(self):
        target = "" if self.kind in ("kill store", "unload", "new consumers") else f" {self.target}"
        return f"{self.begins:.1f}-{self.ends:.1f} s {self.kind}{target}{self.way and ' (' + self.way + ')'}"


def draw(randomness, seconds, brokers, bookies):
    kind = randomness.choices(list(KINDS), list(KINDS.values()))[0]
    begins = randomness.uniform(0, seconds * 0.7)
    lasts = randomness.uniform(SHORTEST_SECONDS, min(LONGEST_SECONDS, seconds - begins))
    # Only one bookie has a disk of its own that can be filled.
    target = 0 if kind == "fill disk" else randomness.randrange(brokers if kind.endswith("broker") else bookies)
    way = randomness.choice(proxy.WAYS) if kind.startswith("cut") else ""
    return Fault(round(begins, 1), round(lasts, 1), kind, target, way)


def fits(fault, faults):
    """One fault at a time for a process, one bookie's data gone at a time, and enough left of each role."""
    beside = [other for other in faults if other.begins < fault.ends + 0.5 and fault.begins < other.ends + 0.5]
    if fault.kind == "lose ledgers" and any(other.kind == "lose ledgers" for other in faults):
        return False
    for role, most in (("broker", BROKERS_AWAY), ("bookie", BOOKIES_AWAY)):
        if fault.of(role):
            if any(other.of(role) and other.target == fault.target for other in beside):
                return False
            # What lost its ledgers stays away under its name: nothing else happens to it.
            if role == "bookie" and any("lose ledgers" in (fault.kind, other.kind) and other.target == fault.target
                                        for other in faults if other.of(role)):
                return False
            return sum(other.of(role) for other in beside) < most
    return not any(other.kind == fault.kind for other in beside)


def plan(seed, seconds=10.0, brokers=3, bookies=5):
    """The faults of a round, by their beginning."""
    randomness = random.Random(seed)
    wanted, faults = randomness.randint(*FAULTS), []
    for _ in range(wanted * 4):
        fault = draw(randomness, seconds, brokers, bookies)
        if len(faults) < wanted and fits(fault, faults):
            faults.append(fault)
    return sorted(faults, key=lambda fault: fault.begins)
