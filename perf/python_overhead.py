#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what a call from Python costs: microseconds per call, on one rank, which waits for no other.

usage: PYTHONPATH=python INCCL_LIBRARY=build/release/src/libinccl.so perf/python_overhead.py [--blocks N] [--calls N]

The kinds of calls take turns, a block of calls each; the numbers are the median and the least over the blocks; on a
loaded machine only the least says something. The first line is the C
function through ctypes with arguments that are ready, so the others minus it are what the package adds.
"""
import argparse
import statistics
import tempfile
import time

import numpy as np

import inccl
from inccl._library import lib


def kinds(comm):
    send, recv = np.ones(16, np.float32), np.ones(16, np.float32)
    arguments = (send.ctypes.data, recv.ctypes.data, 16, 7, 0, comm._handle, None)
    yield "ccl_allreduce through ctypes", lambda: lib.ccl_allreduce(*arguments)
    yield "Communicator.Allreduce, NumPy", lambda: comm.Allreduce(send, recv)
    yield "Communicator.Allreduce, NumPy, hbi", lambda: comm.Allreduce(send, recv, codec="hbi:bits=6")
    try:
        import torch
        import torch.distributed as dist
        import inccl.torch  # noqa: F401
    except ImportError:
        return
    tensor, other = torch.ones(16), torch.ones(16)
    yield "Communicator.Allreduce, PyTorch (DLPack)", lambda: comm.Allreduce(tensor, other)
    store = dist.FileStore(tempfile.NamedTemporaryFile(delete=False).name, 1)
    dist.init_process_group("inccl", store=store, rank=0, world_size=1)
    group = dist.group.WORLD
    options = torch._C._distributed_c10d.AllreduceOptions()
    options.asyncOp = False
    tensors = [tensor]
    yield "ProcessGroup.allreduce", lambda: group.allreduce(tensors, options)
    yield "dist.all_reduce", lambda: dist.all_reduce(tensor)
    yield "dist.all_reduce(async_op=True).wait()", lambda: dist.all_reduce(tensor, async_op=True).wait()
    gloo = dist.new_group(backend="gloo")
    yield "dist.all_reduce, gloo", lambda: dist.all_reduce(tensor, group=gloo)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=101)
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    comm = inccl.Communicator(inccl.unique_id(), 0, 1)
    calls = list(kinds(comm))
    times = {name: [] for name, _ in calls}
    for block in range(options.blocks + 1):
        for name, call in calls:
            begin = time.perf_counter()
            for _ in range(options.calls):
                call()
            if block > 0:  # the first one warms up
                times[name].append((time.perf_counter() - begin) / options.calls * 1e6)
    for name, values in times.items():
        print(f"{statistics.median(values):8.2f} us, best {min(values):6.2f} us  {name}")


if __name__ == "__main__":
    main()
