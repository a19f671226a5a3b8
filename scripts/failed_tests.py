#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what matters of each test that failed: what a log that is cut short must still show.

usage: failed_tests.py LOG

LOG is what `ctest --output-on-failure` printed. Of each failed test: where GoogleTest, a sanitizer, Python or the runtime
of C++ complain, with some lines that follow; the case that had begun when the output ended; the last lines.
"""
import re
import sys

AT_MOST = 60  # lines of a test; what is left out then is the middle
WIDTH = 300
LAST = 8
RESULT = re.compile(r" *\d+/\d+ Test +#\d+: (?P<rest>.*)")
BLOCK_END = re.compile(r" +Start +\d+: |\d+% tests passed, ")
COMPLAINT = re.compile(r"""
      :\ Failure$ | \bERROR:\ \w*Sanitizer | \bWARNING:\ ThreadSanitizer | :\ runtime\ error: | Tracer\ caught\ signal
    | ^==\d+==.*fatal\ error | ^Traceback\ | ^terminate\ called | \bAssertion\b.*failed | ^==\ the\ machine\ stood\ still
    """, re.VERBOSE)
FOLLOWING = 8  # lines after a complaint
CASE_FAILED = re.compile(r"\[  FAILED  \] ")
CASE_BEGAN, CASE_ENDED = re.compile(r"\[ RUN      \] "), re.compile(r"\[(       OK |  FAILED  |  SKIPPED )\] ")

DULL = re.compile(r"\s*$|\[( RUN      |       OK |[-=]{10})\] ")


def failed_tests(lines):
    """[(ctest's line, the test's output)] of those that failed; skipped tests have not."""
    tests, output = [], None
    for line in lines:
        result = RESULT.match(line)
        if result:
            failed = "***" in result["rest"] and "***Skipped" not in result["rest"]
            output = [] if failed else None
            if failed:
                tests.append((line, output))
        elif BLOCK_END.match(line):
            output = None
        elif output is not None:
            output.append(line)
    return tests


def digest(output):
    """The lines of a test's output that matter, at most AT_MOST and one for those left out."""
    while output and not output[-1].strip():
        output = output[:-1]
    wanted, began = set(range(max(0, len(output) - LAST), len(output))), None
    for i, line in enumerate(output):
        if COMPLAINT.search(line):
            wanted.update(range(i, min(i + 1 + FOLLOWING, len(output))))
        if CASE_FAILED.match(line):
            wanted.add(i)
        if CASE_BEGAN.match(line):
            began = i
        elif CASE_ENDED.match(line):
            began = None
    if began is not None:
        wanted.add(began)
    dull = {i for i in wanted if DULL.match(output[i]) and i != began}
    chosen = [output[i][:WIDTH] for i in sorted(wanted - dull)]
    if len(chosen) > AT_MOST:
        head = AT_MOST * 2 // 3
        chosen[head:len(chosen) - (AT_MOST - head)] = [f"... {len(chosen) - AT_MOST} lines more ..."]
    return chosen


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    for result, output in failed_tests(lines):
        print("==", result.strip())
        for line in digest(output):
            print("  ", line)


if __name__ == "__main__":
    main()
