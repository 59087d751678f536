#!/usr/bin/env python3
"""Runs the script of calls against a broker and compares answers.

  compare.py record --url http://localhost:8080 --out answers.json      what this broker answers
  compare.py diff --url http://localhost:8080 [--all]                   what this one answers differently, but for what is
                                                                        meant to be (differences.py)
  compare.py accept --url http://localhost:8080                         all differences that a row explains into meant.txt
  compare.py page                                                       docs/reference/admin-differences.md

`answers.json` beside this file was recorded on Apache Pulsar 4.0.7 (standalone, no authentication, topic policies on).
"""
import argparse
import json
import pathlib
import re
import sys

import requests

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

from differences import ROWS  # noqa: E402
from script import calls  # noqa: E402

ANSWERS = HERE / "answers.json"
MEANT = HERE / "meant.txt"
HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}
LIMIT_S = 10
# Long, and about the process: only their status is compared.
FIGURES = re.compile(r"/broker-stats/|/configuration/runtime")
PAGE = HERE.parents[4] / "docs/reference/admin-differences.md"
# Fields that differ between any two runs, or that only one kind of broker can have.
VOLATILE = re.compile(r"(?i)(time|stamp|date|age|rate|throughput|url|broker|address|epoch|ledgerid|entryid|position|size|id$|version$|latency|uptime|^msg.*counter|^bytes.*counter)")


def one(session, url, call):
    method, path, body = call
    data = None if body is None else body if isinstance(body, str) and body[:1] in "{\"" else json.dumps(body)
    try:
        answer = session.request(method, url + path, data=data, headers=HEADERS, timeout=LIMIT_S, allow_redirects=False)
    except requests.Timeout:
        return {"status": 0, "body": f"no answer in {LIMIT_S} s"}
    text = answer.text
    try:
        value = json.loads(text) if text else None
    except ValueError:
        value = text
    framework = isinstance(value, dict) and "servlet" in value or answer.status_code >= 400 and not isinstance(value, dict)
    if answer.status_code >= 500 or framework or FIGURES.search(path):
        value = None
    return {"status": answer.status_code, "body": value}


def run(url, skip=None):
    session = requests.Session()
    for number, call in enumerate(calls()):
        if skip and re.search(skip, key(number, call)):
            continue
        yield key(number, call), one(session, url, call)


def key(number, call):
    method, path, body = call
    return f"{number} {method} {path}" + ("" if body is None else " " + (body if isinstance(body, str) else json.dumps(body)))


def shape(value):
    return type(value).__name__ if not isinstance(value, (int, float)) or isinstance(value, bool) else "number"


