# SPDX-License-Identifier: Apache-2.0
"""python -m inccl.plan: which buckets of gradients to compress, from the times of a training run.

A trace (inccl.torch.Recorder writes it) says when each bucket was ready and how long its all-reduce
took with each codec. The planner chooses a codec per bucket, so that a step takes the shortest time,
and of the plans that take hardly longer the one with the least error. docs/tools.md has the
model.
"""
import argparse
import bisect
import csv
import dataclasses
import itertools
import json
import pathlib
import statistics
import sys
from typing import Dict, List, Optional, Sequence, Tuple, Union

_TRACE, _PLAN = "inccl-trace 1", "inccl-plan 1"


@dataclasses.dataclass
class Run:
    """Median times of the steps with one codec, in milliseconds after the end of the last call of
    the step before; one entry per bucket, in the order in which they are ready."""
    codec: str
    ready_ms: List[float]
    begin_ms: List[float]
    end_ms: List[float]

    @property
    def step_ms(self) -> float:
        return self.end_ms[-1]


@dataclasses.dataclass
class Trace:
    """What one rank has seen: `elements` of each bucket, and a Run for each codec."""
    ranks: int
    elements: List[int]
    runs: List[Run]

    def __post_init__(self):
        if not self.elements:
            raise ValueError("buckets: none")
        if not self.runs:
            raise ValueError("runs: none")
        for run in self.runs:
            for name in ("ready_ms", "begin_ms", "end_ms"):
                times = getattr(run, name)
                if len(times) != len(self.elements):
                    raise ValueError(f"runs, codec {run.codec}: {name} has {len(times)} entries for "
                                     f"{len(self.elements)} buckets")
                if any(a > b for a, b in zip(times, times[1:])):
                    raise ValueError(f"runs, codec {run.codec}: {name} does not rise")
            if any(not 0 <= ready <= begin <= end
                   for ready, begin, end in zip(run.ready_ms, run.begin_ms, run.end_ms)):
                raise ValueError(f"runs, codec {run.codec}: a bucket is not ready, begun and ended "
                                 "in this order")
        codecs = [run.codec for run in self.runs]
        if len(set(codecs)) != len(codecs):
            raise ValueError(f"runs: a codec appears twice in {codecs}")

    def save(self, path) -> None:
        _write(path, {"format": _TRACE, "ranks": self.ranks, "elements": self.elements,
                      "runs": [dataclasses.asdict(run) for run in self.runs]})

    @staticmethod
    def load(path) -> "Trace":
        def read(text):
            return Trace(int(text["ranks"]), [int(n) for n in text["elements"]],
                         [Run(**run) for run in text["runs"]])
        return _read(path, _TRACE, read)


@dataclasses.dataclass
class Plan:
    """A codec for each bucket, or "none". step_ms: what the model expects."""
    ranks: int
    elements: List[int]
    codecs: List[str]
    step_ms: float

    def codec_of(self, index: int, elements: int) -> Optional[str]:
        """The codec of a bucket; None if the plan was not made for it."""
        known = 0 <= index < len(self.elements) and self.elements[index] == elements
        return self.codecs[index] if known else None

    def save(self, path) -> None:
        _write(path, {"format": _PLAN, **dataclasses.asdict(self)})

    @staticmethod
    def load(path) -> "Plan":
        def read(text):
            plan = Plan(int(text["ranks"]), [int(n) for n in text["elements"]],
                        [str(codec) for codec in text["codecs"]], float(text["step_ms"]))
            if len(plan.codecs) != len(plan.elements):
                raise ValueError(f"codecs: {len(plan.codecs)} for {len(plan.elements)} buckets")
            return plan
        return _read(path, _PLAN, read)


