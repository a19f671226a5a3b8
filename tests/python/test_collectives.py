# SPDX-License-Identifier: Apache-2.0
"""Every collective and type, against NumPy."""
import array
import ctypes

import numpy as np
import pytest

import inccl
from world import ranks

SIZES = (1, 2, 3)
NATIVE = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
OPS = {inccl.SUM: np.add.reduce, inccl.PROD: np.multiply.reduce, inccl.MAX: np.max,
       inccl.MIN: np.min}


def of_rank(rank, count, dtype, most=3):
    """Small positive integers: every sum and product of three ranks is exact in every type."""
    return np.random.default_rng(rank * 1000 + count).integers(1, most + 1, count).astype(dtype)


def everyone(comm, count, dtype, most=3):
    return np.stack([of_rank(rank, count, dtype, most) for rank in range(comm.size)])


@ranks(*SIZES)
def test_allreduce(comm):
    for dtype in NATIVE:
        for op, oracle in OPS.items():
            mine, total = of_rank(comm.rank, 1003, dtype), np.zeros(1003, dtype)
            comm.Allreduce(mine, total, op)
            expected = oracle(everyone(comm, 1003, dtype), axis=0).astype(dtype)
            np.testing.assert_array_equal(total, expected, f"{dtype} {op!r}")
            np.testing.assert_array_equal(mine, of_rank(comm.rank, 1003, dtype))
            comm.Allreduce(inccl.IN_PLACE, mine, op)
            np.testing.assert_array_equal(mine, expected)


@ranks(*SIZES)
def test_average(comm):
    for dtype in NATIVE:
        mine = of_rank(comm.rank, 60, dtype) * np.array(comm.size, dtype)
        total = np.empty_like(mine)
        comm.Allreduce(mine, total, inccl.AVG)
        exact = np.add.reduce(everyone(comm, 60, dtype).astype(np.float64), axis=0)
        np.testing.assert_allclose(total.astype(np.float64), exact, rtol=2e-3)


def narrow_codes(name):
    """value: code of a narrow float, of the integers 0..16, from the definition of the format."""
    if name == "bfloat16":
        return {v: int(np.float32(v).view(np.uint32) >> 16) for v in range(17)}
    mantissa, bias = (3, 7) if name == "float8_e4m3fn" else (2, 15)
    codes = {0: 0}
    for code in range(1, 0x7C):
        exponent, fraction = code >> mantissa, code & ((1 << mantissa) - 1)
        value = (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent - bias) if exponent else 0.5
        if value == int(value) and value <= 16:
            codes[int(value)] = code
    return codes


@ranks(*SIZES)
def test_narrow_floats(comm):
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        codes = narrow_codes(name)
        storage = np.uint16 if name == "bfloat16" else np.uint8

        def encode(values):
            return np.array([codes[int(v)] for v in values], storage)
        for op, oracle in OPS.items():
            most = 1 if op == inccl.PROD else 2
            mine, total = encode(of_rank(comm.rank, 300, int, most)), np.empty(300, storage)
            comm.Allreduce((mine, name), (total, name), op)
            expected = oracle(everyone(comm, 300, int, most), axis=0)
            np.testing.assert_array_equal(total, encode(expected), f"{name} {op!r}")


@ranks(*SIZES)
def test_reduce_scatter_and_allgather(comm):
    n, count = comm.size, 77
    for dtype in NATIVE:
        for op, oracle in OPS.items():
            whole = of_rank(comm.rank, n * count, dtype)
            segment = np.empty(count, dtype)
            comm.Reduce_scatter(whole, segment, op)
            expected = oracle(everyone(comm, n * count, dtype), axis=0).astype(dtype)
            own = slice(comm.rank * count, (comm.rank + 1) * count)
            np.testing.assert_array_equal(segment, expected[own])
            comm.Reduce_scatter(whole, whole[own], op)
            np.testing.assert_array_equal(whole[own], expected[own])
        every = np.empty((n, count), dtype)
        comm.Allgather(of_rank(comm.rank, count, dtype), every)
        np.testing.assert_array_equal(every, everyone(comm, count, dtype))
        in_place = np.zeros((n, count), dtype)
        in_place[comm.rank] = of_rank(comm.rank, count, dtype)
        comm.Allgather(inccl.IN_PLACE, in_place)
        np.testing.assert_array_equal(in_place, every)


@ranks(*SIZES)
def test_rooted(comm):
    n, count = comm.size, 41
    for root in range(n):
        for dtype in NATIVE + ["int16", "complex64", "bool", "S5"]:
            is_root, mine = comm.rank == root, of_rank(comm.rank, count, dtype)
            data = mine.copy()
            comm.Bcast(data, root)
            np.testing.assert_array_equal(data, of_rank(root, count, dtype))
            every = np.zeros((n, count), dtype) if is_root else None
            comm.Gather(mine, every, root)
            if is_root:
                np.testing.assert_array_equal(every, everyone(comm, count, dtype))
                every[root] = mine
                comm.Gather(inccl.IN_PLACE, every, root)
                np.testing.assert_array_equal(every, everyone(comm, count, dtype))
            else:
                comm.Gather(mine, None, root)
            part = np.zeros(count, dtype)
            comm.Scatter(everyone(comm, count, dtype) if is_root else None, part, root)
            np.testing.assert_array_equal(part, mine)
            if dtype in NATIVE:
                total = np.zeros(count, dtype) if is_root else None
                comm.Reduce(mine, total, inccl.MAX, root)
                if is_root:
                    np.testing.assert_array_equal(total, everyone(comm, count, dtype).max(axis=0))