def differences(theirs, ours, path=""):
    """Lines that say what is different, field by field."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in sorted(set(theirs) | set(ours)):
            if name not in ours:
                yield f"{path}/{name}: {json.dumps(theirs[name])[:80]} is missing"
            elif name not in theirs:
                yield f"{path}/{name}: {json.dumps(ours[name])[:80]} is more"
            elif VOLATILE.search(name) and not isinstance(theirs[name], (dict, list)):
                if shape(theirs[name]) != shape(ours[name]):
                    yield f"{path}/{name}: {shape(theirs[name])} became {shape(ours[name])}"
            else:
                yield from differences(theirs[name], ours[name], f"{path}/{name}")
    elif isinstance(theirs, list) and isinstance(ours, list):
        plain = lambda items: sorted(json.dumps(item, sort_keys=True) for item in items)
        if plain(theirs) != plain(ours):
            yield f"{path}: {json.dumps(theirs)[:200]} became {json.dumps(ours)[:200]}"
    elif theirs != ours:
        yield f"{path}: {json.dumps(theirs)[:200]} became {json.dumps(ours)[:200]}"


def compare(theirs, ours):
    if theirs["status"] != ours["status"]:
        yield f"status {theirs['status']} became {ours['status']}; {json.dumps(theirs['body'])[:160]} became {json.dumps(ours['body'])[:160]}"
        return
    # What a framework says to a body that it can't read is nobody's interface; that there is a reason is ours.
    foreign = theirs["status"] >= 400 and not (isinstance(theirs["body"], dict) and "reason" in theirs["body"])
    if foreign:
        if not (isinstance(ours["body"], dict) and ours["body"].get("reason")):
            yield "there is no reason"
        return
    yield from differences(theirs["body"], ours["body"])


def meant(call, difference):
    """The row that says that a difference is meant, if there is one."""
    return next((number for number, (calls, what, *_) in enumerate(ROWS) if re.search(calls, call) and re.search(what, difference)), None)


def short(difference):
    """A difference without values, which may not be the same twice: the statuses, or the field and what became of it."""
    status = re.match(r"status \d+ became \d+", difference)
    if status:
        return status.group(0)
    kind = next((kind for kind in ("is missing", "is more") if difference.endswith(kind)), "is another")
    return f"{difference.split(': ')[0]} {kind}"


def differences_of(url, answers=ANSWERS, skip=None):
    """(call, difference, number of the row that explains it) of every difference."""
    known = json.loads(answers.read_text())
    for name, ours in run(url, skip):
        for line in compare(known[name], ours):
            yield name, line, meant(name, line)


def unexpected(url, answers=ANSWERS, skip=None):
    """Differences that are not in `meant.txt` with a row that explains them, what is in it and no difference any more, and
    the rows that explain something."""
    accepted, seen, found, used = set(MEANT.read_text().splitlines()), set(), [], set()
    for name, line, row in differences_of(url, answers, skip):
        entry = f"{name} ## {short(line)}"
        seen.add(entry)
        used.add(row)
        if row is None or entry not in accepted:
            found.append((name, line))
    return found, sorted(accepted - seen), used


def page():
    lines = ["<!-- Made from platform/meridian/tests/python/admin_api/differences.py; a test tells when it is not. -->",
             "# The admin API: differences from Pulsar that are meant", "",
             "A script of more than 1,800 calls is run against Pulsar 4.0.7 and against Meridian, and answers are compared field by",
             "field. These differences are meant; any other fails a test. What both refuse by a parser's message is compared by its",
             "status. Body fields that are not known are passed over by both.", "", "| call | Pulsar 4.0.7 | Meridian |", "|---|---|---|"]
    rows = []
    for _, _, call, theirs, ours in ROWS:
        row = f"| {call} | {theirs} | {ours} |"
        if row not in rows:
            rows.append(row)
    return "\n".join(lines + rows) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "diff", "accept", "page"])
    parser.add_argument("--url", default="http://localhost:8080")
    parser.add_argument("--all", action="store_true", help="also what is meant")
    parser.add_argument("--out", type=pathlib.Path, default=ANSWERS)
    parser.add_argument("--answers", type=pathlib.Path, default=ANSWERS)
    parser.add_argument("--skip", help="calls to leave out, by regular expression")
    args = parser.parse_args()
    if args.what == "record":
        answers = {}
        for name, answer in run(args.url):
            answers[name] = answer
            if answer["status"] in (0, 500):
                print(name, answer["status"], str(answer["body"])[:200], flush=True)
        lines = (f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items())
        args.out.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    if args.what == "accept":
        entries = {f"{name} ## {short(line)}": None for name, line, row in differences_of(args.url, args.answers) if row is not None}
        MEANT.write_text("\n".join(entries) + "\n")
        return
    if args.what == "page":
        PAGE.write_text(page())
        return
    if not args.all:
        for name, line in unexpected(args.url, args.answers, args.skip)[0]:
            print(f"{name}\n    {line}")
        return
    known = json.loads(args.answers.read_text())
    for name, ours in run(args.url, args.skip):
        for line in compare(known[name], ours):
            print(f"{name}\n    {line}")


if __name__ == "__main__":
    main()
