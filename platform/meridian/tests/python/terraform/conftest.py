"""Fixtures of the tests with the real terraform; without the program they are skipped, and say so."""
import itertools
import sys
import pathlib

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from harness import PROVIDER, TERRAFORM, Terraform, make_mirror

COUNTER = itertools.count()


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    if TERRAFORM is None:
        skip = pytest.mark.skip(reason="NOT RUN: there is no terraform on this machine; the provider's own tests ran")
        for item in items:
            if here in pathlib.Path(item.fspath).parents:
                item.add_marker(skip)
    else:
        assert PROVIDER.exists(), f"{PROVIDER} is not built: cargo build -p meridian-terraform"


@pytest.fixture(scope="session")
def settings(tmp_path_factory):
    return make_mirror(tmp_path_factory.mktemp("terraform"))


@pytest.fixture
def terraform(tmp_path, settings, region):
    def make(text=None, url=region.web, **environment):
        one = Terraform(tmp_path / f"terraform-{next(COUNTER)}", settings, url, **environment)
        return one.write(text).init() if text is not None else one

    return make


@pytest.fixture
def name():
    return f"t{next(COUNTER)}"
