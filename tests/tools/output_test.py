#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program whose output does not arrive says so and fails: standard output on a full disk or closed, files on a full disk.

usage: output_test.py SOURCE_DIR BINARY_DIR
Every program of tools/ and perf/ has a row here; one without is a failure. No source there prints past the helper that checks.
"""
import os
import pathlib
import re
import subprocess
import sys

SHORT = ["-b", "4K", "-e", "64K", "-f", "16", "-n", "1", "-w", "0"]
BENCH = [["--version"], ["--ranks", "2", *SHORT], ["--threads", "2", *SHORT], ["--ranks", "2", *SHORT, "--csv"]]
BENCH_FILES = [["--ranks", "2", *SHORT, "--json", "FILE"]]
# Arguments that make a program print, beside --help, which all understand but codec_bench; and those that name a file.
PROGRAMS = {
    "inccl-info": ([[], ["--version"], ["--json"], ["--environment-markdown"], ["--dump", "ring", "64"],
                    ["--explain", "allreduce", "1M", "8"]], []),
    "inccl-status": ([["--version"]], []),
    "inccl-doctor": ([[], ["--version"]], []),
    "inccl-tune": ([["--ranks", "2", *SHORT[:6], "-n", "1", "--collective", "broadcast", "--codec", "none"]],
                   [["--ranks", "2", *SHORT[:6], "-n", "1", "--collective", "broadcast", "--codec", "none", "-o", "FILE"]]),
    "inccl-limits": ([["--bytes", "4K", "-n", "1", "--max-processes", "2"]],
                     [["--bytes", "4K", "-n", "1", "--max-processes", "2", "--json", "FILE"]]),
    "call_overhead": ([["--ranks", "2", "--rounds", "1", "--calls", "1"]],
                      [["--ranks", "2", "--rounds", "1", "--calls", "1", "--json", "FILE"]]),
    "nccl_overhead": ([["--rows", "1", "--calls", "1"]], []),
    "codec_bench": ([["--benchmark_filter=memcpy", "--benchmark_min_time=0.0001"], ["--reducers=65536"]], []),
    "scaling_simulation": ([["--ranks", "2", "--bytes", "1MB"]], [["--ranks", "2", "--bytes", "1MB", "--json", "FILE"]]),
    "cuda_kernel_bench": ([], []),  # prints where there is a GPU
    "cuda_probe": ([], []),
}
for name in ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce", "alltoall", "gather", "scatter", "sendrecv"):
    PROGRAMS[f"{name}_bench"] = (BENCH, BENCH_FILES)

# Where standard output, or error, leads; what the message says of it.
FULL = ("> /dev/full", "No space left on device")
CLOSED = (">&-", "Bad file descriptor")


def run(program, arguments, redirection):
    return subprocess.run(["bash", "-c", f'exec "$0" "$@" {redirection}', program, *arguments], check=False, timeout=120,
                          capture_output=True, text=True, env={**os.environ, "INCCL_CONF_FILE": "/dev/null"})


def check(program, arguments, redirection, reason):
    """What is wrong about a run whose output cannot arrive."""
    result = run(program, arguments, redirection)
    said = result.stderr
    command = " ".join([program.name, *arguments, redirection])
    if result.returncode in (0, 2) or not 0 < result.returncode < 126:
        return [f"{command}: exit status {result.returncode}: {said}"]
    # Where a library printed, the reason may be lost.
    reasons = f"{reason}|standard output: a part of it could not be written"
    if not re.search(rf"^{program.name}: .*({reasons})", said, re.MULTILINE) or "terminate called" in said:
        return [f"{command}: does not say '{reason}': {said}"]
    return []


def check_silent(program):
    """A wrong command line that nobody can be told of is one all the same."""
    result = run(program, ["--no-such-option"], "2> /dev/full")
    return [] if 0 < result.returncode < 126 else [f"{program.name} 2> /dev/full: exit status {result.returncode}"]


def check_sources(source):
    unchecked = re.compile(r"\b(fmt::print|std::cout|std::cerr|v?printf|puts|putchar)\b")
    failures = []
    for folder in ("tools", "perf"):
        for path in (source / folder).rglob("*"):
            if path.suffix in (".cc", ".h") and path.stem != "output":
                for number, line in enumerate(path.read_text().splitlines(), 1):
                    if unchecked.search(re.sub(r'"(\\.|[^"])*"|//.*', "", line)):
                        failures.append(f"{path}:{number}: not by perf/support/output.h")
    return failures


def programs_in(binary):
    return [path for folder in ("tools", "perf") for path in sorted((binary / folder).glob("*"))
            if path.is_file() and os.access(path, os.X_OK) and ".so" not in path.name]


def main():
    source, binary = map(pathlib.Path, sys.argv[1:3])
    failures = check_sources(source)
    programs = programs_in(binary)
    runs = 0
    for program in programs:
        if program.name not in PROGRAMS:
            failures.append(f"{program.name} has no row in this test")
            continue
        printing, writing = PROGRAMS[program.name]
        helps = [] if program.name == "codec_bench" else [["--help"]]
        for arguments in helps + printing:
            failures += check(program, arguments, *FULL)
            runs += 1
        failures += check(program, (helps + printing)[0], *CLOSED)
        for arguments in writing:
            failures += check(program, ["/dev/full" if a == "FILE" else a for a in arguments], "", FULL[1])
        failures += check_silent(program)
        runs += 2 + len(writing)
    for failure in failures:
        print(failure)
    print(f"output: {len(programs)} programs, {runs} runs, {len(failures)} failures")
    return 1 if failures or not programs else 0


if __name__ == "__main__":
    sys.exit(main())
