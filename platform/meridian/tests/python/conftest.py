"""Fixtures: one shared region for most tests, and a maker of regions for those that break theirs."""
import itertools
import os

import pytest

from region import Region

COUNTER = itertools.count()


@pytest.fixture(scope="session")
def region(tmp_path_factory):
    region = Region(tmp_path_factory.mktemp("region")).start()
    yield region
    region.close()


@pytest.fixture
def make_region(tmp_path):
    made = []

    def make(**settings):
        settings = {"diskUsageThreshold": 0.99, "diskUsageLwmThreshold": 0.98, **settings}
        region = Region(tmp_path / f"region-{len(made)}", **settings)
        made.append(region)
        return region.start()

    yield make
    for region in made:
        region.close()


@pytest.fixture
def client(region):
    client = region.client()
    yield client
    client.close()


@pytest.fixture
def topic():
    return f"persistent://public/default/t{os.getpid()}-{next(COUNTER)}"
