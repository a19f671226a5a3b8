# SPDX-License-Identifier: Apache-2.0
"""How tensors and reductions of PyTorch become arguments of the C API.

A tensor that is contiguous and whose type the library reduces is passed as it lies. Otherwise the
call works on a copy, which is written back when the call has succeeded.
"""
from typing import Iterator, List, NamedTuple, Optional, Sequence

import torch
from torch._C._distributed_c10d import ReduceOp

from inccl import DataType

UINT8 = int(DataType.UINT8)

TYPES = {
    torch.int8: 0, torch.uint8: 1, torch.int32: 2, torch.uint32: 3, torch.int64: 4,
    torch.uint64: 5, torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9,
    torch.float8_e4m3fn: 10, torch.float8_e5m2: 11,
}
_WIDENED = {torch.int16, torch.uint16}  # reduced as int32, modulo 2^16
_SUM, _PROD, _MAX, _MIN, _AVG = range(5)
_RedOp = ReduceOp.RedOpType
OPS = {_RedOp.SUM: _SUM, _RedOp.PRODUCT: _PROD, _RedOp.MAX: _MAX, _RedOp.MIN: _MIN,
       _RedOp.AVG: _AVG}
_BOOL_OPS = {_RedOp.SUM: _MAX, _RedOp.MAX: _MAX, _RedOp.BOR: _MAX, _RedOp.PRODUCT: _MIN,
             _RedOp.MIN: _MIN, _RedOp.BAND: _MIN}
_BITWISE = {_RedOp.BAND: torch.bitwise_and, _RedOp.BOR: torch.bitwise_or,
            _RedOp.BXOR: torch.bitwise_xor}
_COMPLEX = {torch.complex64: torch.float32, torch.complex128: torch.float64}


class Reduction(NamedTuple):
    """op: number of the C API; PREMUL: `scalar` times the input, then the sum; BITWISE: the ranks
    apply `bitwise` to all inputs. view: the type as which elements are reduced, and widened: the
    one to which they are converted; None: as they are."""
    type: int
    op: int
    view: Optional[torch.dtype] = None
    widened: Optional[torch.dtype] = None
    scalar: Optional[bytes] = None
    bitwise: Optional[object] = None


PREMUL, BITWISE = -1, -2
_native = {dtype: {} for dtype in TYPES}  # by type and operation: what most calls use


def reduction(dtype: torch.dtype, reduce_op) -> Reduction:
    """Raises TypeError for a type that the operation does not have."""
    op = reduce_op.op
    known = _native.get(dtype)
    found = None if known is None else known.get(op)
    if found is None:
        found = _make(dtype, op, reduce_op)
        if found.scalar is None and known is not None:
            known[op] = found
    return found


def _make(dtype, op, reduce_op) -> Reduction:
    name = str(op).rpartition(".")[2]
    if dtype == torch.bool:
        if op not in _BOOL_OPS:
            raise TypeError(f"op: torch.bool has no {name}")
        return Reduction(UINT8, _BOOL_OPS[op], view=torch.uint8)
    if op in _BITWISE:
        if dtype.is_floating_point or dtype.is_complex:
            raise TypeError(f"op: {dtype} has no {name}")
        return Reduction(UINT8, BITWISE, bitwise=_BITWISE[op])
    if dtype in _COMPLEX:
        if op not in (_RedOp.SUM, _RedOp.AVG, _RedOp.PREMUL_SUM):
            raise TypeError(f"op: {dtype} has no {name}")
        real = _COMPLEX[dtype]
        return _make(real, op, reduce_op)._replace(view=real)
    if dtype in _WIDENED:
        return _make(torch.int32, op, reduce_op)._replace(widened=torch.int32)
    if dtype not in TYPES:
        raise TypeError(f"tensor: {dtype} has no reductions")
    if op == _RedOp.PREMUL_SUM:
        return Reduction(TYPES[dtype], PREMUL, scalar=_scalar(reduce_op.factor, dtype))
    if op not in OPS:
        raise TypeError(f"op: {name} is not supported")
    return Reduction(TYPES[dtype], OPS[op])


