#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps docs/measurements/pytorch-tests.md: which tests of PyTorch's distributed_test.py the backend passes.

usage: pytorch_tests.py [--write | --sample] [--results DIR]

Runs the tests with gloo, and with inccl under its own name and under two others
(tests/python/pytorch_suite.py), and compares what they did with the document. --write writes the
document instead. --sample runs only a part of the tests that the document says pass, under one name.
Exit status 0: as the document says; 1: not; 77: skipped, something is missing.
"""
import argparse
import difflib
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/measurements/pytorch-tests.md"
RANKS = 4
# Run: (in the table, options of pytorch_suite.py)
RUNS = {
    "gloo": ("gloo", ["--backend", "gloo"]),
    "inccl": ("inccl, under its own name", []),
    "as_gloo": ("inccl, `--pretend gloo`", ["--pretend", "gloo"]),
    "as_mpi": ("inccl, `--pretend mpi`", ["--pretend", "mpi"]),
}
OURS = ["inccl", "as_gloo", "as_mpi"]
WHY = {  # tests that gloo passes and the backend does not
    "test_monitored_barrier": "`dist.monitored_barrier` refuses every backend that is not called gloo, and the tests call "
                              "gloo's own",
}
COMPARES_THE_NAME = {"test_get_backend"}  # passes under the backend's own name
BOTH, NOT_OURS = "## Gloo passes them, and the backend", "## Gloo passes them, the backend does not"
ONLY_OURS, NEITHER = "## Gloo skips them, the backend passes", "## Neither runs them here"


def missing():
    """What a run needs and this interpreter does not have."""
    for name in ("torch", "numpy", "expecttest", "torch.testing._internal.distributed.distributed_test"):
        try:
            found = importlib.util.find_spec(name)
        except ImportError:
            found = None
        if found is None:
            return name
    return None


def run(name, results, *more):
    """{test: [outcome, reason]}"""
    output = results / f"{name}.json"
    output.unlink(missing_ok=True)
    with open(results / f"{name}.log", "w", encoding="utf-8") as log:
        subprocess.run([sys.executable, ROOT / "tests/python/pytorch_suite.py", *RUNS[name][1], "--ranks", str(RANKS),
                        "--output", output, *more], stdout=log, stderr=subprocess.STDOUT, check=False)
    if not output.exists():
        sys.exit(f"{results / name}.log: the run has no result")
    return json.loads(output.read_text())


def passed(outcomes):
    return {test for test, (outcome, _) in outcomes.items() if outcome == "passed"}


def names(tests):
    return textwrap.fill(", ".join(f"`{test}`" for test in sorted(tests)), 118, break_on_hyphens=False)


def why(test, reason):
    for start, text in WHY.items():
        if test.startswith(start):
            return text
    return next((line for line in reversed(reason.splitlines()) if re.match(r"\w+(Error|Exception)", line)), reason)


def document(all_outcomes, version):
    gloo = passed(all_outcomes["gloo"])
    ours = set().union(*(passed(all_outcomes[name]) for name in OURS))
    both, not_ours, only_ours = gloo & ours, gloo - ours, ours - gloo
    text = [
        "# PyTorch's own tests", "",
        f"PyTorch's wheel has the tests of its backends, `distributed_test.py`. This page says what they do with {RANKS} ranks and "
        f"PyTorch {version}",
        "on a machine without a GPU. [scripts/pytorch_tests.py](../scripts.md) writes it, and `tools/check.sh --long` compares it with a new",
        "run of all of them. Where `.venv` has PyTorch, every run of the tests includes a sample of those that pass.", "",
        "Many of the tests run only for backends that PyTorch knows by name. `tests/python/pytorch_suite.py --pretend NAME` gives the",
        "backend such a name.", "",
        "| run | passed | failed | skipped |", "|---|---|---|---|"]
    for name, (label, _) in RUNS.items():
        counts = [sum(outcome == kind for outcome, _ in all_outcomes[name].values())
                  for kind in ("passed", "failed", "skipped")]
        text.append(f"| {label} | {counts[0]} | {counts[1]} | {counts[2]} |")
    text += ["", f"Of the {len(gloo)} tests that gloo passes, the backend passes {len(both)} ({100 * len(both) / len(gloo):.1f} %), under one "
             f"name or another, and {len(only_ours)} more.", "", BOTH, "", names(both), "", NOT_OURS, ""]
    if not_ours:
        text += ["| test | why |", "|---|---|"]
        text += [f"| `{test}` | {why(test, all_outcomes['as_gloo'][test][1])} |" for test in sorted(not_ours)]
    text += ["", ONLY_OURS, "", names(only_ours), "", NEITHER, "", "The reasons are those that the tests give.", "",
             "| reason | tests |", "|---|---|"]
    reasons = {}
    for test, (_, reason) in all_outcomes["gloo"].items():
        if test not in gloo | ours:
            reasons.setdefault(reason.splitlines()[0] if reason else "", []).append(test)
    for reason, tests in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        text.append(f"| {reason} | {', '.join(f'`{test}`' for test in sorted(tests))} |")
    return "\n".join(text) + "\n"


def listed(heading):
    """The tests of a section of the document."""
    section = DOCUMENT.read_text(encoding="utf-8").split(heading + "\n")[1].split("\n## ")[0]
    return re.findall(r"`(test_\w+)`", section)


def check_sample(results):
    """Every second test that passes with gloo's name."""
    tests = [test for test in listed(BOTH) if test not in COMPARES_THE_NAME][::2]
    outcomes = run("as_gloo", results, "--match", f"^({'|'.join(tests)})$")
    bad = {test: reason for test, (outcome, reason) in outcomes.items() if outcome != "passed"}
    for test, reason in bad.items():
        print(f"{test}: expected to pass, got:\n{reason}")
    print(f"{len(outcomes) - len(bad)} of {len(outcomes)} tests of a sample passed")
    return 1 if bad or not outcomes else 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--results", default=ROOT / "build/pytorch_tests", type=pathlib.Path)
    args = parser.parse_args()
    lacks = missing()
    if lacks:
        print(f"skipped: {sys.executable} has no {lacks}")
        return 77
    args.results.mkdir(parents=True, exist_ok=True)
    if args.sample:
        return check_sample(args.results)
    import torch
    version = torch.__version__.partition("+")[0]
    if not args.write and f"PyTorch {version}\n" not in DOCUMENT.read_text(encoding="utf-8"):
        print(f"skipped: the document is not about PyTorch {version}")
        return 77
    text = document({name: run(name, args.results) for name in RUNS}, version)
    if args.write:
        DOCUMENT.write_text(text, encoding="utf-8")
        return 0
    difference = list(difflib.unified_diff(DOCUMENT.read_text(encoding="utf-8").splitlines(), text.splitlines(),
                                           str(DOCUMENT.name), "this run", lineterm="", n=0))
    print("\n".join(difference) or "as the document says")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
