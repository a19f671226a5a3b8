# SPDX-License-Identifier: Apache-2.0
"""The last operations of this process: which ranks of a job that hangs wait for which.

    inccl.torch.flight_recorder.dump("/shared/trace_rank_")   # on every rank, in any thread
    python -m torch.distributed.flight_recorder.fr_trace /shared --prefix trace_rank_

TORCH_FR_BUFFER_SIZE: how many operations are kept, 2000 by default; 0: none. Where
TORCH_FR_DUMP_TEMP_FILE is set, a rank dumps to that prefix when its first operation fails.
"""
import collections
import itertools
import os
import pickle
import sys
import threading
import time
from typing import Callable, Optional

import torch
import torch.distributed as dist

_VERSION = "2.10"  # of the entries, as PyTorch's analyzer reads them
_FRAMES = 6
# PyTorch's names, where its methods are called otherwise.
_NAMES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all",
    "allgather_coalesced": "ALLGATHER_coalesced",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
_OURS = (os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.abspath(torch.__file__)))


_inside: dict = {}  # code: whether it is of this package or torch


class Entry:
    """One operation. Calling it runs the operation's function and notes when."""
    __slots__ = ("number", "group", "sequence", "p2p", "name", "inputs", "outputs", "codec",
                 "frames", "created", "started", "completed", "error", "call")

    def __call__(self) -> None:
        self.started = time.time_ns()
        try:
            self.call()
        except BaseException as error:
            self.failed(error)
            raise
        finally:
            self.call = None
        self.completed = time.time_ns()

    def finish(self, error: Optional[BaseException], source: Optional[int]) -> None:
        """Of a send or receive; source: the rank that a receive from any rank has got it from."""
        if error is not None:
            return self.failed(error)
        if source is not None:
            self.name = f"{self.name.partition('<-')[0]}<-{source}"
        self.completed = time.time_ns()

    def failed(self, error: BaseException) -> None:
        self.error = f"{type(error).__name__}: {error}"
        _dump_once()

    def as_dict(self) -> dict:
        state = "completed" if self.completed else "started" if self.started else "scheduled"
        group = self.group
        return {
            "record_id": self.number, "pg_id": group.number, "process_group": (group.name, group.desc),
            "collective_seq_id": 0 if self.p2p else self.sequence,
            "p2p_seq_id": self.sequence if self.p2p else 0, "op_id": self.sequence,
            # The analyzer knows the names of PyTorch's own backends only.
            "profiling_name": f"nccl:{self.name.replace('any', self.name[5:].partition('<')[0])}",
            "any_source": self.name.endswith("any"), "backend": "inccl", "codec": self.codec,
            "input_sizes": [list(shape) for shape in self.inputs[::2]],
            "output_sizes": [list(shape) for shape in self.outputs[::2]],
            "input_dtypes": [_type_name(kind) for kind in self.inputs[1::2]],
            "output_dtypes": [_type_name(kind) for kind in self.outputs[1::2]],
            "time_created_ns": self.created, "time_discovered_started_ns": self.started,
            "time_discovered_completed_ns": self.completed, "state": state, "is_p2p": self.p2p,
            "retired": bool(self.completed or self.error), "error": self.error, "timeout_ms": group.timeout_ms(),
            "frames": [{"name": code.co_name, "filename": code.co_filename, "line": line}
                       for code, line in zip(self.frames[::2], self.frames[1::2])],
        }


def _type_name(kind) -> str:
    return str(kind).replace("torch.", "").capitalize()


class Group:
    """A process group, after whose end its entries stay."""

    def __init__(self, group, number: int):
        self.number, self.name, self.desc = number, group.group_name, group.group_desc
        self._limit = group._seconds()
        try:
            self.ranks = dist.get_process_group_ranks(group)
        except (ValueError, KeyError, RuntimeError):  # beside a group of another backend
            self.ranks = list(range(group.size()))
        self.collectives, self.sends_and_receives = itertools.count(1), itertools.count(1)

    def timeout_ms(self) -> int:
        return int(1000 * self._limit)