@ranks(*SIZES)
def test_alltoall(comm):
    n = comm.size
    for dtype in NATIVE + ["int16", "complex128"]:
        send = np.stack([of_rank(comm.rank * n + dest, 19, dtype) for dest in range(n)])
        received = np.empty_like(send)
        comm.Alltoall(send, received)
        expected = np.stack([of_rank(source * n + comm.rank, 19, dtype) for source in range(n)])
        np.testing.assert_array_equal(received, expected)


@ranks(2, 3)
def test_send_and_receive(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for dtype in NATIVE + ["int16"]:
        received = np.empty(9000, dtype)
        with inccl.group():
            comm.Send(of_rank(comm.rank, 9000, dtype), right)
            comm.Recv(received, left)
        np.testing.assert_array_equal(received, of_rank(left, 9000, dtype))


@ranks(*SIZES)
def test_bool_reductions(comm):
    mine = of_rank(comm.rank, 50, int, 2) == 1
    total = np.empty(50, bool)
    comm.Allreduce(mine, total, inccl.MAX)
    np.testing.assert_array_equal(total, (everyone(comm, 50, int, 2) == 1).any(axis=0))
    comm.Allreduce(mine, total, inccl.MIN)
    np.testing.assert_array_equal(total, (everyone(comm, 50, int, 2) == 1).all(axis=0))


@ranks(*SIZES)
def test_counts(comm):
    for count in (0, 1, 2, 255, 65537):
        mine, total = of_rank(comm.rank, count, "f4"), np.empty(count, "f4")
        comm.Allreduce(mine, total)
        np.testing.assert_array_equal(total, everyone(comm, count, "f4").sum(axis=0))


@ranks(2)
def test_kinds_of_buffers(comm):
    """The same sum from everything that has memory."""
    expected = [float(1 + 2)] * 4
    value = float(comm.rank + 1)
    for send in (np.full(4, value), array.array("d", [value] * 4),
                 (ctypes.c_double * 4)(*[value] * 4),
                 (np.full(4, value).tobytes(), "float64"), memoryview(np.full((2, 2), value)),
                 np.full((2, 1, 2), value, order="F")[:, 0, :].T.copy().reshape(2, 2)):
        received = array.array("d", [0.0] * 4)
        comm.Allreduce(send, received)
        assert list(received) == expected, send
    received = bytearray(32)
    comm.Allreduce(np.full(4, value), (received, inccl.DataType.FLOAT64))
    assert np.frombuffer(received).tolist() == expected
    ours = inccl.empty((2, 2), "f8")
    ours[:] = value
    comm.Allreduce(inccl.IN_PLACE, ours)
    assert ours.ravel().tolist() == expected


@ranks(2)
def test_dlpack(comm):
    class OnlyDlpack:
        def __init__(self, of):
            self.of = of

        def __dlpack__(self):
            return self.of.__dlpack__()
    for dtype in NATIVE:
        total = np.zeros(5, dtype)
        comm.Allreduce(OnlyDlpack(of_rank(comm.rank, 5, dtype)), OnlyDlpack(total))
        np.testing.assert_array_equal(total, everyone(comm, 5, dtype).sum(axis=0).astype(dtype))
    with pytest.raises(inccl.InvalidArgument, match="sendbuf: not contiguous"):
        comm.Allreduce(OnlyDlpack(np.zeros(8)[::2]), np.zeros(4))


@ranks(1, 3)
def test_objects(comm):
    n, rank = comm.size, comm.rank
    assert comm.allreduce(rank + 1) == n * (n + 1) // 2
    assert comm.allreduce("abc"[rank]) == "abc"[:n]
    assert comm.allreduce(rank, inccl.MAX) == n - 1
    assert comm.allreduce(float(rank), inccl.AVG) == (n - 1) / 2
    np.testing.assert_array_equal(comm.allreduce(np.arange(3) + rank),
                                  np.arange(3) * n + n * (n - 1) // 2)
    assert comm.allgather({rank: "x" * rank * 100}) == [{r: "x" * r * 100} for r in range(n)]
    assert comm.bcast([rank] * 5, root=n - 1) == [n - 1] * 5
    assert comm.gather(rank) == (list(range(n)) if rank == 0 else None)
    assert comm.reduce(rank + 1, root=n - 1) == (n * (n + 1) // 2 if rank == n - 1 else None)
    assert comm.scatter([f"for {r}" for r in range(n)] if rank == 0 else None) == f"for {rank}"
    assert comm.alltoall([(rank, d) for d in range(n)]) == [(s, rank) for s in range(n)]
    if rank == 0 and n > 1:
        comm.send({"a": [1, None]}, 1)
    elif rank == 1:
        assert comm.recv(0) == {"a": [1, None]}
    comm.barrier()
