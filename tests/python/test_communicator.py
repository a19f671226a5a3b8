# SPDX-License-Identifier: Apache-2.0
"""Life cycle, streams, groups, compression, errors."""
import copy
import inspect
import os
import pickle
import pydoc
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import inccl
from world import Meeting, Ranks, job, ranks, run


@ranks(2)
def test_bad_arguments_name_themselves(comm):
    f4, short = np.zeros(8, "f4"), np.zeros(4, "f4")
    read_only = np.zeros(8, "f4")
    read_only.flags.writeable = False
    cases = [
        ("sendbuf: not contiguous", lambda: comm.Allreduce(np.zeros(16, "f4")[::2], f4)),
        ("recvbuf: not contiguous", lambda: comm.Allreduce(f4, np.zeros((8, 2), "f4")[:, 0])),
        ("buf: not contiguous", lambda: comm.Bcast(memoryview(bytearray(8))[::2])),
        ("recvbuf: read-only", lambda: comm.Allreduce(f4, read_only)),
        ("recvbuf: read-only", lambda: comm.Allreduce(f4, (b"0" * 32, "float32"))),
        ("recvbuf: 4 elements, sendbuf has 8", lambda: comm.Allreduce(f4, short)),
        ("recvbuf: elements of another type", lambda: comm.Allreduce(f4, np.zeros(8, "i4"))),
        ("op: 77", lambda: comm.Allreduce(f4, np.zeros(8, "f4"), 77)),
        ("root: 2", lambda: comm.Bcast(f4, 2)),
        ("root: -1", lambda: comm.Reduce(f4, f4, root=-1)),
        ("dest|peer: 5", lambda: comm.Send(f4, 5)),
        ("sendbuf: 9 elements are not 2", lambda: comm.Alltoall(np.zeros(9), np.zeros(9))),
        ("recvbuf: 32 bytes, expected 2", lambda: comm.Allgather(f4, np.zeros(8, "f4"))),
        ("sendbuf: 16 bytes, expected 2", lambda: comm.Reduce_scatter(short, f4)),
        ("nonsense", lambda: comm.Allreduce(f4, np.zeros(8, "f4"), codec="nonsense")),
        ("bits", lambda: comm.Allreduce(f4, np.zeros(8, "f4"), codec="hbi:bits=99")),
        ("overlap", lambda: comm.Allreduce(f4[:4], f4[2:6])),
        ("bytes are no whole number", lambda: comm.Bcast((bytearray(7), "float32"))),
        ("dtype: 'float31'", lambda: comm.Bcast((bytearray(8), "float31"))),
        ("color: -3", lambda: comm.split(-3)),
        ("other byte order", lambda: comm.Bcast(np.zeros(4, ">f4"))),
        ("values: expected 2 objects", lambda: comm.alltoall([1])),
    ]
    for text, call in cases:
        with pytest.raises(inccl.InvalidArgument, match=text) as caught:
            call()
        assert caught.value.code == inccl.Result.INVALID_ARGUMENT
        assert isinstance(caught.value, ValueError)
    for text, call in [
        ("sendbuf: str has no buffer", lambda: comm.Allreduce("text", f4)),
        ("recvbuf: NoneType has no buffer", lambda: comm.Allreduce(f4, None)),
        ("sendbuf: elements of 2 bytes", lambda: comm.Allreduce(*[np.zeros(4, "i2")] * 2)),
        ("op: bool has MAX, MIN", lambda: comm.Allreduce(np.zeros(4, bool), np.zeros(4, bool))),
        ("codec: expected str", lambda: comm.Allreduce(f4, np.zeros(8, "f4"), codec=6)),
        ("stream: expected", lambda: comm.Bcast(f4, stream="s")),
    ]:
        with pytest.raises(TypeError, match=text):
            call()
    assert comm.allreduce(1) == 2  # none of them has harmed the communicator


