#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains with different backends, hooks and codecs, and compares the losses.

usage: compare.py run [--set SET] [--out DIR] [--only NAME,...] [--seeds N] [--steps N] [--ranks N]
       compare.py report [--set SET] [--out DIR] [--svg FILE]

run starts train.py under torchrun, one configuration and seed after the other, and leaves a file of
JSON lines for each in --out. It skips files that are complete, so that an interrupted comparison
goes on. --set: ddp, fsdp, papers or sgd, by default ddp. report prints the table in Markdown and draws the losses. docs/training.md has both.
"""
import argparse
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Name in the files -> (name in the table, colour, dashes, options of train.py). The first is what the others are
# compared with; the most important ones come first.
DDP = {
    "gloo": ("gloo, fp32", "#000000", "", "--backend gloo --hook none"),
    "inccl": ("inccl, fp32", "#888888", "4 3", "--backend inccl --hook none"),
    "hbi6": ("`hbi:bits=6`", "#009e73", "", "--hook inccl --codec hbi:bits=6"),
    "hbi4residual": ("`hbi:bits=4`, residual", "#0072b2", "", "--hook inccl --codec hbi:bits=4 --residual"),
    "hbi4": ("`hbi:bits=4`", "#56b4e9", "", "--hook inccl --codec hbi:bits=4"),
    "hbi3": ("`hbi:bits=3`", "#7f5fa8", "", "--hook inccl --codec hbi:bits=3"),
    "coded3": ("`hbi:bits=3,code=entropy`", "#d55e00", "4 3", "--hook inccl --codec hbi:bits=3,code=entropy"),
    "coded25": ("`hbi:bits=2.5,code=entropy`", "#009e73", "4 3", "--hook inccl --codec hbi:bits=2.5,code=entropy"),
    "coded2residual": ("`hbi:bits=2,levels=energy,code=entropy`, residual", "#0072b2", "4 3",
                       "--hook inccl --codec hbi:bits=2,levels=energy,code=entropy --residual"),
    "coded15residual": ("`hbi:bits=1.5,levels=energy,code=entropy`, residual", "#56b4e9", "4 3",
                         "--hook inccl --codec hbi:bits=1.5,levels=energy,code=entropy --residual"),
    "hbi2residual": ("`hbi:bits=2`, residual", "#7f5fa8", "4 3", "--hook inccl --codec hbi:bits=2 --residual"),
    "hbi8": ("`hbi:bits=8`", "#e69f00", "", "--hook inccl --codec hbi:bits=8"),
    "bf16": ("gloo, `bf16_compress_hook`", "#cc79a7", "", "--backend gloo --hook bf16"),
    "powersgd": ("gloo, PowerSGD of rank 4", "#d55e00", "", "--backend gloo --hook powersgd"),
}
LOCO = "--residual --keep 0.2 --reset-every 100"
FSDP = {
    "fsdp": ("fp32", "#000000", "", "--hook none --fsdp fp32"),
    "fsdp4": ("`hbi:bits=4`", "#56b4e9", "", "--hook inccl --fsdp fp32 --codec hbi:bits=4"),
    "fsdp4residual": ("`hbi:bits=4`, residual", "#0072b2", "", "--hook inccl --fsdp fp32 --codec hbi:bits=4 --residual"),
    "fsdp4loco": ("`hbi:bits=4`, LoCo", "#009e73", "", f"--hook inccl --fsdp fp32 --codec hbi:bits=4 {LOCO}"),
    "fsdp2": ("`hbi:bits=2`", "#cc79a7", "", "--hook inccl --fsdp fp32 --codec hbi:bits=2"),
    "fsdp2loco": ("`hbi:bits=2`, LoCo", "#7f5fa8", "", f"--hook inccl --fsdp fp32 --codec hbi:bits=2 {LOCO}"),
    "bf16": ("bf16", "#888888", "4 3", "--hook none --fsdp bf16"),
    "bf16hbi4": ("bf16, `hbi:bits=4`", "#56b4e9", "4 3", "--hook inccl --fsdp bf16 --codec hbi:bits=4"),
    "bf16residual": ("bf16, `hbi:bits=4`, residual", "#0072b2", "4 3",
                     "--hook inccl --fsdp bf16 --codec hbi:bits=4 --residual"),
    "bf16loco": ("bf16, `hbi:bits=4`, LoCo", "#009e73", "4 3", f"--hook inccl --fsdp bf16 --codec hbi:bits=4 {LOCO}"),
}
# Systems of papers, each beside what it is compared with there.
PAPERS = {
    "lans": ("Lans, fp32", "#000000", "", "--hook none --optimizer lans"),
    "lans4": ("Lans, `hbi:bits=4`", "#0072b2", "", "--hook inccl --optimizer lans --codec hbi:bits=4"),
    "clan": ("Lans, `onebit`, residual (CLAN)", "#009e73", "", "--hook inccl --optimizer lans --codec onebit --residual"),
    "lansonebit": ("Lans, `onebit`", "#cc79a7", "", "--hook inccl --optimizer lans --codec onebit"),
}
SGD = {
    "momentum": ("SGD with momentum, fp32", "#000000", "", "--hook none --optimizer momentum"),
    "topk": ("SGD with momentum, `topk:k=0.001`", "#cc79a7", "",
             "--hook inccl --optimizer momentum --local-clip 1 --reducer topk:k=0.001"),
    "dgc": ("SGD, `topk:k=0.001,momentum=0.9` (DGC)", "#009e73", "",
            "--hook inccl --optimizer sgd --local-clip 1 --reducer topk:k=0.001,momentum=0.9,warm=80"),
    "momentum2": ("SGD with momentum, `hbi:bits=2`", "#56b4e9", "", "--hook inccl --optimizer momentum --codec hbi:bits=2"),
    "late": ("CdSgd, fp32", "#888888", "", "--hook none --optimizer cdsgd --codec none"),
    "cdsgd": ("CdSgd, `hbi:bits=2`, every 4th step in fp32", "#0072b2", "",
              "--hook none --optimizer cdsgd --codec hbi:bits=2 --correct-every 4"),
}
SETS = {"ddp": DDP, "fsdp": FSDP, "papers": PAPERS, "sgd": SGD}
CONFIGURATIONS = DDP


def read(file):
    """The lines of a log, or nothing if the run has not ended."""
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    return lines if lines and "equal" in lines[-1] else []


def start(line, environment, log):
    """Runs a command to its end: (exit status, what it printed). A run whose log is whole may hang at its exit, as those of
    PyTorch's gloo sometimes do, which wait for a thread that wants the interpreter; it is ended then."""
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          start_new_session=True) as process:
        while True:
            try:
                printed, _ = process.communicate(timeout=60)
                return process.returncode, printed
            except subprocess.TimeoutExpired:
                if read(log) and time.time() - log.stat().st_mtime > 60:
                    os.killpg(process.pid, signal.SIGKILL)
                    return 0, ""


