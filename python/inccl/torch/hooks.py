# SPDX-License-Identifier: Apache-2.0
"""Compressed communication for DDP and FSDP2.

The hooks work with process groups of any backend. With another backend than "inccl", the ranks of
the group make an inccl communicator beside it when the first hook runs.
"""
import ctypes
import dataclasses
import threading
import weakref
from datetime import timedelta
from typing import Callable, Optional, Union

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

import inccl
from inccl import CompressionStats
from inccl._library import Compression, check, in_range, lib
from inccl._objects import codec_of

from . import memory
from ._tensors import OPS, TYPES, flat, unflatten
from ._work import Work
from .process_group import ProcessGroup, on_streams

_COMPRESSIBLE = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_RedOp = dist.ReduceOp.RedOpType


@dataclasses.dataclass
class Statistics:
    """Sums over compressed calls of this rank; `error_bound` is that of the last call."""
    calls: int = 0
    elements: int = 0
    uncompressed_elements: int = 0  # reduced beside them, as they are
    payload_bytes: int = 0
    wire_bytes: int = 0
    ratio: float = 1.0  # of the last call: bytes without compression over payload_bytes
    error_bound: float = 0.0

    def __post_init__(self):
        self._changing = threading.Lock()
        self._pending = []  # (stats, what the call uses) of calls that may not have completed
        self._done = []  # those that were counted last

    def add(self, call: CompressionStats, *used) -> None:
        """Counts a call when it has completed, and keeps until then what it uses."""
        with self._changing:
            self._pending.append((call, used))
        self.settle()

    def settle(self) -> "Statistics":
        """Counts the calls that have completed."""
        with self._changing:
            done, pending = [], []
            for entry in self._pending:
                (done if entry[0].completed else pending).append(entry)
            for call, _ in done:
                self._count(call)
            # They go later: the library may still be about to write stats.size, its last store.
            self._done, self._pending = done or self._done, pending
        return self

    def _count(self, call: CompressionStats) -> None:
        self.calls += 1
        if call.compressed:
            self.elements += call.elements
            self.ratio, self.error_bound = call.ratio, call.error_bound
        else:
            self.uncompressed_elements += call.elements
        self.payload_bytes += call.payload_bytes
        self.wire_bytes += call.wire_bytes


def _compression(codec, seed, residual=None):
    """ccl_compression_t, and the statistics that the call fills."""
    stats = CompressionStats()
    return Compression(ctypes.sizeof(Compression), codec._handle, seed, 0,
                       residual._handle if residual else None, ctypes.pointer(stats)), stats


_beside = weakref.WeakKeyDictionary()  # process group: its ProcessGroup of ours
_making = threading.Lock()


def group_of(group: Optional[dist.ProcessGroup]) -> ProcessGroup:
    """`group` if it is of this backend, else one of its ranks beside it (collective, once)."""
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    if isinstance(group, ProcessGroup):
        return group
    with _making:
        if group not in _beside:
            store = dist.PrefixStore(f"inccl/beside/{group.group_name}/",
                                     dist.distributed_c10d._world.pg_map[group][1])
            _beside[group] = ProcessGroup(store, group.rank(), group.size(),
                                          timedelta(minutes=30), None, group.group_name)
        return _beside[group]


class State:
    """What compress_hook needs.

    codec: a specification (docs/codecs.md) or inccl.Codec. process_group: that of the model, by
    default the default group. compress: tells for a parameter whether its gradient is compressed;
    by default if it has two or more dimensions and at least min_elements elements. Biases, norms
    and other small parameters are summed as they are. seed: equal on all ranks. residual: error
    feedback, one inccl.Residual per bucket. `statistics` counts what has been sent.
    """

    def __init__(self, process_group: Optional[dist.ProcessGroup] = None,
                 codec: Union[str, inccl.Codec] = "hbi:bits=6", *, min_elements: int = 4096,
                 compress: Optional[Callable[[torch.Tensor], bool]] = None, seed: int = 0,
                 residual: bool = False):
        self.codec, self.residual = codec_of(codec), residual
        self._residuals = {}  # by index and elements of a bucket: DDP rebuilds its buckets
        self.process_group, self.seed = process_group, in_range("seed", seed, 0, 2**64 - 1)
        self.compress = compress or (lambda parameter: parameter.dim() > 1
                                     and parameter.numel() >= min_elements)
        self._statistics = Statistics()

    @property
    def statistics(self) -> Statistics:
        return self._statistics.settle()

    def _residual_of(self, bucket) -> Optional[inccl.Residual]:
        if not self.residual:
            return None
        key = bucket.index(), bucket.buffer().numel()
        if key not in self._residuals:
            self._residuals[key] = inccl.Residual(key[1])
        return self._residuals[key]

    def state_dict(self) -> dict:
        """The residuals of this rank. No backward pass is in progress."""
        return {"residuals": {key: residual.save() for key, residual in self._residuals.items()}}

    def load_state_dict(self, state: dict) -> None:
        self._residuals = {}
        for key, values in state["residuals"].items():
            self._residuals[key] = inccl.Residual(key[1])
            self._residuals[key].load(values)


