# SPDX-License-Identifier: Apache-2.0
"""Compressed communication for DDP and FSDP2.

The hooks work with process groups of any backend. With another backend than "inccl", the ranks of
the group make an inccl communicator beside it when the first hook runs.
"""
import contextlib
import ctypes
import functools
import gc
import os
import threading
import time
import warnings
import weakref
from datetime import timedelta
from typing import Callable, Optional, Union

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

import inccl
from inccl import CompressionStats
from inccl._library import Compression, check, in_range, lib
from inccl._objects import codec_of
from inccl.plan import Plan

from . import memory
from ._kept import TABLES, Bucket, Feedback, Kept
from ._statistics import Statistics
from ._tensors import OPS, TYPES, flat, unflatten
from ._work import Work
from .process_group import ProcessGroup
from .recorder import Recorder

_COMPRESSIBLE = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_RedOp = dist.ReduceOp.RedOpType


def compression(codec, seed, residual=None):
    """ccl_compression_t, and the statistics that the call fills."""
    stats = CompressionStats()
    return Compression(ctypes.sizeof(Compression), codec._handle if codec else None, seed, 0,
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

    codec: a specification (docs/codecs.md) or inccl.Codec. process_group: of the ranks of the model's
    group, by default that one. compress: tells for a parameter whether its gradient is compressed;
    by default if it has two or more dimensions and at least min_elements elements. Biases, norms
    and other small parameters are summed as they are. seed: equal on all ranks. residual: error
    feedback: the next step sends what one left out. keep: of the former residual, in [0, 1); the new
    one is keep * former + (1 - keep) * left out (LoCo's moving average). reset_every: steps after
    which residuals begin with zero again; 0: never. start: steps before the first compressed one.
    plan: an inccl.plan.Plan, or the file of one, with a
    codec for each bucket; buckets that it does not have take `codec`. record: a Recorder, whose
    codecs the steps take in turn. reducer: a specification (docs/reducers.md) or inccl.Reducer, in
    place of a codec; powersgd takes each compressed parameter as a matrix of its first dimension by
    the others, other methods a bucket as a vector, or with layerwise=True each compressed parameter. momentum: of
    each rank's gradients before they are reduced, for an optimizer without any (DGC's momentum
    correction); nesterov: as torch.optim.SGD has it. clip: before that, the norm of each parameter's
    gradient is at most clip / sqrt(ranks), as DGC has it. `statistics` counts what has been sent.
    """

    def __init__(self, process_group: Optional[dist.ProcessGroup] = None,
                 codec: Union[str, inccl.Codec] = "hbi:bits=6", *, min_elements: int = 4096,
                 compress: Optional[Callable[[torch.Tensor], bool]] = None, seed: int = 0,
                 residual: bool = False, plan: Union[None, str, os.PathLike, Plan] = None,
                 record: Optional[Recorder] = None,
                 reducer: Union[None, str, inccl.Reducer] = None, momentum: float = 0.0,
                 nesterov: bool = False, clip: Optional[float] = None, layerwise: bool = False,
                 start: int = 0, keep: float = 0.0, reset_every: int = 0):
        self._arguments = {"codec": codec, "min_elements": min_elements, "compress": compress, "seed": seed,
                           "residual": residual, "plan": plan, "record": record, "reducer": reducer,
                           "momentum": momentum, "nesterov": nesterov, "clip": clip, "layerwise": layerwise,
                           "start": start, "keep": keep, "reset_every": reset_every}
        if not isinstance(process_group, (dist.ProcessGroup, type(None))):
            raise TypeError(f"process_group: expected a process group, got {type(process_group).__name__}")
        if plan is not None and record is not None:
            raise ValueError("plan and record: a plan is followed or recorded for, not both")
        if reducer is not None and (residual or plan is not None or record is not None):
            raise ValueError("reducer: it has its own residual and codec; residual, plan and record are for codecs")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum: {momentum} is not in [0, 1)")
        if start and record is not None:
            raise ValueError("start and record: a recording has its own codec for each step")
        if nesterov and not momentum:
            raise ValueError("nesterov: it needs momentum")
        if clip is not None and not 0 < clip < float("inf"):
            raise ValueError(f"clip: {clip} is not a finite positive number")
        if layerwise and reducer is None:
            raise ValueError("layerwise: it is about a reducer, and there is none")
        Feedback.check(residual, keep, reset_every)
        self.reducer = inccl.Reducer(reducer) if isinstance(reducer, str) else reducer
        if not isinstance(self.reducer, (inccl.Reducer, type(None))):
            raise TypeError(f"reducer: expected str or inccl.Reducer, got {type(reducer).__name__}")
        self._takes_matrices = self.reducer is not None and self.reducer.spec.startswith("powersgd:")
        self.layerwise = layerwise or self._takes_matrices
        self.momentum, self.nesterov, self.clip = momentum, nesterov, clip
        self.start, self.keep, self.reset_every = in_range("start", start, 0, 2**63 - 1), keep, reset_every
        self._lr: Optional[float] = None  # as set_lr() has said
        self._kept = Kept()
        self.codec, self.residual = codec_of(codec), residual
        self.plan = plan if plan is None or isinstance(plan, Plan) else Plan.load(plan)
        self.record, self._unplanned_steps = record, 0
        self.process_group, self.seed = process_group, in_range("seed", seed, 0, 2**64 - 1)
        self.compress = compress or (lambda parameter: parameter.dim() > 1
                                     and parameter.numel() >= min_elements)
        self._statistics = Statistics()
        self._saved_size = None  # of the group of what load_state_dict() has read, until that is compared
        self._zeroed = set()  # names of parameters of which a warning has told

    def __deepcopy__(self, memo) -> "State":
        """For a copy of the model: equal settings and the same group, nothing of what has been kept."""
        return State(self.process_group, **self._arguments)

    def __reduce__(self):
        """As a copy, with the default group. state_dict() has what is kept."""
        return functools.partial(State, **self._arguments), ()

    @property
    def statistics(self) -> Statistics:
        return self._statistics.settle()

    def _group_of(self, kept: Bucket) -> ProcessGroup:
        """The group of the model that has the parameters. `process_group` is one of the same ranks, or an error."""
        model = kept.model()
        group = self.process_group
        if model is not None:
            own = model.process_group
            if group is None:
                group = own
            elif group is not own and dist.get_process_group_ranks(group) != dist.get_process_group_ranks(own):
                raise ValueError(f"process_group: of the ranks {dist.get_process_group_ranks(group)}, that of the model has "
                                 f"{dist.get_process_group_ranks(own)}")
        ours = group_of(group)
        self._check_size(self._saved_size, ours.size())
        self._saved_size = None
        return ours

    @staticmethod
    def _check_size(saved: Optional[int], own: Optional[int]) -> None:
        if None not in (saved, own) and saved != own:
            raise ValueError(f"world_size: {saved}, the group has {own} ranks; residuals are of use "
                             "with as many ranks as before, so start without them")

    def _gradients_at_risk(self, kept: Bucket, bucket) -> list:
        """(name, gradient) of what is compressed and not zero here, if calls have dropped superblocks since
        this bucket's last one: for its first call after that, the second, fourth, eighth and so on."""
        dropped = self.statistics.dropped_superblocks
        if dropped == kept.dropped:
            return []
        kept.dropped = dropped
        kept.calls_with_drops += 1
        if kept.calls_with_drops & (kept.calls_with_drops - 1):
            return []
        pairs = zip(kept.names, bucket.parameters(), bucket.gradients())
        return [(name, gradient) for name, parameter, gradient in pairs if self.compress(parameter) and gradient.any()]

    def _warn_of_zeros(self, codec, gradients) -> None:
        for name in [name for name, gradient in gradients if not gradient.any()]:
            if name not in self._zeroed:
                self._zeroed.add(name)
                warnings.warn(f"compress_hook: {codec.spec} left no bits for the gradient of {name}, so it became zero"
                              + (" and waits in the residual" if self.residual else "")
                              + "; more bits, or State(compress=...), prevent that")

    def _add_momentum(self, kept: Bucket, buffer) -> None:
        velocity = self._kept.velocity(kept, buffer)
        total = torch.add(buffer, velocity, alpha=self.momentum)
        # What is not finite makes all ranks skip the step (GradScaler): it goes out as it is, and is forgotten.
        finite = torch.isfinite(buffer).all()
        velocity.copy_(torch.where(finite, total, velocity))
        if self.nesterov:
            total = torch.add(buffer, total, alpha=self.momentum)
        buffer.copy_(torch.where(finite, total, buffer))

    def _clip(self, gradients, ranks: int) -> None:
        for gradient in gradients:
            norm = torch.linalg.vector_norm(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))
            factor = (self.clip / ranks ** 0.5 / norm).clamp(max=1)
            gradient.mul_(torch.where(norm.isfinite(), factor, 1))

    def _codec_of(self, bucket) -> Optional[inccl.Codec]:
        """None: the bucket is not compressed."""
        name = None
        if self.record is not None:
            if bucket.buffer().dtype not in _COMPRESSIBLE:
                raise TypeError(f"record: bucket {bucket.index()} is of {bucket.buffer().dtype}, which no codec takes")
            name = self.record.codec(bucket)
        elif self.plan is not None:
            name = self.plan.codec_of(bucket.index(), bucket.buffer().numel())
            # In its first step, DDP has other buckets than later.
            self._unplanned_steps += name is None and bucket.index() == 0
            if name is None and self._unplanned_steps == 2:
                warnings.warn(f"plan: it does not have bucket {bucket.index()} of {bucket.buffer().numel()} "
                              f"elements, which takes {self.codec.spec}; was it made for this model?")
        if name is None:
            return self.codec
        return None if name == "none" else codec_of(name)

    def _world_size(self) -> Optional[int]:
        """None before the first step, where the group is the model's."""
        group = self.process_group or self._kept.group()
        return None if group is None else group.size()

    def rescale(self, factor: float) -> None:
        """Multiplies what is kept, residuals and velocities, by new over former scale of the gradients: after
        GradScaler.update() has changed the scale of the loss. No backward pass is in progress. Raises ValueError
        if the factor is not finite and positive."""
        Feedback.check_factor(factor)
        self._kept.rescale(factor)

    def set_lr(self, lr: float) -> None:
        """The step size of the next steps, where a schedule changes it: what a residual has left out of a step counts
        with the size that this step had, so the next call sends former / new of it. 0 changes nothing: such a step
        moves no parameter. No backward pass is in progress. Raises ValueError if lr is negative or not finite, or
        without residual."""
        if not self.residual:
            raise ValueError("lr: it is for residuals, and residual is False")
        if not 0 <= lr < float("inf"):
            raise ValueError(f"lr: {lr} is not a finite number of 0 or more")
        if lr == 0:
            return
        if self._lr is not None and self._lr != lr:
            self._kept.rescale(self._lr / lr, ("residuals",))
        self._lr = lr

    def state_dict(self) -> dict:
        """What this rank keeps between steps, by name of the parameter: tensors. No backward pass is in progress."""
        return {**self._kept.save(), "world_size": self._saved_size or self._world_size(), "lr": self._lr}

    def load_state_dict(self, state: dict) -> None:
        """What state_dict() has returned on this rank, in a group of as many ranks. The next step uses it.
        After an error everything is as before."""
        if not isinstance(state, dict) or not all(isinstance(state.get(name), dict) for name in TABLES):
            raise TypeError("state: expected what State.state_dict() returns")
        self._check_size(state.get("world_size"), self._world_size())
        self._kept.load(state, self.reducer)
        self._saved_size, self._lr = state.get("world_size"), state.get("lr")


