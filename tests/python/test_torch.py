# SPDX-License-Identifier: Apache-2.0
"""The process group, against the same operation on one rank."""
import copy
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import inccl
import inccl.torch
from torch_world import group_ranks
from world import Ranks, job

SIZES = (1, 2, 3)
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
ALL = FLOATS + INTEGERS + [torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn,
                           torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]


def of_rank(rank, shape, dtype, most=3):
    """Small integers: sums and products of three ranks are exact in every type."""
    generator = torch.Generator().manual_seed(rank + 17)
    values = torch.randint(1, most + 1, shape if isinstance(shape, tuple) else (shape,),
                           generator=generator)
    if dtype == torch.bool:
        return values > 1
    return values.to(dtype)


def everyone(n, shape, dtype, most=3):
    return [of_rank(rank, shape, dtype, most) for rank in range(n)]


def equal(got, expected, what=""):
    assert got.dtype == expected.dtype and got.shape == expected.shape, what
    if got.numel() > 0:  # the bits
        assert torch.equal(got.contiguous().view(torch.uint8),
                           expected.contiguous().view(torch.uint8)), (what, got, expected)


def oracle(values, op):
    """The reduction in the widest type, then rounded."""
    dtype = values[0].dtype
    if dtype == torch.bool:
        wide = torch.stack(values)
        return wide.any(0) if op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR) else wide.all(0)
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        apply = {ReduceOp.BAND: lambda a, b: a & b, ReduceOp.BOR: lambda a, b: a | b,
                 ReduceOp.BXOR: lambda a, b: a ^ b}[op]
        total = [v.tolist() for v in values]
        result = total[0]
        for row in total[1:]:
            result = [apply(a, b) for a, b in zip(result, row)]
        return torch.tensor(result, dtype=dtype)
    wide = torch.stack([v.to(torch.complex128 if dtype.is_complex else torch.float64)
                        for v in values])
    total = {ReduceOp.SUM: lambda: wide.sum(0), ReduceOp.PRODUCT: lambda: wide.prod(0),
             ReduceOp.MAX: lambda: wide.amax(0), ReduceOp.MIN: lambda: wide.amin(0),
             ReduceOp.AVG: lambda: wide.mean(0)}[op]()
    return total.to(dtype)


def cases():
    for dtype in FLOATS + INTEGERS + [torch.uint16, torch.uint32, torch.uint64]:
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MAX, ReduceOp.MIN):
            yield dtype, op
    for dtype in INTEGERS + [torch.bool]:
        for op in (ReduceOp.BAND, ReduceOp.BOR) + (
                (ReduceOp.BXOR,) if dtype != torch.bool else ()):
            yield dtype, op
    for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.PRODUCT, ReduceOp.MIN):
        yield torch.bool, op
    yield torch.complex64, ReduceOp.SUM
    yield torch.complex128, ReduceOp.SUM


@group_ranks(*SIZES)
def test_all_reduce(rank, n):
    for dtype, op in cases():
        tensor = of_rank(rank, 70, dtype)
        dist.all_reduce(tensor, op)
        equal(tensor, oracle(everyone(n, 70, dtype), op), (dtype, op))
    for dtype in FLOATS:
        tensor = of_rank(rank, 70, dtype) * n
        dist.all_reduce(tensor, ReduceOp.AVG)
        exact = torch.stack(everyone(n, 70, dtype)).double().sum(0)
        assert torch.allclose(tensor.double(), exact, rtol=1e-2)
    premultiplied = dist._make_nccl_premul_sum(2.0 * (rank + 1))
    tensor = torch.ones(9)
    dist.all_reduce(tensor, premultiplied)
    assert (tensor == n * (n + 1)).all()


