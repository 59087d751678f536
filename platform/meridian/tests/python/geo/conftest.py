"""Two Meridian regions for most tests, and a maker of groups for those that break theirs.

GEO_KIND=pulsar runs the same tests against Apache Pulsar (with PULSAR_PEER, see `compare.py`, and `--timeout 0`): it shows
which of the reported faults it has, and that the tests ask for nothing that only Meridian could know. A list of kinds,
as GEO_KIND=meridian,pulsar, goes round over the regions: a mixed pair.
"""
import itertools
import os

import pytest

from backends import Group

# Short intervals where the default is minutes.
QUICK = {"backlogQuotaCheckIntervalInSeconds": "1"}
KIND = os.environ.get("GEO_KIND", "meridian")


def start(folder, *names, **settings):
    kinds = itertools.cycle(KIND.split(","))
    return Group(folder, dict(zip(names, kinds)), **{**QUICK, **settings}).start()


def whole(group):
    """The group for one test, with its links whole and unshaped again also after one that failed."""
    yield group
    group.heal()
    group.shape(latency_ms=0, bytes_per_s=0)


@pytest.fixture(scope="session")
def shared_pair(tmp_path_factory):
    group = start(tmp_path_factory.mktemp("pair"), "west", "east")
    yield group
    group.close()


@pytest.fixture
def pair(shared_pair):
    yield from whole(shared_pair)


@pytest.fixture(scope="session")
def shared_apart(tmp_path_factory):
    group = start(tmp_path_factory.mktemp("apart"), "west", "east", regionLinkPort="")
    yield group
    group.close()


@pytest.fixture
def apart(shared_apart):
    """Two regions that share messages and no policies, as Pulsar's do: what one refuses, the other takes."""
    yield from whole(shared_apart)


@pytest.fixture
def make_group(tmp_path):
    made = []

    def make(*names, **settings):
        made.append(start(tmp_path / f"group-{len(made)}", *names, **settings))
        return made[-1]

    yield make
    for group in made:
        group.close()