@ranks(1)
def test_integers_are_not_cut(comm):
    ones, into = np.ones(4, "f4"), np.zeros(4, "f4")
    big = 1 << 32  # ctypes would pass it as 0
    cases = [
        ("size: 4294967297 is not in", lambda: inccl.Communicator(inccl.unique_id(), 0, big + 1)),
        ("rank: 4294967296 is not in", lambda: inccl.Communicator(inccl.unique_id(), big, 1)),
        ("channels: 4294967296 is not in", lambda: comm.split(0, channels=big)),
        ("color: 4294967296 is not in", lambda: comm.split(big)),
        ("key: -4294967296 is not in", lambda: comm.split(0, -big)),
        ("excluded: 4294967296 is not in", lambda: comm.shrink([big])),
        ("dest: 4294967296 is not in", lambda: comm.Send(ones, big)),
        ("source: 4294967296 is not in", lambda: comm.Recv(into, big)),
        ("root: 4294967296 is not in", lambda: comm.Bcast(ones, big)),
        ("op: 4294967296 is not in", lambda: comm.Allreduce(ones, into, big)),
        ("seed: -1 is not in", lambda: comm.Allreduce(ones, into, codec="bf16", seed=-1)),
        ("step: 18446744073709551616 is not in",
         lambda: comm.Allreduce(ones, into, codec="bf16", step=1 << 64)),
        ("count: -1 is not in", lambda: inccl.Codec("bf16").bound(-1, 2)),
        ("nranks: 4294967297 is not in", lambda: inccl.Codec("bf16").bound(8, big + 1)),
        ("nranks: 4294967297 is not in", lambda: inccl.init_all(big + 1)),
        ("devices: 4294967296 is not in", lambda: inccl.init_all(1, [big])),
        ("nbytes: 18446744073709551617 is not in", lambda: inccl.alloc((1 << 64) + 1)),
    ]
    for text, call in cases:
        with pytest.raises(inccl.InvalidArgument, match=text):
            call()
    with pytest.raises(TypeError, match="dest: expected an integer, got float"):
        comm.Send(ones, 0.0)
    assert (into == 0).all()


@ranks(1, 2)
def test_types_of_moves_must_agree(comm):
    n = comm.size
    memory = np.zeros(256, "u1")
    wide, bytes_, into = np.ones(8 * n), np.ones(64 * n, "u1"), memory[:64]
    for call in (lambda: comm.Scatter(wide, into), lambda: comm.Gather(into, wide),
                 lambda: comm.Allgather(into, wide), lambda: comm.Alltoall(wide, bytes_)):
        if comm.rank == 0:
            with pytest.raises(inccl.InvalidArgument, match="recvbuf: elements of another type"):
                call()
    assert not memory.any() and comm.allreduce(1) == n