@group_ranks(*SIZES)
def test_every_type_moves(rank, n):
    for dtype in ALL:
        for root in range(n):
            tensor = of_rank(rank, (3, 5), dtype)
            dist.broadcast(tensor, root)
            equal(tensor, of_rank(root, (3, 5), dtype), dtype)
        mine = of_rank(rank, (3, 5), dtype)
        outputs = [torch.zeros((3, 5)).to(dtype) for _ in range(n)]
        dist.all_gather(outputs, mine)
        for source, output in enumerate(outputs):
            equal(output, of_rank(source, (3, 5), dtype), dtype)
        whole = torch.zeros((3 * n, 5)).to(dtype)
        dist.all_gather_into_tensor(whole, mine)
        equal(whole, torch.cat([t.view(torch.uint8) for t in everyone(n, (3, 5), dtype)])
              .view(dtype), dtype)
        gathered = [torch.zeros((3, 5)).to(dtype) for _ in range(n)] if rank == n - 1 else None
        dist.gather(mine, gathered, n - 1)
        for source, output in enumerate(gathered or []):
            equal(output, of_rank(source, (3, 5), dtype), dtype)
        part = torch.zeros((3, 5)).to(dtype)
        dist.scatter(part, everyone(n, (3, 5), dtype) if rank == 0 else None, 0)
        equal(part, mine, dtype)
        sends = [of_rank(rank * n + dest, (2, 3), dtype) for dest in range(n)]
        receives = [torch.zeros((2, 3)).to(dtype) for _ in range(n)]
        dist.all_to_all(receives, sends)
        for source, output in enumerate(receives):
            equal(output, of_rank(source * n + rank, (2, 3), dtype), dtype)


@group_ranks(*SIZES)
def test_reduce_and_reduce_scatter(rank, n):
    for dtype, op in cases():
        root = n - 1
        tensor = of_rank(rank, 30, dtype)
        dist.reduce(tensor, root, op)
        equal(tensor, oracle(everyone(n, 30, dtype), op) if rank == root
              else of_rank(rank, 30, dtype), (dtype, op))
        whole = of_rank(rank, 8 * n, dtype)
        expected = oracle(everyone(n, 8 * n, dtype), op)[8 * rank:8 * rank + 8]
        part = torch.zeros(8).to(dtype)
        dist.reduce_scatter_tensor(part, whole, op)
        equal(part, expected, (dtype, op))
        part = torch.zeros(8).to(dtype)
        dist.reduce_scatter(part, [t.clone() for t in whole.chunk(n)], op)
        equal(part, expected, (dtype, op))


@group_ranks(2, 3)
def test_uneven(rank, n):
    mine = torch.full((rank + 1,), float(rank))
    outputs = [torch.empty(r + 1) for r in range(n)]
    dist.all_gather(outputs, mine)
    for source, output in enumerate(outputs):
        assert output.tolist() == [float(source)] * (source + 1)
    part = torch.empty(rank + 1)
    dist.reduce_scatter(part, [torch.full((r + 1,), rank + 1.0) for r in range(n)])
    assert part.tolist() == [n * (n + 1) / 2] * (rank + 1)
    send_sizes = [(rank + dest) % 3 for dest in range(n)]
    receive_sizes = [(source + rank) % 3 for source in range(n)]
    send = torch.cat([torch.full((size, 2), 10.0 * rank + dest)
                      for dest, size in enumerate(send_sizes)])
    received = torch.empty(sum(receive_sizes), 2)
    dist.all_to_all_single(received, send, receive_sizes, send_sizes)
    expected = torch.cat([torch.full((size, 2), 10.0 * source + rank)
                          for source, size in enumerate(receive_sizes)])
    assert torch.equal(received, expected)
    even = torch.empty(n)
    dist.all_to_all_single(even, torch.arange(n) * 1.0 + 10 * rank)
    assert even.tolist() == [10.0 * source + rank for source in range(n)]
    outputs = [torch.empty(source + 1) for source in range(n)]
    dist.all_to_all(outputs, [torch.full((rank + 1,), rank * 10.0 + dest) for dest in range(n)])
    for source, output in enumerate(outputs):
        assert output.tolist() == [source * 10.0 + rank] * (source + 1)


