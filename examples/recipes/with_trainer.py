# SPDX-License-Identifier: Apache-2.0
"""Trainer of transformers, whose own list of backends lacks this one: the group is made before TrainingArguments.
torchrun --standalone --nproc-per-node 2 with_trainer.py"""
import tempfile

import torch
import torch.distributed as dist
import transformers

import inccl.torch

dist.init_process_group("inccl")
state = inccl.torch.State(codec="hbi:bits=6")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(256, 64)

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


class Compress(transformers.TrainerCallback):
    def on_step_begin(self, args, progress, control, **kwargs):
        if progress.global_step == 0:
            trainer.model_wrapped.register_comm_hook(state, inccl.torch.compress_hook)


trainer = transformers.Trainer(
    Model(), transformers.TrainingArguments(tempfile.mkdtemp(), use_cpu=True, max_steps=4, report_to=[],
                                            save_strategy="no", ddp_find_unused_parameters=False),
    train_dataset=[{"x": torch.ones(256)} for _ in range(64)], callbacks=[Compress()])
trainer.train()
print(state.statistics)
assert state.statistics.calls == 4
dist.destroy_process_group()
