#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every installed program has a section in docs/tools.md, the benchmarks have a page, which name its options, those and no
others; and programs print what samples show.

usage: tool_pages_test.py SOURCE_DIR BINARY_DIR PROGRAM...
PROGRAM: names as installed. A sample is an indented block whose first line is `$ COMMAND`. Every line below it is one of
the command's output, in this order; numbers and distances may differ, and a line `...` stands for any lines.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

# Options of other programs that a page mentions; of the page's own program for all others.
OTHERS = {"perf-tools.md": {"--bind-to", "--mca"}, "inccl-tune": {"--explain"}}
ALWAYS = {"--help"}


def page_of(program, docs):
    """(name, text)"""
    if program.endswith("-bench"):
        return "perf-tools.md", (docs / "perf-tools.md").read_text()
    for section in (docs / "tools.md").read_text().split("\n## "):
        if section.split("\n", 1)[0] == program:
            return program, section
    return program, ""


def file_of(program, binary):
    """The program in the build tree, where the benchmarks have shorter names."""
    bench = re.fullmatch(r"inccl-(.*-bench)", program)
    name = bench.group(1).replace("-", "_") if bench else program
    return next(p for p in (binary / "tools" / name, binary / "perf" / name) if p.exists())


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


def samples(text):
    """[(command, lines)]"""
    found = []
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE):
        lines = [line[4:].rstrip() for line in block.splitlines()]
        lines = [line for line in lines if line]
        if lines and lines[0].startswith("$ "):
            found.append((lines[0][2:], lines[1:]))
    return found


def masked(line):
    """What must be the same: words, not numbers and not how far apart they are."""
    line = re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "0", line)
    return " ".join(line.split())


def first_missing(shown, printed):
    """The first line of a sample that the output lacks, None if there is none."""
    printed = [masked(line) for line in printed if line.strip()]
    at, gap = 0, False
    for line in shown:
        if line.strip() == "...":
            gap = True
            continue
        wanted = masked(line)
        if gap:
            while at < len(printed) and printed[at] != wanted:
                at += 1
        if at == len(printed) or printed[at] != wanted:
            return line
        at, gap = at + 1, False
    return None if gap or at == len(printed) else f"nothing in place of '{printed[at]}'"


def check_samples(page, text, folder):
    """Runs the commands of a page with the programs of a folder."""
    failures = []
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("INCCL_", "OMPI_", "PMI"))}
    environment.update(PATH=f"{folder}:{environment['PATH']}", INCCL_CONF_FILE="/dev/null")
    for command, shown in samples(text):
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120,
                                env=environment, cwd="/")
        missing = first_missing(shown, result.stdout.splitlines())
        if missing is not None:
            failures.append(f"{page}: `{command}` does not print '{missing}' but\n{result.stdout}{result.stderr}")
    return failures


def self_test():
    text = "Options:\n  -h,--help     Print\n  -b,--minbytes TEXT  x\n  --csv    -not this\n"
    assert options(text) == {"-h", "--help", "-b", "--minbytes", "--csv"}, options(text)
    assert samples("x\n\n    $ run it\n\n    a\n      b 1\n\ny\n\n    other\n") == [("run it", ["a", "  b 1"])]
    assert masked("a   1.5e-03 b12 ") == "a 0 b0"
    assert first_missing(["a 1", "...", "c"], ["a 2", "", "b", "c"]) is None
    assert first_missing(["a 1", "c"], ["a 2", "b", "c"]) == "c"
    assert first_missing(["a", "..."], ["a", "b"]) is None
    assert first_missing(["a"], ["a", "b"]) == "nothing in place of 'b'"
    assert named("`-b`, `--minbytes N`: well-known --csv") == {"-b", "--minbytes", "--csv"}


def main():
    self_test()
    source, binary = map(pathlib.Path, sys.argv[1:3])
    failures = []
    for program in sys.argv[3:]:
        path = file_of(program, binary)
        said = options(subprocess.run([path, "--help"], capture_output=True, text=True,
                                      check=True).stdout)
        page, text = page_of(program, source / "docs")
        names = named(text)
        if len(said) < 4:
            failures.append(f"{program}: only {len(said)} options in its help")
        # A short spelling need not be named where the long one is, and the other way round.
        missing = {o for o in said if o.startswith("--")} - names - ALWAYS
        if missing:
            failures.append(f"{page} does not name {sorted(missing)} of {program}")
        strange = {o for o in names if o.startswith("--")} - said - OTHERS.get(page, set())
        if strange:
            failures.append(f"{page} names {sorted(strange)}, no option of {program}")
    count = 0
    with tempfile.TemporaryDirectory(prefix="inccl-pages-") as folder:
        for program in sys.argv[3:]:
            (pathlib.Path(folder) / program).symlink_to(file_of(program, binary))
        for page in [source / "README.md", *sorted((source / "docs").glob("*.md"))]:
            text = page.read_text()
            count += len(samples(text))
            failures += check_samples(page.name, text, folder)
    if count < 5:
        failures.append(f"only {count} samples of output found")
    for failure in failures:
        print(failure)
    print(f"tool pages: {len(sys.argv) - 3} programs, {count} samples, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