def _scalar(factor, dtype) -> bytes:
    value = factor.item() if isinstance(factor, torch.Tensor) else factor
    return bytes(torch.tensor([value], dtype=dtype).view(torch.uint8).tolist())


def check(tensor, name: str, sparse: bool = False) -> torch.Tensor:
    """`sparse`: COO tensors are welcome, too."""
    if type(tensor) not in _PLAIN:
        _check_subclass(tensor, name)
    if tensor.layout != torch.strided and not (sparse and tensor.layout == torch.sparse_coo):
        raise TypeError(f"{name}: expected a dense tensor, got {tensor.layout}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name}: on {tensor.device}; the backend takes cpu and cuda")
    return tensor


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _check_subclass(tensor, name) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a Tensor, got {type(tensor).__name__}")
    try:
        has_memory = tensor.layout != torch.strided or not tensor.numel() or tensor.data_ptr()
    except RuntimeError:  # of a FakeTensor
        has_memory = False
    if not has_memory:
        raise TypeError(f"{name}: a {type(tensor).__name__} has no memory of its own, pass the "
                        "local tensor")


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a copy, whose memory has its values one after the other."""
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


def as_it_lies(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def check_writable(tensor: torch.Tensor, name: str = "tensor") -> torch.Tensor:
    """Raises ValueError if elements share memory, as those of expand() do."""
    if not tensor.is_contiguous() and torch._debug_has_internal_overlap(tensor) == 1:
        raise ValueError(f"{name}: its elements overlap in memory; pass a copy")
    return tensor


def write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Into leaves that require a gradient and into tensors of inference mode, too, as for results
    that the library writes."""
    with torch.inference_mode():
        tensor.copy_(values.view(tensor.shape))


def single(tensors, name: str = "tensors", sparse: bool = False) -> torch.Tensor:
    """The only tensor of a list, or the tensor that was given instead of a list."""
    if isinstance(tensors, torch.Tensor):
        return check(tensors, name, sparse)
    if len(tensors) != 1:
        raise ValueError(f"{name}: expected a list of one tensor, got {len(tensors)}")
    return check(tensors[0], name, sparse)


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def joined(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors lie contiguous, one after the other."""
    if not tensors:
        return False
    address = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != address or not as_it_lies(tensor):
            return False
        address += nbytes(tensor)
    return True


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A contiguous copy of tensors of one type, one after the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def flatten(tensors: Sequence[torch.Tensor], to: torch.Tensor) -> None:
    """As flat(), into memory that is there."""
    begin = 0
    for tensor in tensors:
        end = begin + tensor.numel()
        write(to[begin:end], tensor.reshape(-1))
        begin = end


def unflatten(source: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Writes what flat() has joined back."""
    begin = 0
    for tensor in tensors:
        end = begin + tensor.numel()
        write(tensor, source[begin:end])
        begin = end


_SMALL, _RUN = 256 << 10, 4 << 20  # bytes: of a tensor that is joined with others; of such a run


def runs(tensors: Sequence[torch.Tensor]) -> Iterator[List[torch.Tensor]]:
    """All tensors in order; neighbours that are small and of one type are in one list. Not
    those of a type that a call converts when it is made."""
    run, size = [], 0
    for tensor in tensors:
        small = nbytes(tensor) <= _SMALL and tensor.dtype not in _WIDENED
        if run and not (small and size + nbytes(tensor) <= _RUN and
                        (tensor.dtype, tensor.device) == (run[0].dtype, run[0].device)):
            yield run
            run, size = [], 0
        run.append(tensor)
        size += nbytes(tensor) if small else _RUN + 1
    if run:
        yield run


def same_type(tensors: List[torch.Tensor], dtype: torch.dtype, name: str) -> None:
    for tensor in tensors:
        check(tensor, name)
        if tensor.dtype != dtype:
            raise TypeError(f"{name}: {tensor.dtype}, expected {dtype}")
