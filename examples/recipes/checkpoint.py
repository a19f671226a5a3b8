# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint with residuals, which each rank saves as its own: training goes on with the same bits.
torchrun --standalone --nproc-per-node 2 checkpoint.py"""
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import inccl.torch

dist.init_process_group("inccl")
rank = dist.get_rank()


def start():
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 64))
    state = inccl.torch.State(codec="bf16", residual=True)
    model.register_comm_hook(state, inccl.torch.compress_hook)
    return model, state, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, steps):
    for step in steps:
        batch = torch.randn(8, 256, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def contents(model, state):
    return {"model": model.module.state_dict(), f"gradients of rank {rank}": state.state_dict()}


folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder)
model, state, optimizer = start()
train(model, optimizer, range(3))
dcp.save(contents(model, state), checkpoint_id=folder[0])
train(model, optimizer, range(3, 6))

again, kept, optimizer = start()
train(again, optimizer, range(1))  # the entries that dcp.load fills exist after a step
loaded = contents(again, kept)
dcp.load(loaded, checkpoint_id=folder[0])
again.module.load_state_dict(loaded["model"])
kept.load_state_dict(loaded[f"gradients of rank {rank}"])
train(again, optimizer, range(3, 6))
same = model.module.weight.equal(again.module.weight)
print(f"rank {rank}: equal after the checkpoint: {same}")
assert same
dist.destroy_process_group()
