#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the GPT of train.py with few exchanges, which are compressed (local SGD, DiLoCo).

    torchrun --standalone --nproc-per-node 4 local_sgd.py --inner 20 --codec hbi:bits=4

Each rank trains --inner steps by itself, from parameters that all ranks have. Then they take an
outer step: the mean of how far the ranks have moved is a gradient for SGD with Nesterov momentum,
and all ranks go on from its result. What compression leaves out of an exchange goes into the next
one (error feedback). docs/training.md has what this reaches.
"""
import argparse
import json

import torch
import torch.distributed as dist

import inccl
import inccl.torch
import train


class Outer:
    """The parameters that all ranks have, and the optimizer that changes them."""

    def __init__(self, model, communicator, codec, rate, momentum):
        self.parameters, self.communicator, self.codec = list(model.parameters()), communicator, codec
        self.rate, self.momentum = rate, momentum
        self.common = self.flat()
        self.velocity = torch.zeros_like(self.common)
        self.residual = inccl.Residual(self.common.numel()) if codec else None

    def flat(self):
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def step(self):
        """Returns how many bytes this rank has sent."""
        moved = self.common - self.flat()
        stats = self.communicator.Allreduce(inccl.IN_PLACE, moved, inccl.AVG, codec=self.codec, residual=self.residual)
        self.velocity.mul_(self.momentum).add_(moved)
        self.common.sub_(self.rate * (moved + self.momentum * self.velocity))
        for parameter, values in zip(self.parameters, self.common.split([p.numel() for p in self.parameters])):
            parameter.data.copy_(values.view_as(parameter))
        ranks = self.communicator.size
        return stats.payload_bytes if stats else 4 * moved.numel() * 2 * (ranks - 1) / ranks


def run(args):
    preset = train.PRESETS["small"]
    dist.init_process_group("inccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = train.Data(preset, args.seed)
    model = train.make_model(preset, data.letters, args.seed)
    check = data.validation(rank, ranks)
    inner = train.make_optimizer(preset, model.parameters())
    outer = Outer(model, dist.group.WORLD.communicator, args.codec, args.rate, args.momentum)
    log = open(args.log_file, "w", encoding="utf-8") if args.log_file and rank == 0 else None

    def write(**entry):
        if rank == 0:
            print(json.dumps(entry), file=log, flush=True)

    write(codec=args.codec, inner=args.inner, seed=args.seed, steps=args.steps, ranks=ranks)
    sent = 0
    for step in range(1, args.steps + 1):
        train.train_step(model, inner, preset, step, args.steps, data.batch(rank, ranks))
        if step % args.inner and step < args.steps:
            continue
        sent += outer.step()
        if step == args.steps or step % args.validate == 0:
            # Bits of each of the two phases of an all-reduce, for an element and a training step.
            bits = 8 * sent / max(1, 2 * (ranks - 1) / ranks) / outer.common.numel() / step
            write(step=step, bits=round(bits, 4), validation=train.validation_loss(model, check, dist.all_reduce))
    write(equal=train.equal_on_all_ranks(model))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inner", type=int, default=20, help="steps of a rank from one exchange to the next")
    parser.add_argument("--codec", default="hbi:bits=4", type=lambda text: None if text == "none" else text,
                        help="of the exchange (docs/codecs.md); none: fp32")
    parser.add_argument("--rate", type=float, default=0.7, help="learning rate of the outer step")
    parser.add_argument("--momentum", type=float, default=0.9, help="of the outer step")
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--validate", type=int, default=40, help="a multiple of --inner: steps between validation losses")
    parser.add_argument("--log-file", help="file of JSON lines that rank 0 writes; without it they are printed")
    torch.set_num_threads(1)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
