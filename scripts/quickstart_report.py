#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Table and verdict of tools/quickstart.sh, from the JSON files of its runs.

usage: quickstart_report.py DIRECTORY RANKS SECONDS
Exit status 1 if a row is wrong, differs between ranks, or is missing.
"""
import json
import pathlib
import sys

ONE_HOST = [("shm", "shared memory")]
# Where quickstart.sh could make hosts, and where it could not.
HOSTS = ONE_HOST + [("hosts10", "10 Gbit/s TCP"), ("hosts1", "1 Gbit/s TCP")]
NO_HOSTS = ONE_HOST + [("faked", "loopback TCP"), ("link10", "10 Gbit/s emu"), ("link1", "1 Gbit/s emu")]
SIZES = [("gradients", "gradients"), ("16M", "16 MB")]
BITS = [8, 6, 4]


def load(path):
    """The records of one run: a JSON array, an object that holds one, or one record per line."""
    text = path.read_text()
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(value, dict):
        lists = [v for v in value.values() if isinstance(v, list)]
        value = lists[0] if len(lists) == 1 else [value]
    return value


def codec_key(spec):
    """0 for the uncompressed codec, else the bits of hbi."""
    if spec == "none":
        return 0
    fields = dict(f.split("=", 1) for f in spec.partition(":")[2].split(",") if "=" in f)
    return int(float(fields["bits"]))


def collect(directory, links):
    """{(link, size): {bits: record}}; in place and out of place: the first of each."""
    rows = {}
    for link, _ in links:
        for size, _ in SIZES:
            cell = rows.setdefault((link, size), {})
            path = directory / f"{link}_{size}.json"
            for record in load(path) if path.exists() else []:
                cell.setdefault(codec_key(record["codec"]), record)
    return rows


def number(record, key):
    value = record.get(key)
    return None if value is None or value != value else float(value)


def text(value, width, form, unit=""):
    return ("-" if value is None else format(value, form) + unit).rjust(width)


def print_table(rows, links):
    print(f"{'link':<14} {'data':<10} {'codec':<7} {'time ms':>9} {'vs fp32':>8} {'vs MPI':>7} "
          f"{'wire MB':>8} {'vNMSE':>9} {'same':>5} {'wrong':>6}")
    for link, link_name in links:
        for size, size_name in SIZES:
            cell = rows[link, size]
            for bits in sorted(cell, key=lambda b: -b or -99):
                record = cell[bits]
                time = number(record, "time_us")
                mpi = number(record, "baseline_us")
                gain = number(cell[0], "time_us") / time
                wire = number(record, "wire_bytes") / 1e6
                print(f"{link_name:<14} {size_name:<10} {f'hbi {bits}' if bits else 'fp32':<7} "
                      f"{time / 1000:9.3f} {text(gain, 8, '.2f', 'x')} "
                      f"{text(mpi and mpi / time, 7, '.2f', 'x')} {wire:8.3f} "
                      f"{text(number(record, 'vnmse'), 9, '.1e')} "
                      f"{'yes' if record['identical'] else 'NO':>5} {record['wrong']!s:>6}")


def verdict(rows, links):
    """Two lines and whether all is well."""
    def gains(link):
        cell = rows[link, "16M"]
        fp32 = number(cell[0], "time_us")
        return " / ".join(f"{fp32 / number(cell[b], 'time_us'):.1f}x" for b in BITS)

    shm = rows["shm", "16M"]
    ratio = number(shm[0], "baseline_us") / number(shm[0], "time_us")
    names = "/".join(map(str, BITS))
    slow, fast = links[-1][0], links[-2][0]
    kind = "over TCP" if links is HOSTS else "over emulated links"
    speed = (f"Speed at 16 MB, HBI {names} bits against fp32, {kind}: {gains(slow)} at 1 Gbit/s, "
             f"{gains(fast)} at 10 Gbit/s; {gains('shm')} in shared memory, "
             f"where fp32 runs at {ratio:.2f}x Open MPI's speed.")
    records = [r for cell in rows.values() for r in cell.values()]
    bad = [r for r in records if not r["identical"] or r["wrong"]]
    sample = rows["shm", "gradients"]
    errors = " / ".join(f"{number(sample[b], 'vnmse'):.1e}" for b in BITS)
    right = (f"Accuracy: {len(records) - len(bad)} of {len(records)} runs right and identical on "
             f"all ranks; vNMSE of the summed gradients at {names} bits: {errors}.")
    return speed, right, not bad


def main():
    directory, ranks, seconds = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    links = HOSTS if (directory / "hosts1_16M.json").exists() else NO_HOSTS
    rows = collect(directory, links)
    missing = [f"{link}_{size} {bits or 'fp32'}" for (link, size), cell in rows.items()
               for bits in [0] + BITS if bits not in cell]
    if missing:
        print("no result for: " + ", ".join(missing))
        return 1
    print(f"\nall-reduce, {ranks} ranks, fp32 sum, {seconds} s in all; vs: times as fast as\n")
    print_table(rows, links)
    print("\nMPI is measured in the same run on the same buffers"
          + (", over the same links; all hosts share this machine's processors.\n" if links is HOSTS
             else ", but not over the emulated links (emu), which do not slow it.\n"))
    speed, right, good = verdict(rows, links)
    print(speed + "\n" + right)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
