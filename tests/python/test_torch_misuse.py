# SPDX-License-Identifier: Apache-2.0
"""Wrong and unusual use of the process group: an exception that names it; no hang, no abort, no wrong result."""
import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import inccl
import inccl.torch
from inccl.torch import BackendError
from torch_world import check_equal, group_ranks, store_server
from world import Ranks, job, run

HERE = pathlib.Path(__file__).resolve().parent


def fresh_groups(count, seconds=30):
    return [dist.new_group(timeout=timedelta(seconds=seconds)) for _ in range(count)]


@group_ranks(2)
def test_ranks_disagree(rank, n):
    """Both ranks get the error of a mismatch long before the time limit."""
    calls = [
        lambda group: dist.all_reduce(torch.ones(3 + rank), group=group),
        lambda group: dist.all_reduce(torch.ones(4, dtype=(torch.float32, torch.int32)[rank]), group=group),
        lambda group: dist.all_reduce(torch.ones(3), (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[rank], group=group),
        lambda group: dist.all_reduce(torch.ones(8), group=group) if rank else
        dist.broadcast(torch.ones(8), 0, group=group),
        lambda group: dist.all_to_all_single(torch.empty(4), torch.ones(4), group=group) if rank else
        dist.all_to_all_single(torch.empty(6), torch.ones(6), group=group),
    ]
    for number, (call, group) in enumerate(zip(calls, fresh_groups(len(calls)))):
        begin = time.monotonic()
        try:
            call(group)
            dist.barrier(group)  # a root may have sent its part before it hears of the other call
            pytest.fail(f"call {number}: no error")
        except BackendError as error:
            caught = error
        assert time.monotonic() - begin < 20, number
        assert caught.code in (inccl.Result.INVALID_USAGE, inccl.Result.REMOTE_ERROR), (number, caught)
        dist.barrier()


@group_ranks(2)
def test_tensors_that_nothing_else_keeps(rank, n):
    futures = []
    for step in range(20):
        work = dist.all_reduce(torch.full((50000,), float(rank + step)), async_op=True)
        futures.append(work.get_future())
        del work
        dist.all_reduce(torch.empty(50000), async_op=True)  # neither waited for nor kept
        if step % 2 == rank:
            time.sleep(0.002)
        if step % 10 == 0:
            gc.collect()
        torch.full((50000,), -1.0)  # would take memory that is free
    for step, future in enumerate(futures):
        assert (future.wait()[0] == 2 * step + 1).all()
    sends = [dist.isend(torch.full((100000,), float(step)), 1 - rank) for step in range(5)]
    gc.collect()
    for step in range(5):
        received = torch.empty(100000)
        dist.recv(received, 1 - rank)
        assert (received == step).all()
    for work in sends:
        work.wait()


@group_ranks(2)
def test_destroy_with_pending_work(rank, n):
    first, second = dist.new_group(timeout=timedelta(seconds=1)), dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), group=first, async_op=True)
        future = work.get_future()
        received = dist.irecv(torch.ones(3), 1, group=second)
        sent = dist.isend(torch.ones(1 << 20), 1, group=second)
        begin = time.monotonic()
        dist.destroy_process_group(first)
        dist.destroy_process_group(second)
        assert time.monotonic() - begin < 20
        for one in (work, received, sent):
            with pytest.raises(BackendError):
                one.wait()
            assert one.is_completed() and not one.is_success() and one.exception() is not None
        with pytest.raises(RuntimeError, match="peer 1@"):
            future.wait()
    dist.barrier()


@group_ranks(2)
def test_a_group_that_has_ended(rank, n):
    for end in ("shutdown", "abort"):
        group, = fresh_groups(1)
        dist.all_reduce(torch.ones(3), group=group)
        for how in (end, "abort", "shutdown", "shutdown"):  # again: does nothing
            getattr(group, how)()
        calls = [
            lambda: group.allreduce([torch.ones(3)]).wait(), lambda: group.barrier().wait(),
            lambda: group.send([torch.ones(3)], 1 - rank).wait(),
            lambda: group.recv([torch.ones(3)], 1 - rank).wait(),
            lambda: dist.all_gather_object([None, None], 1, group=group),
            lambda: group.set_timeout(timedelta(seconds=3)),
        ]
        for number, call in enumerate(calls):
            with pytest.raises((BackendError, inccl.InvalidUsage), match="ended|destroyed"):
                call()
    dist.barrier()


