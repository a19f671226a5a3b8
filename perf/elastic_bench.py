#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a change of membership and the repair of state, under any launcher of inccl.init():

    mpirun -np 4 python perf/elastic_bench.py --repeats 20 --mb 256

The last rank leaves and joins again. Rank 0 prints medians: of the longest of the members' times for
growing; of making a communicator of all ranks anew, by an id and by a split; and of sync_state for
a tensor that differs on the last rank alone, beside a plain broadcast of it. docs/elastic.md has what
it shows.
"""
import argparse
import pathlib
import statistics
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
import inccl


def timed(world, call, who=True):
    """The longest time of the ranks with `who`, in ms, and the result."""
    world.Barrier()
    begin = time.perf_counter()
    result = call()
    mine = 1e3 * (time.perf_counter() - begin)
    return max(world.allgather(mine if who else 0)), result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--mb", type=int, default=64, help="size of the tensor in MB; 0: none")
    args = parser.parse_args()
    world = inccl.init()
    rank, size = world.rank, world.size
    joins = rank == size - 1
    members = world.split(None if joins else 0)
    times = {"grow": [], "by an id": [], "split": []}
    for _ in range(args.repeats):
        id = world.bcast(members.unique_id() if rank == 0 else None)
        ms, larger = timed(world, lambda: inccl.Communicator(id, rank, size) if joins else
                           members.grow(size, id if rank == 0 else None), not joins)
        times["grow"].append(ms)
        assert larger.allreduce(1) == size
        larger.destroy()
        id = world.bcast(inccl.unique_id() if rank == 0 else None)
        ms, other = timed(world, lambda: inccl.Communicator(id, rank, size))
        times["by an id"].append(ms)
        other.destroy()
        ms, other = timed(world, lambda: world.split(0))
        times["split"].append(ms)
        other.destroy()
    rows = [(f"{name}, {size} ranks", statistics.median(values)) for name, values in times.items()]
    if args.mb:
        right = np.random.default_rng(0).standard_normal(args.mb * 250_000).astype("f4")
        repairs, broadcasts = [], []
        for _ in range(3):
            tensor = np.zeros_like(right) if joins else right.copy()
            repairs.append(timed(world, lambda: inccl.sync_state(world, [tensor]))[0])
            assert (tensor == right).all()
            broadcasts.append(timed(world, lambda: world.Bcast(tensor))[0])
        rows += [(f"sync_state of {args.mb} MB", statistics.median(repairs)),
                 (f"broadcast of {args.mb} MB", statistics.median(broadcasts))]
    if rank == 0:
        for name, ms in rows:
            print(f"{name:24} {ms:9.1f} ms")


if __name__ == "__main__":
    main()
