# SPDX-License-Identifier: Apache-2.0
"""The process group: torch.distributed over an inccl communicator.

A call with opts.asyncOp false returns completed work; any other runs on a thread.
"""
import atexit
import functools
import os
import sys
import time
import types
import weakref
from datetime import timedelta
from typing import Any, Callable, List, NamedTuple, Optional

import torch
import torch.distributed as dist

import inccl

from . import flight_recorder
from ._calls import all_tensors, on_streams
from ._collectives import Collectives
from ._meeting import meet, monitored_barrier
from ._pairs import Pairs
from ._tensors import single
from ._work import Runner, Work, backend_error, completer

_UNSET = timedelta(milliseconds=-1)
_LEAVING = 5.0  # seconds
_alive: "weakref.WeakSet[ProcessGroup]" = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """The interpreter ends threads that want to run Python later; inside a callback that PyTorch's
    C++ has called, this would abort the process."""
    deadline = time.monotonic() + _LEAVING
    for group in list(_alive):
        group._leave(deadline)
    completer.drain(deadline)


def _untraced(method):
    """`method`, which torch.compile calls and does not look into. This imports torch._dynamo, which
    takes a second, only where something else has done so."""
    untraced = []

    @functools.wraps(method)
    def call(*args, **kwargs):
        if "torch._dynamo" not in sys.modules:
            return method(*args, **kwargs)
        if not untraced:
            untraced.append(torch.compiler.disable(method))
        return untraced[0](*args, **kwargs)

    call._torchdynamo_disable = call._torchdynamo_disable_recursive = True
    return call


class Options(NamedTuple):
    """pg_options of init_process_group and new_group; the fields are those of
    inccl.Communicator."""
    algorithm: Optional[str] = None
    channels: int = 0
    reproducible: bool = False
    socket_ifname: Optional[str] = None
    heartbeat: float = 0
    dead_timeout: float = 0