class Exporter:
    """Only __dlpack__ of an array."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)


@ranks(1)
def test_memory_that_must_not_be_moved(comm):
    holds = np.zeros(3, np.dtype([("number", "f8"), ("object", "O")]))
    nested = np.zeros(3, np.dtype([("outer", np.dtype([("inner", "O")]))]))

    class Interface:
        __array_interface__ = holds.__array_interface__

    for array in (holds, nested, Interface(), memoryview(np.zeros(3, "O"))):
        with pytest.raises(inccl.InvalidArgument, match="buf: holds Python objects"):
            comm.Bcast(array)
    comm.Bcast(np.zeros(3, np.dtype([("number", "f8"), ("Other", "i4")])))
    fixed = np.ones(4, "f4")
    fixed.flags.writeable = False
    into = np.zeros(4, "f4")
    comm.Allreduce(Exporter(fixed), Exporter(into))
    assert (into == 1).all()
    with pytest.raises(inccl.InvalidArgument, match="recvbuf: read-only"):
        comm.Allreduce(into, Exporter(fixed))


@ranks(2)
def test_mismatch_is_an_error_on_both(comm):
    with pytest.raises(inccl.InvalidUsage) as caught:
        comm.Bcast(np.zeros(8 + comm.rank), comm.rank)
        comm.Barrier()
    assert caught.value.rank == comm.rank
    assert isinstance(comm.async_error(), inccl.InvalidUsage)
    with pytest.raises(inccl.InvalidUsage):
        comm.Barrier()
    comm.abort()


def test_a_dead_peer_is_named():
    met = Meeting(3)

    def rank_main(rank):
        os.environ["INCCL_RANK"] = str(rank)
        comm = inccl.init()
        residual = inccl.Residual(1000)
        values = np.arange(1000, dtype="f4") / 7 + rank
        comm.Allreduce(values, np.empty_like(values), codec="hbi:bits=4", residual=residual)
        left = residual.save()
        met()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(inccl.RemoteError) as caught:
            comm.Barrier()
        assert (caught.value.code, caught.value.rank, caught.value.peer) == (
            inccl.Result.REMOTE_ERROR, rank, 1)
        assert isinstance(caught.value, ConnectionError)
        rest = comm.shrink()
        assert (rest.size, rest.rank) == (2, min(rank, 1))
        assert rest.last_completed() == 1
        residual.rollback(rest)  # all ranks have completed the call
        assert residual.save() == left
        with pytest.raises(TypeError, match="comm: expected a Communicator, got int"):
            residual.rollback(rest.last_completed())
        comm.abort()
        with pytest.raises(inccl.InvalidUsage, match="comm: destroyed, aborted"):
            residual.rollback(comm)
        return rest.allreduce(rank)
    outcomes = Ranks(3, rank_main, job(3)).join()
    assert outcomes[1] == ("died", signal.SIGKILL)
    assert outcomes[0] == outcomes[2] == ("returned", 2)


@ranks(2, op_timeout=0.5)
def test_timeout_names_the_late_rank(comm):
    if comm.rank == 0:
        with pytest.raises(inccl.Timeout) as caught:
            comm.Barrier()
        assert caught.value.peer == 1 and isinstance(caught.value, TimeoutError)
    else:  # is late, until the error comes
        while comm.async_error() is None:
            threading.Event().wait(0.01)


@ranks(2)
def test_the_limit_can_be_set_later(comm):
    with pytest.raises(inccl.InvalidArgument, match="seconds: -1"):
        comm.set_timeout(-1)
    if comm.rank == 0:
        comm.set_timeout(0.2)
        with pytest.raises(inccl.Timeout, match=r"limit 200 ms\), waiting for peer 1@"):
            comm.Barrier()
    else:
        while comm.async_error() is None:
            threading.Event().wait(0.01)


@ranks(1, 2)
def test_unique_id(comm):
    made = comm.bcast(inccl.unique_id() if comm.rank == 0 else None)
    with inccl.Communicator(made, comm.rank, comm.size, name="second") as second:
        assert second.allreduce(1) == comm.size
    with pytest.raises(inccl.InvalidArgument, match="id: 3 bytes"):
        inccl.Communicator(b"abc", 0, 1)
    with pytest.raises(inccl.InvalidArgument, match="rank: 7"):
        inccl.Communicator(inccl.unique_id(), 7, 2)
    with pytest.raises(inccl.InvalidArgument, match="init_timeout"):
        inccl.Communicator(inccl.unique_id(), 0, 1, init_timeout=-5)


@ranks(3)
def test_split_and_shrink(comm):
    part = comm.split(comm.rank % 2, key=-comm.rank)
    assert part.allgather(comm.rank) == [[2, 0], [1]][comm.rank % 2]
    part.destroy()
    assert (comm.split(None if comm.rank == 0 else 1) is None) == (comm.rank == 0)
    if comm.rank == 2:
        with pytest.raises(inccl.InvalidArgument, match="excluded"):
            comm.shrink([2])
    else:
        rest = comm.shrink([2])
        assert rest.size == 2


_OPTIONS = {"name": "job", "algorithm": "tree;allgather:ring"}


@ranks(3, **_OPTIONS)
def test_options_that_are_not_given_are_those_of_the_parent(comm):
    def expect(child, name):
        said = f'rank {child.rank}/{child.size} of "{name}": reduce_scatter: none .* is admitted by "tree;allgather:ring"'
        with pytest.raises(inccl.InvalidArgument, match=said):
            child.Reduce_scatter(np.zeros(3 * child.size), np.zeros(3))

    expect(comm.split(0), "job")
    expect(comm.split(0, init_timeout=20), "job")
    part = comm.split(0, name="part")
    expect(part.shrink(init_timeout=20), "part")
    smaller = comm.shrink([2], init_timeout=20) if comm.rank < 2 else None
    id = comm.bcast(smaller.unique_id() if comm.rank == 0 else None)
    if smaller is None:
        expect(inccl.Communicator(id, 2, 3, **_OPTIONS), "job")
    else:
        expect(smaller.grow(3, id, init_timeout=20), "job")


def test_grow(tmp_path):
    """A process joins two members; then one member dies, and another process takes its place."""

    def await_id(number):
        path = tmp_path / str(number)
        while not path.exists():
            time.sleep(0.001)
        return path.read_bytes()

    def post(number, made):
        fresh = tmp_path / "fresh"
        fresh.write_bytes(made)
        fresh.rename(tmp_path / str(number))
        return made

    met = Meeting(3)

    def process(number):
        if number < 2:
            made = post(0, inccl.unique_id()) if number == 0 else await_id(0)
            comm = inccl.Communicator(made, number, 2)
            larger = comm.grow(3, post(1, comm.unique_id()) if number == 0 else None)
            assert comm.allgather(number) == [0, 1]  # goes on
            comm.destroy()
        elif number == 2:
            larger = inccl.Communicator(await_id(1), 2, 3)
        else:
            whole = inccl.Communicator(await_id(2), 1, 3)
            assert whole.allgather(number) == [0, 3, 2]
            return
        assert larger.allgather(number) == [0, 1, 2]
        met()
        if number == 1:
            os._exit(0)
        with pytest.raises(inccl.RemoteError):
            while True:
                larger.Barrier()
        smaller = larger.shrink(abort=True)
        whole = smaller.grow(3, post(2, smaller.unique_id()) if number == 0 else None, larger.rank)
        assert whole.rank == number
        assert whole.allgather(number) == [0, 3, 2]

    outcomes = Ranks(4, process).join()
    assert [kind for kind, _ in outcomes] == ["returned", "died", "returned", "returned"], outcomes


@ranks(2)
def test_growing_wants_right_arguments(comm):
    for call, text in ((lambda: comm.grow(2), "nranks: 2"), (lambda: comm.grow(3, b"abc"), "id: 3 bytes"),
                       (lambda: comm.grow(1 << 32), "size: 4294967296"),
                       (lambda: comm.grow(3, rank=3), "rank: 3")):
        with pytest.raises(inccl.InvalidArgument, match=text):
            call()
    with pytest.raises(inccl.InvalidUsage, match="no member passes an id"):
        comm.grow(3)
    assert comm.allreduce(1) == 2


@ranks(2)
def test_ended_communicators_raise(comm):
    other = comm.split(0)
    other.destroy()
    other.destroy()
    for call in (other.Barrier, lambda: other.rank, lambda: other.Bcast(np.zeros(3)),
                 lambda: other.split(0), other.revoke, other.async_error):
        with pytest.raises(inccl.InvalidUsage, match="destroyed"):
            call()
    assert "ended" in repr(other)


@ranks(2)
def test_abort_from_another_thread(comm):
    victim = comm.split(0)
    if comm.rank == 0:
        begun = threading.Event()

        def aborts():
            begun.wait()
            victim.abort()
        thread = threading.Thread(target=aborts)
        thread.start()
        begun.set()
        with pytest.raises(inccl.Error):
            victim.Recv(np.zeros(1 << 20), 1)
        thread.join()
    comm.Barrier()


@ranks(2)
def test_streams(comm):
    with inccl.Stream() as stream:
        results = []
        for step in range(10):
            results.append(np.empty(5000, "f4"))
            comm.Allreduce(np.full(5000, step + comm.rank, "f4"), results[-1], stream=stream)
        # The inputs are gone here; the stream has kept them.
        stream.synchronize()
        assert stream.query()
        for step, result in enumerate(results):
            assert (result == 2 * step + 1).all()
    with pytest.raises(inccl.InvalidArgument, match="stream: closed"):
        comm.Bcast(np.zeros(3), stream=stream)


@ranks(1)
def test_streams_are_shared_by_threads(comm):
    with inccl.Stream() as stream:
        kept = [np.zeros(3), np.zeros(3)]

        class During:
            """Another thread's synchronization and call, during the first synchronization."""

            def __getattr__(self, name):
                real = getattr(inccl._library.lib, name)
                if name != "ccl_stream_synchronize":
                    return real
                return lambda handle: (real(handle), inner())[0]

        def inner():
            objects.lib = inccl._library.lib
            stream.synchronize()
            comm.Bcast(kept[1], stream=stream)
        from inccl import _objects as objects
        comm.Bcast(kept[0], stream=stream)
        objects.lib = During()
        stream.synchronize()
        assert [used[0].owner is kept[1] for used in stream._kept] == [True]


