# SPDX-License-Identifier: Apache-2.0
"""The process group: torch.distributed over an inccl communicator.

PyTorch's Python functions and, through a trampoline, its C++ (DDP, functional collectives) call the
methods here. Both names that PyTorch has had for a collective are defined. A call with
opts.asyncOp false returns completed work; any other runs on a thread.
"""
import contextlib
import ctypes
from datetime import timedelta
from typing import Any, Callable, List, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import inccl
from inccl._library import check, lib

from . import _tensors
from ._pairs import Pairs
from ._tensors import UINT8, flat, joined, nbytes, reduction, same_type, single, \
    unflatten
from ._work import BackendError, Runner, Work, backend_error

_UNSET = timedelta(milliseconds=-1)


class Options(NamedTuple):
    """pg_options of init_process_group and new_group; the fields are those of
    inccl.Communicator."""
    algorithm: Optional[str] = None
    channels: int = 0
    reproducible: bool = False
    socket_ifname: Optional[str] = None
    heartbeat: float = 0
    dead_timeout: float = 0


class ProcessGroup(dist.ProcessGroup):
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
        self._sequence = 0
        seconds = _in_range(timeout)
        config = {key: value for key, value in (options or Options())._asdict().items() if value}
        if rank == 0:
            made = inccl.unique_id()
            store.set("inccl/id", made.hex())
        else:
            made = bytes.fromhex(store.get("inccl/id").decode())
        try:
            self._comm = inccl.Communicator(
                made, rank, size, init_timeout=seconds, op_timeout=seconds,
                name=name[:128] if name else None, **config)
        except inccl.Error as error:
            raise backend_error("init_process_group", error) from error
        self._runner = Runner("inccl-collectives")
        self._pairs = Pairs(store, rank, size, config, self._comm.async_error)
        self._coalescing: Optional[List[Callable[[], None]]] = None
        self._ended = False

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
        """Waits for this rank's calls, then ends the group."""
        if not self._ended:
            self._ended = True
            self._pairs.close()
            self._runner.close()
            self._comm.destroy()

    def abort(self) -> None:
        """Ends the group at once, from any thread; pending work fails."""
        self._ended = True
        self._comm.abort()
        self._pairs.abort()

    def __del__(self):
        if not getattr(self, "_ended", True):
            self.abort()

    # ------------------------------------------------------------------ running calls

    def _do(self, what: str, call: Callable[[], None], result: Any, opts) -> Work:
        """Runs `call`, or adds it to the block of _start_coalescing."""
        self._sequence += 1
        if self._coalescing is not None:
            self._coalescing.append((what, on_streams(call, result)))
            return Work(result, what, done=True)
        if opts is not None:
            timeout = opts.timeout
            if timeout != _UNSET and timeout != self._timeout_:
                call = self._limited(call, timeout)
            if opts.asyncOp:
                return self._runner.submit(on_streams(call, result), Work(result, what))
        self._runner.run(on_streams(call, result), what)
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
            raise RuntimeError("_start_coalescing: a block is open already")
        self._coalescing = []

    def _end_coalescing(self, device=None) -> Work:
        calls, self._coalescing = self._coalescing, None

        def all_of_them():
            for _, call in calls:
                call()
        work = Work(None, "coalesced: " + ", ".join(what for what, _ in calls))
        return self._runner.submit(all_of_them, work)

    def _stream(self, tensor) -> Optional[int]:
        return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else None

    # Each of these makes a function that runs one collective on memory that it keeps alive.

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
            return tensor.to(how.widened).contiguous()
        tensor = tensor.contiguous()
        return tensor if how.view is None else tensor.view(how.view)

    def _allreduce(self, tensor, reduce_op) -> Callable[[], None]:
        if tensor.layout != torch.strided:
            return self._allreduce_sparse(tensor, reduce_op)
        how = reduction(tensor.dtype, reduce_op)
        if how.bitwise is not None:
            return self._bitwise(tensor, how, lambda total: tensor.copy_(total))
        work_on = self._prepared(tensor, how)
        call = self._reduce(lib.ccl_allreduce, work_on, work_on, work_on.numel(), how)
        return self._then_copy(call, work_on, tensor, how)

    def _allreduce_sparse(self, tensor, reduce_op) -> Callable[[], None]:
        """Every rank gets all indices and values, padded to those of the rank with the most."""
        if reduce_op.op != c10d.ReduceOp.RedOpType.SUM:
            raise TypeError("op: sparse tensors have SUM only")

        def gathered(mine):
            everything = torch.empty((self._size_, *mine.shape), dtype=mine.dtype,
                                     device=mine.device)
            self._move(lib.ccl_allgather, mine.contiguous(), everything, mine.numel())()
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

    def _then_copy(self, call, source, tensor, how) -> Callable[[], None]:
        """`call`, and then the result from its copy into the tensor."""
        if source.data_ptr() == tensor.data_ptr() and how.widened is None:
            return call

        def both():
            call()
            result = source.to(tensor.dtype) if how.widened is not None else source
            if how.view is not None:
                result = result.view(tensor.dtype)
            tensor.copy_(result.view(tensor.shape))
        return both

    def _bitwise(self, tensor, how, use) -> Callable[[], None]:
        """Every rank gets all inputs and combines them; `use` gets the result."""
        mine = tensor.contiguous()
        everything = torch.empty((self._size_, *mine.shape), dtype=mine.dtype, device=mine.device)
        gather = self._move(lib.ccl_allgather, mine, everything, mine.numel())

        def call():
            gather()
            total = everything[0]
            for other in everything[1:]:
                total = how.bitwise(total, other)
            use(total)
        return call

    # ------------------------------------------------------------------ collectives

    def allreduce(self, tensors, opts=None, timeout=None) -> Work:
        tensor = single(tensors, sparse=True)
        opts = _options(opts, c10d.AllreduceOptions, timeout)
        return self._do("allreduce", self._allreduce(tensor, opts.reduceOp), [tensor], opts)

    def allreduce_coalesced(self, tensors, opts=None) -> Work:
        opts = opts or c10d.AllreduceCoalescedOptions()
        calls = [self._allreduce(_tensors.check(t, "tensors"), opts.reduceOp) for t in tensors]
        return self._do("allreduce_coalesced", _sequence(calls), list(tensors), opts)

    def broadcast(self, tensors, opts=None, timeout=None) -> Work:
        tensor = single(tensors)
        opts = _options(opts, c10d.BroadcastOptions, timeout)
        root = self._root(opts.rootRank)
        data = tensor.contiguous()
        call = self._move(lib.ccl_broadcast, data, data, data.numel(), root)
        if root != self._rank_:
            call = _copy_after(call, data, tensor)
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
            call = self._bitwise(tensor, how, tensor.copy_ if at_root else lambda total: None)
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
        return self._do("allgather", self._allgather(outputs, tensor), [outputs], opts)

    def _allgather(self, outputs, tensor) -> Callable[[], None]:
        self._expect(outputs, tensor, "output_tensors")
        mine = tensor.contiguous()
        if any(out.numel() != tensor.numel() for out in outputs):  # one length for each rank
            return self._gather_uneven(outputs, mine)
        if joined(outputs):
            return self._move(lib.ccl_allgather, mine, outputs[0], mine.numel())
        everything = torch.empty(mine.numel() * self._size_, dtype=mine.dtype, device=mine.device)
        call = self._move(lib.ccl_allgather, mine, everything, mine.numel())
        return _sequence([call, lambda: unflatten(everything, outputs)])

    def _gather_uneven(self, outputs, mine) -> Callable[[], None]:
        if outputs[self._rank_].numel() != mine.numel():
            raise ValueError(f"output_tensors[{self._rank_}]: {outputs[self._rank_].numel()} "
                             f"elements, input_tensors has {mine.numel()}")
        calls = []
        for root, out in enumerate(outputs):
            data = mine if root == self._rank_ else out.contiguous()
            call = self._move(lib.ccl_broadcast, data, data, data.numel(), root)
            calls.append(_copy_after(call, data, out))
        return _sequence(calls)

    def _expect(self, tensors, like, name) -> None:
        if len(tensors) != self._size_:
            raise ValueError(f"{name}: {len(tensors)} tensors, expected one for each of "
                             f"{self._size_} ranks")
        same_type(tensors, like.dtype, name)

    def all_gather_single(self, output, input, opts=None) -> Work:
        opts = opts or c10d.AllgatherOptions()
        return self._do("all_gather_single", self._all_gather_single(output, input), [output],
                        opts)

    def _all_gather_single(self, output, tensor) -> Callable[[], None]:
        _tensors.check(output, "output"), _tensors.check(tensor, "input")
        if output.dtype != tensor.dtype:
            raise TypeError(f"output: {output.dtype}, input is {tensor.dtype}")
        if output.numel() != tensor.numel() * self._size_:
            raise ValueError(f"output: {output.numel()} elements, expected {self._size_} times "
                             f"{tensor.numel()}")
        mine, everything = tensor.contiguous(), output.contiguous()
        return _copy_after(self._move(lib.ccl_allgather, mine, everything, mine.numel()),
                           everything, output)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None) -> Work:
        opts = opts or c10d.AllgatherOptions()
        calls = [self._all_gather_single(out, one) for out, one in _pairs(outputs, inputs)]
        return self._do("all_gather_single_coalesced", _sequence(calls), list(outputs), opts)

    def allgather_coalesced(self, output_lists, input_list, opts=None) -> Work:
        opts = opts or c10d.AllgatherOptions()
        if len(output_lists) == self._size_ and all(len(o) == len(input_list)
                                                    for o in output_lists):
            by_tensor = [list(of_ranks) for of_ranks in zip(*output_lists)]
        else:
            raise ValueError(f"output_lists: expected {self._size_} lists of {len(input_list)}")
        calls = [self._allgather(outs, _tensors.check(one, "input_list"))
                 for outs, one in zip(by_tensor, input_list)]
        return self._do("allgather_coalesced", _sequence(calls), output_lists, opts)

    def gather(self, output_tensors, input_tensors, opts=None, timeout=None) -> Work:
        tensor = single(input_tensors, "input_tensors")
        if isinstance(opts, int):
            opts = _rooted(c10d.GatherOptions, opts, timeout)
        opts = opts or c10d.GatherOptions()
        root = self._root(opts.rootRank)
        mine = tensor.contiguous()
        if root != self._rank_:
            if output_tensors:
                raise ValueError("output_tensors: must be empty on ranks that are not the root")
            return self._do(f"gather to rank {root}", self._move(
                lib.ccl_gather, mine, None, mine.numel(), root), [], opts)
        outputs = _list(output_tensors, "output_tensors")
        self._expect(outputs, tensor, "output_tensors")
        self._same_length(outputs, tensor, "output_tensors")
        if joined(outputs):
            call = self._move(lib.ccl_gather, mine, outputs[0], mine.numel(), root)
        else:
            everything = torch.empty(mine.numel() * self._size_, dtype=mine.dtype,
                                     device=mine.device)
            call = _sequence([self._move(lib.ccl_gather, mine, everything, mine.numel(), root),
                              lambda: unflatten(everything, outputs)])
        return self._do(f"gather to rank {root}", call, [outputs], opts)

    def _same_length(self, tensors, like, name) -> None:
        for tensor in tensors:
            if tensor.numel() != like.numel():
                raise ValueError(f"{name}: {tensor.numel()} elements, expected {like.numel()}")

    def scatter(self, output_tensors, input_tensors, opts=None, timeout=None) -> Work:
        tensor = single(output_tensors, "output_tensors")
        if isinstance(opts, int):
            opts = _rooted(c10d.ScatterOptions, opts, timeout)
        opts = opts or c10d.ScatterOptions()
        root = self._root(opts.rootRank)
        mine = tensor.contiguous()
        everything = None
        if root == self._rank_:
            inputs = _list(input_tensors, "input_tensors")
            self._expect(inputs, tensor, "input_tensors")
            self._same_length(inputs, tensor, "input_tensors")
            everything = inputs[0] if joined(inputs) else flat(inputs)
        elif input_tensors:
            raise ValueError("input_tensors: must be empty on ranks that are not the root")
        call = self._move(lib.ccl_scatter, everything, mine, mine.numel(), root)
        return self._do(f"scatter from rank {root}", _copy_after(call, mine, tensor), [tensor],
                        opts)

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
        return self._do("reduce_scatter", call, [tensor], opts)

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
        return _sequence(calls)

    def _reduce_scatter(self, output, whole, reduce_op) -> Callable[[], None]:
        """`whole` holds one segment of output's length for each rank."""
        how = reduction(output.dtype, reduce_op)
        if how.bitwise is not None:
            segment = slice(self._rank_ * output.numel(), (self._rank_ + 1) * output.numel())
            return self._bitwise(whole, how, lambda total: output.copy_(
                total.reshape(-1)[segment].view(output.shape)))
        send = self._prepared(whole, how)
        if how.widened is not None:
            recv = torch.empty(output.shape, dtype=how.widened, device=output.device)
        else:
            recv = self._prepared(output, how)
        call = self._reduce(lib.ccl_reduce_scatter, send, recv, recv.numel(), how)
        return self._then_copy(call, recv, output, how)

    def reduce_scatter_single(self, output, input, opts=None) -> Work:
        opts = opts or c10d.ReduceScatterOptions()
        call = self._reduce_scatter_single(output, input, opts.reduceOp)
        return self._do("reduce_scatter_single", call, [output], opts)

    def _reduce_scatter_single(self, output, tensor, reduce_op) -> Callable[[], None]:
        _tensors.check(output, "output"), _tensors.check(tensor, "input")
        if output.dtype != tensor.dtype:
            raise TypeError(f"output: {output.dtype}, input is {tensor.dtype}")
        if tensor.numel() != output.numel() * self._size_:
            raise ValueError(f"input: {tensor.numel()} elements, expected {self._size_} times "
                             f"{output.numel()}")
        return self._reduce_scatter(output, tensor, reduce_op)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None) -> Work:
        opts = opts or c10d.ReduceScatterOptions()
        calls = [self._reduce_scatter_single(out, one, opts.reduceOp)
                 for out, one in _pairs(outputs, inputs)]
        return self._do("reduce_scatter_single_coalesced", _sequence(calls), list(outputs), opts)

    def alltoall(self, output_tensors, input_tensors, opts=None, timeout=None) -> Work:
        opts = _options(opts, c10d.AllToAllOptions, timeout)
        outputs, inputs = list(output_tensors), list(input_tensors)
        if not outputs or not inputs:
            raise ValueError("output_tensors, input_tensors: empty")
        self._expect(outputs, inputs[0], "output_tensors")
        self._expect(inputs, inputs[0], "input_tensors")
        sends = [one.contiguous() for one in inputs]
        receives = [out.contiguous() for out in outputs]
        call = self._exchange([(t.data_ptr(), nbytes(t)) for t in sends],
                              [(t.data_ptr(), nbytes(t)) for t in receives], (sends, receives),
                              self._stream(inputs[0]))
        copies = [_copy_after(lambda: None, data, out) for data, out in zip(receives, outputs)]
        return self._do("alltoall", _sequence([call, *copies]), outputs, opts)

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

    def all_to_all_single(self, output, input, output_split_sizes=None, input_split_sizes=None,
                          opts=None, timeout=None) -> Work:
        opts = _options(opts, c10d.AllToAllOptions, timeout)
        _tensors.check(output, "output"), _tensors.check(input, "input")
        if output.dtype != input.dtype:
            raise TypeError(f"output: {output.dtype}, input is {input.dtype}")
        send, recv = input.contiguous(), output.contiguous()
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
        return self._do("all_to_all_single", _copy_after(call, recv, output), [output], opts)

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

    # ------------------------------------------------------------------ point to point

    def send(self, tensors, dst: int, tag: int = 0) -> Work:
        tensor = single(tensors)
        self._host_only(tensor, "send")
        return self._pairs.send(tensor, self._root(dst, "dst"), tag, self._seconds())

    def recv(self, tensors, src: int, tag: int = 0) -> Work:
        tensor = single(tensors)
        self._host_only(tensor, "recv")
        return self._pairs.recv(tensor, self._root(src, "src"), tag, self._seconds())

    def recv_anysource(self, tensors, tag: int = 0) -> Work:
        tensor = single(tensors)
        self._host_only(tensor, "recv")
        return self._pairs.recv(tensor, None, tag, self._seconds())

    def _host_only(self, tensor, what) -> None:
        if tensor.is_cuda:
            raise TypeError(f"{what}: tensors on {tensor.device} are not supported, move the "
                            "tensor to the host")

    def _seconds(self) -> float:
        return _in_range(self._timeout_)

    def _root(self, rank: int, name: str = "root") -> int:
        if not 0 <= rank < self._size_:
            raise ValueError(f"{name}: {rank} is not in [0, {self._size_})")
        return rank

    def __repr__(self):
        return f"<inccl.torch.ProcessGroup {self._name_!r}: rank {self._rank_}/{self._size_}>"