def _write(path, content: dict) -> None:
    pathlib.Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _read(path, kind, read):
    try:
        content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != kind:
            raise ValueError(f'not a file of the format "{kind}"')
        return read(content)
    except (ValueError, KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: {what}") from error


class Model:
    """Times of a step. A rank's calls run one after the other, each as long as in the trace. While
    one runs, the computation advances at 1 - `slowdown` of its speed, since they share processors.
    """

    def __init__(self, trace: Trace):
        self.trace = trace
        buckets = range(len(trace.elements))
        self.call_ms: List[Dict[str, float]] = [
            {run.codec: run.end_ms[i] - run.begin_ms[i] for run in trace.runs} for i in buckets]
        busy = [_busy(run) for run in trace.runs]
        over = under = 0.0
        for i in buckets:
            readies = [run.ready_ms[i] for run in trace.runs]
            before = [times[i] for times in busy]
            mean_ready, mean_busy = statistics.fmean(readies), statistics.fmean(before)
            for ready, time in zip(readies, before):
                over += (ready - mean_ready) * (time - mean_busy)
                under += (time - mean_busy) ** 2
        # Least squares; a bucket's ready time without any call is an unknown of its own.
        self.slowdown = min(0.95, max(0.0, over / under)) if under > 0 else 0.0
        self.alone_ms: List[float] = []
        for i in buckets:
            alone = statistics.fmean(run.ready_ms[i] - self.slowdown * times[i]
                                     for run, times in zip(trace.runs, busy))
            self.alone_ms.append(max(alone, self.alone_ms[-1] if self.alone_ms else 0.0))

    def timeline(self, codecs: Sequence[str]) -> List[Tuple[float, float, float]]:
        """(ready, begin, end) of each bucket."""
        rows, ready, end, alone = [], 0.0, 0.0, 0.0
        rate = 1 - self.slowdown
        for next_alone, times, codec in zip(self.alone_ms, self.call_ms, codecs):
            # From `ready` to `end` calls run without a gap.
            work, busy = next_alone - alone, max(0.0, end - ready)
            ready += work / rate if work <= rate * busy else busy + work - rate * busy
            begin, alone = max(ready, end), next_alone
            end = begin + times[codec]
            rows.append((ready, begin, end))
        return rows

    def step_ms(self, codecs: Sequence[str]) -> float:
        return self.timeline(codecs)[-1][2]


class _Step:
    """A step whose calls become longer one by one.

    slack[i] is the time for which no call runs before bucket i is ready. A call that becomes longer uses up slack behind
    it: the step takes longer by slowdown times what it uses up, and by the rest.
    """

    def __init__(self, model: Model, codecs: Sequence[str]):
        self._model, self.codecs = model, list(codecs)
        self._time()

    def _time(self) -> None:
        rows = self._model.timeline(self.codecs)
        self.ms = rows[-1][2]
        rate, alone, late, self._slack = 1 - self._model.slowdown, 0.0, 0.0, []
        for next_alone, (ready, _, end) in zip(self._model.alone_ms, rows):
            self._slack.append(max(0.0, (next_alone - alone) / rate - late))
            alone, late = next_alone, end - ready
        self._sum()

    def _sum(self) -> None:
        self._behind = [*itertools.accumulate(reversed(self._slack))][::-1] + [0.0]

    def _longer(self, bucket: int, codec: str) -> float:
        times = self._model.call_ms[bucket]
        return times[codec] - times[self.codecs[bucket]]

    def with_codec(self, bucket: int, codec: str, limit: float = 0.0) -> float:
        """How long the step would take; as the timeline has it where rounding decides whether that is within `limit`."""
        longer = self._longer(bucket, codec)
        used = min(longer, self._behind[bucket + 1])
        ms = self.ms + self._model.slowdown * used + longer - used
        if longer < 0 or abs(ms - limit) <= 1e-9 * limit:
            ms = self._model.step_ms([*self.codecs[:bucket], codec, *self.codecs[bucket + 1:]])
        return ms

    def set_codec(self, bucket: int, codec: str) -> None:
        longer, self.ms = self._longer(bucket, codec), self.with_codec(bucket, codec)
        self.codecs[bucket] = codec
        if longer < 0:
            return self._time()
        for i in range(bucket + 1, len(self._slack)):
            used = min(longer, self._slack[i])
            self._slack[i] -= used
            longer -= used
        self._sum()


def _busy(run: Run) -> List[float]:
    """How long calls have run before each bucket was ready."""
    whole = [0.0, *itertools.accumulate(end - begin for begin, end in zip(run.begin_ms, run.end_ms))]
    times = []
    for bucket, ready in enumerate(run.ready_ms):
        ended = min(bucket, bisect.bisect_right(run.end_ms, ready))
        began = min(bucket, bisect.bisect_left(run.begin_ms, ready))
        times.append(whole[ended] + sum(ready - begin for begin in run.begin_ms[ended:began]))
    return times


def read_samples(path) -> Dict[str, List[Tuple[int, float]]]:
    """{codec: [(elements, ms)]} of the all-reduces in place in what `allreduce_bench --csv` has written."""
    samples: Dict[str, List[Tuple[int, float]]] = {}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["op"] == "allreduce" and row["in_place"] == "true":
                    samples.setdefault(row["codec"], []).append((int(row["count"]), float(row["time_us"]) / 1e3))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not what allreduce_bench --csv writes: {error}") from error
    if not samples:
        raise ValueError(f"{path}: it has no all-reduce in place")
    return samples


def fit(points: Sequence[Tuple[int, float]]) -> Tuple[float, float]:
    """(alpha, beta) so that a call of n elements takes about alpha + beta * n: by relative least squares over (elements, ms)
    of two or more sizes. beta is not negative."""
    if len({elements for elements, _ in points}) < 2 or any(n < 1 or not ms > 0 for n, ms in points):
        raise ValueError(f"{list(points)}: expected times of two sizes or more")
    ones, sums, squares = (sum(n ** power / ms ** 2 for n, ms in points) for power in range(3))
    times, products = sum(1 / ms for _, ms in points), sum(n / ms for n, ms in points)
    beta = max(0.0, (ones * products - sums * times) / (ones * squares - sums ** 2))
    return (times - beta * sums) / ones, beta


def predict(trace: Trace, samples: Dict[str, Sequence[Tuple[int, float]]]) -> Trace:
    """The trace of the same training on a slower network, from times of single calls there: samples has (elements, ms) of
    two or more sizes for each codec (fit()). `trace` is of a network that is no limit, so its calls are what the processor
    needs beside the computation. A call takes the longer one of that and of what the link needs, and slows the computation
    for as long as it needs the processor."""
    recorded, runs = Model(trace), []
    for codec, points in samples.items():
        try:
            alpha, beta = fit(points)
        except ValueError as error:
            raise ValueError(f"samples: {codec} has {error}") from error
        model = Model(trace)
        least = min(ms for _, ms in points) / 2  # alpha may be less than 0
        link = [max(least * min(1.0, n / min(size for size, _ in points)), alpha + beta * n) for n in trace.elements]
        busy = [times.get(codec, min(times.values())) for times in recorded.call_ms]
        model.call_ms = [{codec: max(both)} for both in zip(busy, link)]
        model.slowdown *= sum(busy) / sum(times[codec] for times in model.call_ms)
        rows = model.timeline([codec] * len(trace.elements))
        runs.append(Run(codec, *([row[column] for row in rows] for column in range(3))))
    return Trace(trace.ranks, list(trace.elements), runs)


def relative_error(codec: str, ranks: int) -> float:
    """The codec's bound (ccl_codec_bound); 0 for "none"."""
    if codec == "none":
        return 0.0
    import inccl
    return inccl.Codec(codec).bound(1 << 20, ranks)[1]


def make_plan(trace: Trace, tolerance: float = 0.01,
              errors: Optional[Dict[str, float]] = None) -> Plan:
    """The plan whose step takes the shortest time; then, bucket by bucket, codecs of less error
    while the step takes at most 1 + `tolerance` of that. errors: of each codec, relative to the
    largest elements; by default those of relative_error()."""
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance: {tolerance} is not in [0, 1)")
    names = [run.codec for run in trace.runs]
    if errors is None:
        errors = {codec: relative_error(codec, trace.ranks) for codec in names}
    model = Model(trace)
    codecs = [min(names, key=lambda codec: (times[codec], errors[codec])) for times in model.call_ms]
    limit = model.step_ms(codecs) * (1 + tolerance)
    step = _Step(model, codecs)

    def gain(change):
        bucket, codec = change
        saved = trace.elements[bucket] * (errors[codecs[bucket]] ** 2 - errors[codec] ** 2)
        return saved / max(1e-6, model.call_ms[bucket][codec] - model.call_ms[bucket][codecs[bucket]])
    changes = [(bucket, codec) for bucket in range(len(codecs)) for codec in names
               if errors[codec] < errors[codecs[bucket]]]
    for bucket, codec in sorted(changes, key=gain, reverse=True):
        if errors[codec] < errors[step.codecs[bucket]] and step.with_codec(bucket, codec, limit) <= limit:
            step.set_codec(bucket, codec)
    return Plan(trace.ranks, list(trace.elements), step.codecs, model.step_ms(step.codecs))


def groups(elements: Sequence[int], ready_ms: Sequence[float], call_ms: float,
           ms_per_element: float) -> Tuple[List[int], float]:
    """Which tensors that become ready one after the other to sum in one call (ccl_allreduce_fused):
    the number of tensors of each call, and when the last call ends, which is as early as can be. A
    call begins when all its tensors are ready and the call before has ended, and takes `call_ms` +
    elements * `ms_per_element`."""
    if len(elements) != len(ready_ms):
        raise ValueError(f"ready_ms: {len(ready_ms)} entries for {len(elements)} tensors")
    if any(a > b for a, b in zip(ready_ms, ready_ms[1:])):
        raise ValueError("ready_ms: does not rise")
    if call_ms < 0 or ms_per_element < 0:
        raise ValueError(f"call_ms, ms_per_element: {call_ms}, {ms_per_element} are negative")
    before = [0, *itertools.accumulate(elements)]
    ends, firsts = [0.0], [0]  # with the tensors up to each: when they end, where their last call begins
    for last in range(1, len(before)):
        end, first = min((max(ready_ms[last - 1], ends[first]) + call_ms +
                          (before[last] - before[first]) * ms_per_element, first)
                         for first in range(last))
        ends.append(end)
        firsts.append(first)
    sizes, last = [], len(elements)
    while last > 0:
        sizes.append(last - firsts[last])
        last = firsts[last]
    return sizes[::-1], ends[-1]


_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2")


def picture(trace: Trace, plan: Plan) -> str:
    """An SVG: the step of each codec for all buckets, as the model has it, and that of the plan."""
    model = Model(trace)
    rows = [(f"{run.codec}", [run.codec] * len(trace.elements)) for run in trace.runs]
    rows.append(("plan", plan.codecs))
    longest = max(model.step_ms(codecs) for _, codecs in rows)
    scale, left, height = 620 / longest, 130, 34
    colour = {run.codec: _COLOURS[i % len(_COLOURS)] for i, run in enumerate(trace.runs)}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="840" height="{height * len(rows) + 66}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>']
    for row, (name, codecs) in enumerate(rows):
        top = 10 + row * height
        out.append(f'<text x="{left - 8}" y="{top + 17}" text-anchor="end">{name}</text>')
        times = model.timeline(codecs)
        for codec, (ready, begin, end) in zip(codecs, times):
            out.append(f'<rect x="{left + begin * scale:.1f}" y="{top + 4}" height="18" '
                       f'width="{max(0.5, (end - begin) * scale):.1f}" fill="{colour[codec]}" stroke="white"/>')
            out.append(f'<path d="M{left + ready * scale:.1f} {top}v26" stroke="black" stroke-width="0.6"/>')
        out.append(f'<text x="{left + times[-1][2] * scale + 6:.1f}" y="{top + 17}">{times[-1][2]:.1f} ms</text>')
    axis = height * len(rows) + 10
    out.append(f'<path d="M{left} {axis}h620" stroke="black"/>')
    for part in range(5):
        x = left + 155 * part
        out.append(f'<path d="M{x} {axis}v5" stroke="black"/><text x="{x}" y="{axis + 18}" text-anchor="middle">'
                   f'{longest * part / 4:.0f}{" ms" if part == 4 else ""}</text>')
    out.append(f'<text x="{left}" y="{axis + 40}">Boxes: all-reduces of the buckets, coloured by codec. '
               'Lines: when their gradients are ready.</text></svg>')
    return "\n".join(out) + "\n"


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m inccl.plan", description=__doc__.split("\n\n")[0].partition(": ")[2])
    parser.add_argument("trace", help="file of inccl.torch.Recorder")
    parser.add_argument("-o", "--output", help="write the plan here, for inccl.torch.State(plan=...)")
    parser.add_argument("--network", metavar="CSV", help="plan for the network where allreduce_bench --csv has written this")
    parser.add_argument("--svg", help="write a picture of the steps here")
    parser.add_argument("--tolerance", type=float, default=0.01,
                        help="how much longer a step may take for less error (default: 0.01)")
    args = parser.parse_args(arguments)
    try:
        trace = Trace.load(args.trace)
        if args.network:
            trace = predict(trace, read_samples(args.network))
        plan = make_plan(trace, args.tolerance)
        if args.output:
            plan.save(args.output)
        if args.svg:
            pathlib.Path(args.svg).write_text(picture(trace, plan), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"inccl.plan: {error}", file=sys.stderr)
        return 1
    model = Model(trace)
    print(f"{len(trace.elements)} buckets, {sum(trace.elements)} elements, {trace.ranks} ranks; computation during a "
          f"call at {1 - model.slowdown:.2f} of its speed")
    print(f"{'codec':<24} {'predicted, ms' if args.network else 'measured, ms':>13} {'model, ms':>10}")
    for run in trace.runs:
        print(f"{run.codec:<24} {run.step_ms:>13.2f} {model.step_ms([run.codec] * len(trace.elements)):>10.2f}")
    print(f"{'plan':<24} {'-':>13} {plan.step_ms:>10.2f}")
    for bucket, (elements, codec) in enumerate(zip(plan.elements, plan.codecs)):
        print(f"  bucket {bucket}: {elements} elements, {codec}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