def test_forked_child_leaves_streams_alone():
    def rank_main(_):
        with inccl.Communicator(inccl.unique_id(), 0, 1) as comm:
            with inccl.Stream() as stream:
                comm.Bcast(np.zeros(3), stream=stream)
                stream.synchronize()
                pid = os.fork()
                if pid == 0:
                    signal.alarm(20)
                    with pytest.raises(inccl.InvalidUsage, match="forked"):
                        stream.synchronize()
                    stream.close()
                    os._exit(0)
                return os.waitpid(pid, 0)[1]
    assert run(1, rank_main) == [0]


@ranks(2)
def test_calls_that_need_their_result_are_refused_in_groups(comm):
    for name, call in [
        ("Barrier", comm.Barrier), ("bcast", lambda: comm.bcast(3)),
        ("allreduce", lambda: comm.allreduce(np.zeros(3))), ("reduce", lambda: comm.reduce(3)),
        ("gather", lambda: comm.gather(3)), ("allgather", lambda: comm.allgather(3)),
        ("scatter", lambda: comm.scatter([1, 2])), ("alltoall", lambda: comm.alltoall([1, 2])),
        ("send", lambda: comm.send(3, 0)), ("recv", lambda: comm.recv(0)),
    ]:
        with pytest.raises(inccl.InvalidUsage, match=f"{name}: not in a group"):
            with inccl.group():
                call()
    assert comm.allreduce(1) == 2


