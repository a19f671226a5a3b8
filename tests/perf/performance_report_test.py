#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/performance_report.py makes of the benchmarks' files, and what it runs.

usage: performance_report_test.py SOURCE_DIR BINARY_DIR
"""
import contextlib
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import types
import xml.etree.ElementTree


def module_of(source):
    spec = importlib.util.spec_from_file_location(
        "performance_report", pathlib.Path(source) / "scripts/performance_report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(ours, mpi, limit, **others):
    return {"op": "allreduce", "nranks": 2, "codec": "none", "bytes": 4096, "in_place": False,
            "time_us": ours, "baseline_us": mpi, "vs_baseline": ours / mpi, "limit_us": limit,
            "vs_limit": ours / limit, "p99_us": 9 * ours, "max_us": 10 * ours,
            "baseline_p99_us": 9 * mpi, "baseline_max_us": 10 * mpi, "limit_p99_us": 9 * limit,
            "limit_max_us": 10 * limit, **others}


def write(directory, name, *rows):
    (pathlib.Path(directory) / name).write_text(json.dumps({"rows": rows}))


def check_numbers(report, out):
    # Three rounds beside the default MPI: medians of each number; one beside the other MPI.
    for turn, (ours, mpi) in enumerate(((10, 20), (12, 60), (30, 40))):
        write(out, f"allreduce-2.default.{turn}.json", row(ours, mpi, 5),
              row(1, 100, 5, in_place=True))
    write(out, "allreduce-2.ucx.0.json", row(14, 16, 7), row(28, 16, 7, codec="hbi:bits=6"))
    write(out, "broadcast-4.ucx.0.json", row(3, 2, 1, op="broadcast", nranks=4))
    write(out, "tails-16.ucx.0.json", row(100, 200, 50, nranks=16))
    cases = report.load(out)
    assert set(cases) == {("allreduce", 2, "none", 4096), ("allreduce", 2, "hbi:bits=6", 4096),
                          ("broadcast", 4, "none", 4096)}, set(cases)
    plain = cases["allreduce", 2, "none", 4096]
    assert plain["default", "time_us"] == 12 and plain["default", "baseline_us"] == 40
    assert plain["default", "vs_baseline"] == 0.5  # of 0.5, 0.2 and 0.75
    assert report.vs_best(plain) == 14 / 16  # the better MPI is the one that we are slower beside
    assert report.mean_of(plain, "time_us") == 13
    assert report.vs_best({}) is None


def check_text(report, out):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        report.report(types.SimpleNamespace(out=out))
    text = text.getvalue()
    line = "| 4 KB | 13 us | 28 us | 40 us | 16 us | 6 us | 0.88 | 1.75 | 2.20 | 4.00 |"
    assert line in text, text
    assert "| broadcast | 4 KB | 1.50 (3.00) |" in text, text
    assert "| 16 | ucx, out of place | inccl | 100 us | 900 us | 1.0 ms |" in text, text


def check_picture(report, out):
    svg = pathlib.Path(out) / "links.svg"
    sides = dict(zip((side for side, _ in report.SERIES), (800, 400, 100)))
    report.draw_links({"1 Gbit/s": sides, "10 Gbit/s": {side: ms / 10 for side, ms in sides.items()}}, svg)
    boxes = [e for e in xml.etree.ElementTree.parse(svg).getroot().iter() if e.tag.endswith("rect")]
    bars = [float(e.get("width")) for e in boxes if e.get("height") == str(report.BAR - 2)]
    assert bars == [part * report.WIDTH for part in (1, 0.5, 0.125, 0.1, 0.05, 0.0125)], bars


def check_commands(report):
    # Every collective of the benchmarks, and send and receive, with 2, 4 and 8 ranks.
    assert {program for program, _, _ in report.RUNS.values()} == {
        "allreduce", "reduce_scatter", "allgather", "broadcast", "reduce", "alltoall", "sendrecv"}
    assert {n for program, n, _ in report.RUNS.values() if program == "sendrecv"} == {2, 4, 8}
    line = report.command(pathlib.Path("perf"), "reduce", 4, ["-b", "1M"], "ucx", True, "x.json")
    assert line[:3] == ["mpirun", "-np", "4"] and report.UCX[0] in line, line
    assert line.index("chrt") if "chrt" in line else "chrt" in " ".join(line)
    assert line[line.index("perf/reduce_bench"):][-5:] == ["--limit", "--baseline", "mpi",
                                                           "--json", "x.json"], line
    assert "UCX_TLS=posix,cma,self" not in report.command(
        pathlib.Path("perf"), "reduce", 4, [], "default", False, "x.json")
    assert [report.time_text(t) for t in (0.5, 12.34, 99.96, 123.4, 1234, 98765)] == [
        "0.5 us", "12.3 us", "100 us", "123 us", "1.2 ms", "98.8 ms"]


def main():
    report = module_of(sys.argv[1])
    with tempfile.TemporaryDirectory() as out:
        check_numbers(report, out)
        check_text(report, out)
        check_picture(report, out)
    check_commands(report)
    print("ok")


if __name__ == "__main__":
    main()