@group_ranks(2)
def test_non_contiguous_and_empty(rank, n):
    base = of_rank(rank, (6, 8), torch.float32)
    expected = oracle(everyone(n, (6, 8), torch.float32), ReduceOp.SUM)
    view = base.clone().t()[::2]
    dist.all_reduce(view)
    equal(view, expected.t()[::2])
    view = base.clone()[:, 1::3]
    dist.broadcast(view, 1)
    equal(view, of_rank(1, (6, 8), torch.float32)[:, 1::3])
    outputs = [torch.zeros(8, 6).t() for _ in range(n)]
    dist.all_gather(outputs, base)
    for source, output in enumerate(outputs):
        equal(output, of_rank(source, (6, 8), torch.float32))
    whole = torch.zeros(8, 12).t()
    dist.all_gather_into_tensor(whole, base)
    equal(whole, torch.cat(everyone(n, (6, 8), torch.float32)))
    if rank == 0:
        dist.send(base.t(), 1)
    else:
        view = torch.zeros(6, 8).t()
        dist.recv(view, 0)
        equal(view, of_rank(0, (6, 8), torch.float32).t())
    for shape in ((0,), (0, 4), ()):
        tensor = torch.ones(shape)
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        assert tensor.shape == shape and (tensor == n).all()
    outputs = [torch.empty(0) for _ in range(n)]
    dist.all_gather(outputs, torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    joined = torch.zeros(2, 4)
    dist.all_gather(list(joined), torch.full((4,), float(rank)))
    assert joined.tolist() == [[0.0] * 4, [1.0] * 4]


@group_ranks(1, 3)
def test_sparse(rank, n):
    for shape in ((20,), (20, 3)):
        dense = [of_rank(r, shape, torch.float32) * (of_rank(r + 7, shape, torch.int64) == 1)
                 for r in range(n)]
        tensor = dense[rank].to_sparse()
        dist.all_reduce(tensor)
        equal(tensor.to_dense(), sum(dense))
    rows = torch.sparse_coo_tensor([[rank, rank, 9]], torch.ones(3, 4), (10, 4))  # hybrid
    dist.all_reduce(rows)
    expected = torch.zeros(10, 4)
    expected[:n], expected[9] = 2, n
    equal(rows.to_dense(), expected)
    empty = torch.zeros(5).to_sparse()
    dist.all_reduce(empty)
    assert empty.to_dense().sum() == 0


@group_ranks(2, 3)
def test_async_work(rank, n):
    works, tensors = [], []
    for step in range(20):
        tensors.append(torch.full((3000,), float(step + rank)))
        works.append(dist.all_reduce(tensors[-1], async_op=True))
    dist.barrier()  # runs after all of them
    assert all(work.is_completed() and work.is_success() for work in works)
    for step, (work, tensor) in enumerate(zip(works, tensors)):
        assert work.wait() and work.exception() is None
        assert (tensor == step * n + n * (n - 1) / 2).all()
        assert work.result()[0] is tensor
    tensor = torch.ones(4)
    doubled = dist.all_reduce(tensor, async_op=True).get_future().then(
        lambda future: future.value()[0] * 2)
    assert doubled.wait().tolist() == [2.0 * n] * 4
    work = dist.all_reduce(tensor, async_op=True)
    work.wait(timedelta(seconds=30))
    first, second = work.get_future(), work.get_future()
    assert first.wait()[0] is tensor and second.wait()[0] is tensor


@group_ranks(2)
def test_callbacks_may_wait_for_other_operations(rank, n):
    def sum_of_next(tensor):
        work = dist.all_reduce(tensor + 1, async_op=True)
        return work.get_future().then(lambda inner: inner.value()[0] + 0).wait()
    first = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    second = first.then(lambda future: sum_of_next(future.value()[0])).then(
        lambda future: sum_of_next(future.value()))
    assert second.wait().tolist() == [14.0] * 3  # ((1 * 2 + 1) * 2 + 1) * 2
    received = torch.zeros(2)
    if rank == 0:
        def receives_more(future):
            more = torch.zeros(2)
            dist.recv(more, 1)
            return more + future.value()[0]
        total = dist.irecv(received, 1).get_future().then(receives_more)
        assert total.wait().tolist() == [3.0, 3.0]
    else:
        dist.send(torch.ones(2), 0)
        dist.send(torch.full((2,), 2.0), 0)


@group_ranks(3)
def test_point_to_point(rank, n):
    right, left = (rank + 1) % n, (rank - 1) % n
    for count in (0, 1, 1 << 20):  # the last one does not fit into any buffer
        send, received = torch.full((count,), float(rank)), torch.empty(count)
        works = [dist.isend(send, right), dist.irecv(received, left)]
        for work in works:
            work.wait()
        assert (received == left).all()
    received = torch.empty(5)
    for work in dist.batch_isend_irecv([
            dist.P2POp(dist.irecv, received, left),
            dist.P2POp(dist.isend, torch.full((5,), float(rank)), right)]):
        work.wait()
    assert (received == left).all()
    if rank == 0:  # received in another order than sent
        for tag in range(6):
            dist.send(torch.full((tag + 1,), float(tag)), 1, tag=tag)
    elif rank == 1:
        for tag in (4, 0, 5, 3, 2, 1):
            received = torch.empty(tag + 1)
            assert dist.recv(received, 0, tag=tag) == 0
            assert received.tolist() == [float(tag)] * (tag + 1)
    if rank == 2:
        senders = []
        for _ in range(4):
            received = torch.empty(2)
            senders.append(dist.recv(received))
            assert (received == senders[-1]).all()
        assert sorted(senders) == [0, 0, 1, 1]
    else:
        for _ in range(2):
            dist.send(torch.full((2,), float(rank)), 2)
    mine, myself = torch.empty(3), torch.full((3,), 5.0)
    work = dist.irecv(mine, rank)
    dist.isend(myself, rank).wait()
    work.wait()
    assert (mine == 5).all()
    dist.barrier()


@group_ranks(2)
def test_receive_of_another_length(rank, n):
    if rank == 0:
        dist.send(torch.zeros(3), 1)
        dist.send(torch.ones(4), 1)
    else:
        with pytest.raises(inccl.torch.BackendError, match="16 bytes, rank 0 has sent 12"):
            dist.recv(torch.empty(4), 0)
        good = torch.empty(4)
        dist.recv(good, 0)
        assert (good == 1).all()


@group_ranks(2, 3)
def test_objects(rank, n):
    gathered = [None] * n
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank * 50})
    assert gathered == [{"rank": r, "text": "x" * r * 50} for r in range(n)]
    values = [rank, "a", None] if rank == 1 else [None] * 3
    dist.broadcast_object_list(values, 1)
    assert values == [1, "a", None]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(n)] if rank == 0 else None, 0)
    assert mine == [f"for {rank}"]
    gathered = [None] * n if rank == 0 else None
    dist.gather_object(rank * 7, gathered, 0)
    assert gathered == ([r * 7 for r in range(n)] if rank == 0 else None)
    if rank == 0:
        dist.send_object_list(["hello", 3], 1)
    elif rank == 1:
        received = [None, None]
        dist.recv_object_list(received, 0)
        assert received == ["hello", 3]