@group_ranks(2)
def test_abort_while_a_call_waits(rank, n):
    groups = fresh_groups(2)
    if rank == 0:
        def ends(group):
            time.sleep(0.3)
            group.abort()
        for group, waits in zip(groups, (lambda: dist.all_reduce(torch.ones(3), group=groups[0]),
                                         lambda: dist.recv(torch.ones(3), 1, group=groups[1]))):
            thread = threading.Thread(target=ends, args=(group,))
            thread.start()
            with pytest.raises(BackendError):
                waits()
            thread.join()
    dist.barrier()


@group_ranks(3)
def test_new_group_with_some_ranks(rank, n):
    group = dist.new_group([0, 2], timeout=timedelta(seconds=30))
    tensor = torch.full((4,), float(rank))
    if rank == 1:
        assert group is dist.GroupMember.NON_GROUP_MEMBER
        assert dist.get_rank(group) == -1
        with pytest.warns(UserWarning, match="not.*part of|does not belong"):
            dist.all_reduce(tensor, group=group)
        assert (tensor == 1).all()
    else:
        dist.all_reduce(tensor, group=group)
        assert (tensor == 2).all()
        with pytest.raises(ValueError, match="not part of"):
            dist.broadcast(tensor, 1, group=group)
        with pytest.raises(ValueError, match="not part of"):
            dist.send(tensor, 1, group=group)
    with pytest.raises(ValueError, match="Rank 7"):
        dist.new_group([0, 7])
    dist.barrier()


def strided(rank, *shape):
    """(the tensor as it should be, the same with gaps)"""
    values = torch.arange(float(torch.Size(shape).numel())).view(shape) + 100 * rank
    wide = torch.full((*shape, 3), -5.0)
    gaps = wide[..., 1]
    gaps.copy_(values)
    return values, gaps


@group_ranks(2, 3)
def test_outputs_with_gaps(rank, n):
    mine, gaps = strided(rank, 2, 3)
    outputs = [strided(9, 2, 3)[1] for _ in range(n)]
    dist.gather(gaps, outputs if rank == 0 else None, 0)
    if rank == 0:
        assert all(torch.equal(out, strided(r, 2, 3)[0]) for r, out in enumerate(outputs))
    out = strided(9, 2, 3)[1]
    dist.scatter(out, [strided(r, 2, 3)[1] for r in range(n)] if rank == 1 else None, 1)
    assert torch.equal(out, mine)
    out = strided(9, 2, 3)[1]
    dist.reduce_scatter(out, [strided(r, 2, 3)[1] for r in range(n)])
    assert torch.equal(out, n * mine)
    out = strided(9, 2, 3)[1]
    dist.reduce_scatter_tensor(out, torch.cat([strided(r, 2, 3)[0] for r in range(n)]).t().clone().t())
    assert torch.equal(out, n * mine)
    outputs = [strided(9, 2, 3)[1] for _ in range(n)]
    dist.all_to_all(outputs, [gaps + to for to in range(n)])
    assert all(torch.equal(out, strided(r, 2, 3)[0] + rank) for r, out in enumerate(outputs))
    whole = strided(9, n, 3)[1]
    dist.all_to_all_single(whole, strided(rank, n, 3)[1])
    assert torch.equal(whole, torch.stack([strided(r, n, 3)[0][rank] for r in range(n)]))
    dist.reduce(gaps, 0)
    assert rank != 0 or torch.equal(gaps, sum(strided(r, 2, 3)[0] for r in range(n)))


@group_ranks(2)
def test_tensors_of_autograd_and_inference(rank, n):
    """Results are written into leaves and inference tensors, with gaps, too."""
    for op in ({}, {"async_op": True}):
        leaf = torch.ones(4, 6).t().requires_grad_()
        work = dist.all_reduce(leaf, **op)
        work and work.wait()
        assert (leaf == n).all() and leaf.is_leaf and leaf.requires_grad and leaf.grad_fn is None
        with torch.inference_mode():
            frozen = torch.full((4, 6), float(rank)).t()
        work = dist.broadcast(frozen, 1, **op)
        work and work.wait()
        assert (frozen == 1).all() and frozen.is_inference()
        parts = [torch.empty(3, 2).t() for _ in range(n)]
        work = dist.all_gather(parts, torch.full((2, 3), float(rank), requires_grad=True), **op)
        work and work.wait()
        assert [part.mean().item() for part in parts] == [0, 1] and not parts[0].requires_grad
        flags = torch.tensor([rank == 0, False], requires_grad=False)
        with torch.inference_mode():
            frozen = flags.clone()
        work = dist.all_reduce(frozen, **op)
        work and work.wait()
        assert frozen.tolist() == [True, False]


