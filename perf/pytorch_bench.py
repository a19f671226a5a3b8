#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times torch.distributed.all_reduce of one tensor: backends inccl and gloo, which take turns.

usage: PYTHONPATH=python INCCL_LIBRARY=build/release/src/libinccl.so perf/pytorch_bench.py
           [--ranks N] [--rounds N] [--bytes BYTES...] [--codec SPEC] [--type NAME] [--store FILE]

Ranks are processes of this host, or, with --store, those of mpirun, on hosts that share the new FILE. Prints the median over the rounds of rank 0's time in milliseconds, and for --codec that
of the same tensor through inccl.torch.compress_hook's call, without and with a residual. "ours" is memory of inccl.torch.empty.
"""
import argparse
import os
import statistics
import tempfile
import time


def rank_main(rank, options, store):
    import torch
    import torch.distributed as dist
    import inccl
    import inccl.torch
    torch.set_num_threads(1)
    dist.init_process_group("inccl", store=dist.FileStore(store, options.ranks), rank=rank,
                            world_size=options.ranks)
    gloo = dist.new_group(backend="gloo")
    comm = dist.group.WORLD.communicator
    for length in options.bytes:
        dtype = getattr(torch, options.type)
        plain = torch.randn(length // dtype.itemsize, generator=torch.Generator().manual_seed(rank)).to(dtype)
        ours = inccl.torch.empty(plain.numel(), dtype=dtype)
        ours.copy_(plain)
        storage = inccl.DataType.FLOAT32 if dtype.itemsize > 2 else inccl.DataType.BFLOAT16  # as the hooks have it
        gradients, residual = plain.clone(), inccl.Residual(plain.numel(), storage=storage)
        kinds = {
            "gloo": lambda: dist.all_reduce(plain, dist.ReduceOp.MAX, group=gloo),
            "inccl": lambda: dist.all_reduce(plain, dist.ReduceOp.MAX),
            "inccl, ours": lambda: dist.all_reduce(ours, dist.ReduceOp.MAX),
            options.codec: lambda: comm.Allreduce(gradients, plain, inccl.AVG, codec=options.codec),
            options.codec + " residual": lambda: comm.Allreduce(gradients, plain, inccl.AVG, codec=options.codec, residual=residual),
        }
        times = {name: [] for name in kinds}
        for turn in range(options.rounds + 2):
            for name, call in kinds.items():
                dist.barrier()
                begin = time.perf_counter()
                call()
                if turn >= 2:
                    times[name].append((time.perf_counter() - begin) * 1e3)
        if rank == 0:
            print(f"{length:>10} bytes  " + "  ".join(
                f"{name}: {statistics.median(values):.3f} ms" for name, values in times.items()), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--bytes", type=int, nargs="+", default=[4 << 10, 256 << 10, 4 << 20, 25 << 20])
    parser.add_argument("--codec", default="hbi:bits=6")
    parser.add_argument("--type", default="float32")
    parser.add_argument("--store")
    options = parser.parse_args()
    if options.store:
        options.ranks = int(os.environ["OMPI_COMM_WORLD_SIZE"])
        rank_main(int(os.environ["OMPI_COMM_WORLD_RANK"]), options, options.store)
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("INCCL_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(options.ranks):
            pid = os.fork()
            if pid == 0:
                rank_main(rank, options, folder + "/store")
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