@group_ranks(2)
def test_coalesced(rank, n):
    group = dist.group.WORLD
    tensors = [torch.full((k + 1,), float(rank + k)) for k in range(4)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for k, tensor in enumerate(tensors):
        assert (tensor == 2 * k + 1).all()
    with dist.distributed_c10d._coalescing_manager(group, torch.device("cpu"), async_ops=True) as m:
        for tensor in tensors:
            dist.broadcast(tensor, 0)
    m.wait()
    outputs = [torch.empty(2 * (k + 1)) for k in range(3)]
    group.all_gather_single_coalesced(
        outputs, [torch.full((k + 1,), float(rank)) for k in range(3)]).wait()
    for k, output in enumerate(outputs):
        assert output.tolist() == [0.0] * (k + 1) + [1.0] * (k + 1)
    parts = [torch.empty(k + 1) for k in range(3)]
    group.reduce_scatter_single_coalesced(
        parts, [torch.ones(2 * (k + 1)) for k in range(3)]).wait()
    assert all((part == 2).all() for part in parts)
    lists = [[torch.empty(k + 1) for k in range(3)] for _ in range(n)]
    group.allgather_coalesced(
        lists, [torch.full((k + 1,), float(rank)) for k in range(3)]).wait()
    assert all((tensor == source).all() for source, row in enumerate(lists) for tensor in row)


@group_ranks(3)
def test_coalesced_all_reduces(rank, n):
    group = dist.group.WORLD
    generator = torch.Generator().manual_seed(5)
    shapes = [(3,), (40, 50), (1 << 17,), (0,), (7, 5, 2), (1,), (300, 1)]  # the third one is large
    for dtype, op in ((torch.float32, dist.ReduceOp.SUM), (torch.int16, dist.ReduceOp.MAX),
                      (torch.bool, dist.ReduceOp.SUM), (torch.int64, dist.ReduceOp.BXOR),
                      (torch.complex64, dist.ReduceOp.AVG)):
        inputs = [[torch.randint(0, 9, shape, generator=generator).to(dtype) for shape in shapes]
                  for _ in range(n)]
        inputs = [[t.mT if t.dim() == 3 else t for t in one] for one in inputs]
        tensors = [tensor.clone() for tensor in inputs[rank]]
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = op
        group.allreduce_coalesced(tensors, options).wait()
        for i, tensor in enumerate(tensors):
            alone = inputs[rank][i].clone()
            dist.all_reduce(alone, op)
            assert torch.equal(tensor, alone)
            if dtype == torch.float32:
                assert torch.equal(tensor, sum(one[i] for one in inputs))
    # The tensors are read when the call runs, after those before it.
    ones = torch.ones(5)
    group._start_coalescing()
    for _ in range(2):
        group.allreduce_coalesced([ones, torch.ones(2)])
    group._end_coalescing().wait()
    assert (ones == n * n).all()
    for dtype in (torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.float16):
        pair = [torch.ones(3).to(dtype), torch.ones(4, 2).to(dtype)]
        group.allreduce_coalesced(pair).wait()
        assert all((tensor.float() == n).all() for tensor in pair)
    mixed = [torch.full((2,), rank), torch.full((2,), float(rank)), torch.full((3,), float(rank)),
             torch.full((2,), rank)]
    group.allreduce_coalesced(mixed).wait()
    assert [t.tolist() for t in mixed] == [[3, 3], [3.0, 3.0], [3.0, 3.0, 3.0], [3, 3]]
    with pytest.raises(ValueError, match="overlap"):
        group.allreduce_coalesced([torch.ones(3), torch.ones(1).expand(3)])


@group_ranks(3)
def test_groups(rank, n):
    pair = dist.new_group([0, 2])
    if rank != 1:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=pair)
        assert (tensor == 2).all() and dist.get_world_size(pair) == 2
        assert dist.get_backend(pair) == "inccl"
        dist.broadcast(tensor.fill_(rank), 2, group=pair)
        assert (tensor == 2).all()
        dist.destroy_process_group(pair)
    fast = dist.new_group(pg_options=inccl.torch.Options(algorithm="ring", reproducible=False))
    assert fast.communicator.size == 3
    with pytest.raises(TypeError, match="pg_options"):
        dist.new_group(pg_options="ring")
    mesh = dist.device_mesh.init_device_mesh("cpu", (3,), mesh_dim_names=("data",))
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    sharded = distribute_tensor(torch.arange(12.0).view(6, 2), mesh, [Shard(0)])
    assert sharded.to_local().tolist() == [[4.0 * rank, 4.0 * rank + 1],
                                           [4.0 * rank + 2, 4.0 * rank + 3]]
    assert sharded.redistribute(mesh, [Replicate()]).to_local().sum() == 66
    assert sharded.sum().full_tensor() == 66


