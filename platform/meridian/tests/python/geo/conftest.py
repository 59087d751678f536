"""Two Meridian regions for most tests, and a maker of groups for those that break theirs."""
import pytest

from backends import Group

# Short intervals where the default is minutes.
QUICK = {"backlogQuotaCheckIntervalInSeconds": "1"}


def start(folder, *names, **settings):
    return Group(folder, dict.fromkeys(names, "meridian"), **{**QUICK, **settings}).start()


@pytest.fixture(scope="session")
def shared_pair(tmp_path_factory):
    group = start(tmp_path_factory.mktemp("pair"), "west", "east")
    yield group
    group.close()


@pytest.fixture
def pair(shared_pair):
    """The shared pair with its links whole and unshaped, also after a test that failed."""
    yield shared_pair
    shared_pair.heal()
    shared_pair.shape(latency_ms=0, bytes_per_s=0)


@pytest.fixture
def make_group(tmp_path):
    made = []

    def make(*names, **settings):
        made.append(start(tmp_path / f"group-{len(made)}", *names, **settings))
        return made[-1]

    yield make
    for group in made:
        group.close()
