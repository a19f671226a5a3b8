# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation: one compressed call per bucket for four batches.
torchrun --standalone --nproc-per-node 2 accumulation.py"""
import contextlib

import torch
import torch.distributed as dist

import inccl.torch

dist.init_process_group("inccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 64))
state = inccl.torch.State(codec="hbi:bits=6")
model.register_comm_hook(state, inccl.torch.compress_hook)
for batch in range(8):
    communicates = batch % 4 == 3
    with contextlib.nullcontext() if communicates else model.no_sync():
        (model(torch.ones(8, 256)).square().mean() / 4).backward()
    if communicates:
        model.zero_grad()
print(state.statistics)
assert state.statistics.calls == 2
dist.destroy_process_group()
