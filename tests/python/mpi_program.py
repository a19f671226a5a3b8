# SPDX-License-Identifier: Apache-2.0
"""Started by mpirun: every call of inccl, against mpi4py's call of the same name."""
import inccl
import numpy as np
from mpi4py import MPI

TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64"]
OPS = [(inccl.SUM, MPI.SUM), (inccl.PROD, MPI.PROD), (inccl.MAX, MPI.MAX), (inccl.MIN, MPI.MIN)]


def of_rank(rank, count, dtype):
    """Small integers: exact in every type and order."""
    return np.random.default_rng(rank * 1000 + count).integers(1, 4, count).astype(dtype)


def same(ours, theirs, what):
    np.testing.assert_array_equal(ours, theirs, what)


def reductions(comm, world):
    for dtype in TYPES:
        mine = of_rank(comm.rank, 30 * comm.size, dtype)
        for op, mpi_op in OPS:
            what = f"{dtype} {op!r}"
            ours, theirs = np.zeros_like(mine), np.zeros_like(mine)
            comm.Allreduce(mine, ours, op), world.Allreduce(mine, theirs, mpi_op)
            same(ours, theirs, what)
            ours, theirs = np.zeros_like(mine), np.zeros_like(mine)
            comm.Reduce(mine, ours, op, 1), world.Reduce(mine, theirs, mpi_op, 1)
            same(ours, theirs, what)
            ours, theirs = np.zeros(30, dtype), np.zeros(30, dtype)
            comm.Reduce_scatter_block(mine, ours, op)
            world.Reduce_scatter_block(mine, theirs, mpi_op)
            same(ours, theirs, what)


def moves(comm, world):
    n, root = comm.size, comm.size - 1
    for dtype in TYPES + ["complex128", "float16"]:
        mine, whole = of_rank(comm.rank, 7, dtype), of_rank(comm.rank, 7 * n, dtype)

        def both(call, *arguments):
            results = []
            for one in (comm, world):
                out = np.zeros_like(whole)
                call(one, out, *arguments)
                results.append(out)
            same(*results, f"{dtype} {call}")
        raw = mine.view(np.uint8) if dtype == "float16" else mine  # mpi4py has no 16-bit floats

        def kind(out):
            return out.view(raw.dtype)
        both(lambda one, out: one.Allgather(raw, kind(out)))
        both(lambda one, out: one.Gather(raw, kind(out) if one.rank == root else None, root))
        both(lambda one, out: one.Scatter(kind(whole) if one.rank == root else None,
                                          kind(out[:7]), root))
        both(lambda one, out: one.Alltoall(kind(whole), kind(out)))
        both(lambda one, out: (np.copyto(out, whole), one.Bcast(kind(out), root)))


def point_to_point(comm, world):
    """A ring, with messages of both libraries on their way at once."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (0, 1, 1 << 18):
        mine = np.full(count, comm.rank, "i8")
        ours, theirs = np.zeros_like(mine), np.zeros_like(mine)
        requests = [world.Irecv(theirs, left), world.Isend(mine, right)]
        with inccl.group():
            comm.Send(mine, right)
            comm.Recv(ours, left)
        MPI.Request.Waitall(requests)
        same(ours, theirs, f"{count} elements")
    mine, total = np.ones(1 << 16), np.zeros(1 << 16)
    request = world.Iallreduce(mine, total)  # in progress during inccl's
    ours = comm.allreduce(mine)
    request.Wait()
    same(ours, total, "beside Iallreduce")


def objects(comm, world):
    value = {"rank": comm.rank, "text": "x" * 100 * comm.rank}
    values = [(comm.rank, to) for to in range(comm.size)]
    for name, arguments in [("allgather", (value,)), ("gather", (value, None, 1)),
                            ("bcast", (value,)), ("scatter", (values,)), ("alltoall", (values,)),
                            ("allreduce", (comm.rank,))]:
        given = [one for one in arguments if one is not None]
        assert getattr(comm, name)(*given) == getattr(world, name)(
            *given[:1], **({"root": given[1]} if len(given) > 1 else {})), name
    assert comm.allreduce([comm.rank]) == world.allreduce([comm.rank])  # lists are joined
    if comm.rank == 0:
        comm.send(value, 1)
    elif comm.rank == 1:
        assert comm.recv(0) == {"rank": 0, "text": ""}
    comm.barrier()


def groups(comm, world):
    """split, as Split; and a communicator by an id that MPI has passed on."""
    theirs = world.Split(comm.rank % 2, -comm.rank)
    with comm.split(comm.rank % 2, -comm.rank) as ours:
        assert (ours.rank, ours.size) == (theirs.rank, theirs.size)
        assert ours.allgather(comm.rank) == theirs.allgather(comm.rank)
    theirs.Free()
    made = world.bcast(inccl.unique_id() if world.rank == 0 else None)
    with inccl.Communicator(made, world.rank, world.size) as other:
        assert other.allreduce(other.rank) == world.allreduce(world.rank)


def main():
    world = MPI.COMM_WORLD
    with inccl.init() as comm:
        assert (comm.rank, comm.size) == (world.rank, world.size)
        for part in (reductions, moves, point_to_point, objects, groups):
            part(comm, world)
    world.Barrier()
    if world.rank == 0:
        print(f"{world.size} ranks agree")


if __name__ == "__main__":
    main()
