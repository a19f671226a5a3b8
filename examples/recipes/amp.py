# SPDX-License-Identifier: Apache-2.0
"""Mixed precision with a GradScaler: an overflow on one rank reaches all, so all skip the step; residuals follow the
scale of the loss.   torchrun --standalone --nproc-per-node 2 amp.py"""
import torch
import torch.distributed as dist

import inccl.torch

dist.init_process_group("inccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 64))
state = inccl.torch.State(codec="hbi:bits=6", residual=True)
model.register_comm_hook(state, inccl.torch.compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)  # overflows at first
losses = []
for step in range(40):
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.ones(8, 256)).float().square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() != scale:
        state.rescale(scaler.get_scale() / scale)
    losses.append(loss.item())
print(f"loss {losses[0]:.3g} -> {losses[-1]:.3g}, scale 2^40 -> {scaler.get_scale():g}")
assert losses[-1] < losses[0] / 100 and scaler.get_scale() < 2.0**40
dist.destroy_process_group()
