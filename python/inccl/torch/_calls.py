# SPDX-License-Identifier: Apache-2.0
"""From tensors to calls of the C API.

Each method of Calls makes a function that runs one collective on memory that it keeps alive. It
checks and prepares the tensors in the caller's thread; the function may run on another one.
"""
import contextlib
import ctypes
import functools
from typing import Any, Callable, Optional

import torch
from torch._C import _distributed_c10d as c10d

import inccl
from inccl._library import check, lib

from . import _tensors
from ._tensors import UINT8, check_writable, contiguous, joined, nbytes, reduction, same_type, \
    unflatten, write


class Calls:
    """Base of ProcessGroup, which has _comm, _rank_ and _size_."""

    def _stream(self, tensor) -> Optional[int]:
        return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else None

    def _move(self, function, send, recv, elements, *root) -> Callable[[], None]:
        """Moves `elements` elements as bytes; send, recv: tensors or None."""
        any_of = send if send is not None else recv
        count = elements * any_of.element_size()
        stream = self._stream(any_of)

        def call():
            check(function(None if send is None else send.data_ptr(),
                           None if recv is None else recv.data_ptr(), count, UINT8, *root,
                           self._comm._get(), stream))
        return call

    def _reduce(self, function, send, recv, elements, how, *root) -> Callable[[], None]:
        """send, recv: contiguous tensors of the type that `how` has. recv None: not the root."""
        stream = self._stream(send)
        count = elements * (send.element_size() // inccl._types._SIZES[how.type])

        def call():
            handle = self._comm._get()
            to = None if recv is None else recv.data_ptr()
            if how.op >= 0:
                check(function(send.data_ptr(), to, count, how.type, how.op, *root, handle, stream))
                return
            with _premultiplied(how, handle) as op:
                check(function(send.data_ptr(), to, count, how.type, op, *root, handle, stream))
        return call

    def _prepared(self, tensor, how) -> torch.Tensor:
        """`tensor` as it can be reduced: itself, a view of it, or a copy."""
        if how.widened is not None:
            return contiguous(tensor.to(how.widened))
        tensor = contiguous(tensor)
        return tensor if how.view is None else tensor.view(how.view)

    def _then_copy(self, call, source, tensor, how) -> Callable[[], None]:
        """`call`, and then the result from its copy into the tensor."""
        if source.data_ptr() == tensor.data_ptr() and how.widened is None:
            return call
        check_writable(tensor)

        def both():
            call()
            result = source.to(tensor.dtype) if how.widened is not None else source
            if how.view is not None:
                result = result.view(tensor.dtype)
            write(tensor, result)
        return both

    def _allreduce(self, tensor, reduce_op) -> Callable[[], None]:
        if tensor.layout != torch.strided:
            return self._allreduce_sparse(tensor, reduce_op)
        how = reduction(tensor.dtype, reduce_op)
        if how.bitwise is not None:
            check_writable(tensor)
            return self._bitwise(tensor, how, lambda total: write(tensor, total))
        work_on = self._prepared(tensor, how)
        call = self._reduce(lib.ccl_allreduce, work_on, work_on, work_on.numel(), how)
        return self._then_copy(call, work_on, tensor, how)

    def _allreduce_many(self, tensors, reduce_op) -> Callable[[], None]:
        """Small tensors of a type that follow one another travel as one vector, in one call."""
        calls = []
        for run in _tensors.runs(tensors):
            if len(run) == 1:
                calls.append(self._allreduce(run[0], reduce_op))
                continue
            for tensor in run:
                check_writable(tensor)
            vector = torch.empty(sum(tensor.numel() for tensor in run), dtype=run[0].dtype,
                                 device=run[0].device)
            calls += [functools.partial(_tensors.flatten, run, vector),
                      self._allreduce(vector, reduce_op), functools.partial(unflatten, vector, run)]
        return sequence(calls)

    def _allreduce_sparse(self, tensor, reduce_op) -> Callable[[], None]:
        """Every rank gets all indices and values, padded to those of the rank with the most."""
        if reduce_op.op != c10d.ReduceOp.RedOpType.SUM:
            raise TypeError("op: sparse tensors have SUM only")

        def gathered(mine):
            everything = torch.empty((self._size_, *mine.shape), dtype=mine.dtype,
                                     device=mine.device)
            self._move(lib.ccl_allgather, contiguous(mine), everything, mine.numel())()
            return everything

        def padded(part, length):
            more = torch.zeros((length - part.size(0), *part.shape[1:]), dtype=part.dtype)
            return torch.cat([part, more.to(part.device)])

        def call():
            mine = tensor.coalesce()
            counts = gathered(torch.tensor([mine.values().size(0)])).view(-1).tolist()
            indices = gathered(padded(mine.indices().t(), max(counts)))
            values = gathered(padded(mine.values(), max(counts)))
            tensor.copy_(torch.sparse_coo_tensor(
                torch.cat([part[:count] for part, count in zip(indices, counts)]).t(),
                torch.cat([part[:count] for part, count in zip(values, counts)]),
                tensor.shape).coalesce())
        return call

    def _bitwise(self, tensor, how, use) -> Callable[[], None]:
        """Every rank gets all inputs and combines them; `use` gets the result."""
        mine = contiguous(tensor)
        everything = torch.empty((self._size_, *mine.shape), dtype=mine.dtype, device=mine.device)
        gather = self._move(lib.ccl_allgather, mine, everything, mine.numel())

        def call():
            gather()
            total = everything[0]
            for other in everything[1:]:
                total = how.bitwise(total, other)
            use(total)
        return call

    def _allgather(self, outputs, tensor) -> Callable[[], None]:
        self._expect(outputs, tensor, "output_tensors", written=True)
        mine = contiguous(tensor)
        if any(out.numel() != tensor.numel() for out in outputs):  # one length for each rank
            return self._gather_uneven(outputs, mine)
        if joined(outputs):
            return self._move(lib.ccl_allgather, mine, outputs[0], mine.numel())
        everything = torch.empty(mine.numel() * self._size_, dtype=mine.dtype, device=mine.device)
        call = self._move(lib.ccl_allgather, mine, everything, mine.numel())
        return sequence([call, lambda: unflatten(everything, outputs)])

    def _gather_uneven(self, outputs, mine) -> Callable[[], None]:
        if outputs[self._rank_].numel() != mine.numel():
            raise ValueError(f"output_tensors[{self._rank_}]: {outputs[self._rank_].numel()} "
                             f"elements, input_tensors has {mine.numel()}")
        calls = []
        for root, out in enumerate(outputs):
            data = mine if root == self._rank_ else contiguous(out)
            call = self._move(lib.ccl_broadcast, data, data, data.numel(), root)
            calls.append(copy_after(call, data, out))
        return sequence(calls)

    def _all_gather_single(self, output, tensor) -> Callable[[], None]:
        _tensors.check(output, "output"), _tensors.check(tensor, "input")
        if output.dtype != tensor.dtype:
            raise TypeError(f"output: {output.dtype}, input is {tensor.dtype}")
        if output.numel() != tensor.numel() * self._size_:
            raise ValueError(f"output: {output.numel()} elements, expected {self._size_} times "
                             f"{tensor.numel()}")
        mine, everything = contiguous(tensor), contiguous(output)
        return copy_after(self._move(lib.ccl_allgather, mine, everything, mine.numel()),
                          everything, output)

    def _reduce_uneven(self, output, inputs, reduce_op) -> Callable[[], None]:
        how = reduction(output.dtype, reduce_op)
        if how.bitwise is not None:
            raise TypeError("op: bitwise reductions of tensors of different lengths")
        calls = []
        for root, one in enumerate(inputs):
            data = self._prepared(one.clone() if root == self._rank_ else one, how)
            mine = root == self._rank_
            call = self._reduce(lib.ccl_reduce, data, data if mine else None, data.numel(), how,
                                root)
            calls.append(self._then_copy(call, data, output, how) if mine else call)
        return sequence(calls)

    def _reduce_scatter(self, output, whole, reduce_op) -> Callable[[], None]:
        """`whole` holds one segment of output's length for each rank."""
        how = reduction(output.dtype, reduce_op)
        if how.bitwise is not None:
            segment = slice(self._rank_ * output.numel(), (self._rank_ + 1) * output.numel())
            return self._bitwise(whole, how, lambda total: write(
                output, total.reshape(-1)[segment]))
        send = self._prepared(whole, how)
        if how.widened is not None:
            recv = torch.empty(output.shape, dtype=how.widened, device=output.device)
        else:
            recv = self._prepared(output, how)
        call = self._reduce(lib.ccl_reduce_scatter, send, recv, recv.numel(), how)
        return self._then_copy(call, recv, output, how)

    def _reduce_scatter_single(self, output, tensor, reduce_op) -> Callable[[], None]:
        _tensors.check(output, "output"), _tensors.check(tensor, "input")
        if output.dtype != tensor.dtype:
            raise TypeError(f"output: {output.dtype}, input is {tensor.dtype}")
        if tensor.numel() != output.numel() * self._size_:
            raise ValueError(f"input: {tensor.numel()} elements, expected {self._size_} times "
                             f"{output.numel()}")
        return self._reduce_scatter(output, tensor, reduce_op)

    def _exchange(self, sends, receives, kept, stream) -> Callable[[], None]:
        """(address, bytes) by rank, of memory that `kept` keeps alive."""
        def call():
            handle = self._comm._get()
            _kept_alive = kept  # noqa: F841
            with inccl.group():
                for peer, (address, length) in enumerate(sends):
                    if length > 0:
                        check(lib.ccl_send(address, length, UINT8, peer, handle, stream))
                for peer, (address, length) in enumerate(receives):
                    if length > 0:
                        check(lib.ccl_recv(address, length, UINT8, peer, handle, stream))
        return call

    def _parts(self, name, tensor, sizes):
        """(address, bytes) of each rank's rows."""
        rows = tensor.size(0) if tensor.dim() else 0
        if not sizes:
            if rows % self._size_ != 0:
                raise ValueError(f"{name}: {rows} rows are not {self._size_} equal parts")
            sizes = [rows // self._size_] * self._size_
        if len(sizes) != self._size_ or sum(sizes) != rows or min(sizes) < 0:
            raise ValueError(f"{name}_split_sizes: {list(sizes)} do not divide {rows} rows among "
                             f"{self._size_} ranks")
        row = nbytes(tensor) // rows if rows else 0
        begin, parts = tensor.data_ptr(), []
        for size in sizes:
            parts.append((begin, size * row))
            begin += size * row
        return parts

    def _expect(self, tensors, like, name, written=False) -> None:
        if len(tensors) != self._size_:
            raise ValueError(f"{name}: {len(tensors)} tensors, expected one for each of "
                             f"{self._size_} ranks")
        same_type(tensors, like.dtype, name)
        if written:
            for tensor in tensors:
                check_writable(tensor, name)

    def _same_length(self, tensors, like, name) -> None:
        for tensor in tensors:
            if tensor.numel() != like.numel():
                raise ValueError(f"{name}: {tensor.numel()} elements, expected {like.numel()}")

    def _root(self, rank: int, name: str = "root") -> int:
        if not 0 <= rank < self._size_:
            raise ValueError(f"{name}: {rank} is not in [0, {self._size_})")
        return rank


def on_streams(call: Callable[[], None], result: Any) -> Callable[[], None]:
    """`call`, whose copies run on the caller's current streams of the devices of `result`, also if
    another thread runs it."""
    if not torch.cuda.is_initialized():
        return call
    streams = {tensor.device: torch.cuda.current_stream(tensor.device)
               for tensor in all_tensors(result) if tensor.is_cuda}
    if not streams:
        return call

    def there():
        with contextlib.ExitStack() as stack:
            for stream in streams.values():
                stack.enter_context(torch.cuda.stream(stream))
            call()
    return there


def all_tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result or () for tensor in all_tensors(part)]


@contextlib.contextmanager
def _premultiplied(how, handle):
    """The number of a premultiplied sum, which exists during its call only."""
    made = ctypes.c_int()
    check(lib.ccl_redop_create_premulsum(ctypes.byref(made), how.scalar, how.type, 1, handle))
    try:
        yield made.value
    finally:
        lib.ccl_redop_destroy(made.value, handle)


def sequence(calls) -> Callable[[], None]:
    def all_of_them():
        for call in calls:
            call()
    return all_of_them


def copy_after(call, source, tensor) -> Callable[[], None]:
    """`call`, and then `tensor` from `source`, unless they are the same memory."""
    if source is tensor or source.data_ptr() == tensor.data_ptr():
        return call
    check_writable(tensor)

    def both():
        call()
        write(tensor, source)
    return both