@ranks(1)
def test_statistics_live_until_they_are_written(comm):
    """A stand-in for the library writes them late, as on a CUDA stream."""
    import ctypes
    import gc
    import weakref
    from inccl import _buffer_calls
    pending = []

    class Late:
        def __getattr__(self, name):
            if name != "ccl_allreduce_compressed":
                return getattr(inccl._library.lib, name)
            return lambda *arguments: pending.append(
                ctypes.addressof(arguments[5]._obj.stats.contents)) or 0

    _buffer_calls.lib = Late()
    stats = comm.Allreduce(inccl.IN_PLACE, np.ones(4, "f4"), codec="bf16", stream=1)
    assert not stats.completed
    gone = weakref.ref(stats)
    del stats
    gc.collect()
    assert gone() is not None
    inccl.CompressionStats.from_address(pending[0]).compressed = 1
    for _ in range(2):
        comm.Allreduce(inccl.IN_PLACE, np.ones(4, "f4"), codec="bf16", stream=1)
    gc.collect()
    assert gone() is None
    _buffer_calls.lib = inccl._library.lib
    for count in (0, 4):
        assert comm.Allreduce(inccl.IN_PLACE, np.ones(count, "f4"), codec="bf16").completed


@ranks(2)
def test_groups(comm):
    a, b = np.zeros(3), np.zeros(3)
    with inccl.group():
        comm.Allreduce(np.full(3, comm.rank + 1.0), a)
        with inccl.group():
            comm.Allreduce(np.full(3, comm.rank + 2.0), b)
        part = comm.split(0)
        with pytest.raises(inccl.InvalidUsage, match="not created yet"):
            part.Bcast(a)
        assert a[0] == 0  # nothing has started
    assert (a == 3).all() and (b == 5).all() and part.allreduce(1) == 2
    with pytest.raises(ZeroDivisionError):
        with inccl.group():
            comm.Allreduce(np.full(3, 7.0), a)
            1 / 0
    assert (a == 3).all()  # cancelled
    with pytest.raises(inccl.InvalidArgument, match="root: 9"):
        with inccl.group():
            comm.Allreduce(np.full(3, 7.0), a)
            comm.Bcast(a, 9)
    assert comm.allreduce(1) == 2


def test_ranks_as_threads():
    comms = inccl_in_child_init_all(3)
    assert comms == [[6.0] * 4] * 3


def inccl_in_child_init_all(n):
    def rank_main(_):
        comms = inccl.init_all(n)
        results = [np.zeros(4) for _ in comms]
        with inccl.group():
            for comm in comms:
                comm.Allreduce(np.full(4, comm.rank + 1.0), results[comm.rank])
        return [result.tolist() for result in results]
    return run(1, rank_main)[0]


