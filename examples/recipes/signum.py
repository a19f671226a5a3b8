# SPDX-License-Identifier: Apache-2.0
"""Signum, signSGD with majority vote (arXiv 1802.04434, 1810.05291): each rank sends the signs of its momentum, all take
the sign of their sum. qsgd:q=1 adds signs exactly; onebit would lose ties.
torchrun --standalone --nproc-per-node 2 signum.py"""
import torch
import torch.distributed as dist

import inccl
import inccl.torch  # noqa: F401  registers the backend


class Signum(torch.optim.Optimizer):
    """momentum=0: signSGD. In place of DDP's average: gradients are those of each rank. A tie moves nothing."""

    def __init__(self, params, communicator, lr=1e-3, momentum=0.9, codec="qsgd:q=1"):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.communicator, self.codec = communicator, inccl.Codec(codec)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            parameters = [one for one in group["params"] if one.grad is not None]
            for one in parameters:
                velocity = self.state[one].setdefault("velocity", torch.zeros_like(one))
                velocity.lerp_(one.grad, 1 - group["momentum"])
            votes = torch.cat([self.state[one]["velocity"].sign().reshape(-1) for one in parameters])
            self.communicator.Allreduce(inccl.IN_PLACE, votes, codec=self.codec)
            for one, part in zip(parameters, votes.sign().split([one.numel() for one in parameters])):
                one.sub_(part.view_as(one), alpha=group["lr"])


def main():
    dist.init_process_group("inccl")
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 8)
    optimizer = Signum(model.parameters(), dist.group.WORLD.communicator, lr=3e-3)
    target = torch.randn(8, 64)
    torch.manual_seed(10 + dist.get_rank())
    for step in range(200):
        rows = torch.randn(32, 64)
        optimizer.zero_grad()
        loss = (model(rows) - rows @ target.T).square().mean()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
    print(f"loss {loss.item():.3f}, {first:.3f} at first")
    assert loss < first / 2
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
