# SPDX-License-Identifier: Apache-2.0
"""Records when the buckets of DDP are ready and how long their all-reduces take."""
import statistics
import time
from typing import Dict, List, Sequence

from inccl._objects import codec_of
from inccl.plan import Run, Trace

_SKIPPED = 2  # steps, after which pages, plans and connections are warm


class _Step:
    def __init__(self, codec, zero):
        self.codec, self.zero = codec, zero
        self.elements: List[int] = []
        self.ready: List[float] = []
        self.begin: Dict[int, float] = {}
        self.end: Dict[int, float] = {}


class Recorder:
    """State(record=Recorder(["none", "hbi:bits=6"])): the steps take these codecs in turn, each one
    for all buckets, and `trace()` has the times of this rank. "none": uncompressed. All ranks record
    alike. CPU tensors only: a call on a GPU has not ended when it returns.
    """

    def __init__(self, codecs: Sequence[str]):
        codecs = list(codecs)
        if not codecs or len(set(codecs)) != len(codecs):
            raise ValueError(f"codecs: {codecs}, expected one or more, each once")
        for codec in codecs:
            if codec != "none":
                codec_of(codec)
        self.codecs, self._turn, self._step = codecs, 0, None
        self._done: List[_Step] = []
        self._skip = _SKIPPED

    def codec(self, bucket) -> str:
        """Called when a bucket is ready; its codec."""
        now = time.perf_counter()
        if bucket.buffer().device.type != "cpu":
            raise ValueError(f"Recorder: a bucket is on {bucket.buffer().device}, only CPU tensors are recorded")
        if bucket.index() == 0:
            self._finish()
            last = self._step
            self._turn += 1
            self._step = _Step(self.codecs[self._turn % len(self.codecs)],
                               max(last.end.values()) if last and last.end else None)
        self._step.elements.append(bucket.buffer().numel())
        self._step.ready.append(now)
        return self._step.codec

    def called(self, bucket: int, begin: float) -> None:
        """Called by the thread that makes the calls, when that of a bucket has ended."""
        self._step.begin[bucket], self._step.end[bucket] = begin, time.perf_counter()

    def _finish(self) -> None:
        step = self._step
        if step is None or step.zero is None or len(step.end) != len(step.elements):
            return
        if self._done and self._done[-1].elements != step.elements:  # DDP has built its buckets again
            self._done, self._skip = [], _SKIPPED
        if self._skip > 0:
            self._skip -= 1
        elif not self._done or self._done[-1] is not step:
            self._done.append(step)

    def trace(self, ranks: int) -> Trace:
        """Between two steps. RuntimeError if a codec has had no turn since the buckets are as they
        are; some ten steps for each give good medians."""
        self._finish()
        runs = []
        for codec in self.codecs:
            steps = [step for step in self._done if step.codec == codec]
            if not steps:
                raise RuntimeError(f"Recorder: no step with {codec} yet, {len(self._done)} steps in all")

            def medians(times):
                rows = ([1e3 * (at - step.zero) for at in times(step)] for step in steps)
                return [statistics.median(column) for column in zip(*rows)]
            ready = medians(lambda step: step.ready)
            begin = medians(lambda step: [step.begin[i] for i in range(len(step.elements))])
            end = medians(lambda step: [step.end[i] for i in range(len(step.elements))])
            runs.append(Run(codec, ready, begin, end))
        return Trace(ranks, list(self._done[-1].elements), runs)