@ranks(2, 3)
def test_compressed(comm):
    n = comm.size
    inputs = [np.random.default_rng(r).standard_normal(20000).astype("f4") for r in range(n)]
    exact = np.sum(inputs, axis=0, dtype=np.float64)
    for codec in ("hbi:bits=6", "bf16", "lossless", inccl.Codec("hbi:bits=8")):
        total = np.empty(20000, "f4")
        stats = comm.Allreduce(inputs[comm.rank], total, codec=codec, seed=3)
        assert stats.compressed == 1 and stats.ratio > 1 and stats.elements == 20000, codec
        error = np.abs(total - exact).max()
        bound = stats.error_bound if np.isfinite(stats.error_bound) and stats.error_bound else 0.1
        assert error <= bound + 1e-4, (codec, error, bound)
        assert comm.allgather(total.tobytes()) == [total.tobytes()] * n
    segment = np.empty(20000 // n // 4 * 4, "f4")
    whole = inputs[comm.rank][:segment.size * n]
    stats = comm.Reduce_scatter(whole, segment, inccl.AVG, codec="hbi:bits=8")
    own = slice(comm.rank * segment.size, (comm.rank + 1) * segment.size)
    assert np.abs(segment - exact[:whole.size][own] / n).max() <= stats.error_bound + 1e-4
    every = np.empty((n, 20000), "f4")
    stats = comm.Allgather(inputs[comm.rank], every, codec="hbi:bits=8")
    assert np.abs(every - np.stack(inputs)).max() <= stats.error_bound + 1e-6
    total = np.empty(100, "i4")
    assert comm.Allreduce(np.full(100, 1, "i4"), total, codec=True).compressed == 0
    assert (total == n).all()
    with inccl.Stream() as stream:
        total = np.empty(20000, "f4")
        stats = comm.Allreduce(inputs[comm.rank], total, codec="hbi:bits=6", stream=stream)
    assert stats.compressed == 1


@ranks(2)
def test_error_feedback(comm):
    """Inputs and former residuals are results and new residuals: of a reduce-scatter, exactly."""
    n, count = comm.size, 4096
    mine = np.random.default_rng(comm.rank).standard_normal(count).astype("f4")
    exact = comm.allreduce(mine.astype("f8")).reshape(n, -1)[comm.rank]
    residual, segment = inccl.Residual(count), np.empty(count // n, "f4")
    results = np.zeros(count // n)
    for step in range(1, 9):
        stats = comm.Reduce_scatter(mine, segment, codec="hbi:bits=4", seed=step, residual=residual)
        assert stats.compressed
        results += segment
        left = comm.allreduce(np.frombuffer(residual.save(), "f4").astype("f8"))
        assert np.abs(results + left.reshape(n, -1)[comm.rank] - step * exact).max() < 1e-4
    assert np.abs(results - 8 * exact).max() > 1e-3  # something was left out
    again = inccl.Residual(count)
    again.load(residual.save())
    assert again.save() == residual.save()
    again.reset()
    assert not any(again.save())
    with pytest.raises(inccl.InvalidArgument, match="values: 3 bytes, expected 16384"):
        again.load(b"abc")
    with pytest.raises(TypeError, match="residual: expected inccl.Residual, got int"):
        comm.Reduce_scatter(mine, segment, codec="bf16", residual=7)
    with pytest.raises(inccl.InvalidArgument, match="residual"):
        comm.Reduce_scatter(mine[:64], segment[:32], codec="bf16", residual=again)


@ranks(2)
def test_premultiplied_sums(comm):
    for dtype in ("f4", "f8", "f2", "i4"):
        op = comm.premul_sum(comm.rank + 2, np.dtype(dtype))
        total = np.empty(10, dtype)
        comm.Allreduce(np.full(10, 3, dtype), total, op)
        assert (total == 3 * 2 + 3 * 3).all()
        with pytest.raises(inccl.InvalidArgument, match="op .* was made for"):
            comm.Allreduce(np.zeros(4, "u1"), np.zeros(4, "u1"), op)
        op.close()
        with pytest.raises(inccl.InvalidArgument, match="closed"):
            comm.Allreduce(np.full(10, 3, dtype), total, op)


@ranks(2)
def test_memory(comm):
    ours = inccl.empty(1 << 19, "f4")
    ours[:] = comm.rank
    with comm.register(ours) as registration:
        assert registration.exported or comm.size == 1
        comm.Allreduce(inccl.IN_PLACE, ours)
    assert (ours == 1).all()
    assert not comm.register(np.zeros(1 << 19)).exported
    view = inccl.alloc(4096)[:]  # the memory outlives the object that was returned
    assert view[4095] == 0
    with pytest.raises(inccl.InvalidArgument, match="nbytes"):
        inccl.alloc(0)


def test_codecs():
    codec = inccl.Codec("hbi:bits=5")
    assert "bits=5" in codec.spec and inccl.Codec(codec.spec).spec == codec.spec
    bits, relative = codec.bound(1 << 20, 4)
    assert 0 < bits <= 5 and 0 < relative <= 1
    with pytest.raises(inccl.InvalidArgument, match="colour"):
        inccl.Codec("hbi:colour=3")


def test_handles_are_not_pickled():
    """In another process, and twice in this one, their numbers would be another object's memory."""
    for made in (inccl.Codec("hbi:bits=4"), inccl.Reducer("topk:k=0.01|fp16")):
        for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
            assert again.spec == made.spec and again._handle != made._handle
        program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).spec, end='')"
        done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(made), capture_output=True,
                              check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert done.stdout.decode() == made.spec
    comm, = inccl.init_all(1)
    for kind, one in (("Residual", inccl.Residual(4)), ("ReducerState", inccl.ReducerState("topk:k=0.5|fp16", 4, 4)),
                      ("Stream", inccl.Stream()), ("Communicator", comm),
                      ("PremulSum", comm.premul_sum(2.0, "float32"))):
        for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=f"inccl.{kind}: cannot be pickled or copied"):
                duplicate(one)
    comm.destroy()


def test_errors_can_be_pickled():
    error = inccl.Timeout(8, "rank 0/2: waits for peer 1@host:5 for 10 ms")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is inccl.Timeout
    assert (copy.code, copy.rank, copy.peer, str(copy)) == (8, 0, 1, str(error))


def test_forked_child_leaves_the_communicator_alone():
    def rank_main(_):
        with inccl.Communicator(inccl.unique_id(), 0, 1) as comm:
            pid = os.fork()
            if pid == 0:
                with pytest.raises(inccl.InvalidUsage):
                    comm.Barrier()
                comm.destroy()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            return comm.allreduce(4)
    assert run(1, rank_main) == [4]


