# SPDX-License-Identifier: Apache-2.0
"""Accelerate, whose own list of backends lacks this one: the group is made before the Accelerator.
torchrun --standalone --nproc-per-node 2 with_accelerate.py"""
import accelerate
import torch
import torch.distributed as dist

import inccl.torch

dist.init_process_group("inccl")
accelerator = accelerate.Accelerator(cpu=not torch.cuda.is_available())
model = torch.nn.Linear(256, 64)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
state = inccl.torch.State(codec="hbi:bits=6")
model.register_comm_hook(state, inccl.torch.compress_hook)
for step in range(3):
    optimizer.zero_grad()
    accelerator.backward(model(torch.ones(8, 256, device=accelerator.device)).square().mean())
    optimizer.step()
accelerator.print(accelerator.num_processes, state.statistics)
assert accelerator.num_processes == 2 and state.statistics.calls == 3
dist.destroy_process_group()