def on_streams(call: Callable[[], None], result: Any) -> Callable[[], None]:
    """`call`, whose copies run on the caller's current streams of the devices of `result`, also if
    another thread runs it."""
    if not torch.cuda.is_initialized():
        return call
    streams = {tensor.device: torch.cuda.current_stream(tensor.device)
               for tensor in _all_tensors(result) if tensor.is_cuda}
    if not streams:
        return call

    def there():
        with contextlib.ExitStack() as stack:
            for stream in streams.values():
                stack.enter_context(torch.cuda.stream(stream))
            call()
    return there


def _all_tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result or () for tensor in _all_tensors(part)]


@contextlib.contextmanager
def _premultiplied(how, handle):
    """The number of a premultiplied sum, which exists during its call only."""
    made = ctypes.c_int()
    check(lib.ccl_redop_create_premulsum(ctypes.byref(made), how.scalar, how.type, 1, handle))
    try:
        yield made.value
    finally:
        lib.ccl_redop_destroy(made.value, handle)


def _in_range(timeout: timedelta) -> float:
    """Seconds as the library takes them."""
    return min(max(timeout.total_seconds(), 0.001), 86400.0)


def _sequence(calls) -> Callable[[], None]:
    def all_of_them():
        for call in calls:
            call()
    return all_of_them


def _copy_after(call, source, tensor) -> Callable[[], None]:
    """`call`, and then `tensor` from `source`, unless they are the same memory."""
    if source is tensor or source.data_ptr() == tensor.data_ptr():
        return call

    def both():
        call()
        tensor.copy_(source.view(tensor.shape))
    return both


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


def create(backend_options, pg_options) -> ProcessGroup:
    """What init_process_group and new_group call."""
    return ProcessGroup(backend_options.store, backend_options.group_rank,
                        backend_options.group_size, backend_options.timeout, pg_options,
                        backend_options.group_id)
