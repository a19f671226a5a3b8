#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks as programs: version, refusals, tables, CSV, JSON, progress, and what they say when a rank fails.

usage: bench_program_test.py SOURCE_DIR BINARY_DIR
"""
import csv
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

SMALL = ["-b", "4K", "-e", "16K", "-f", "4", "-n", "2", "-w", "1"]
OPERATIONS = ["allreduce", "reduce_scatter", "allgather", "broadcast", "reduce", "alltoall", "gather", "scatter",
              "sendrecv"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("INCCL_", "OMPI_", "PMI"))}
ENVIRONMENT["INCCL_CONF_FILE"] = "/dev/null"


def run(program, *arguments, status=0):
    result = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False, timeout=120,
                            env=ENVIRONMENT)
    assert result.returncode == status, (arguments, result)
    return result


def in_terminal(program, *arguments, columns):
    """What a run with standard output and error on a terminal prints."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with subprocess.Popen([str(program), *arguments], stdout=theirs, stderr=theirs, env=ENVIRONMENT) as process:
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:  # the other end is closed
            pass
        assert process.wait(timeout=120) == 0, text
    os.close(ours)
    return text.decode()


def rows(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def check_tables(perf):
    for operation in OPERATIONS:
        program = perf / f"{operation}_bench"
        for line in run(program, "-t", "2", *SMALL, "--table", "narrow").stdout.splitlines():
            assert len(line) <= 120 or line.startswith("# "), line
    bench = perf / "allreduce_bench"
    arguments = ["-t", "2", "-g", "1", *SMALL]
    assert len(rows(run(bench, *arguments).stdout)[0]) > 120
    assert len(rows(in_terminal(bench, *arguments, columns=120))[0].rstrip()) <= 120
    assert len(rows(in_terminal(bench, *arguments, columns=300))[0].rstrip()) > 120


def check_files(bench, scratch):
    result = run(bench, "--ranks", "2", *SMALL, "--codec", "none", "--codec", "hbi:k=15,k2=31", "--csv", "-J",
                 str(scratch / "out.json"))
    lines = list(csv.DictReader(result.stdout.splitlines()))
    records = json.loads((scratch / "out.json").read_text())["rows"]
    assert len(lines) == len(records) == 8, (lines, records)
    for line, record in zip(lines, records):
        assert list(line) == list(record), (line, record)
        assert line["codec"] == record["codec"] and float(line["time_us"]) == record["time_us"], (line, record)
        assert line["root"] == "" and line["identical"] == "true", line
    assert {line["codec"] for line in lines} == {"none", "hbi:k=15,k2=31"}


def check_errors(bench):
    for arguments, words in ((["-g", "8"], "start 8 ranks"), (["-d", "quad", "-t", "2"], "quad"),
                             (["--ranks", "2", "-t", "2"], "--threads")):
        result = run(bench, *arguments, status=2)
        assert words in result.stderr, result
    # The library's own words.
    result = run(bench, "-t", "2", "--transport", "pigeon", *SMALL, status=2)
    assert 'ccl_comm_init_all: invalid argument: INCCL_TRANSPORT (environment): "pigeon"' in result.stderr, result
    result = run(bench, "-t", "2", "--transport", "tcp", "--link-gbps", "10", *SMALL, status=3)
    assert "rank 0/2: no link can be emulated over transport tcp: its lanes carry no stamps" in result.stderr, result
    # Only rank 0 makes an id; the others do not wait for it.
    result = run(bench, "--ranks", "3", "--init", "id", "--transport", "pigeon", *SMALL, status=2)
    assert 'rank 0: ccl_get_unique_id: INCCL_TRANSPORT (environment): "pigeon"' in result.stderr, result


def children(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def check_dead_rank(bench):
    """The ranks that are left name the one that was killed."""
    with subprocess.Popen([str(bench), "--ranks", "3", "-b", "1M", "-e", "1M", "-n", "1000000", "-c", "0"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        for line in process.stdout:  # until the table begins: all have joined
            if "(us)" in line:
                break
        time.sleep(0.5)
        ranks = children(process.pid)
        assert len(ranks) == 3, ranks
        os.kill(ranks[2], signal.SIGKILL)
        _, text = process.communicate(timeout=60)
    assert process.returncode == 3, (process.returncode, text)
    assert "allreduce_bench: rank 2 was killed by signal 9" in text, text
    for rank in (0, 1):
        said = [line for line in text.splitlines() if line.startswith(f"allreduce_bench: rank {rank}: ")]
        assert len(said) == 1 and "peer 2@" in said[0], text


def check_progress(bench):
    """A row that takes long shows its iterations on a terminal, and nothing of it stays."""
    text = in_terminal(bench, "-t", "2", "-b", "16M", "-e", "16M", "-n", "1500", "-w", "5", "-c", "0", columns=300)
    assert re.search(r"16777216 B float none (out of|in) place: iteration \d+ of 1505", text), text
    assert text.count("\r\x1b[K") >= 2, text


def check_regress(regress, bench, folder):
    """perf/regress.py judges medians of a real run's rows, and names the file that is no benchmark's."""
    def compare(saved, new, *options, status=0):
        paths = []
        for name, content in (("saved", saved), ("new", new)):
            paths.append(folder / f"{name}.json")
            paths[-1].write_text(content if isinstance(content, str) else json.dumps(content))
        return run(sys.executable, str(regress), "--saved", str(paths[0]), "--new", str(paths[1]), *options, status=status)

    def document(**ratios):
        return {"header": {}, "rows": [{"op": name, "bytes": 4096, "vs_limit": ratio} for name, values in ratios.items()
                                       for ratio in values]}
    saved = document(a=[1, 2, 9], b=[2], c=[2], gone=[1])
    new = document(a=[2.3], b=[2.5], c=[1.5], more=[1])
    text = compare(saved, new, status=1).stdout
    assert "# 1 slower, 1 faster by more than 20 %, 1 within it; 1 not run, 1 new" in text, text
    assert re.search(r"^b 000000004096 B +2.00 +2.50 +1.25  SLOWER$", text, re.MULTILINE), text
    compare(saved, new, "--tolerance", "30")
    compare(document(a=[1]), document(b=[1]), status=1)
    for wrong in ("no JSON", "3", {"rows": 1}, {"rows": []}, {"rows": [1]}, document(a=[]), {"rows": [{"bytes": 4, "op": "a"}]},
                  {"rows": [{"bytes": "many", "vs_limit": 1}]}):
        said = compare(wrong, new, status=1).stderr
        assert said.startswith(f"regress.py: {folder / 'saved.json'}: "), said
    # Placement, size and link make cases, and each compares with itself alone.
    runs = []
    for link in ([], ["--link-gbps", "10"]):
        runs.append(folder / f"run{len(link)}.json")
        run(bench, "-t", "2", *SMALL, "--limit", *link, "--json", str(runs[-1]))
    text = run(sys.executable, str(regress), "--saved", *map(str, runs), "--new", *map(str, runs)).stdout
    assert text.endswith("# 0 slower, 0 faster by more than 20 %, 8 within it; 0 not run, 0 new\n"), text


def main():
    perf = pathlib.Path(sys.argv[2]) / "perf"
    bench = perf / "allreduce_bench"
    if not bench.exists():
        print("no benchmarks in this build")
        return
    assert run(bench, "--version").stdout.startswith("allreduce_bench (inccl) 0."), run(bench, "--version")
    check_tables(perf)
    check_errors(bench)
    check_dead_rank(bench)
    check_progress(bench)
    with tempfile.TemporaryDirectory(prefix="inccl-bench-") as name:
        check_files(bench, pathlib.Path(name))
        check_regress(pathlib.Path(sys.argv[1]) / "perf" / "regress.py", bench, pathlib.Path(name))
    print("ok")


if __name__ == "__main__":
    main()