@group_ranks(2)
def test_functional(rank, n):
    import torch.distributed._functional_collectives as functional
    tensor = torch.full((4,), float(rank + 1))
    assert (functional.all_reduce(tensor, "sum", dist.group.WORLD) + 0).tolist() == [3.0] * 4
    gathered = functional.all_gather_tensor(tensor, 0, dist.group.WORLD) + 0
    assert gathered.tolist() == [1.0] * 4 + [2.0] * 4
    part = functional.reduce_scatter_tensor(torch.arange(4.0), "avg", 0, dist.group.WORLD) + 0
    assert part.tolist() == [[0.0, 1.0], [2.0, 3.0]][rank]
    swapped = functional.all_to_all_single(torch.arange(2.0) + 10 * rank, None, None,
                                           dist.group.WORLD) + 0
    assert swapped.tolist() == [float(rank), 10.0 + rank]


@group_ranks(2)
def test_timeout_names_the_late_rank(rank, n):
    late, other = dist.new_group(), dist.new_group()
    late.set_timeout(timedelta(seconds=1))
    other.set_timeout(timedelta(seconds=1))
    if rank == 0:
        with pytest.raises(inccl.torch.BackendError, match="peer 1@") as caught:
            dist.all_reduce(torch.ones(3), group=late)
        assert caught.value.code == inccl.Result.TIMEOUT and caught.value.peer == 1
        with pytest.raises(inccl.torch.BackendError):  # sticky; also as the error of a future
            dist.all_reduce(torch.ones(3), group=late, async_op=True).wait()
        work = dist.all_reduce(torch.ones(3), group=late, async_op=True)
        with pytest.raises(RuntimeError, match="peer 1@"):
            work.get_future().wait()
        assert "peer 1@" in str(work.exception()) and not work.is_success()
        with pytest.raises(inccl.torch.BackendError, match="recv from rank 1: .*rank 0/2.*peer 1@"):
            dist.recv(torch.ones(3), 1, group=late)  # the group has failed
        with pytest.raises(inccl.torch.BackendError,
                           match="recv from rank 1: the timeout expired: not complete after"):
            dist.recv(torch.ones(3), 1, group=other)
    else:
        while late.communicator.async_error() is None:
            threading.Event().wait(0.01)
    dist.barrier()  # an abort is an error of the other rank, too
    late.abort()
    other.abort()


