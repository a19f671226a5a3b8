#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DDP on one GPU with two ranks, for perf/gpu_suite.sh: an all-reduce, 20 steps of AdamW, equal weights at the end, and then the
first launch of kernels behind a call that waits for a late peer.

usage: ddp_step.py [CODEC...]   none, hbi:bits=6, ...; needs PyTorch with a GPU, and INCCL_LIBRARY

A rank that hangs prints the stacks of its Python threads.
"""
import datetime
import faulthandler
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS, STEPS, LIMIT = 2, 20, 20  # LIMIT: seconds without progress


def train(rank, codec):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(),
                                torch.nn.Linear(2048, 16)).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    if codec != "none":
        import inccl.torch
        ddp.register_comm_hook(inccl.torch.State(codec=codec), inccl.torch.compress_hook)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    random = torch.Generator(device="cuda").manual_seed(5 + rank)
    teacher = torch.randn(512, 16, generator=torch.Generator().manual_seed(7)).cuda()
    losses = []
    for step in range(STEPS):
        x = torch.randn(256, 512, device="cuda", generator=random)
        loss = torch.nn.functional.cross_entropy(ddp(x), (x @ teacher).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"{codec}: rank {rank}: step {step}: loss {losses[-1]:.4f}", flush=True)
    assert losses[-1] < losses[0], losses
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    least, most = weights.clone(), weights.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert torch.equal(least, most), "the ranks' weights differ"


def first_launches(rank):
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(1)
    work = dist.all_reduce(x, async_op=True)
    torch.special.bessel_j0(torch.rand(100, device="cuda"))
    work.wait()
    torch.cuda.synchronize()
    assert x[0].item() == RANKS


def run(rank, codec, port):
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda").add_(1).item()  # CUDA has started
    import inccl.torch  # noqa: F401  the backend
    faulthandler.dump_traceback_later(LIMIT + 5, repeat=False)
    dist.init_process_group("inccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=RANKS, timeout=datetime.timedelta(seconds=LIMIT))
    x = torch.full((1000,), rank + 1.0, device="cuda")
    dist.all_reduce(x)
    assert x.eq(RANKS * (RANKS + 1) / 2).all()
    train(rank, codec)
    first_launches(rank)
    dist.destroy_process_group()


def main():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
    os.environ["PYTHONPATH"] = ":".join(sys.path)  # of the ranks, too
    for number, codec in enumerate(sys.argv[1:] or ["none"]):
        mp.spawn(run, (codec, 29611 + number), RANKS)
        print(f"{codec}: ok", flush=True)


if __name__ == "__main__":
    main()
