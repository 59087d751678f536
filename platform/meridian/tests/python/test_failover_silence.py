"""What a switch would cost, asked while a broker or a region accepts connections and answers nothing: a paused process."""
import signal
import time

import pytest

from cluster import ClusterRegion
from region import wait_until
from test_failover import FAILOVER, Pair

# Twice this and 6 s more is what a question to another region may take.
SETTINGS = {"failoverDrainTimeoutMillis": 1000}
LIMIT_SECONDS = 10
# Of the machine, not of the answer.
MARGIN_SECONDS = 5


@pytest.fixture
def make_pair(tmp_path):
    made = []

    def make(**options):
        made.append(Pair(tmp_path, **options, **SETTINGS))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


def cost(region):
    """The report for a switch to east; it comes in time, whoever is silent."""
    begun = time.monotonic()
    answer = region.admin("GET", f"{FAILOVER}/geo/orders/cost?to=east")
    took = time.monotonic() - begun
    assert answer.status_code == 200, answer.text
    assert took < LIMIT_SECONDS + MARGIN_SECONDS, took
    return answer.json()


def not_known(report, reason):
    assert report["missing"] is None and report["again"] is None and report["exact"] is False, report
    assert reason in report["unknown"][0] and report["unknown"][0] in report["blockers"], report


def signal_all(region, what):
    for process in [node.process for node in region.cluster.nodes()] if isinstance(region, ClusterRegion) else [region.process]:
        process.send_signal(what)


def test_a_region_that_answers_nothing_is_not_waited_for_and_costs_nobody_knows_what(make_pair):
    pair = make_pair()
    wait_until(lambda: cost(pair.east)["exact"], 20, "the figures of the active region")
    signal_all(pair.west, signal.SIGSTOP)
    report = cost(pair.east)
    assert report["exact"] is False and "region west does not answer" in "".join(report["blockers"]), report
    # What it heard before is forgotten; it dials a port that takes connections.
    pair.east.stop()
    pair.east.start()
    not_known(cost(pair.east), "region west does not answer")
    peer = lambda: pair.east.get("/admin/v2/meridian/region-link/peers").get("west", {})
    wait_until(lambda: "did not answer" in peer().get("explanation", ""), 40, "the silence is seen for what it is")
    not_known(cost(pair.east), "region west does not answer")
    signal_all(pair.west, signal.SIGCONT)
    wait_until(lambda: cost(pair.east)["exact"], 40, "the figures are known again")


def test_a_broker_that_answers_nothing_is_not_waited_for_and_costs_nobody_knows_what(make_pair):
    pair = make_pair(west=ClusterRegion)
    asked, silent = pair.west.cluster.brokers
    client = pair.west.client()
    producers = [client.create_producer(f"persistent://geo/orders/t{number}") for number in range(12)]
    for producer in producers:
        producer.send(b"x")
    wait_until(lambda: (report := cost(pair.west))["exact"] and report["missing"] == 0, 40, "everything is in east")
    assert len(cost(pair.west)["topics"]) == len(producers)
    # It is one of the region's brokers until its lease is over: asked at once.
    silent.pause()
    report = cost(pair.west)
    not_known(report, "broker ")
    assert str(silent.ready["web_port"]) in report["unknown"][0], report
    silent.resume()
    wait_until(lambda: (report := cost(pair.west))["exact"] and report["missing"] == 0, 60, "the figures are known again")
    client.close()