class ProcessGroup(Collectives, dist.ProcessGroup):
    """A process group of the backend "inccl". Any thread may call it; calls run one at a time, in
    the order in which they come. Sends and receives run beside them."""

    def __init__(self, store, rank: int, size: int, timeout: timedelta,
                 options: Optional[Options] = None, name: str = ""):
        super().__init__(rank, size)
        if options is not None and not isinstance(options, Options):
            raise TypeError(f"pg_options: expected inccl.torch.Options, got "
                            f"{type(options).__name__}")
        self._rank_, self._size_, self._timeout_, self._store_ = rank, size, timeout, store
        self._name_, self._desc_ = name, "undefined"
        self._sequence, self._recorded, self._monitored = 0, None, 0
        seconds = _in_range(timeout)
        config = {key: value for key, value in (options or Options())._asdict().items() if value}
        try:
            ours, made = meet(store, rank, size, seconds)
            self._comm = inccl.Communicator(
                made, rank, size, init_timeout=seconds, op_timeout=seconds,
                name=name[:128] if name else None, **config)
        except (inccl.Error, TimeoutError) as error:
            raise backend_error("init_process_group or new_group", error) from error
        self._ours = ours  # the part of the store that this group alone uses
        self._runner = Runner("inccl-collectives")
        self._pairs = Pairs(ours, rank, size, config, self._comm.async_error)
        self._coalescing: Optional[List[Callable[[], None]]] = None
        self._ended, self._pid = False, os.getpid()
        _alive.add(self)

    # ------------------------------------------------------------------ what PyTorch asks

    def getBackendName(self) -> str:
        return "inccl"

    def name(self) -> str:
        return "inccl"

    def getRank(self) -> int:
        return self._rank_

    def getSize(self) -> int:
        return self._size_

    rank, size = getRank, getSize

    def setGroupName(self, name: str) -> None:
        self._name_ = name

    def getGroupName(self) -> str:
        return self._name_

    def setGroupDesc(self, description: str) -> None:
        self._desc_ = description

    def getGroupDesc(self) -> str:
        return self._desc_

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    @property
    def _device_types(self):
        kinds = [torch.device("cpu")]
        return kinds + [torch.device("cuda")] if torch.cuda.is_available() else kinds

    def _get_backend(self, device) -> "ProcessGroup":
        return self

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, device) -> bool:
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size, *, dtype, device) -> torch.Tensor:
        """A tensor in memory that other ranks of the host access in place."""
        from .memory import empty
        return empty(size, dtype=dtype)

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Also for operations in progress."""
        self._timeout_ = timeout
        self._comm.set_timeout(_in_range(timeout))

    set_timeout = setTimeout = _set_default_timeout

    def _has_hooks(self) -> bool:
        return False

    def get_group_store(self):
        return self._store_

    @property
    def communicator(self) -> inccl.Communicator:
        """The communicator of this group's collectives."""
        return self._comm

    # ------------------------------------------------------------------ the end

    def shutdown(self) -> None:
        """Waits for this rank's calls, each for at most the limit of an operation, then ends the
        group."""
        if not self._ended:
            self._ended = True
            self._pairs.close(self._seconds())
            self._runner.close()
            self._comm.destroy()

    def abort(self) -> None:
        """Ends the group at once, from any thread; pending work fails."""
        self._ended = True
        self._comm.abort()
        self._pairs.abort()

    def _leave(self, deadline: float) -> None:
        """At the end of the process: as abort; no thread is in a call afterwards."""
        if not self._ended and self._pid == os.getpid():
            self._ended = True
            self._comm.abort()
            self._pairs.abort(deadline)
            self._runner.close(deadline)

    def __del__(self):
        if not getattr(self, "_ended", True):
            self.abort()

    # ------------------------------------------------------------------ running calls

    def _do(self, what: str, call: Callable[[], None], result: Any, opts, inputs=None) -> Work:
        """Runs `call`, or adds it to the block of _start_coalescing. inputs: by default the result, in
        place."""
        self._sequence += 1
        if self._coalescing is None and opts is not None:
            timeout = opts.timeout
            if timeout != _UNSET and timeout != self._timeout_:
                call = self._limited(call, timeout)
        outputs = all_tensors(result)
        return self._launch(what, what.partition(" ")[0], call, result,
                            outputs if inputs is None else inputs, outputs,
                            opts is not None and opts.asyncOp)

    def _launch(self, what: str, name: str, call: Callable[[], None], result: Any, inputs, outputs,
                is_async: bool, codec: Optional[str] = None) -> Work:
        """Records an operation and runs it: here or, if is_async, on the thread."""
        call = on_streams(call, outputs)
        call = flight_recorder.begin(self, name, inputs, outputs, call, codec) or call
        if not torch.autograd._profiler_enabled():
            return self._start(what, call, result, is_async)
        about = {"group": self._name_, "codec": codec or "none"}
        with torch._C._profiler._RecordFunctionFast(f"c10d::{name}", [*inputs], about):
            work = self._start(what, call, result, is_async)
        return work

    def _start(self, what, call, result, is_async) -> Work:
        if self._coalescing is not None:
            self._coalescing.append((what, call))
            return Work(result, what, done=True)
        if is_async:
            return self._runner.submit(call, Work(result, what))
        self._runner.run(call, what)
        return Work(result, what, done=True)

    def _limited(self, call, timeout) -> Callable[[], None]:
        """`call` with a limit of its own."""
        def limited():
            self._comm.set_timeout(_in_range(timeout))
            try:
                call()
            finally:
                self._comm.set_timeout(_in_range(self._timeout_))
        return limited

    def _start_coalescing(self, device=None) -> None:
        if self._coalescing is not None:
            self._coalescing = None  # after an exception in it, PyTorch leaves it open
            raise RuntimeError("_start_coalescing: a block was open already, its calls are dropped")
        self._coalescing = []

    def _end_coalescing(self, device=None) -> Work:
        calls, self._coalescing = self._coalescing, None
        if calls is None:
            raise RuntimeError("_end_coalescing: no block is open")

        def all_of_them():
            for _, call in calls:
                call()
        work = Work(None, "coalesced: " + ", ".join(what for what, _ in calls))
        return self._runner.submit(all_of_them, work)

    def monitored_barrier(self, timeout=None, wait_all_ranks: bool = False) -> None:
        """Waits until all ranks of the group have called it, through the store. Where some have not after
        `timeout` (timedelta or seconds; by default the group's), all others raise BackendError, which names
        them all, and the group goes on. `wait_all_ranks` changes nothing."""
        seconds = self._seconds() if timeout is None else _in_range(
            timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout))
        self._monitored += 1
        try:
            monitored_barrier(self._ours, self._monitored, self._rank_, self._size_, seconds)
        except TimeoutError as error:
            raise backend_error("monitored_barrier", error) from error

    # ------------------------------------------------------------------ point to point

    def send(self, tensors, dst: int, tag: int = 0) -> Work:
        tensor = single(tensors)
        self._host_only(tensor, "send")
        dst = self._root(dst, "dst")
        entry = flight_recorder.begin(self, f"send {self._rank_}->{dst}", [tensor], [], p2p=True)
        return self._pairs.send(tensor, dst, tag, self._seconds(), entry)

    def recv(self, tensors, src: int, tag: int = 0) -> Work:
        return self._recv(single(tensors), self._root(src, "src"), tag)

    def recv_anysource(self, tensors, tag: int = 0) -> Work:
        return self._recv(single(tensors), None, tag)

    def _recv(self, tensor, src: Optional[int], tag: int) -> Work:
        self._host_only(tensor, "recv")
        entry = flight_recorder.begin(self, f"recv {self._rank_}<-{'any' if src is None else src}", [],
                                      [tensor], p2p=True)
        return self._pairs.recv(tensor, src, tag, self._seconds(), entry)

    def _host_only(self, tensor, what) -> None:
        if tensor.is_cuda:
            raise TypeError(f"{what}: tensors on {tensor.device} are not supported, move the "
                            "tensor to the host")

    def _seconds(self) -> float:
        return _in_range(self._timeout_)

    def __repr__(self):
        return f"<inccl.torch.ProcessGroup {self._name_!r}: rank {self._rank_}/{self._size_}>"


for _name in dir(ProcessGroup):
    if any(_name in base.__dict__ for base in (ProcessGroup, *Collectives.__mro__[:-1])):
        _method = getattr(ProcessGroup, _name)
        if isinstance(_method, types.FunctionType) and not _name.startswith("__"):
            setattr(ProcessGroup, _name, _untraced(_method))


def _in_range(timeout: timedelta) -> float:
    """Seconds as the library takes them."""
    return min(max(timeout.total_seconds(), 0.001), 86400.0)


def create(backend_options, pg_options) -> ProcessGroup:
    """What init_process_group and new_group call."""
    return ProcessGroup(backend_options.store, backend_options.group_rank,
                        backend_options.group_size, backend_options.timeout, pg_options,
                        backend_options.group_id)