@group_ranks(2)
def test_views_that_conjugate_or_negate(rank, n):
    """Their memory does not have their values."""
    conjugated = (torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)).conj()
    dist.group.WORLD.broadcast([conjugated], 1).wait()  # dist.broadcast() refuses it
    assert torch.equal(conjugated.resolve_conj(), torch.tensor([2 - 4j, 6 + 2j]))
    negated = (torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)).conj().imag
    assert negated.is_neg()
    dist.all_reduce(negated)
    assert negated.tolist() == [-6, 3]
    everything = torch.empty(4)
    dist.all_gather_into_tensor(everything, (torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)).conj().imag)
    assert everything.tolist() == [-2, 1, -4, 2]
    sent, received = (torch.tensor([1 + 2j]) * (rank + 1)).conj().imag, torch.tensor([0j]).conj().imag
    work = dist.isend(sent, 1 - rank)
    dist.recv(received, 1 - rank)
    work.wait()
    assert received.tolist() == [-2.0 * (2 - rank)]


@group_ranks(2)
def test_tensors_without_memory_of_their_own(rank, n):
    ones = torch.ones(4)
    mesh = dist.device_mesh.init_device_mesh("cpu", (n,))
    sharded = dist.tensor.distribute_tensor(torch.ones(4), mesh, [dist.tensor.Replicate()])
    overlapping = torch.ones(1).expand(4)
    for kind, text, tensor in [
        (TypeError, "meta", torch.empty(4, device="meta")),
        (TypeError, "DTensor", sharded),
        (ValueError, "overlap", overlapping),
        (TypeError, "Tensor", [1.0, 2.0]),
        (TypeError, "Tensor", None),
    ]:
        for call in (lambda: dist.group.WORLD.allreduce([tensor]), lambda: dist.group.WORLD.broadcast([tensor], 1 - rank),
                     lambda: dist.group.WORLD.all_gather_single(tensor, ones[:2]),
                     lambda: dist.group.WORLD.recv([tensor], 1 - rank, 0)):
            with pytest.raises(kind, match=text):
                call()
    everything = torch.empty(8)
    dist.all_gather_into_tensor(everything, torch.full((1,), rank + 1.0).expand(4))  # an input may
    assert everything.tolist() == [1.0] * 4 + [2.0] * 4


@group_ranks(2)
def test_an_exception_in_a_coalesced_block(rank, n):
    group = dist.group.WORLD
    group._start_coalescing()
    with pytest.raises(TypeError):
        group.allreduce([torch.ones(2, dtype=torch.complex64)], dist.ReduceOp.MAX)
    with pytest.raises(RuntimeError, match="open already"):
        group._start_coalescing()
    with pytest.raises(RuntimeError, match="no block"):
        group._end_coalescing()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == n).all()


class Net(torch.nn.Module):
    def __init__(self, more):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 80), torch.nn.ReLU(), torch.nn.Linear(80, 4))
        self.more = torch.nn.Parameter(torch.ones(more, 5))

    def forward(self, x):
        return self.layers(x).sum() + self.more.sum()


@group_ranks(2)
def test_parameters_without_elements(rank, n):
    ddp = DistributedDataParallel(Net(0))
    empty = ddp.module.more
    state = inccl.torch.State(codec="hbi:bits=8", min_elements=1000)
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    ddp(torch.ones(3, 64)).backward()
    assert state.statistics.elements > 0

    class Bucket:  # of nothing else
        def __init__(self, buffer):
            self._buffer = buffer

        def buffer(self):
            return self._buffer

        def index(self):
            return 0

        def is_last(self):
            return True

        def gradients(self):
            return [self._buffer]

        def parameters(self):
            return [empty]
    for compress in (None, lambda parameter: True):
        for residual in (False, True):
            state = inccl.torch.State(compress=compress, residual=residual)
            assert inccl.torch.compress_hook(state, Bucket(torch.empty(0))).wait().numel() == 0


@group_ranks(1, 2)
def test_exceptions_in_hooks(rank, n):
    def rule(parameter):
        raise ArithmeticError("of the rule")
    for text, state in [("of the rule", inccl.torch.State(compress=rule)), ("expected inccl.torch.State", None)]:
        ddp = DistributedDataParallel(Net(1))
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
        with pytest.raises(Exception, match=text):
            ddp(torch.ones(3, 64)).backward()
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(rule)
    with pytest.raises(Exception, match="of the rule"):
        future.wait()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == n).all()


