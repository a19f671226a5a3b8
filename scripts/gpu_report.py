#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What perf/gpu_suite.sh has measured: one JSON file with everything, a table in Markdown.

usage: gpu_report.py OUTPUT_DIR

Reads OUTPUT_DIR/steps.json, kernels.json, *.tests.json and bench.*.json (what is not there is left
out), writes OUTPUT_DIR/suite.json and table.md, and prints the table. The first part of the table
is docs/cuda.md's list of numbers to reach, each with what was measured.
"""
import json
import pathlib
import re
import sys

MB = 1 << 20
CODECS = {"none": "fp32", "hbi:bits=8": "HBI 8", "hbi:bits=6": "HBI 6", "hbi:bits=4": "HBI 4"}
ELEMENTS = "ManyElementsEqualTheCpu"  # the test that compares 10^8 elements


def read(path):
    """A JSON file; None if there is none, or only a part of it."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def load(directory):
    """Everything as one object: steps, kernels, tests by program, benches by name."""
    out = pathlib.Path(directory)
    suite = read(out / "steps.json") or {"seconds": None, "failed": True, "steps": []}
    suite["kernels"] = read(out / "kernels.json")
    suite["tests"] = {p.name[:-len(".tests.json")]: read(p)
                      for p in sorted(out.glob("*.tests.json"))}
    suite["benches"] = {p.name[len("bench."):-len(".json")]: read(p)
                        for p in sorted(out.glob("bench.*.json"))}
    suite["nccl_left_out"] = None
    for log in sorted(out.glob("nccl.*.log")):
        found = re.search("^# NCCL left out: (.*)$", log.read_text(errors="replace"), re.MULTILINE)
        if found:
            suite["nccl_left_out"] = suite["nccl_left_out"] or found.group(1)
    return suite


def rows_of(suite, kinds, launcher=None, ranks=None, link=None):
    """Out of place, of benches KIND.LAUNCHER.RANKS.LINK[.PART], in the order of `kinds`."""
    for kind in kinds:
        for name, document in suite["benches"].items():
            parts = name.split(".")
            if parts[0] != kind or not document:
                continue
            if ((launcher and parts[1] != launcher) or (ranks and parts[2] != str(ranks))
                    or (link and parts[3] != link)):
                continue
            for row in document["rows"]:
                if not row["in_place"]:
                    yield row


def time_of(suite, launcher, ranks, link, codec, size):
    """Microseconds, from the sweep or what was run for the goals; None if it was not measured."""
    for row in rows_of(suite, ("goals", "sweep"), launcher, ranks, link):
        if row["codec"] == codec and row["bytes"] == size and row["op"] == "allreduce":
            return row["time_us"]
    return None


# ---------------------------------------------------------------------------------- goals

def kernel(suite, bits, name):
    for row in (suite["kernels"] or {}).get("kernels", []):
        if row["bits"] == bits and row["kernel"] == name:
            return row
    return None


def traffic(suite):
    """Bytes of device memory for each element: side words, encode, one sum, decode, at 6 bits."""
    parts = [kernel(suite, 6, name)
             for name in ("side words", "encode", "packed sum, 1 + 1", "decode")]
    if not all(parts):
        return None
    return sum(part["bytes_per_element"] for part in parts)


def slowest_kernel(suite):
    rows = (suite["kernels"] or {}).get("kernels", [])
    return min(rows, key=lambda row: row["of_copy"], default=None)


def elements_test(suite):
    """(passed, text) of the comparison of 10^8 elements, None if it was not run."""
    for document in suite["tests"].values():
        for group in (document or {}).get("testsuites", []):
            for test in group["testsuite"]:
                if test["name"] == ELEMENTS and test.get("result") == "COMPLETED":
                    failed = bool(test.get("failures"))
                    return not failed, "some differ" if failed else "0 differ"
    return None


def digests(suite):
    """(equal, all) results of calls on a GPU beside those of the same calls on the host's memory."""
    def of(kind):
        document = suite["benches"].get(f"digest.threads.4.shm.{kind}") or {"rows": []}
        return {(row["codec"], row["bytes"], row["in_place"]): row["digest"]
                for row in document["rows"]}
    device, host = of("device"), of("host")
    both = device.keys() & host.keys()
    return (sum(device[key] == host[key] for key in both), len(both)) if both else None


def best(values):
    found = [v for v in values if v[0] is not None]
    return min(found) if found else (None, None)


