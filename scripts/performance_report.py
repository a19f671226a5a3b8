#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the collectives beside both MPIs and the streaming limit, and shows the results.

usage: performance_report.py measure [--perf DIR] [--out DIR] [--rounds N] [--pin] [--only WHAT,...]
       performance_report.py report [--out DIR]
       performance_report.py links [--perf DIR] [--out DIR] [--rounds N] [--svg FILE]

measure runs the benchmarks under mpirun, once beside Open MPI's default transports and once beside
its UCX path, and leaves their JSON files in --out. report prints tables in Markdown; with several
rounds every number is the median over them. links measures 64 MB between four hosts over links of
several speeds, and draws the times. docs/performance.md has the commands that its numbers were made with.
"""
import argparse
import collections
import json
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


# -------------------------------------------------------------------------------------- links

LINKS = [("25 Gbit/s", ["-r", "25gbit"], 10), ("10 Gbit/s", ["-r", "10gbit"], 8), ("1 Gbit/s", ["-r", "1gbit"], 4),
         ("1 Gbit/s, 20 ms", ["-r", "1gbit", "-d", "10"], 4)]
SERIES = [("Open MPI, fp32", "#d55e00"), ("inccl, fp32", "#0072b2"), ("inccl, HBI 6 bits", "#009e73")]
BAR, LEFT, WIDTH = 16, 120, 560


def links(args):
    """64 MB between four hosts over links of several rates, and a long one: a table, and with --svg a picture."""
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    root = pathlib.Path(__file__).resolve().parent.parent
    found = {name: collections.defaultdict(list) for name, _, _ in LINKS}
    for _ in range(args.rounds):
        for name, options, iterations in LINKS:
            file = out / "links.json"
            line = [str(root / "perf/hosts.sh"), "run", "-h", "4", *options, str(pathlib.Path(args.perf) / "allreduce_bench"),
                    "--init", "id", "-b", "64M", "-e", "64M", "-n", str(iterations), "-w", "1", "-c", "0", "--codec", "none",
                    "--codec", "hbi:bits=6", "--baseline", "mpi", "--json", str(file)]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"{' '.join(line)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            for row in json.loads(file.read_text())["rows"]:
                if row["in_place"]:
                    continue
                plain = row["codec"] == "none"
                found[name][SERIES[1 if plain else 2][0]].append(row["time_us"] / 1000)
                if plain:
                    found[name][SERIES[0][0]].append(row["baseline_us"] / 1000)
    times = {name: {side: statistics.median(ms) for side, ms in sides.items()} for name, sides in found.items()}
    print("| 64 MB, 4 hosts | " + " | ".join(f"{side}, ms" for side, _ in SERIES) + " |\n|---" + "|---" * len(SERIES) + "|")
    for name, sides in times.items():
        print(f"| {name} | " + " | ".join(f"{sides[side]:.0f}" for side, _ in SERIES) + " |")
    if args.svg:
        draw_links(times, args.svg)


def draw_links(times, file):
    most = max(max(sides.values()) for sides in times.values())
    group = BAR * len(SERIES) + 14
    height = 70 + group * len(times) + 30
    text = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 80}" height="{height}" font-family="sans-serif" '
            'font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{LEFT}" y="22" font-weight="bold">All-reduce of 64 MB of fp32 between 4 hosts: milliseconds, less is better</text>']
    for i, (side, colour) in enumerate(SERIES):
        text.append(f'<rect x="{LEFT + 170 * i}" y="36" width="12" height="12" fill="{colour}"/>'
                    f'<text x="{LEFT + 170 * i + 18}" y="47">{side}</text>')
    for i, (name, sides) in enumerate(times.items()):
        top = 66 + group * i
        text.append(f'<text x="{LEFT - 8}" y="{top + group / 2 - 3}" text-anchor="end">{name}</text>')
        for k, (side, colour) in enumerate(SERIES):
            width = max(1, WIDTH * sides[side] / most)
            text.append(f'<rect x="{LEFT}" y="{top + BAR * k}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>'
                        f'<text x="{LEFT + width + 6:.1f}" y="{top + BAR * k + 12}">{sides[side]:.0f}</text>')
    text.append(f'<text x="{LEFT}" y="{height - 12}" fill="#555">Hosts are network namespaces of one machine of 2 cores; '
                '"20 ms" is the round trip.</text></svg>')
    pathlib.Path(file).write_text("\n".join(text) + "\n")


def report(args):
    cases = load(args.out)
    if not cases and not list(pathlib.Path(args.out).glob("tails-*.json")):
        sys.exit(f"{args.out}: no results; run `performance_report.py measure` first")
    for ranks in (2, 4, 8, 16):
        print_allreduce(cases, ranks)
    print_others(cases)
    print_tails(args.out)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(usage=__doc__, add_help=True)
    parser.add_argument("what", choices=["measure", "report", "links"])
    parser.add_argument("--perf", default=str(root / "build/release/perf"))
    parser.add_argument("--out", default=str(root / "build/performance"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--svg")
    args = parser.parse_args()
    if args.svg and args.what != "links":
        parser.error("--svg: links draws a picture, measure and report do not")
    {"measure": measure, "report": report, "links": links}[args.what](args)


if __name__ == "__main__":
    main()
