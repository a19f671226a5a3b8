#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the collectives beside both MPIs and the streaming limit, and shows the results.

usage: performance_report.py measure [--perf DIR] [--out DIR] [--rounds N] [--pin] [--only WHAT,...]
       performance_report.py report [--out DIR] [--svg FILE]

measure runs the benchmarks under mpirun, once beside Open MPI's default transports and once beside
its UCX path, and leaves their JSON files in --out. report prints tables in Markdown and draws time
against size; with several rounds every number is the median over them. docs/performance.md has the
commands that its numbers were made with.
"""
import argparse
import collections
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

UCX = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any",
       "-x", "UCX_TLS=posix,cma,self"]
MPIS = {"default": [], "ucx": UCX}
# What is run: name -> (program, ranks, arguments).
SWEEP = ["-b", "4K", "-f", "4", "-w", "5", "-n", "20"]
LARGE = ["-b", "1M", "-e", "64M", "-f", "8", "-w", "5", "-n", "15"]
RUNS = {}
for n in (2, 4, 8):
    RUNS[f"allreduce-{n}"] = ("allreduce", n, SWEEP + ["-e", "64M", "--codec", "none",
                                                       "--codec", "hbi:bits=6"])
    for op in ("reduce_scatter", "allgather", "broadcast", "reduce"):
        RUNS[f"{op}-{n}"] = (op, n, LARGE)
    size = str(64 * 1024 * n)  # 64 KB for each pair
    RUNS[f"alltoall-{n}"] = ("alltoall", n, ["-b", size, "-e", size, "-w", "20", "-n", "200"])
    RUNS[f"sendrecv-{n}"] = ("sendrecv", n, ["-b", "64K", "-e", "4M", "-f", "8", "-w", "20",
                                             "-n", "100"])
RUNS["allreduce-16"] = ("allreduce", 16, SWEEP + ["-e", "1M"])
TAILS = {"tails-16": ("allreduce", 16, ["-b", "4K", "-e", "4K", "-w", "100", "-n", "100000"])}


def command(perf, program, ranks, arguments, mpi, pin, file):
    line = ["mpirun", "-np", str(ranks), "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    line += MPIS[mpi]
    if pin:
        line += ["bash", "-c",
                 'exec taskset -c $((OMPI_COMM_WORLD_LOCAL_RANK % $(nproc))) chrt -r 10 "$@"', "x"]
    return line + [str(perf / f"{program}_bench"), *arguments, "-c", "0", "--limit",
                   "--baseline", "mpi", "--json", str(file)]


def measure(args):
    runs = {**RUNS, **TAILS}
    names = args.only.split(",") if args.only else list(RUNS)
    unknown = set(names) - set(runs)
    if unknown:
        sys.exit(f"--only: no run named {', '.join(sorted(unknown))}; there are {', '.join(runs)}")
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    for turn in range(args.rounds):
        for name in names:
            program, ranks, arguments = runs[name]
            for mpi in MPIS:
                file = out / f"{name}.{mpi}.{turn}.json"
                line = command(pathlib.Path(args.perf), program, ranks, arguments, mpi,
                               args.pin, file)
                done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    sys.exit(f"{' '.join(line)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
                print(file, flush=True)


# ------------------------------------------------------------------------------------- report

def load(out):
    """{(op, ranks, codec, bytes): {(mpi, field): median over the rounds}}, out of place."""
    values = collections.defaultdict(lambda: collections.defaultdict(list))
    fields = ("time_us", "baseline_us", "vs_baseline", "limit_us", "vs_limit")
    for file in sorted(pathlib.Path(out).glob("*.json")):
        name, mpi, _ = file.name.split(".", 2)
        if name in TAILS:
            continue
        for row in json.loads(file.read_text())["rows"]:
            if row["in_place"]:
                continue
            case = values[row["op"], row["nranks"], row["codec"], row["bytes"]]
            for field in fields:
                if row[field] is not None:
                    case[mpi, field].append(row[field])
    return {case: {key: statistics.median(numbers) for key, numbers in found.items()}
            for case, found in values.items()}


def vs_best(case):
    """Ours over the better of the two MPIs, each ratio from the run that both were in."""
    ratios = [case[mpi, "vs_baseline"] for mpi in MPIS if (mpi, "vs_baseline") in case]
    return max(ratios) if ratios else None


def mean_of(case, field):
    """A number that both runs have: the middle of them."""
    found = [case[mpi, field] for mpi in MPIS if (mpi, field) in case]
    return statistics.median(found) if found else None


def size_text(size):
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def time_text(us):
    if us is None:
        return "-"
    if us >= 1000:
        return f"{us / 1000:.3g} ms" if us >= 10000 else f"{us / 1000:.1f} ms"
    return f"{us:.0f} us" if us >= 100 else f"{us:.3g} us"


def ratio_text(ratio):
    return "-" if ratio is None else f"{ratio:.2f}"


def print_allreduce(cases, ranks):
    sizes = sorted({size for op, n, _, size in cases if op == "allreduce" and n == ranks})
    if not sizes:
        return
    print(f"\n**All-reduce, {ranks} ranks**\n")
    print("| bytes | fp32 | HBI 6 bits | MPI | MPI, UCX | limit | fp32 / better MPI | HBI / better "
          "MPI | fp32 / limit | HBI / limit |\n|" + "---|" * 10)
    for size in sizes:
        plain = cases.get(("allreduce", ranks, "none", size), {})
        hbi = cases.get(("allreduce", ranks, "hbi:bits=6", size), {})
        print(f"| {size_text(size)} | {time_text(mean_of(plain, 'time_us'))} "
              f"| {time_text(mean_of(hbi, 'time_us'))} "
              f"| {time_text(plain.get(('default', 'baseline_us')))} "
              f"| {time_text(plain.get(('ucx', 'baseline_us')))} "
              f"| {time_text(mean_of(plain, 'limit_us'))} "
              f"| {ratio_text(vs_best(plain))} | {ratio_text(vs_best(hbi))} "
              f"| {ratio_text(mean_of(plain, 'vs_limit'))} "
              f"| {ratio_text(mean_of(hbi, 'vs_limit'))} |")


def print_others(cases):
    others = sorted({(op, size) for op, _, _, size in cases if op != "allreduce"})
    if not others:
        return
    ranks = sorted({n for op, n, _, _ in cases if op != "allreduce"})
    print("\n**The other collectives: ours / better MPI (ours / limit)**\n")
    print("| | bytes |" + "".join(f" {n} ranks |" for n in ranks) + "\n|---|---|" +
          "---|" * len(ranks))
    for op, size in others:
        cells = []
        for n in ranks:
            case = cases.get((op, n, "none", size))
            cells.append("-" if not case else f"{ratio_text(vs_best(case))} "
                         f"({ratio_text(mean_of(case, 'vs_limit'))})")
        print(f"| {op} | {size_text(size)} | " + " | ".join(cells) + " |")


def print_tails(out):
    files = sorted(pathlib.Path(out).glob("tails-*.json"))
    if not files:
        return
    print("\n**Tails: all-reduce of 4 KB, 10^5 calls**\n")
    print("| ranks | beside | | p50 | p99 | max |\n|---|---|---|---|---|---|")
    for file in files:
        for row in json.loads(file.read_text())["rows"]:
            where = "in place" if row["in_place"] else "out of place"
            for side, prefix in (("inccl", ""), ("MPI", "baseline_"), ("copy", "limit_")):
                p50 = row["time_us"] if not prefix else row[f"{prefix}us"]
                print(f"| {row['nranks']} | {file.name.split('.')[1]}, {where} | {side} "
                      f"| {time_text(p50)} | {time_text(row[f'{prefix}p99_us'])} "
                      f"| {time_text(row[f'{prefix}max_us'])} |")


# --------------------------------------------------------------------------------------- plot

SERIES = [("inccl, fp32", "#0072b2", ""), ("inccl, HBI 6 bits", "#009e73", ""),
          ("Open MPI", "#d55e00", ""), ("Open MPI, UCX", "#cc79a7", ""),
          ("streaming limit", "#000000", "4 3")]
WIDTH, HEIGHT, LEFT, TOP, GAP = 380, 300, 76, 34, 86


def series_of(cases, ranks):
    """{name: [(bytes, us)]}"""
    found = collections.defaultdict(list)
    for (op, n, codec, size), case in sorted(cases.items()):
        if op != "allreduce" or n != ranks:
            continue
        ours = mean_of(case, "time_us")
        if codec != "none":
            found["inccl, HBI 6 bits"].append((size, ours))
            continue
        found["inccl, fp32"].append((size, ours))
        for name, mpi in (("Open MPI", "default"), ("Open MPI, UCX", "ucx")):
            if (mpi, "baseline_us") in case:
                found[name].append((size, case[mpi, "baseline_us"]))
        found["streaming limit"].append((size, mean_of(case, "limit_us")))
    return found


def limits(cases, ranks):
    """The axes of all panels, as logarithms: ((bytes, us), (bytes, us))."""
    points = [p for n in ranks for line in series_of(cases, n).values() for p in line]
    low = [math.log10(min(p[i] for p in points)) for i in (0, 1)]
    high = [math.log10(max(p[i] for p in points)) for i in (0, 1)]
    return (low[0], math.floor(low[1])), (high[0], math.ceil(high[1]))


def panel(cases, ranks, left, axes):
    series = series_of(cases, ranks)
    points = [p for line in series.values() for p in line]
    low, high = axes

    def place(point):
        x = left + WIDTH * (math.log10(point[0]) - low[0]) / ((high[0] - low[0]) or 1)
        y = TOP + HEIGHT * (high[1] - math.log10(point[1])) / ((high[1] - low[1]) or 1)
        return x, y

    text = [f'<text x="{left + WIDTH / 2}" y="{TOP - 12}" text-anchor="middle" '
            f'font-weight="bold">{ranks} ranks</text>',
            f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" '
            'stroke="#888"/>']
    for size in sorted({p[0] for p in points}):
        x, _ = place((size, 10 ** low[1]))
        text.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + HEIGHT}" '
                    'stroke="#eee"/>')
        text.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">'
                    f'{size_text(size)}</text>')
    for decade in range(low[1], high[1] + 1):
        _, y = place((points[0][0], 10 ** decade))
        name = f"{10.0 ** decade:.10g}"
        text.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" '
                    'stroke="#ddd"/>')
        text.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    x, y = left + WIDTH / 2, TOP + HEIGHT + 34
    text.append(f'<text x="{x}" y="{y}" text-anchor="middle">size of a rank\'s vector '
                '(1 KB is 1024 bytes)</text>')
    x, y = left - 62, TOP + HEIGHT / 2
    text.append(f'<text transform="translate({x} {y}) rotate(-90)" text-anchor="middle">'
                'time of one all-reduce in microseconds</text>')
    for name, colour, dashes in SERIES:
        places = [place(p) for p in series.get(name, [])]
        if not places:
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        text.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
                    f'stroke-dasharray="{dashes}"/>')
        if not dashes:
            text += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
                     for x, y in places]
    return "\n".join(text) + "\n"


def plot(cases, file):
    ranks = [n for n in (2, 4) if series_of(cases, n)]
    width = LEFT + len(ranks) * (WIDTH + GAP)
    text = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 76}" '
            'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" '
            'fill="white"/>\n')
    for i, n in enumerate(ranks):
        text += panel(cases, n, LEFT + i * (WIDTH + GAP), limits(cases, ranks))
    for i, (name, colour, dashes) in enumerate(SERIES):
        x, y = LEFT + i * 165, TOP + HEIGHT + 60
        text += (f'<line x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" stroke="{colour}" '
                 f'stroke-width="2" stroke-dasharray="{dashes}"/>'
                 f'<text x="{x + 30}" y="{y + 4}">{name}</text>\n')
    pathlib.Path(file).write_text(text + "</svg>\n")


def report(args):
    cases = load(args.out)
    if not cases and not list(pathlib.Path(args.out).glob("tails-*.json")):
        sys.exit(f"{args.out}: no results; run `performance_report.py measure` first")
    for ranks in (2, 4, 8, 16):
        print_allreduce(cases, ranks)
    print_others(cases)
    print_tails(args.out)
    if args.svg:
        plot(cases, args.svg)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(usage=__doc__, add_help=True)
    parser.add_argument("what", choices=["measure", "report"])
    parser.add_argument("--perf", default=str(root / "build/release/perf"))
    parser.add_argument("--out", default=str(root / "build/performance"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--svg")
    args = parser.parse_args()
    measure(args) if args.what == "measure" else report(args)


if __name__ == "__main__":
    main()