def goals(suite):
    """[(what, goal, measured or None, reached or None)]"""
    found = []

    def add(what, goal, value, text, reached):
        found.append((what, goal, None if value is None else text(value),
                      None if value is None else reached(value)))

    bytes_each = traffic(suite)
    add("codes, encode, one sum, decode at 6 bits: bytes of device memory per element, of the "
        "kernels' sizes", "<= 16", bytes_each, lambda v: f"{v:.2f}", lambda v: v <= 16)
    add("the same, if the second reading of the elements hits the L2 cache", "<= 12",
        None if bytes_each is None else bytes_each - 4, lambda v: f"{v:.2f}", lambda v: v <= 12)
    slow = slowest_kernel(suite)
    add("slowest kernel / copy of the device", ">= 0.8", slow,
        lambda v: f"{v['of_copy']:.2f} ({v['kernel']}, {v['bits']:g} bits)",
        lambda v: v["of_copy"] >= 0.8)
    same = elements_test(suite)
    add("10^8 elements against the CPU", "0 bytes differ", same, lambda v: v[1], lambda v: v[0])
    add("all-reduce on a GPU against the same on the host: results", "all equal", digests(suite),
        lambda v: f"{v[0]} of {v[1]} equal", lambda v: v[0] == v[1])
    ours = time_of(suite, "threads", 4, "100", "hbi:bits=6", 256 * MB)
    plain = time_of(suite, "threads", 4, "100", "none", 256 * MB)
    ratio = ours / plain if ours and plain else None
    add("4 ranks, 256 MB, emulated 100 Gbit/s: HBI 6 bits / fp32", "<= 0.3", ratio,
        lambda v: f"{v:.2f}", lambda v: v <= 0.3)
    bound = [(1 / row["vs_limit"], launcher) for launcher in ("processes", "threads")
             for row in rows_of(suite, ("goals",), launcher, 4, "shm")
             if row["codec"] == "none" and row["vs_limit"]]
    add("4 ranks on one GPU, 256 MB, fp32: the copies' time / ours", ">= 0.5",
        max(bound, default=None), lambda v: f"{v[0]:.2f} ({v[1]})", lambda v: v[0] >= 0.5)
    add("kernel launches for a slice", "<= 3", None, str, bool)  # of a profiler, not of the suite
    latency = best([(row["time_us"], launcher) for launcher in ("processes", "threads")
                    for row in rows_of(suite, ("latency",), launcher, 2)])
    add("2 ranks, 4 KB: time", "<= 30 us", latency[0] and latency,
        lambda v: f"{time_text(v[0])} ({v[1]})", lambda v: v[0] <= 30)
    return found


# ---------------------------------------------------------------------------------- table