@group_ranks(2)
def test_limits(rank, n):
    first, second, third = dist.new_group(), dist.new_group(), dist.new_group()
    if rank == 0:
        with pytest.raises(inccl.torch.BackendError, match="limit 300 ms.*peer 1@"):
            dist.barrier(first, timeout=timedelta(seconds=0.3))
        work = dist.all_reduce(torch.ones(3), group=second, async_op=True)
        with pytest.raises(inccl.torch.BackendError, match="not complete after 200 ms"):
            work.wait(timedelta(seconds=0.2))
        second.set_timeout(timedelta(seconds=0.25))  # also for what is in progress
        with pytest.raises(inccl.torch.BackendError, match="limit 250 ms.*peer 1@"):
            work.wait()
    dist.barrier(third, timeout=timedelta(seconds=50))
    dist.barrier(third)  # with the group's limit again
    for group in (first, second):
        group.abort()


@group_ranks(2)
def test_abort(rank, n):
    victim = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), group=victim, async_op=True)
        received = dist.irecv(torch.ones(3), 1, group=victim)
        sent = dist.isend(torch.ones(3), 1, group=victim)
        victim.abort()
        with pytest.raises(inccl.torch.BackendError):
            work.wait()
        with pytest.raises(inccl.torch.BackendError):
            received.wait()
        with pytest.raises(inccl.torch.BackendError):
            sent.wait()
        with pytest.raises(inccl.torch.BackendError):
            dist.all_reduce(torch.ones(3), group=victim)
    else:
        victim.abort()
    dist.barrier()


def test_sends_and_receives_notice_a_dead_rank(tmp_path):
    def rank_main(rank):
        dist.init_process_group("inccl", store=dist.FileStore(str(tmp_path / "store"), 2),
                                rank=rank, world_size=2)
        tensor = torch.ones(4)
        if rank == 1:
            dist.recv(tensor, 0)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.send(tensor, 1)
        # One pair has a communicator, the other one has not.
        for work in (dist.isend(torch.ones(1 << 22), 1), dist.irecv(tensor, 1)):
            with pytest.raises(inccl.torch.BackendError, match="peer 1@"):
                work.wait()
        dist.group.WORLD.abort()
        return "noticed"
    outcomes = Ranks(2, rank_main, job(2)).join()
    assert outcomes == [("returned", "noticed"), ("died", signal.SIGKILL)]


