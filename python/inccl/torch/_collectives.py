# SPDX-License-Identifier: Apache-2.0
"""The collectives of a process group, as PyTorch calls them.

PyTorch's Python functions and, through a trampoline, its C++ (DDP, functional collectives) call the
methods here. Both names that PyTorch has had for a collective are defined.
"""
import ctypes
from datetime import timedelta
from typing import List

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from inccl._library import check, lib

from . import _tensors
from ._calls import Calls, copy_after, sequence
from ._tensors import UINT8, check_writable, contiguous, flat, joined, nbytes, reduction, single, \
    unflatten, write
from ._work import Work


class Collectives(Calls):
    """Base of ProcessGroup, which has _do: it runs a call and returns its Work."""

    def allreduce(self, tensors, opts=None, timeout=None) -> Work:
        tensor = single(tensors, sparse=True)
        opts = _options(opts, c10d.AllreduceOptions, timeout)
        return self._do("allreduce", self._allreduce(tensor, opts.reduceOp), [tensor], opts)

    def allreduce_coalesced(self, tensors, opts=None) -> Work:
        opts = opts or c10d.AllreduceCoalescedOptions()
        tensors = [_tensors.check(tensor, "tensors") for tensor in tensors]
        call = self._allreduce_many(tensors, opts.reduceOp)
        return self._do("allreduce_coalesced", call, tensors, opts)

    def broadcast(self, tensors, opts=None, timeout=None) -> Work:
        tensor = single(tensors)
        opts = _options(opts, c10d.BroadcastOptions, timeout)
        root = self._root(opts.rootRank)
        data = contiguous(tensor)
        call = self._move(lib.ccl_broadcast, data, data, data.numel(), root)
        if root != self._rank_:
            call = copy_after(call, data, tensor)
        return self._do(f"broadcast from rank {root}", call, [tensor], opts)

    def reduce(self, tensors, opts=None, op=None, timeout=None) -> Work:
        tensor = single(tensors)
        if isinstance(opts, int):
            opts = _rooted(c10d.ReduceOptions, opts, timeout, op)
        opts = opts or c10d.ReduceOptions()
        root = self._root(opts.rootRank)
        how = reduction(tensor.dtype, opts.reduceOp)
        at_root = root == self._rank_
        if how.bitwise is not None:
            check_writable(tensor)
            call = self._bitwise(tensor, how, lambda total: at_root and write(tensor, total))
        else:
            data = self._prepared(tensor, how)
            call = self._reduce(lib.ccl_reduce, data, data if at_root else None, data.numel(), how,
                                root)
            if at_root:
                call = self._then_copy(call, data, tensor, how)
        return self._do(f"reduce to rank {root}", call, [tensor], opts)

    def allgather(self, output_tensors, input_tensors, opts=None, timeout=None) -> Work:
        tensor = single(input_tensors, "input_tensors")
        outputs = _list(output_tensors, "output_tensors")
        opts = _options(opts, c10d.AllgatherOptions, timeout)
        return self._do("allgather", self._allgather(outputs, tensor), [outputs], opts,
                        [tensor])

    def all_gather_single(self, output, input, opts=None) -> Work:
        opts = opts or c10d.AllgatherOptions()
        return self._do("all_gather_single", self._all_gather_single(output, input), [output],
                        opts, [input])

    def all_gather_single_coalesced(self, outputs, inputs, opts=None) -> Work:
        opts = opts or c10d.AllgatherOptions()
        calls = [self._all_gather_single(out, one) for out, one in _pairs(outputs, inputs)]
        return self._do("all_gather_single_coalesced", sequence(calls), list(outputs), opts, inputs)

    def allgather_coalesced(self, output_lists, input_list, opts=None) -> Work:
        opts = opts or c10d.AllgatherOptions()
        if len(output_lists) == self._size_ and all(len(o) == len(input_list)
                                                    for o in output_lists):
            by_tensor = [list(of_ranks) for of_ranks in zip(*output_lists)]
        else:
            raise ValueError(f"output_lists: expected {self._size_} lists of {len(input_list)}")
        calls = [self._allgather(outs, _tensors.check(one, "input_list"))
                 for outs, one in zip(by_tensor, input_list)]
        return self._do("allgather_coalesced", sequence(calls), output_lists, opts, input_list)

    def gather(self, output_tensors, input_tensors, opts=None, timeout=None) -> Work:
        tensor = single(input_tensors, "input_tensors")
        if isinstance(opts, int):
            opts = _rooted(c10d.GatherOptions, opts, timeout)
        opts = opts or c10d.GatherOptions()
        root = self._root(opts.rootRank)
        mine = contiguous(tensor)
        if root != self._rank_:
            if output_tensors:
                raise ValueError("output_tensors: must be empty on ranks that are not the root")
            return self._do(f"gather to rank {root}", self._move(
                lib.ccl_gather, mine, None, mine.numel(), root), [], opts, [tensor])
        outputs = _list(output_tensors, "output_tensors")
        self._expect(outputs, tensor, "output_tensors", written=True)
        self._same_length(outputs, tensor, "output_tensors")
        if joined(outputs):
            call = self._move(lib.ccl_gather, mine, outputs[0], mine.numel(), root)
        else:
            everything = torch.empty(mine.numel() * self._size_, dtype=mine.dtype,
                                     device=mine.device)
            call = sequence([self._move(lib.ccl_gather, mine, everything, mine.numel(), root),
                              lambda: unflatten(everything, outputs)])
        return self._do(f"gather to rank {root}", call, [outputs], opts, [tensor])

    def scatter(self, output_tensors, input_tensors, opts=None, timeout=None) -> Work:
        tensor = single(output_tensors, "output_tensors")
        if isinstance(opts, int):
            opts = _rooted(c10d.ScatterOptions, opts, timeout)
        opts = opts or c10d.ScatterOptions()
        root = self._root(opts.rootRank)
        mine = contiguous(tensor)
        everything, inputs = None, []
        if root == self._rank_:
            inputs = _list(input_tensors, "input_tensors")
            self._expect(inputs, tensor, "input_tensors")
            self._same_length(inputs, tensor, "input_tensors")
            everything = inputs[0] if joined(inputs) else flat(inputs)
        elif input_tensors:
            raise ValueError("input_tensors: must be empty on ranks that are not the root")
        call = self._move(lib.ccl_scatter, everything, mine, mine.numel(), root)
        return self._do(f"scatter from rank {root}", copy_after(call, mine, tensor), [tensor],
                        opts, inputs)

    def reduce_scatter(self, output_tensors, input_tensors, opts=None, timeout=None) -> Work:
        tensor = single(output_tensors, "output_tensors")
        inputs = _list(input_tensors, "input_tensors")
        opts = _options(opts, c10d.ReduceScatterOptions, timeout)
        self._expect(inputs, tensor, "input_tensors")
        lengths = {one.numel() for one in inputs}
        if inputs[self._rank_].numel() != tensor.numel():
            raise ValueError(f"input_tensors[{self._rank_}]: {inputs[self._rank_].numel()} "
                             f"elements, output has {tensor.numel()}")
        if len(lengths) > 1:
            call = self._reduce_uneven(tensor, inputs, opts.reduceOp)
        else:
            everything = inputs[0] if joined(inputs) else flat(inputs)
            call = self._reduce_scatter(tensor, everything, opts.reduceOp)
        return self._do("reduce_scatter", call, [tensor], opts, inputs)

    def reduce_scatter_single(self, output, input, opts=None) -> Work:
        opts = opts or c10d.ReduceScatterOptions()
        call = self._reduce_scatter_single(output, input, opts.reduceOp)
        return self._do("reduce_scatter_single", call, [output], opts, [input])

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None) -> Work:
        opts = opts or c10d.ReduceScatterOptions()
        calls = [self._reduce_scatter_single(out, one, opts.reduceOp)
                 for out, one in _pairs(outputs, inputs)]
        return self._do("reduce_scatter_single_coalesced", sequence(calls), list(outputs), opts, inputs)

    def alltoall(self, output_tensors, input_tensors, opts=None, timeout=None) -> Work:
        opts = _options(opts, c10d.AllToAllOptions, timeout)
        outputs, inputs = list(output_tensors), list(input_tensors)
        if not outputs or not inputs:
            raise ValueError("output_tensors, input_tensors: empty")
        self._expect(outputs, inputs[0], "output_tensors")
        self._expect(inputs, inputs[0], "input_tensors")
        sends = [contiguous(one) for one in inputs]
        receives = [contiguous(out) for out in outputs]
        call = self._exchange([(t.data_ptr(), nbytes(t)) for t in sends],
                              [(t.data_ptr(), nbytes(t)) for t in receives], (sends, receives),
                              self._stream(inputs[0]))
        copies = [copy_after(lambda: None, data, out) for data, out in zip(receives, outputs)]
        return self._do("alltoall", sequence([call, *copies]), outputs, opts, inputs)

    def all_to_all_single(self, output, input, output_split_sizes=None, input_split_sizes=None,
                          opts=None, timeout=None) -> Work:
        opts = _options(opts, c10d.AllToAllOptions, timeout)
        _tensors.check(output, "output"), _tensors.check(input, "input")
        if output.dtype != input.dtype:
            raise TypeError(f"output: {output.dtype}, input is {input.dtype}")
        send, recv = contiguous(input), contiguous(output)
        if not output_split_sizes and not input_split_sizes:
            for name, tensor in (("output", output), ("input", input)):
                if tensor.numel() and tensor.size(0) % self._size_ != 0:
                    raise ValueError(f"{name}: {tensor.size(0)} rows are not {self._size_} equal "
                                     "parts")
            if send.numel() != recv.numel():
                raise ValueError(f"output: {recv.numel()} elements, input has {send.numel()}")
            call = self._move(lib.ccl_alltoall, send, recv, send.numel() // self._size_)
        else:
            call = self._exchange(self._parts("input", send, input_split_sizes),
                                  self._parts("output", recv, output_split_sizes), (send, recv),
                                  self._stream(send))
        return self._do("all_to_all_single", copy_after(call, recv, output), [output], opts,
                        [input])

    def barrier(self, opts=None, timeout=None) -> Work:
        opts = _options(opts, c10d.BarrierOptions, timeout)
        stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

        def call():
            if stream is not None:  # what the caller has queued is before the barrier
                stream.synchronize()
            one = (ctypes.c_ubyte * 1)()
            check(lib.ccl_allreduce(one, one, 1, UINT8, 2, self._comm._get(), None))
        return self._do("barrier", call, [], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _options(opts, kind, timeout=None):
    """Options, or those for the second argument of PyTorch's short forms: an operation, a root."""
    if isinstance(opts, kind):
        return opts
    made = kind()
    if opts is not None and not isinstance(opts, timedelta):
        if hasattr(made, "reduceOp"):
            made.reduceOp = opts if isinstance(opts, dist.ReduceOp) else dist.ReduceOp(opts)
        elif hasattr(made, "rootRank"):
            made.rootRank = opts
        else:
            raise TypeError(f"opts: expected {kind.__name__}, got {type(opts).__name__}")
    timeout = opts if isinstance(opts, timedelta) else timeout
    if timeout is not None:
        made.timeout = timeout
    return made


def _rooted(kind, root, timeout, op=None):
    made = kind()
    made.rootRank = root
    if op is not None:
        made.reduceOp = op if isinstance(op, dist.ReduceOp) else dist.ReduceOp(op)
    if timeout is not None:
        made.timeout = timeout
    return made


def _list(tensors, name) -> List[torch.Tensor]:
    """The list of a list of one list, or the list that was given instead."""
    tensors = list(tensors)
    if tensors and isinstance(tensors[0], (list, tuple)):
        if len(tensors) != 1:
            raise ValueError(f"{name}: expected one list of tensors, got {len(tensors)}")
        return list(tensors[0])
    if not tensors:
        raise ValueError(f"{name}: empty")
    return tensors


def _pairs(outputs, inputs):
    if len(outputs) != len(inputs):
        raise ValueError(f"outputs: {len(outputs)} tensors, inputs has {len(inputs)}")
    return zip(outputs, inputs)