def size_text(size):
    for unit, name in ((1 << 30, "GB"), (MB, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def time_text(us):
    if us is None:
        return "-"
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    if us >= 1000:
        return f"{us / 1000:.3g} ms" if us >= 10000 else f"{us / 1000:.1f} ms"
    return f"{us:.0f} us" if us >= 100 else f"{us:.3g} us"


def goal_lines(suite):
    yield "| number to reach | goal | measured | |"
    yield "|---|---|---|---|"
    words = {True: "reached", False: "missed", None: "not measured"}
    for what, goal, measured, reached in goals(suite):
        yield f"| {what} | {goal} | {measured or '-'} | {words[reached]} |"


def kernel_lines(suite):
    kernels = suite["kernels"]
    if not kernels:
        return
    yield ""
    yield (f"**Kernels**, {kernels['elements']} elements of fp32, or as many bytes, beside the "
           f"device's copy ({kernels['copy_gb_per_s']:.0f} GB/s)")
    names = list(dict.fromkeys(row["kernel"] for row in kernels["kernels"]))
    sizes = {name: tuple(sorted((row["bits"] for row in kernels["kernels"]
                                 if row["kernel"] == name), reverse=True)) for name in names}
    for bits in dict.fromkeys(sizes.values()):  # a table for those of the same sizes
        yield ""
        yield "| kernel |" + "".join(f" {b:g} bits: GB/s | of copy | bytes/element |" for b in bits)
        yield "|---|" + "---|---|---|" * len(bits)
        for name in (name for name in names if sizes[name] == bits):
            cells = []
            for b in bits:
                row = kernel(suite, b, name)
                cells += [f"{row['gb_per_s']:.0f}", f"{row['of_copy']:.2f}",
                          f"{row['bytes_per_element']:.2f}"]
            yield f"| {name} | " + " | ".join(cells) + " |"


def sweep_lines(suite):
    found = {}  # (ranks, link) -> size -> codec -> row
    for name, document in suite["benches"].items():
        if not name.startswith("sweep."):
            continue
        _, _, ranks, link = name.split(".")[:4]
        for row in rows_of({"benches": {name: document}}, ("sweep",)):
            sizes = found.setdefault((int(ranks), link), {})
            sizes.setdefault(row["bytes"], {})[row["codec"]] = row
    for (ranks, link), sizes in sorted(found.items(), key=lambda f: (f[0][1] != "shm", f[0][1], f)):
        where = "shared memory" if link == "shm" else f"an emulated link of {link} Gbit/s"
        yield ""
        yield f"**All-reduce, {ranks} ranks on one GPU, {where}**"
        yield ""
        yield ("| bytes |" + "".join(f" {text} |" for text in CODECS.values()) +
               " copies | HBI 6 / fp32 | fp32 / copies |")
        yield "|---|" + "---|" * (len(CODECS) + 3)
        for size, rows in sorted(sizes.items()):
            times = {codec: rows[codec]["time_us"] for codec in CODECS if codec in rows}
            limit = rows.get("none", {}).get("limit_us")
            cells = [time_text(times.get(codec)) for codec in CODECS] + [time_text(limit)]
            plain, hbi = times.get("none"), times.get("hbi:bits=6")
            cells.append(f"{hbi / plain:.2f}" if plain and hbi else "-")
            cells.append(f"{plain / limit:.2f}" if plain and limit else "-")
            yield f"| {size_text(size)} | " + " | ".join(cells) + " |"


def nccl_lines(suite):
    rows = [row for row in rows_of(suite, ("nccl",)) if row["baseline_us"] is not None]
    if not rows:
        if suite["nccl_left_out"]:
            yield ""
            yield f"NCCL was left out: {suite['nccl_left_out']}."
        return
    yield ""
    yield "**All-reduce beside NCCL, a GPU for each rank**"
    yield ""
    yield "| ranks | bytes | | ours | NCCL | ours / NCCL |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        yield (f"| {row['nranks']} | {size_text(row['bytes'])} | "
               f"{CODECS.get(row['codec'], row['codec'])} | {time_text(row['time_us'])} | "
               f"{time_text(row['baseline_us'])} | {row['vs_baseline']:.2f} |")


def other_lines(suite):
    rows = [(name.split(".")[1], row) for name, document in suite["benches"].items()
            if name.split(".")[0] in ("latency", "alltoall", "sendrecv")
            for row in rows_of({"benches": {name: document}}, (name.split(".")[0],))]
    if not rows:
        return
    yield ""
    yield "**Others**"
    yield ""
    yield "| | ranks | bytes | p50 | p99 | copies |"
    yield "|---|---|---|---|---|---|"
    for launcher, row in rows:
        yield (f"| {row['op']}, {launcher} | {row['nranks']} | {size_text(row['bytes'])} | "
               f"{time_text(row['time_us'])} | {time_text(row['p99_us'])} | "
               f"{time_text(row['limit_us'])} |")


def step_lines(suite):
    yield ""
    yield "| part | result | seconds |"
    yield "|---|---|---|"
    for step in suite["steps"]:
        if "not_run" in step:
            yield f"| {step['step']} | not run: {step['not_run']} | |"
            continue
        status = step["exit_status"]
        result = {0: "ok", 124: f"stopped after {step['limit']} s"}.get(
            status, f"failed ({status})")
        yield f"| {step['step']} | {result} | {step['seconds']} |"


def wrong_lines(suite):
    """Results that a benchmark found wrong."""
    for name, document in suite["benches"].items():
        for row in (document or {}).get("rows", []):
            if row["wrong"] or row["identical"] is False:
                yield (f"- **WRONG**: {name}, {size_text(row['bytes'])}, {row['codec']}: "
                       f"{row['wrong']} elements, ranks identical: {row['identical']}")


def table(suite):
    device = (suite["kernels"] or {}).get("device", "unknown device")
    lines = [f"{device}; the whole suite took {suite['seconds']} s. All times are medians over the "
             "calls, of the slowest rank, by the host's clock around enqueueing and synchronizing; "
             "copies: each rank copies its input within the device, all at the same time.", ""]
    for part in (goal_lines, wrong_lines, kernel_lines, sweep_lines, nccl_lines, other_lines,
                 step_lines):
        lines += part(suite)
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    suite = load(out)
    if not suite["steps"]:
        sys.exit(f"{out}/steps.json: not there, or not of perf/gpu_suite.sh")
    suite["goals"] = [dict(zip(("what", "goal", "measured", "reached"), goal))
                      for goal in goals(suite)]
    (out / "suite.json").write_text(json.dumps(suite, indent=1) + "\n")
    text = table(suite)
    (out / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