def run(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    names = args.only.split(",") if args.only else list(CONFIGURATIONS)
    unknown = set(names) - set(CONFIGURATIONS)
    if unknown:
        sys.exit(f"--only: expected {', '.join(CONFIGURATIONS)}, got {', '.join(sorted(unknown))}")
    for seed in range(1, args.seeds + 1):
        for name in names:
            log = out / f"{name}.{seed}.jsonl"
            if read(log):
                continue
            line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks),
                    str(HERE / "train.py"), *CONFIGURATIONS[name][3].split(), "--seed", str(seed), "--steps",
                    str(args.steps), "--log-file", str(log)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            status, printed = start(line, environment, log)
            lines = read(log)
            if status != 0 or not lines:
                sys.exit(f"{' '.join(line)}\n{printed[-6000:]}")
            print(f"{log}: validation loss {lines[-2]['validation']:.4f}", flush=True)


# ------------------------------------------------------------------------------------- report

def load(out):
    """{name: {seed: [entries that have a validation loss]}}"""
    found = {}
    for name in CONFIGURATIONS:
        for file in sorted(pathlib.Path(out).glob(f"{name}.*.jsonl")):
            lines = read(file)
            if not lines:
                continue
            if not lines[-1]["equal"]:
                sys.exit(f"{file}: the ranks ended with different parameters")
            seed = int(file.name.split(".")[1])
            found.setdefault(name, {})[seed] = [line for line in lines if "validation" in line]
    return found


def differences(runs, base, at=-1):
    """By seed: percent by which a run's validation loss is above that of `base`, same seed."""
    return [100 * (runs[seed][at]["validation"] / base[seed][at]["validation"] - 1)
            for seed in sorted(runs) if seed in base]


def percent(value):
    return f"{round(value, 2) + 0.0:+.2f}"  # +0.00 also for what rounds to zero from below