def test_info():
    done = subprocess.run([sys.executable, "-m", "inccl.info"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    assert "one rank         works" in done.stdout
    done = subprocess.run([sys.executable, "-m", "inccl.info"], capture_output=True, text=True,
                          env={**os.environ, "INCCL_LIBRARY": "/nowhere/libinccl.so"}, timeout=60)
    assert done.returncode != 0 and "/nowhere/libinccl.so (INCCL_LIBRARY)" in done.stderr


@ranks(3)
def test_reducers(comm):
    """top-k with its residual leaves nothing out for good; PowerSGD is exact for matrices of low rank."""
    rng = np.random.default_rng(comm.rank)
    mine = rng.standard_normal(3000).astype("f4")
    exact = comm.allreduce(mine.astype("f8"))
    state = inccl.ReducerState("topk:k=0.05", 1, mine.size)
    total, out = np.zeros(mine.size), np.empty_like(mine)
    errors = []
    for step in range(1, 61):
        stats = comm.Allreduce(mine, out, reducer=state)
        assert stats.payload_bytes < mine.nbytes
        total += out
        errors.append(np.abs(total / step - exact).max())
    assert errors[-1] < errors[0] / 5
    again = state.reducer.state(1, mine.size)
    again.load(state.save())
    one, other = np.empty_like(mine), np.empty_like(mine)
    comm.Allreduce(mine, one, reducer=state)
    comm.Allreduce(mine, other, reducer=again)
    assert one.tobytes() == other.tobytes() == comm.bcast(one.tobytes())
    again.reset()
    assert again.save() == inccl.ReducerState("topk:k=0.05", 1, mine.size).save()

    matrix = np.outer(np.arange(1, 41), rng.standard_normal(30)).astype("f4")
    exact = comm.allreduce(matrix.astype("f8"))
    out = np.empty_like(matrix)
    low = inccl.Reducer("powersgd:rank=2|none").state(*matrix.shape)
    with inccl.Stream() as stream:
        comm.Allreduce(matrix, out, inccl.AVG, reducer=low, stream=stream)
    assert np.abs(comm.size * out - exact).max() < 1e-3 * np.abs(exact).max()


@ranks(1)
def test_wrong_reducers(comm):
    with pytest.raises(inccl.InvalidArgument, match="nosuch"):
        inccl.Reducer("nosuch:k=1")
    with pytest.raises(TypeError, match="spec: expected str, got int"):
        inccl.Reducer(3)
    with pytest.raises(TypeError, match="reducer: expected str or inccl.Reducer, got int"):
        inccl.ReducerState(3, 1, 1)
    state, data = inccl.ReducerState("topk:k=0.1", 1, 10), np.zeros(10, "f4")
    with pytest.raises(inccl.InvalidArgument, match="a reducer has its own"):
        comm.Allreduce(data, data.copy(), codec="bf16", reducer=state)
    with pytest.raises(inccl.InvalidArgument, match="sendbuf: 9 elements"):
        comm.Allreduce(data[:9], data[:9].copy(), reducer=state)
    with pytest.raises(inccl.InvalidArgument, match="sendbuf: 10 elements of type"):
        comm.Allreduce(data.astype("f2"), data.astype("f2"), reducer=state)
    with pytest.raises(TypeError, match="reducer: expected inccl.ReducerState, got str"):
        comm.Allreduce(data, data.copy(), reducer="topk:k=0.1")
    with pytest.raises(inccl.InvalidArgument):
        state.load(b"abc")


@ranks(3)
def test_fused(comm):
    """As one call on all buffers one after the other; each has its own residual."""
    generator = np.random.default_rng(comm.rank)
    inputs = [generator.normal(size=shape).astype("f4") for shape in ((300,), (2, 3), (0,), (1, 1000))]
    joined = np.concatenate([x.reshape(-1) for x in inputs])
    outputs = [np.empty_like(x) for x in inputs]
    for codec in (None, "hbi:bits=6"):
        expected = np.empty_like(joined)
        comm.Allreduce(joined, expected, inccl.AVG, codec=codec, seed=3, step=4)
        stats = comm.Allreduce_fused(inputs, outputs, inccl.AVG, codec=codec, seed=3, step=4)
        assert stats.elements == joined.size and bool(stats.compressed) == (codec is not None)
        assert np.concatenate([x.reshape(-1) for x in outputs]).tobytes() == expected.tobytes()
    residuals = [inccl.Residual(300), None, None, inccl.Residual(1000)]
    whole = inccl.Residual(joined.size)
    comm.Allreduce(joined, expected, codec="hbi:bits=3", step=7, residual=whole)
    in_place = [x.copy() for x in inputs]
    comm.Allreduce_fused(inccl.IN_PLACE, in_place, codec="hbi:bits=3", step=7, residuals=residuals)
    assert np.concatenate([x.reshape(-1) for x in in_place]).tobytes() == expected.tobytes()
    assert whole.save() == residuals[0].save() + whole.save()[1200:1224] + residuals[3].save()
    assert comm.Allreduce_fused([], []).elements == 0
    for call, text in ((lambda: comm.Allreduce_fused(inputs, outputs[:2]), "recvbufs: 2 buffers"),
                       (lambda: comm.Allreduce_fused(inputs, outputs[::-1]), r"recvbufs\[0\]: 1000 elements"),
                       (lambda: comm.Allreduce_fused(inputs, outputs, residuals=[]), "residuals: 0"),
                       (lambda: comm.Allreduce_fused(inccl.IN_PLACE, inccl.IN_PLACE), "both are IN_PLACE"),
                       (lambda: comm.Allreduce_fused(inccl.IN_PLACE, [np.zeros(1, "f4"), np.zeros(1, "i4")]),
                        "several types"),
                       (lambda: comm.Allreduce_fused(inccl.IN_PLACE, [outputs[0], outputs[0]]), "overlap"),
                       (lambda: comm.Allreduce_fused(inputs, outputs, residuals=[None, None, None, residuals[0]]),
                        r"vectors\[3\].residual: of 300 elements")):
        with pytest.raises(inccl.InvalidArgument, match=text):
            call()
    with pytest.raises(TypeError, match=r"residuals\[1\]: expected inccl.Residual, got int"):
        comm.Allreduce_fused(inputs, outputs, residuals=[None, 5, None, None])


def test_help_shows_the_options():
    for function in (inccl.init, inccl.Communicator.__init__, inccl.Communicator.from_env, inccl.Communicator.split,
                     inccl.Communicator.shrink, inccl.Communicator.grow):
        names = list(inspect.signature(function).parameters)
        assert {"codec", "op_timeout", "socket_ifname"} <= set(names) and "config" not in names, (function, names)
    assert list(inspect.signature(inccl.Communicator.split).parameters)[:3] == ["self", "color", "key"]
    assert "op_timeout" in pydoc.render_doc(inccl.init)
    with pytest.raises(TypeError, match="op_timeot"):
        inccl.init(op_timeot=3)


_WAITS = """
import os, signal, sys, threading, time
import numpy as np
import inccl
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell has it ignored
def say(text):
    print(text, flush=True)
def calls(comm):
    try:
        comm.Allreduce(inccl.IN_PLACE, np.ones(4, "f4"))
        say("ready")
        comm.Allreduce(inccl.IN_PLACE, np.ones(4, "f4"))
    except KeyboardInterrupt:
        say("interrupted")
    except inccl.Error as e:
        say(f"{type(e).__name__} {e}")
rank = int(os.environ["INCCL_RANK"])
def say_when_waiting():
    place = None
    while place is None or place != inccl._interrupt._place():
        place = inccl._interrupt._place()
        time.sleep(0.2)
    say("ready")
if sys.argv[1] == "join":
    threading.Thread(target=say_when_waiting, daemon=True).start()
comm = inccl.init()
if rank == 2:
    comm.Allreduce(inccl.IN_PLACE, np.ones(4, "f4"))
    sys.stdin.readline()
    comm.abort()
else:
    calls(comm)
"""


def _waiting(kind, nranks, started):
    environment = dict(os.environ, **job(nranks), PYTHONPATH=os.pathsep.join(sys.path))
    return [subprocess.Popen([sys.executable, "-c", _WAITS, kind], env=dict(environment, INCCL_RANK=str(rank)),
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(started)]


def test_an_interrupt_ends_a_call_that_waits():
    first, second, late = _waiting("call", 3, 3)
    try:
        assert [first.stdout.readline(), second.stdout.readline()] == ["ready\n", "ready\n"]
        first.send_signal(signal.SIGINT)
        assert first.communicate(timeout=60)[0] == "interrupted\n"
        # It learns of the revocation or, where rank 0 has ended before that arrived, that rank 0 has left.
        text = second.communicate(timeout=60)[0]
        assert re.match(r"(InvalidUsage|RemoteError) rank 1/3 .*\b(rank|peer) 0\b", text), text
        assert first.returncode == second.returncode == 0
    finally:
        for process in (first, second, late):
            process.kill()
            process.communicate()


def test_an_interrupt_ends_a_rank_that_joins():
    waiting, = _waiting("join", 3, 1)
    try:
        assert waiting.stdout.readline() == "ready\n"
        waiting.send_signal(signal.SIGINT)
        waiting.communicate(timeout=60)
        assert waiting.returncode == -signal.SIGINT
    finally:
        waiting.kill()
        waiting.communicate()


def test_a_forked_child_does_not_report_its_signals_to_the_parent():
    def rank_main(_rank):
        inccl.init_all(1)[0].destroy()
        watched = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(watched)
        child = os.fork()
        if child == 0:
            os._exit(0 if signal.set_wakeup_fd(-1) == -1 else 1)
        return watched != -1, os.waitpid(child, 0)[1]
    assert run(1, rank_main) == [(True, 0)]


def test_an_operation_by_name_is_refused():
    comm, = inccl.init_all(1)
    with comm, pytest.raises(inccl.InvalidArgument, match="op: expected SUM, .* got 'sum'"):
        comm.Allreduce(np.ones(1), np.ones(1), "sum")
    assert inccl.InvalidArgument.__module__ == "inccl"
