#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every installed program has a page in docs that names its options: those and no others.

usage: tool_pages_test.py SOURCE_DIR BINARY_DIR PROGRAM...
"""
import pathlib
import re
import subprocess
import sys

# Options of other programs that a page mentions; of the page's own program for all others.
OTHERS = {"perf-tools.md": {"--bind-to", "--mca"}, "inccl-tune.md": {"--explain"}}
ALWAYS = {"--help"}


def page_of(program):
    return "perf-tools.md" if program.endswith("_bench") else f"{program}.md"


def options(help_text):
    """All spellings of the options that a help text lists."""
    found = set()
    for line in help_text.splitlines():
        match = re.match(r"  ((?:--?[\w-]+,?)+)(?: |$)", line)
        if match:
            found.update(match.group(1).split(","))
    return found


def named(page):
    """The options that a page names."""
    return set(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", page))


def self_test():
    text = "Options:\n  -h,--help     Print\n  -b,--minbytes TEXT  x\n  --csv    -not this\n"
    assert options(text) == {"-h", "--help", "-b", "--minbytes", "--csv"}, options(text)
    assert named("`-b`, `--minbytes N`: well-known --csv") == {"-b", "--minbytes", "--csv"}


def main():
    self_test()
    source, binary = map(pathlib.Path, sys.argv[1:3])
    failures = []
    for program in sys.argv[3:]:
        path = next(p for p in (binary / "tools" / program, binary / "perf" / program)
                    if p.exists())
        said = options(subprocess.run([path, "--help"], capture_output=True, text=True,
                                      check=True).stdout)
        page = source / "docs" / page_of(program)
        names = named(page.read_text())
        if len(said) < 4:
            failures.append(f"{program}: only {len(said)} options in its help")
        # A short spelling need not be named where the long one is, and the other way round.
        missing = {o for o in said if o.startswith("--")} - names - ALWAYS
        if missing:
            failures.append(f"{page.name} does not name {sorted(missing)} of {program}")
        strange = {o for o in names if o.startswith("--")} - said - OTHERS.get(page.name, set())
        if strange:
            failures.append(f"{page.name} names {sorted(strange)}, no option of {program}")
    for failure in failures:
        print(failure)
    print(f"tool pages: {len(sys.argv) - 3} programs, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
