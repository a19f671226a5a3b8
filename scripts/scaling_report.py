#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables and the picture of docs/scaling.md from what scaling_simulation writes with --json.

usage: scaling_report.py [--codec CODEC]... [--ranks N,...] [--svg FILE] FILE...

Algorithms in the tables: R ring, 2 direct in two shots, 1 in one, T tree, H hierarchical, D recursive doubling.
Of the algorithms that were run for a call, the tables and the picture show the fastest. Calls that were only estimated
(--estimate-only) appear in the picture with hollow marks, and only where no simulation has been run.
"""
import argparse
import json
import math
import statistics

CODECS = ["none", "hbi:bits=8", "hbi:bits=6", "hbi:bits=4"]
SHORT = {"direct": "2", "hierarchical": "H", "ring": "R", "tree": "T", "recursive_doubling": "D", "direct_one_shot": "1"}
HEADER, FRAMING = 64, 1514 / 1448
SIZES = {4096: "4 KB", 1 << 20: "1 MB", 64 << 20: "64 MB"}


def load(paths):
    """The fastest row of each call: simulated ones, and estimated ones of calls that none simulated."""
    simulated, estimated, rows = {}, {}, []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            rows += [json.loads(line) for line in file]
    for row in rows:
        key = (row["offload"], row["per_host"], row["bytes"], row["gbps"], row["ranks"], row["codec"])
        table, field = (simulated, "simulated_s") if row["simulated_s"] > 0 else (estimated, "estimate_s")
        if row[field] > 0 and (key not in table or row[field] < table[key][field]):
            table[key] = row
    return simulated, estimated, rows


def show(seconds):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}" if seconds * scale < 1000 else f"{seconds * scale:.0f} {unit}"
    return ""


def efficiency(row):
    """The time of the bytes on the busiest link, over the time of the call."""
    return row["host_sent"] * FRAMING * 8e-9 / row["gbps"] / row["simulated_s"]


def print_tables(simulated, wanted, only):
    groups = sorted({key[:3] for key in simulated})
    for offload, per_host, size in groups:
        rates = sorted({k[3] for k in simulated if k[:3] == (offload, per_host, size)})
        ranks = sorted({k[4] for k in simulated if k[:3] == (offload, per_host, size) and (not only or str(k[4]) in only)})
        codecs = [c for c in wanted if any(k[:3] == (offload, per_host, size) and k[5] == c for k in simulated)]
        name = "an adapter that moves the bytes" if offload else "TCP"
        print(f"\n{SIZES.get(size, size)}, {per_host} ranks a host, {name}: time, gain, algorithm, efficiency\n")
        print("| ranks | codec | " + " | ".join(f"{rate:g} Gbit/s" for rate in rates) + " |")
        print("|---|---|" + "---|" * len(rates))
        for n in ranks:
            for codec in codecs:
                cells = []
                for rate in rates:
                    row = simulated.get((offload, per_host, size, rate, n, codec))
                    plain = simulated.get((offload, per_host, size, rate, n, "none"))
                    if row is None:
                        cells.append("")
                        continue
                    gain = f" {plain['simulated_s'] / row['simulated_s']:.2f}x" if plain and codec != "none" else ""
                    algorithm = SHORT.get(row["algorithm"], row["algorithm"])
                    cells.append(f"{show(row['simulated_s'])}{gain} {algorithm} {efficiency(row):.2f}")
                if any(cells):
                    print(f"| {n} | {codec} | " + " | ".join(cells) + " |")


def print_ratios(rows):
    """How far the formula is from the simulation, by algorithm and kind of call."""
    ratios, formula = {}, {}

    def call(row):
        return tuple(row[f] for f in ("algorithm", "offload", "per_host", "bytes", "gbps", "ranks", "codec"))

    for row in sorted(rows, key=lambda row: -row["simulated_s"]):
        formula[call(row)] = row["estimate_s"]  # of a run of the formula alone, if there is one
    for row in rows:
        if row["simulated_s"] > 0 and formula[call(row)] > 0:
            kind = "fp32" if row["codec"] == "none" else "hbi"
            key = (row["algorithm"], kind, SIZES.get(row["bytes"], row["bytes"]))
            ratios.setdefault(key, []).append(formula[call(row)] / row["simulated_s"])
    print("\n| algorithm | codec | bytes | calls | formula / simulated: least | median | most |\n|---|---|---|---|---|---|---|")
    for key in sorted(ratios):
        r = ratios[key]
        print(f"| {' | '.join(key)} | {len(r)} | {min(r):.2f} | {statistics.median(r):.2f} | {max(r):.2f} |")


WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 380, 260, 58, 40, 28, 10
SERIES = [(8, "none", "#555555", "fp32, 8 ranks a host"), (8, "hbi:bits=6", "#0072b2", "HBI 6 bits, 8 ranks a host"),
          (1, "none", "#d55e00", "fp32, 1 rank a host"), (1, "hbi:bits=6", "#009e73", "HBI 6 bits, 1 rank a host")]


def panel(simulated, estimated, size, rate, left, top, out):
    """One panel: time over ranks, both axes logarithmic."""
    calls = {}
    for per_host, codec, colour, _ in SERIES:
        points = []
        for (offload, p, b, g, n, c), row in sorted({**estimated, **simulated}.items(), key=lambda item: item[0][4]):
            key = (offload, p, b, g, n, c)
            if not offload and (p, b, g, c) == (per_host, size, rate, codec) and n >= 4:
                points.append((n, row["simulated_s"] or row["estimate_s"], key in simulated))
        calls[(per_host, codec)] = (colour, points)
    times = [t for _, points in calls.values() for _, t, _ in points]
    if not times:
        return
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def x(n):
        return left + LEFT + (math.log2(n) - 2) / 12 * (WIDTH - LEFT - RIGHT)

    def y(t):
        return top + HEIGHT - BOTTOM - (math.log10(t) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out.append(f'<text x="{left + WIDTH / 2:.0f}" y="{top + 18}" text-anchor="middle" font-weight="bold">'
               f"{SIZES[size]}, {rate:g} Gbit/s</text>")
    for decade in range(low, high + 1):
        at = y(10.0 ** decade)
        out.append(f'<line x1="{left + LEFT}" x2="{left + WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{left + LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{show(10.0 ** decade)}</text>')
    for power in range(2, 15, 2):
        out.append(f'<text x="{x(2 ** power):.1f}" y="{top + HEIGHT - BOTTOM + 16}" text-anchor="middle">{2 ** power}</text>')
    out.append(f'<text x="{left + WIDTH / 2:.0f}" y="{top + HEIGHT - 6}" text-anchor="middle">ranks</text>')
    for colour, points in calls.values():
        line = " ".join(f"{x(n):.1f},{y(t):.1f}" for n, t, _ in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for n, t, real in points:
            fill = colour if real else "white"
            out.append(f'<circle cx="{x(n):.1f}" cy="{y(t):.1f}" r="3" fill="{fill}" stroke="{colour}"/>')


def draw(simulated, estimated, path):
    rates, sizes = [10, 100, 400], [64 << 20, 1 << 20]
    width, height = WIDTH * len(rates) + 16, HEIGHT * len(sizes) + 50
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, size in enumerate(sizes):
        for j, rate in enumerate(rates):
            panel(simulated, estimated, size, rate, j * WIDTH, i * HEIGHT, out)
    for i, (_, _, colour, text) in enumerate(SERIES):
        at = 30 + i * 270
        out.append(f'<circle cx="{at}" cy="{height - 30}" r="4" fill="{colour}"/>')
        out.append(f'<text x="{at + 10}" y="{height - 26}">{text}</text>')
    out.append(f'<text x="24" y="{height - 8}">Time of an all-reduce over TCP by the fastest algorithm that was run. '
               "Full marks: simulated; hollow marks: the formula.</text>")
    out.append("</svg>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


def main():
    parser = argparse.ArgumentParser(description="Tables and picture of simulated all-reduces")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--codec", action="append", help="rows of this codec in the tables; repeat; by default all")
    parser.add_argument("--ranks", default="", help="rows of these numbers of ranks in the tables; by default all")
    parser.add_argument("--svg", help="where to draw the picture")
    args = parser.parse_args()
    simulated, estimated, rows = load(args.files)
    print_tables(simulated, args.codec or CODECS, args.ranks.split(",") if args.ranks else [])
    print_ratios(rows)
    if args.svg:
        draw(simulated, estimated, args.svg)


if __name__ == "__main__":
    main()
