# SPDX-License-Identifier: Apache-2.0
"""Lightning. DDPStrategy(ddp_comm_state=, ddp_comm_hook=) does the same on GPUs; on CPUs it leaves them out.
torchrun --standalone --nproc-per-node 2 with_lightning.py"""
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

import inccl.torch

state = inccl.torch.State(codec="hbi:bits=6")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(256, 64)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_start(self):
        self.trainer.strategy.model.register_comm_hook(state, inccl.torch.compress_hook)


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 256)), batch_size=8)
trainer = lightning.Trainer(accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False,
                            strategy=DDPStrategy(process_group_backend="inccl"))
trainer.fit(Model(), data)
print(state.statistics)
assert state.statistics.calls == 4
