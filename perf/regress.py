#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares runs of the benchmarks with saved ones, by their ratio to the streaming limit. docs/scripts.md is the manual."""
import argparse
import json
import statistics
import sys

FIELDS = ("op", "nranks", "codec_spec", "type", "redop", "root", "algo", "transport", "bytes", "in_place")


def case_of(header, row):
    """What tells one case from another: the fields of a row, and what the header has that makes another case."""
    texts = []
    for field in FIELDS:
        value = row.get(field)
        if value is None or value is False or (field, value) in (("algo", "auto"), ("transport", "auto"), ("codec_spec", "none")):
            continue
        texts.append({"nranks": f"{value} ranks", "root": f"root {value}", "in_place": "in place",
                      "bytes": f"{int(value):012} B" if field == "bytes" else ""}.get(field, str(value)))
    if header.get("link_gbps", 0) > 0:
        texts.append(f"link {header['link_gbps']:g} Gbit/s")
    if header.get("link_us", 0) > 0:
        texts.append(f"{header['link_us']:g} us")
    if header.get("aggregated", 1) > 1:
        texts.append(f"x{header['aggregated']}")
    return " ".join(texts)


def ratios_of(files):
    """Ratios by case, of all files."""
    ratios = {}
    for path in files:
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            rows = [row for row in document["rows"] if row.get("vs_limit") is not None and row["vs_limit"] > 0]
            for row in rows:
                ratios.setdefault(case_of(document.get("header", {}), row), []).append(float(row["vs_limit"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemExit(f"regress.py: {path}: not a file that a benchmark has written with --json: {error!r}") from error
        if not rows:
            raise SystemExit(f"regress.py: {path}: no row has a ratio to the limit; run the benchmark with --limit")
    return {case: statistics.median(values) for case, values in ratios.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saved", nargs="+", required=True, metavar="FILE", help="files of the saved runs")
    parser.add_argument("--new", nargs="+", required=True, metavar="FILE", help="files of the runs to be judged")
    parser.add_argument("--tolerance", type=float, default=20, metavar="PERCENT",
                        help="by how much a case may be slower (default: %(default)s)")
    options = parser.parse_args()
    saved, new = ratios_of(options.saved), ratios_of(options.new)
    if not saved.keys() & new.keys():
        raise SystemExit("regress.py: the files have no case in common")
    limit = 1 + options.tolerance / 100
    width = max(map(len, [*saved, *new, "case"]))
    print(f"# time / streaming limit, medians\n{'# case':<{width}}  {'saved':>8}  {'now':>8}  {'change':>6}")
    verdicts = []
    for case in sorted(saved.keys() | new.keys()):
        before, now = saved.get(case), new.get(case)
        verdict = ("new" if before is None else "not run" if now is None else "SLOWER" if now > before * limit else
                   "faster" if before > now * limit else "same")
        cells = [f"{value:.2f}" if value else "-" for value in (before, now, now / before if before and now else None)]
        print(f"{case:<{width}}  {cells[0]:>8}  {cells[1]:>8}  {cells[2]:>6}  {'' if verdict == 'same' else verdict}".rstrip())
        verdicts.append(verdict)
    print(f"# {verdicts.count('SLOWER')} slower, {verdicts.count('faster')} faster by more than {options.tolerance:g} %, "
          f"{verdicts.count('same')} within it; {verdicts.count('not run')} not run, {verdicts.count('new')} new")
    return 1 if "SLOWER" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
