#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reliability.md: the scorecard, row by row, from what the tests have shown.

usage: reliability_report.py [--check | --tests] [-o FILE] RESULTS_DIR...

RESULTS_DIR holds the XML of GoogleTest programs (build/release/results after ctest, build/release/results_rdma after
tests/rdma/soft_roce.sh --long). A test belongs to a row by its
properties `row` and `transport` (tests/faults), or because tests/faults/scorecard.json names it. Score of a row: 2 if
every transport of this version to which it applies has a test and all of them passed, 1 if at least one has, 0 otherwise.
--tests writes nothing and prints the tests of each row.
--check writes nothing; exit status 1 if a test of a row failed or a pattern of the scorecard matches no test.
"""
import argparse
import fnmatch
import json
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

SOURCE = pathlib.Path(__file__).resolve().parent.parent


def read_results(directories):
    """All test cases that ran, as dicts."""
    tests = []
    for directory in directories:
        for path in sorted(pathlib.Path(directory).glob("*.xml")):
            try:
                root = ElementTree.parse(path).getroot()
            except ElementTree.ParseError as error:
                tests.append({"program": path.stem, "name": "(unreadable result)", "passed": False, "skipped": False,
                              "properties": {}, "seconds": 0.0, "error": str(error)})
                continue
            for case in root.iter("testcase"):
                if case.get("status") == "notrun":
                    continue
                properties = {p.get("name"): p.get("value") for p in case.iter("property")}
                tests.append({
                    "program": path.stem,
                    "name": f"{case.get('classname')}.{case.get('name')}",
                    "passed": case.find("failure") is None,
                    "skipped": case.get("result") == "skipped" or case.find("skipped") is not None,
                    "properties": properties,
                    "seconds": float(case.get("time") or 0),
                })
    return tests


def assign(tests, card):
    """Row number -> transport -> tests; and the patterns that match nothing."""
    rows = {row["row"]: {} for row in card["rows"]}

    def add(number, transport, test):
        into = rows.setdefault(number, {}).setdefault(transport, [])
        if test not in into:
            into.append(test)

    for test in tests:
        numbers = test["properties"].get("row", "")
        for number in filter(None, numbers.split(",")):
            for transport in filter(None, test["properties"].get("transport", "").split(",")):
                add(int(number), transport, test)
    unmatched = []
    for row in card["rows"]:
        for other in row.get("elsewhere", []):
            program, pattern = other["test"].split(":", 1)
            found = [t for t in tests if t["program"] == program and fnmatch.fnmatchcase(t["name"], pattern)]
            for test in found:
                add(row["row"], other["transport"], test)
            if not found:
                unmatched.append(f"row {row['row']}: {other['test']}")
    return rows, unmatched


def state(tests):
    """What the tests of one cell say."""
    ran = [t for t in tests if not t["skipped"]]
    if not ran:
        return "none"
    return "passed" if all(t["passed"] for t in ran) else "FAILED"


def score(row, cells, present):
    """0, 1 or 2; None where the row applies to no transport of this version."""
    applies = [t for t in row["applies"] if t in present]
    if not applies:
        return None
    passed = [t for t in applies if state(cells.get(t, [])) == "passed"]
    return 2 if len(passed) == len(applies) else 1 if passed else 0


def cell_text(row, cells, transport, present):
    """One cell of the table."""
    if transport not in row["applies"]:
        return "-"
    if transport not in present:
        return "(2)"
    tests = cells.get(transport, [])
    kind = state(tests)
    return {"none": "no test", "FAILED": "**failed**"}.get(kind) or str(len([t for t in tests if not t["skipped"]]))


def describe(test):
    """A line about a test."""
    text = f"`{test['name']}` ({test['program']}"
    if "cases" in test["properties"]:
        text += f", {test['properties']['cases']} cases"
    text += f", {test['seconds']:.1f} s)"
    if test["skipped"]:
        text += " **skipped**"
    elif not test["passed"]:
        text += " **failed**"
    return text


def write(card, rows, soft_roce, out):
    """The document. soft_roce: results of tests/rdma/soft_roce.sh are among those read."""
    present = [name for name, what in card["transports"].items() if what]
    missing = [name for name, what in card["transports"].items() if not what]
    scores = {row["row"]: score(row, rows.get(row["row"], {}), present) for row in card["rows"]}
    rated = [value for value in scores.values() if value is not None]
    absent = f"; (2): this version does not have that transport ({', '.join(missing)})" if missing else ""
    concern = len(scores) - len(rated)
    to_come = f"; {concern} rows concern transports to come only" if concern else ""
    lines = [
        "# Reliability",
        "",
        "What the library promises when something goes wrong, and which tests show it. Written by",
        "`scripts/reliability_report.py build/release/results build/release/results_rdma` from the results of a run of ctest and",
        "of one of `tests/rdma/soft_roce.sh --long`, on soft RoCE in a virtual machine; not to be edited." if soft_roce else
        "of `tests/rdma/soft_roce.sh --long`, of which the second has not run: of the transport verbs, these are the tests on "
        "stand-ins for devices only. Not to be edited.",
        "",
        f"Transports of this version: {', '.join(present)}. Score of a row: 2, every one of them to which the row applies",
        "has a test and all passed; 1, at least one; 0, none. Columns of transports: the number of tests that passed; `-`:",
        f"the row does not apply{absent}.",
        "",
        f"{sum(rated)} of {2 * len(rated)} points in {len(rated)} rows{to_come}.",
        "",
        "| row | fault | required | limit | " + " | ".join(card["transports"]) + " | score |",
        "|---|---|---|---|" + "---|" * len(card["transports"]) + "---|",
    ]
    for row in card["rows"]:
        cells = rows.get(row["row"], {})
        rating = scores[row["row"]]
        columns = [cell_text(row, cells, t, present) for t in card["transports"]]
        lines.append(f"| {row['row']} | {row['fault']} | {row['required']} | {row['limit']} | " + " | ".join(columns) +
                     f" | {'-' if rating is None else rating} |")
    lines += ["", "With `--tests` the script prints the tests of each row, with the time that each took."]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def list_tests(card, rows):
    """Prints the tests of each row."""
    for row in card["rows"]:
        print(f"{row['row']}. {row['fault']}")
        for transport, tests in rows.get(row["row"], {}).items():
            for test in tests:
                print(f"  {transport}: {describe(test)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=SOURCE / "docs/reliability.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tests", action="store_true")
    arguments = parser.parse_args()
    card = json.loads((SOURCE / "tests/faults/scorecard.json").read_text(encoding="utf-8"))
    tests = read_results(arguments.results)
    if not tests:
        sys.exit(f"no results in {', '.join(arguments.results)}; run ctest first")
    rows, unmatched = assign(tests, card)
    for pattern in unmatched:
        print(f"matches no test: {pattern}", file=sys.stderr)
    failed = {f"{t['program']}:{t['name']}" for cells in rows.values() for each in cells.values() for t in each
              if not t["passed"]}
    for name in sorted(failed):
        print(f"failed: {name}", file=sys.stderr)
    if arguments.tests:
        list_tests(card, rows)
    elif not arguments.check:
        write(card, rows, any("results_rdma" in path for path in arguments.results), arguments.output)
    sys.exit(1 if arguments.check and (unmatched or failed) else 0)


if __name__ == "__main__":
    main()