@group_ranks(2)
def test_bad_arguments(rank, n):
    ones = torch.ones(4)
    for kind, text, call in [
        (TypeError, "complex64 has no MAX", lambda: dist.group.WORLD.allreduce(
            [torch.ones(2, dtype=torch.complex64)], ReduceOp.MAX)),
        (TypeError, "float32 has no BXOR", lambda: dist.all_reduce(ones, ReduceOp.BXOR)),
        (TypeError, "bool has no AVG", lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool),
                                                             ReduceOp.AVG)),
        (TypeError, "sparse", lambda: dist.broadcast(ones.to_sparse(), 0)),
        (TypeError, "sparse tensors have SUM", lambda: dist.all_reduce(
            ones.to_sparse(), ReduceOp.MAX)),
        (ValueError, "output_tensors: 1 tensors", lambda: dist.all_gather([ones.clone()], ones)),
        (ValueError, "output: 4 elements", lambda: dist.all_gather_into_tensor(
            ones.clone(), ones)),
        (ValueError, "input: 4 elements", lambda: dist.reduce_scatter_tensor(ones.clone(), ones)),
        (ValueError, "input_split_sizes", lambda: dist.all_to_all_single(
            ones.clone(), ones, [2, 2], [3, 3])),
        (ValueError, "expected a list of one tensor", lambda: dist.group.WORLD.allreduce(
            [ones, ones])),
        (ValueError, "root: 7", lambda: dist.group.WORLD.broadcast(ones, 7)),
        (ValueError, "dst: 9", lambda: dist.group.WORLD.send([ones], 9, 0)),
    ]:
        with pytest.raises(kind, match=text):
            call()
    dist.barrier()  # none of them has harmed the group


