#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows which codecs let layers with small gradients learn.

    torchrun --standalone --nproc-per-node 2 layer_scale.py [--codec SPEC...] [--optimizer NAME]

A multilayer perceptron has a branch whose output is multiplied by a small number (LayerScale), so its gradients are that much
smaller than those of the other layers. Adam and LAMB move it all the same. The program trains with each codec and with
gradients in fp32, and prints for each scale how far the branch's weights have moved, over how far they move in fp32, and
the smallest and largest such ratio of all parameters. A codec ending in "+residual" has error feedback. docs/training.md has
the results.
"""
import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import inccl.torch

SCALES = [1e-2, 1e-3, 1e-4, 1e-6, 1e-8]


class Net(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.inner, self.middle = nn.Linear(64, 256), nn.Linear(256, 256)
        self.branch, self.head = nn.Linear(256, 256), nn.Linear(256, 10)
        self.scale = scale

    def forward(self, x):
        x = functional.gelu(self.inner(x))
        x = x + functional.gelu(self.middle(x))
        return self.head(x + self.scale * self.branch(functional.gelu(x)))


class Lamb(torch.optim.Optimizer):
    """Adam's direction, of a length in proportion to that of the parameter (You et al., 2019), without weight decay."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["step"] += 1
                state["mean"].lerp_(p.grad, 0.1)
                state["square"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                direction = (state["mean"] / (1 - 0.9 ** state["step"])
                             / ((state["square"] / (1 - 0.999 ** state["step"])).sqrt() + 1e-12))
                if direction.any():
                    p.add_(direction, alpha=-group["lr"] * float(p.norm() / direction.norm()))


OPTIMIZERS = {"adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
              "lamb": lambda parameters: Lamb(parameters, lr=1e-2),
              "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)}


def moved(scale, codec, optimizer, steps):
    """How far each parameter has moved; codec: None for fp32."""
    torch.manual_seed(1)
    net = Net(scale)
    begin = {name: p.detach().clone() for name, p in net.named_parameters()}
    model = nn.parallel.DistributedDataParallel(net)
    if codec is not None:
        state = inccl.torch.State(codec=codec.removesuffix("+residual"), residual=codec.endswith("+residual"))
        model.register_comm_hook(state, inccl.torch.compress_hook)
    optimizer = OPTIMIZERS[optimizer](net.parameters())
    inputs, labels = data()
    mine = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        rows = torch.randint(0, len(inputs), (32,), generator=mine)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return {name: (p.detach() - begin[name]).norm().item() for name, p in net.named_parameters()}


def data():
    generator = torch.Generator().manual_seed(7)
    inputs, weights = torch.randn(4096, 64, generator=generator), torch.randn(64, 10, generator=generator)
    return inputs, torch.tanh(inputs @ weights).argmax(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", nargs="+", default=["hbi:bits=6", "hbi:bits=4", "hbi:bits=3"])
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("inccl")
    first = dist.get_rank() == 0
    if first:
        print("| branch scale |" + "".join(f" `{codec}` |" for codec in args.codec) + "\n|" + "---|" * (len(args.codec) + 1))
    for scale in SCALES:
        exact = moved(scale, None, args.optimizer, args.steps)
        cells = []
        for codec in args.codec:
            ratios = {name: far / exact[name] for name, far in moved(scale, codec, args.optimizer, args.steps).items()}
            cells.append(f" {ratios['branch.weight']:.2f} ({min(ratios.values()):.2f} to {max(ratios.values()):.2f}) |")
        if first:
            print(f"| {scale:g} |" + "".join(cells), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