def compress_hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients: model.register_comm_hook(State(codec=...), compress_hook).

    The bucket is reduced where it lies. Gradients that are not compressed are copied out of it,
    count as zero in the compressed call, and are written back with their exact average.
    """
    if not isinstance(state, State):
        raise TypeError(f"state: expected inccl.torch.State, got {type(state).__name__}")
    group = group_of(state.process_group)
    buffer = bucket.buffer()
    if buffer.layout != torch.strided:
        work = group.allreduce([buffer.div_(group.size())])
        return work.get_future().then(lambda future: future.value()[0])
    plain = [gradient for gradient, parameter in zip(bucket.gradients(), bucket.parameters())
             if not state.compress(parameter)]
    count = sum(gradient.numel() for gradient in plain)
    if count >= buffer.numel() or buffer.dtype not in _COMPRESSIBLE:
        state.statistics.uncompressed_elements += buffer.numel()
        work = group.allreduce([buffer], _average())
        return work.get_future().then(lambda future: future.value()[0])
    together = None
    if plain:
        together = flat(plain)
        for gradient in plain:
            gradient.zero_()
    residual = state._residual_of(bucket)
    how, stats = _compression(state.codec, state.seed, residual)
    kind, stream = TYPES[buffer.dtype], group._stream(buffer)

    def call():
        handle = group.communicator._get()
        check(lib.ccl_allreduce_compressed(
            buffer.data_ptr(), buffer.data_ptr(), buffer.numel(), kind, inccl.AVG,
            ctypes.byref(how), handle, stream))
        if together is not None:
            check(lib.ccl_allreduce(together.data_ptr(), together.data_ptr(), count, kind,
                                    inccl.AVG, handle, stream))
            unflatten(together, plain)
        state.statistics.add(stats, state.codec, buffer, together, residual)
        state.statistics.uncompressed_elements += count

    work = group._runner.submit(on_streams(call, buffer),
                                Work(buffer, f"compress_hook, bucket {bucket.index()}"))
    return work.get_future()


def _average():
    options = c10d.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    return options


class _Compressed:
    """What the two FSDP2 hooks share."""

    def __init__(self, codec: Union[str, inccl.Codec] = "hbi:bits=6", *, seed: int = 0):
        self.codec, self.seed = codec_of(codec), in_range("seed", seed, 0, 2**64 - 1)
        self._statistics = Statistics()

    @property
    def statistics(self) -> Statistics:
        return self._statistics.settle()

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory that the other ranks of this host access in place."""
        if torch.device(device).type != "cpu":
            return torch.empty(*size, dtype=dtype, device=device)
        return memory.empty(size, dtype=dtype)

    def _run(self, group, what, call, output, async_op) -> Optional[Work]:
        call = on_streams(call, output)
        if not async_op:
            group._runner.run(call, what)
            return None
        return group._runner.submit(call, Work([output], what))


class CompressedReduceScatter(_Compressed, ReduceScatter):
    """FSDP2: model.set_custom_reduce_scatter(CompressedReduceScatter("hbi:bits=6")). Sums and
    averages of floats are compressed; other calls run as they are."""

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        ours = group_of(group)
        kind = getattr(op, "op", op)
        if kind not in (_RedOp.SUM, _RedOp.AVG) or output_tensor.dtype not in _COMPRESSIBLE:
            options = c10d.ReduceScatterOptions()
            options.reduceOp, options.asyncOp = op, async_op
            self.statistics.uncompressed_elements += input_tensor.numel()
            return ours.reduce_scatter_single(output_tensor, input_tensor, options)
        number, operation = TYPES[output_tensor.dtype], OPS[kind]
        how, stats = _compression(self.codec, self.seed)
        stream = ours._stream(output_tensor)

        def call():
            check(lib.ccl_reduce_scatter_compressed(
                input_tensor.data_ptr(), output_tensor.data_ptr(), output_tensor.numel(),
                number, operation, ctypes.byref(how), ours.communicator._get(), stream))
            self.statistics.add(stats, self.codec, input_tensor, output_tensor)
        return self._run(ours, "CompressedReduceScatter", call, output_tensor, async_op)


class CompressedAllGather(_Compressed, AllGather):
    """FSDP2: model.set_custom_all_gather(CompressedAllGather("bf16")). All ranks, also the one that
    holds a shard, compute with the decoded parameters; the shards keep their exact values."""

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        ours = group_of(group)
        if output_tensor.dtype not in _COMPRESSIBLE:
            options = c10d.AllgatherOptions()
            options.asyncOp = async_op
            self.statistics.uncompressed_elements += input_tensor.numel()
            return ours.all_gather_single(output_tensor, input_tensor, options)
        how, stats = _compression(self.codec, self.seed)
        stream = ours._stream(output_tensor)

        def call():
            check(lib.ccl_allgather_compressed(
                input_tensor.data_ptr(), output_tensor.data_ptr(), input_tensor.numel(),
                TYPES[output_tensor.dtype], ctypes.byref(how), ours.communicator._get(), stream))
            self.statistics.add(stats, self.codec, input_tensor, output_tensor)
        return self._run(ours, "CompressedAllGather", call, output_tensor, async_op)