@group_ranks(2)
def test_several_threads(rank, n):
    groups = [dist.new_group() for _ in range(3)]

    def use(group, values):
        for step in range(30):
            tensor = torch.full((100,), float(step + rank))
            dist.all_reduce(tensor, group=group)
            values.append(tensor[0].item())
    values = [[] for _ in groups]
    threads = [threading.Thread(target=use, args=pair) for pair in zip(groups, values)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [[2.0 * step + 1 for step in range(30)]] * 3


@pytest.fixture
def eager_switches():
    """Threads take turns as often as Python can make them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def of_threads(count, use):
    """Runs use(0) .. use(count - 1) at the same time; the first error of any is raised."""
    errors = []

    def thread(number):
        try:
            use(number)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=thread, args=(number,)) for number in range(count)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if errors:
        raise errors[0]


def test_statistics_of_many_threads(eager_switches):
    """Hooks count in the threads of backward passes and in those of calls: nothing is lost or counted twice."""
    from inccl.torch._statistics import Statistics

    class Stats:
        compressed, elements, payload_bytes, wire_bytes, ratio, error_bound = True, 3, 5, 7, 2.0, 0.5
        dropped_superblocks, poisoned_blocks = 11, 13

        def __init__(self):
            self._looks = 0

        @property
        def completed(self):
            self._looks += 1
            return self._looks > 2
    statistics, threads, rounds = Statistics(), 4, 2000

    def use(_):
        for _ in range(rounds):
            statistics.add(Stats(), "used")
            statistics.add_uncompressed(1)
            statistics.settle()
    of_threads(threads, use)
    for _ in range(3):
        statistics.settle()
    total = threads * rounds
    assert (statistics.calls, statistics.elements, statistics.uncompressed_elements) == (total, 3 * total, total)
    assert (statistics.payload_bytes, statistics.wire_bytes, statistics.ratio) == (5 * total, 7 * total, 2.0)
    assert (statistics.dropped_superblocks, statistics.poisoned_blocks) == (11 * total, 13 * total)


@group_ranks(1)
def test_hooks_of_several_threads(rank, n):
    class Slow(torch.Tensor):
        """Other threads run while one asks for the number of elements."""

        def numel(self):
            time.sleep(0.001)
            return super().numel()

    class Bucket:
        def __init__(self):
            self._buffer = torch.ones(1, dtype=torch.int32).as_subclass(Slow)

        def index(self):
            return 0

        def is_last(self):
            return True

        def buffer(self):
            return self._buffer

        def gradients(self):
            return [self._buffer]

        parameters = gradients
    state, threads, rounds = inccl.torch.State(codec="hbi:bits=8"), 4, 8

    def use(_):
        for _ in range(rounds):
            inccl.torch.compress_hook(state, Bucket()).wait()
    of_threads(threads, use)
    assert state.statistics.uncompressed_elements == threads * rounds


def test_runner_of_many_threads(eager_switches):
    """Calls of one thread run in its order and one at a time, whether it waits for them or not; after close() none runs."""
    from inccl.torch._work import BackendError, Runner, Work
    threads, rounds = 4, 300
    runner, ran, inside = Runner("test"), [[] for _ in range(threads)], []

    def use(number):
        def call(step):
            def one():
                inside.append(number)
                ran[number].append(step)
                time.sleep(0.0001)  # others run meanwhile, if they may
                assert inside == [number], "two calls at a time"
                inside.pop()
            return one
        works = []
        for step in range(rounds):
            time.sleep(0.0002 * ((step * 5 + number) % 7))  # now and then no call is pending
            if (step + number) % 3 > 0:
                runner.run(call(step), "run")
            else:
                works.append(runner.submit(call(step), Work(step, "submitted")))
        for work in works:
            work.wait()
            assert work.get_future().wait() == work.result()
    of_threads(threads, use)
    assert ran == [list(range(rounds))] * threads
    assert runner.close()
    with pytest.raises(BackendError, match="has ended"):
        runner.submit(lambda: ran[0].append(-1), Work(None, "late")).wait()
    assert ran[0][-1] == rounds - 1


@pytest.mark.parametrize("close_first", [False, True])
def test_runner_closes_while_threads_submit(eager_switches, close_first):
    """Each call has run or failed when close() is over, and no thread waits for ever."""
    from inccl.torch._work import BackendError, Runner, Work
    for _ in range(60):
        runner, ran, failed = Runner("test"), [], []
        begun = threading.Event()

        def use(number):
            begun.wait()
            if number == 0:
                runner.close()
                return
            for step in range(20):
                try:
                    runner.submit(lambda: ran.append(1), Work(step, "submitted")).wait(timedelta(seconds=20))
                except BackendError as error:
                    assert "has ended" in str(error), error
                    failed.append(1)
        if close_first:
            begun.set()
        else:
            threading.Timer(0.001, begun.set).start()
        of_threads(4, use)
        assert len(ran) + len(failed) == 60


@group_ranks(2)
def test_copies_nothing(rank, n):
    """The library gets the tensor's own memory."""
    from inccl import _library
    seen = []
    real = _library.lib.ccl_allreduce

    class Spy:
        def __getattr__(self, name):
            if name != "ccl_allreduce":
                return getattr(_library.lib, name)
            return lambda *arguments: (seen.append(arguments[:3]), real(*arguments))[1]
    import inccl.torch._calls as module
    tensor = torch.ones(1000)
    module.lib = Spy()
    dist.all_reduce(tensor)
    assert seen == [(tensor.data_ptr(), tensor.data_ptr(), 1000)]


@group_ranks(2)
def test_compiled_programs(rank, nranks):
    """torch.compile neither traces a collective nor fails at one."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    plain = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    compiled = torch.nn.parallel.DistributedDataParallel(model)
    step = torch.compile(compiled, backend="eager")
    for number in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * number + rank))
        for run in (plain, step):
            run(x).square().sum().backward()
        for ours, theirs in zip(compiled.parameters(), plain.parameters()):
            assert torch.equal(ours.grad, theirs.grad), number

    @torch.compile(backend="eager")
    def calls(x):
        dist.broadcast(x, 0)
        y = x * 2
        dist.barrier()
        dist.all_reduce(y, async_op=True).wait()
        dist.all_reduce(y)
        return y + 1

    for _ in range(2):
        assert calls(torch.full((3,), float(rank + 1))).tolist() == [2.0 * nranks**2 + 1] * 3
    torch._dynamo.reset()
