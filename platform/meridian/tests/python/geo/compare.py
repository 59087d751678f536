#!/usr/bin/env python3
"""Runs scenarios on a group of regions and prints one JSON line per result.

    compare.py BACKEND SCENARIO[:key=value,…] …      compare.py pulsar added_lag:one_way_ms=80 refused:rounds=5

BACKEND: `meridian`, `pulsar`, `mixed` (west Meridian, east Pulsar), `mixed-back` (west Pulsar, east Meridian); with `3` behind
it a third region, `north`. Pulsar is started by the command in PULSAR_PEER (as `pulsar-peer start --dir …`); without it these
backends are skipped with a message. `all` runs every scenario in its default size.
"""
import argparse
import ast
import json
import os
import pathlib
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from backends import Group  # noqa: E402
from scenarios import delivery, moving, speed  # noqa: E402

KINDS = {"meridian": ("meridian", "meridian"), "pulsar": ("pulsar", "pulsar"), "mixed": ("meridian", "pulsar"),
         "mixed-back": ("pulsar", "meridian")}
SCENARIOS = {function.__name__: function for function in (
    speed.added_lag, speed.thin_link, speed.drain_after_cut, speed.wan_bytes, speed.publish_with_remotes, speed.cpu_slope,
    delivery.flapping, delivery.flapping_with_markers, delivery.refused, delivery.region_killed, delivery.expired_before_copy,
    delivery.evicted_before_copy, moving.holes, moving.moved_under_load, moving.region_lost,
    moving.resend, moving.acked_to_the_end, moving.migrated)}
# What both kinds are told: short intervals where the default is minutes.
PULSAR = {"transactionCoordinatorEnabled": "false", "messageExpiryCheckIntervalInMinutes": "1",
          "backlogQuotaCheckIntervalInSeconds": "5"}


def number(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def group_of(backend, folder, settings):
    third = backend.endswith("3")
    west, east = KINDS[backend.removesuffix("3")]
    kinds = {"west": west, "east": east, **({"north": east} if third else {})}
    return Group(folder, kinds, **{**PULSAR, **settings})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", choices=[kind + third for kind in KINDS for third in ("", "3")])
    parser.add_argument("scenarios", nargs="+")
    parser.add_argument("--out", help="append the lines to this file too")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every region")
    parser.add_argument("--keep", help="folder for the regions' data, kept")
    args = parser.parse_args()
    if "meridian" not in (args.backend.removesuffix("3")) and not os.environ.get("PULSAR_PEER"):
        print(f"{args.backend}: skipped, PULSAR_PEER is not set", file=sys.stderr)
        return
    wanted = list(SCENARIOS) if args.scenarios == ["all"] else args.scenarios
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or temporary
        with group_of(args.backend, folder, dict(pair.split("=", 1) for pair in args.set)) as group:
            for text in wanted:
                name, _, rest = text.partition(":")
                options = {key: number(value) for key, value in (pair.split("=", 1) for pair in rest.split(",") if pair)}
                begun = time.monotonic()
                try:
                    result = SCENARIOS[name](group, **options)
                except Exception as error:  # one scenario that fails must not take the others with it
                    traceback.print_exc()
                    result = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
                    group.heal()
                    group.shape(latency_ms=0, bytes_per_s=0)
                line = json.dumps({"backend": args.backend, "scenario": text, "result": result,
                                   "took_s": round(time.monotonic() - begun)})
                print(line, flush=True)
                if args.out:
                    with open(args.out, "a") as out:
                        print(line, file=out)


if __name__ == "__main__":
    main()