def compress_hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients: model.register_comm_hook(State(codec=...), compress_hook).

    The bucket is reduced where it lies. Gradients that are not compressed are copied out of it,
    count as zero in the compressed call, and are written back with their exact average.
    """
    if not isinstance(state, State):
        raise TypeError(f"state: expected inccl.torch.State, got {type(state).__name__}")
    kept = state._kept.of(bucket)
    step = state._kept.step(kept, bucket.is_last())
    group = state._group_of(kept)
    buffer = bucket.buffer()
    if buffer.layout != torch.strided:
        work = group.allreduce([buffer.div_(group.size())])
        return work.get_future().then(lambda future: future.value()[0])
    codec = state._codec_of(bucket)
    if step < state.start:
        codec = None
    if state.clip and buffer.dtype in _COMPRESSIBLE:
        state._clip(bucket.gradients(), group.size())
    if state.momentum and buffer.dtype in _COMPRESSIBLE:
        state._add_momentum(kept, buffer)
    if buffer.dtype not in _COMPRESSIBLE or (state.reducer and buffer.dtype == torch.float64):
        state.statistics.add_uncompressed(buffer.numel())
        work = group.allreduce([buffer], _average())
        return work.get_future().then(lambda future: future.value()[0])
    plain = [gradient for gradient, parameter in zip(bucket.gradients(), bucket.parameters())
             if codec is None or not state.compress(parameter)]
    count = sum(gradient.numel() for gradient in plain)
    if count >= buffer.numel():
        call = _whole(state, bucket, group)
    else:
        how = _reduced if state.reducer else _compressed
        call = how(state, kept, bucket, group, codec, plain, count, step)

    def timed():
        begin = time.perf_counter()
        call()
        if state.record is not None:
            state.record.called(bucket.index(), begin)
    method = state.reducer or codec
    work = group._launch(f"compress_hook, bucket {bucket.index()}", "allreduce", timed, buffer, [buffer],
                         [buffer], True, method.spec if method and count < buffer.numel() else None)
    return work.get_future()


def _resets(owner, step: int) -> bool:
    """Whether residuals begin with zero in the step that comes after so many."""
    return owner.reset_every > 0 and step > 0 and step % owner.reset_every == 0


def _whole(state, bucket, group):
    """A function that averages a bucket as it is."""
    buffer = bucket.buffer()
    stream = group._stream(buffer)

    def call():
        check(lib.ccl_allreduce(buffer.data_ptr(), buffer.data_ptr(), buffer.numel(), TYPES[buffer.dtype],
                                inccl.AVG, group.communicator._get(), stream))
        state.statistics.add_uncompressed(buffer.numel())
    return call


def _compressed(state, kept, bucket, group, codec, plain, count, step):
    """A function that averages a bucket with a codec, and its gradients `plain` of `count` elements as they are."""
    buffer, together = bucket.buffer(), None
    at_risk = state._gradients_at_risk(kept, bucket)
    if plain:
        together = flat(plain)
        for gradient in plain:
            gradient.zero_()
    feedback = state._kept.feedback(kept, buffer.dtype, state.keep) if state.residual else None
    how, stats = compression(codec, state.seed, feedback and feedback.residual)
    kind, stream = TYPES[buffer.dtype], group._stream(buffer)

    def call():
        handle = group.communicator._get()
        with feedback.call(buffer, _resets(state, step)) if feedback else contextlib.nullcontext():
            check(lib.ccl_allreduce_compressed(
                buffer.data_ptr(), buffer.data_ptr(), buffer.numel(), kind, inccl.AVG,
                ctypes.byref(how), handle, stream))
        if together is not None:
            check(lib.ccl_allreduce(together.data_ptr(), together.data_ptr(), count, kind,
                                    inccl.AVG, handle, stream))
            unflatten(together, plain)
        state.statistics.add(stats, codec, buffer, together, feedback)
        if at_risk:
            state._warn_of_zeros(codec, at_risk)
        state.statistics.add_uncompressed(count)
    return call


def _reduced(state, kept, bucket, group, _codec, plain, count, _step):
    """As _compressed, by a reducer."""
    buffer, together = bucket.buffer(), flat(plain) if plain else None
    if state.layerwise:
        parts = []
        for part, (gradient, parameter) in enumerate(zip(bucket.gradients(), bucket.parameters())):
            if state.compress(parameter) and gradient.numel() > 0:
                rows = gradient.shape[0] if state._takes_matrices and gradient.dim() > 0 else 1
                parts.append((gradient, state._kept.reducer_state(kept, part, state.reducer, True, rows,
                                                                  gradient.numel() // rows, buffer.dtype)))
    else:
        for gradient in plain:
            gradient.zero_()
        parts = [(buffer, state._kept.reducer_state(kept, 0, state.reducer, False, 1, buffer.numel(), buffer.dtype))]
    calls = [(tensor, one, *compression(None, state.seed)) for tensor, one in parts]
    stream = group._stream(buffer)

    def call():
        handle = group.communicator._get()
        for tensor, one, how, stats in calls:
            check(lib.ccl_allreduce_reduced(tensor.data_ptr(), tensor.data_ptr(), one._handle, inccl.AVG,
                                            ctypes.byref(how), handle, stream))
            state.statistics.add(stats, one, tensor)
        if together is not None:
            check(lib.ccl_allreduce(together.data_ptr(), together.data_ptr(), count, TYPES[buffer.dtype],
                                    inccl.AVG, handle, stream))
            unflatten(together, plain)
        state.statistics.add_uncompressed(count)
    return call


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

    def _run(self, group, name, call, output, tensor, async_op) -> Optional[Work]:
        work = group._launch(type(self).__name__, name, call, [output], [tensor], [output], async_op,
                             self.codec.spec)
        return work if async_op else None


class CompressedReduceScatter(_Compressed, ReduceScatter):
    """FSDP2: module.set_custom_reduce_scatter(CompressedReduceScatter("hbi:bits=6")). Sums and averages of floats are
    compressed; other calls run as they are.

    residual: error feedback, as State has it, with keep and reset_every (LoCo, arXiv 2407.04480). Each module then has
    an instance of its own. A call in which parameters have no gradient, so that its input has another size, goes
    without the residual, which waits; set_reduce_scatter_unused_params(True) gives every call the same size.
    """

    def __init__(self, codec: Union[str, inccl.Codec] = "hbi:bits=6", *, seed: int = 0, residual: bool = False,
                 keep: float = 0.0, reset_every: int = 0):
        super().__init__(codec, seed=seed)
        Feedback.check(residual, keep, reset_every)
        self.residual, self.keep, self.reset_every = residual, keep, reset_every
        self._feedback: Optional[Feedback] = None
        self._loaded: Optional[torch.Tensor] = None  # by load_state_dict(), before the first call
        self._steps, self._warned = 0, False  # calls with the residual; of calls without

    def __reduce__(self):
        """A copy has equal settings, and nothing of what is kept."""
        return functools.partial(type(self), self.codec, seed=self.seed, residual=self.residual, keep=self.keep,
                                 reset_every=self.reset_every), ()

    def _feedback_of(self, tensor: torch.Tensor) -> Optional[Feedback]:
        if not self.residual:
            return None
        if self._feedback is None:
            owners = sum(issubclass(type(one), FSDPParamGroup) and one._reduce_scatter_comm is self
                         for one in gc.get_objects())
            if owners > 1:
                raise ValueError(f"residual: {owners} groups of parameters share this CompressedReduceScatter; each needs "
                                 "one of its own")
            if self._loaded is not None and self._loaded.numel() != tensor.numel():
                raise ValueError(f"residual: {self._loaded.numel()} elements were loaded, the call has {tensor.numel()}")
            self._feedback = Feedback(tensor.numel(), tensor.dtype, self.keep)
            if self._loaded is not None:
                self._feedback.load(self._loaded)
                self._loaded = None
        if self._feedback.count == tensor.numel():
            return self._feedback
        if not self._warned:
            self._warned = True
            warnings.warn(f"CompressedReduceScatter: {tensor.numel()} elements, and the residual has {self._feedback.count}: "
                          "such steps go without it (module.set_reduce_scatter_unused_params(True) makes all alike)")
        return None

    def rescale(self, factor: float) -> None:
        """As State.rescale."""
        Feedback.check_factor(factor)
        if self._feedback is not None:
            self._feedback.rescale(factor)
        if self._loaded is not None:
            self._loaded = self._loaded * factor

    def state_dict(self) -> dict:
        """What this rank keeps between steps. No backward pass is in progress."""
        values = self._loaded if self._feedback is None else self._feedback.values()
        return {"residual": torch.empty(0) if values is None else values, "steps": self._steps}

    def load_state_dict(self, state: dict) -> None:
        """What state_dict() has returned on this rank, in a group of as many ranks. After an error all is as before."""
        values, steps = (state.get("residual"), state.get("steps")) if isinstance(state, dict) else (None, None)
        if not isinstance(values, torch.Tensor) or not isinstance(steps, int):
            raise TypeError("state: expected what CompressedReduceScatter.state_dict() returns")
        if values.numel() and not self.residual:
            raise ValueError("state: it has a residual, and residual is False")
        if not bool(values.isfinite().all()):
            raise ValueError("residual: it has elements that are not finite")
        self._feedback, self._steps = None, steps
        self._loaded = values.to("cpu", torch.float32, copy=True).flatten() if values.numel() else None

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        ours = group_of(group)
        kind = getattr(op, "op", op)
        if kind not in (_RedOp.SUM, _RedOp.AVG) or output_tensor.dtype not in _COMPRESSIBLE:
            options = c10d.ReduceScatterOptions()
            options.reduceOp, options.asyncOp = op, async_op
            self.statistics.add_uncompressed(input_tensor.numel())
            return ours.reduce_scatter_single(output_tensor, input_tensor, options)
        number, operation = TYPES[output_tensor.dtype], OPS[kind]
        feedback = self._feedback_of(input_tensor)
        how, stats = compression(self.codec, self.seed, feedback and feedback.residual)
        stream = ours._stream(output_tensor)

        def call():
            with feedback.call(input_tensor, _resets(self, self._steps)) if feedback else contextlib.nullcontext():
                check(lib.ccl_reduce_scatter_compressed(
                    input_tensor.data_ptr(), output_tensor.data_ptr(), output_tensor.numel(),
                    number, operation, ctypes.byref(how), ours.communicator._get(), stream))
                self._steps += feedback is not None
            self.statistics.add(stats, self.codec, input_tensor, output_tensor, feedback)
        return self._run(ours, "reduce_scatter_single", call, output_tensor, input_tensor, async_op)


class CompressedAllGather(_Compressed, AllGather):
    """FSDP2: model.set_custom_all_gather(CompressedAllGather("bf16")). All ranks, also the one that
    holds a shard, compute with the decoded parameters; the shards keep their exact values."""

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        ours = group_of(group)
        if output_tensor.dtype not in _COMPRESSIBLE:
            options = c10d.AllgatherOptions()
            options.asyncOp = async_op
            self.statistics.add_uncompressed(input_tensor.numel())
            return ours.all_gather_single(output_tensor, input_tensor, options)
        how, stats = compression(self.codec, self.seed)
        stream = ours._stream(output_tensor)

        def call():
            check(lib.ccl_allgather_compressed(
                input_tensor.data_ptr(), output_tensor.data_ptr(), input_tensor.numel(),
                TYPES[output_tensor.dtype], ctypes.byref(how), ours.communicator._get(), stream))
            self.statistics.add(stats, self.codec, input_tensor, output_tensor)
        return self._run(ours, "all_gather_single", call, output_tensor, input_tensor, async_op)