def print_table(found):
    base = next(iter(CONFIGURATIONS))
    if base not in found:
        sys.exit(f"no run of {base}, with which the others are compared")
    print("| gradients | bits per element | validation loss: mean | least to largest "
          "| above the first, same seed: mean | least to largest | seeds |\n|" + "---|" * 7)
    for name, runs in found.items():
        losses = [entries[-1]["validation"] for entries in runs.values()]
        bits = statistics.mean(entries[-1]["bits"] for entries in runs.values())
        more = differences(runs, found[base])
        cells = ["", ""] if name == base or not more else [
            f"{percent(statistics.mean(more))} %", f"{percent(min(more))} to {percent(max(more))} %"]
        print(f"| {CONFIGURATIONS[name][0]} | {bits:.3g} | {statistics.mean(losses):.4f} "
              f"| {min(losses):.4f} to {max(losses):.4f} | {cells[0]} | {cells[1]} | {len(runs)} |")


# --------------------------------------------------------------------------------------- plot

WIDTH, HEIGHT, LEFT, TOP, GAP = 380, 300, 60, 34, 80


def means(runs, value):
    """[(step, mean over the seeds)]; value(entries, i): a list of numbers for the i-th validation."""
    entries = next(iter(runs.values()))
    return [(entries[i]["step"], statistics.mean(value(i))) for i in range(len(entries))]


def ticks(low, high):
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (m * step) <= 8)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def panel(left, title, lines):
    """lines: {name: [(step, value)]}"""
    points = [p for line in lines.values() for p in line]
    across = ticks(0, max(p[0] for p in points))
    up = ticks(min(p[1] for p in points), max(p[1] for p in points))

    def place(point):
        return (left + WIDTH * point[0] / across[-1],
                TOP + HEIGHT * (up[-1] - point[1]) / (up[-1] - up[0]))

    text = [f'<text x="{left + WIDTH / 2}" y="{TOP - 12}" text-anchor="middle" font-weight="bold">{title}</text>']
    for value in across:
        x, _ = place((value, up[0]))
        text.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + HEIGHT}" stroke="#eee"/>'
                    f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{value:g}</text>')
    for value in up:
        _, y = place((0, value))
        text.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>'
                    f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    text.append(f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>')
    text.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 32}" text-anchor="middle">step</text>')
    for name, line in lines.items():
        _, colour, dashes, _ = CONFIGURATIONS[name]
        places = [place(p) for p in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        text.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
                    f'stroke-dasharray="{dashes}"/>')
        text += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places]
    return "\n".join(text) + "\n"


def plot(found, file):
    base = found[next(iter(CONFIGURATIONS))]
    losses = {name: means(runs, lambda i, runs=runs: [entries[i]["validation"] for entries in runs.values()])
              for name, runs in found.items()}
    above = {name: means(runs, lambda i, runs=runs: differences(runs, base, i))
             for name, runs in found.items() if set(runs) & set(base)}
    width, columns = LEFT + 2 * (WIDTH + GAP), 4
    rows = math.ceil(len(found) / columns)
    text = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 50 + 20 * rows}" '
            'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n')
    text += panel(LEFT, "validation loss, nats per character", losses)
    text += panel(LEFT + WIDTH + GAP, f"percent above {CONFIGURATIONS[next(iter(CONFIGURATIONS))][0]}", above)
    for i, name in enumerate(found):
        label, colour, dashes, _ = CONFIGURATIONS[name]
        x, y = LEFT + i % columns * 215, TOP + HEIGHT + 56 + 20 * (i // columns)
        text += (f'<line x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" stroke="{colour}" stroke-width="2" '
                 f'stroke-dasharray="{dashes}"/><text x="{x + 30}" y="{y + 4}">{label.replace("`", "")}</text>\n')
    pathlib.Path(file).write_text(text + "</svg>\n")


def report(args):
    found = load(args.out)
    print_table(found)
    if args.svg:
        plot(found, args.svg)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--out", default=str(HERE.parent.parent / "build/train_gpt"))
    parser.add_argument("--only", help="names of configurations, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--svg")
    parser.add_argument("--set", choices=SETS, default="ddp")
    args = parser.parse_args()
    global CONFIGURATIONS
    CONFIGURATIONS = SETS[args.set]
    run(args) if args.what == "run" else report(args)


if __name__ == "__main__":
    main()