class _Recorder:
    def __init__(self, size: int):
        self.entries: "collections.deque[Entry]" = collections.deque(maxlen=size)
        self.numbers, self.groups = itertools.count(), itertools.count()
        self.naming = threading.Lock()


def _size() -> int:
    text = os.environ.get("TORCH_FR_BUFFER_SIZE", "2000")
    try:
        return max(0, int(text))
    except ValueError:
        raise ValueError(f"TORCH_FR_BUFFER_SIZE: {text!r} is not a number") from None


_recorder = _Recorder(_size())


def _forget() -> None:
    """In the child of a fork."""
    global _recorder
    _recorder = _Recorder(_recorder.entries.maxlen)


os.register_at_fork(after_in_child=_forget)


def begin(group, name: str, inputs, outputs, call: Optional[Callable[[], None]] = None,
          codec: Optional[str] = None, p2p: bool = False) -> Optional[Entry]:
    """The entry of an operation of `group`, a ProcessGroup; None if none are kept."""
    recorder = _recorder
    if recorder.entries.maxlen == 0:
        return None
    known = group._recorded
    if known is None:
        with recorder.naming:
            known = group._recorded
            if known is None:
                known = group._recorded = Group(group, next(recorder.groups))
    entry = Entry()
    entry.group, entry.p2p, entry.codec, entry.call = known, p2p, codec, call
    entry.name = name if p2p else _NAMES.get(name, name)
    entry.number = next(recorder.numbers)
    entry.sequence = next(known.sends_and_receives if p2p else known.collectives)
    entry.inputs = _kinds(inputs)
    entry.outputs = entry.inputs if outputs is inputs else _kinds(outputs)
    entry.created, entry.started, entry.completed, entry.error = time.time_ns(), None, None, None
    if p2p:
        entry.started = entry.created
    entry.frames = _frames()
    recorder.entries.append(entry)
    return entry


# Flat lists: the garbage collector looks at each container that is kept.
def _kinds(tensors):
    kinds = []
    for tensor in tensors:
        kinds += tensor.shape, tensor.dtype
    return kinds


def _frames():
    """From the caller outside this package and torch on; lines, without their texts."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        inside = _inside.get(code)
        if inside is None:
            inside = _inside[code] = code.co_filename.startswith(_OURS)
        if not inside:
            break
        frame = frame.f_back
    while frame is not None and len(found) < 2 * _FRAMES:
        found += frame.f_code, frame.f_lineno
        frame = frame.f_back
    return found


def record() -> dict:
    """What this process has kept, in the form of PyTorch's flight recorder: "version", "pg_config" (the
    entries' groups by name), "entries" from the oldest to the latest operation. Of an entry, "state" is scheduled,
    started or completed, and "error" the text of its error. Any thread."""
    entries = list(_recorder.entries)
    groups = {entry.group.name: entry.group for entry in entries}.values()
    return {
        "version": _VERSION,
        "pg_config": {group.name: {"name": group.name, "desc": group.desc,
                                   "ranks": str(list(group.ranks))} for group in groups},
        "entries": [entry.as_dict() for entry in entries],
    }


def dump(prefix: str) -> str:
    """Writes record() to the file `prefix` + rank, a pickle that torch.distributed.flight_recorder reads, and
    returns the file's name. The rank is that of the process in the default group. Any thread."""
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
    path = f"{prefix}{rank}"
    # Whoever looks at the folder never sees half a file.
    unfinished = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"
    with open(unfinished, "wb") as file:
        pickle.dump(record(), file)
    os.replace(unfinished, path)
    return path


_dumped = threading.Lock()


def _dump_once() -> None:
    prefix = os.environ.get("TORCH_FR_DUMP_TEMP_FILE")
    if prefix and _dumped.acquire(blocking=False):
        try:
            dump(prefix)
        except OSError as error:
            print(f"inccl: TORCH_FR_DUMP_TEMP_FILE: {error}", file=sys.stderr)