@group_ranks(1)
def test_state_dicts(rank, n):
    def trained(**options):
        state = inccl.torch.State(codec="hbi:bits=3", residual=True, min_elements=1000, **options)
        ddp = DistributedDataParallel(Net(1))
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
        ddp(torch.ones(3, 64)).backward()
        return ddp, state
    ddp, state = trained()
    kept = state.state_dict()
    assert kept["residuals"]
    with pytest.raises(ValueError, match="world_size: 3"):
        state.load_state_dict({**kept, "world_size": 3})
    key, values = next(iter(kept["residuals"].items()))
    for bad in ({"residuals": {key: values.numpy()}}, {}, {"residuals": {5: values}}, {"residuals": 5}, None,
                {"residuals": {key: torch.full_like(values, torch.nan)}}):
        with pytest.raises((ValueError, TypeError)):
            state.load_state_dict(bad if not bad else {**kept, **bad})
        check_equal(state.state_dict(), kept)  # nothing has changed
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"inccl-state-{os.getpid()}")
    try:
        torch.save(kept, path)
        state.load_state_dict(torch.load(path))  # weights_only
    finally:
        os.unlink(path)
    check_equal(state.state_dict(), kept)
    ddp(torch.ones(3, 64)).backward()
    state = inccl.torch.State(codec="hbi:bits=3", residual=True, min_elements=1000)
    state.load_state_dict({**kept, "residuals": {key: values[:-1]}})
    ddp = DistributedDataParallel(Net(1))
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    with pytest.raises(Exception, match=f"residuals: {key} has {values.numel()} elements"):
        ddp(torch.ones(3, 64)).backward()


NEVER_WAITED = '''
import sys, threading, time
import torch, torch.distributed as dist
import inccl.torch
from datetime import timedelta
rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group("inccl", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
dist.barrier()
if rank == 0:
    kept = [dist.all_reduce(torch.ones(1 << 16), async_op=True), dist.irecv(torch.ones(3), 1),
            dist.isend(torch.ones(1 << 22), 1)]
    future = kept[0].get_future().then(lambda done: done.value())
    time.sleep(0.2)
    print("leaves", flush=True)
else:
    try:
        time.sleep(1)
        dist.barrier()  # not the all-reduce that rank 0 has begun; or rank 0 has gone
    except inccl.torch.BackendError as error:
        print("error", flush=True)
'''


def test_leaving_with_pending_work(tmp_path):
    """Neither rank waits, destroys anything or hangs."""
    environment = {**os.environ, "INCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, "-c", NEVER_WAITED, str(rank), str(tmp_path / "store")], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        outcomes = [one.communicate(timeout=100) for one in ranks]
    finally:
        for one in ranks:
            one.kill()
    assert [one.returncode for one in ranks] == [0, 0], outcomes
    assert [out.strip() for out, _ in outcomes] == ["leaves", "error"], outcomes


def test_a_store_with_the_keys_of_earlier_groups():
    """The processes make the same groups again; then others do, one of which never came before."""
    def store():
        return dist.TCPStore("127.0.0.1", port, is_master=False)

    def use(rank, n, times):
        for _ in range(times):
            dist.init_process_group("inccl", store=store(), rank=rank, world_size=n, timeout=timedelta(seconds=60))
            if rank == 0:
                time.sleep(0.3)  # the others look for rank 0 before it has come
            group = dist.new_group()
            tensor = torch.full((3,), rank + 1.0)
            dist.all_reduce(tensor, group=group)
            assert (tensor == n * (n + 1) / 2).all()
            received = torch.empty(2)
            work = dist.isend(torch.full((2,), float(rank)), (rank + 1) % n)
            dist.recv(received, (rank - 1) % n)
            work.wait()
            assert (received == (rank - 1) % n).all()
            dist.barrier()
            dist.destroy_process_group()
    with store_server() as (port, _):
        run(2, lambda rank: use(rank, 2, 2), job(2))
        outcomes = Ranks(2, lambda rank: leaves_early(rank, store), job(2)).join()
        assert [kind for kind, _ in outcomes] == ["returned", "died"]
        run(3, lambda rank: use(rank, 3, 2), job(3))


def leaves_early(rank, store):
    """Rank 1 dies before rank 0 comes."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(BackendError, match="timeout expired: ranks \\[1\\] have not called it"):
        dist.init_process_group("inccl", store=store(), rank=rank, world_size=2, timeout=timedelta(seconds=1))


def test_torchrun_restarts_after_a_killed_worker(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "--max-restarts", "2",
         HERE / "restart_program.py", tmp_path],
        env={**os.environ, "INCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(3):
        assert (tmp_path / f"done-{rank}").read_text() == "attempt 1, from step 5, sum 6.0"


@group_ranks(2)
def test_forked_children_leave_the_group_alone(rank, n):
    """Workers of a DataLoader end without a trace."""
    loader = torch.utils.data.DataLoader(range(8), batch_size=2, num_workers=2)
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    work.wait()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == n).all()
