#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the GPT of train.py while ranks die and come back.

    python elastic.py --ranks 4 --steps 200 --kill 60 --join 120

Starts the ranks; the last one dies in step --kill, and another process joins the others in step
--join. Prints the changes, the loss every ten steps, and that of a run in which nothing happens.
docs/elastic.md explains how it works.
"""
import argparse
import datetime
import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist

import inccl
import inccl.torch.elastic
import train


class Batches(train.Data):
    """Rows that follow from the number of the step, so that a step can come again."""

    def of_step(self, step, rank, ranks):
        self._random.manual_seed(self._seed << 32 | step)
        return self.batch(rank, ranks)

    def __init__(self, preset, seed):
        super().__init__(preset, seed)
        self._seed = seed


def work(args):
    """One rank."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", args.store, timeout=datetime.timedelta(seconds=60))
    preset = train.PRESETS["small"]
    data = Batches(preset, args.seed)
    model = train.make_model(preset, data.letters, args.seed)
    optimizer = train.make_optimizer(preset, model.parameters())

    def tell(**entry):
        print(json.dumps(entry), flush=True)

    while args.joins and not (store.check(["step"]) and int(store.get("step")) >= args.join):
        time.sleep(0.001)
    comm = inccl.torch.elastic.join(store) if args.joins else inccl.init()
    elastic = inccl.torch.elastic.Elastic(
        comm, {"model": model, "optimizer": optimizer}, store, codec=args.codec,
        on_change=lambda now: now.changes and now.rank == 0 and tell(step=now.step, ranks=now.size))
    for step in elastic.steps(args.steps):
        if step == args.kill and args.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if elastic.rank == 0:
            store.set("step", str(step))
        optimizer.zero_grad(set_to_none=False)
        loss = model(data.of_step(step, elastic.rank, elastic.size))
        loss.backward()
        if elastic.average(model.parameters()):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = train.learning_rate(preset, step + 1, args.steps)
            optimizer.step()
            if step % 10 == 9 and elastic.rank == 0:
                tell(step=step + 1, loss=round(loss.item(), 4))
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    tell(rank=elastic.rank, ranks=elastic.size, parameters=digest[:16])
    elastic.close()


def run(args, happens):
    """Starts the ranks, and who joins; returns the losses by step and the digests of the parameters."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    base = [sys.executable, __file__, "--store", str(store.port), "--steps", str(args.steps), "--seed", str(args.seed)]
    base += ["--codec", args.codec] if args.codec else []

    def start(rank, *options):
        job = {"INCCL_JOB": f"elastic{os.getpid()}{happens}", "INCCL_RANK": str(rank), "INCCL_SIZE": str(args.ranks)}
        return subprocess.Popen(base + list(options), env={**os.environ, **job}, stdout=subprocess.PIPE, text=True)

    ranks = [start(r, "--kill", str(args.kill), *["--dies"] * (happens and r == args.ranks - 1))
             for r in range(args.ranks)]
    if happens and args.join is not None:
        ranks.append(start(0, "--joins", "--join", str(args.join)))
    losses, digests, changes = {}, set(), []
    for process in ranks:
        for line in process.communicate()[0].splitlines():
            entry = json.loads(line)
            if "parameters" in entry:
                digests.add(entry["parameters"])
            elif "loss" in entry:
                losses[entry["step"]] = entry["loss"]
            else:
                changes.append(entry)
        if process.returncode not in (0, -signal.SIGKILL):
            sys.exit(f"a rank ended with {process.returncode}")
    return losses, digests, changes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kill", type=int, default=60, help="the step in which the last rank dies")
    parser.add_argument("--join", type=int, help="the step in which another process joins")
    parser.add_argument("--codec", help="of the gradients (docs/codecs.md); default: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", type=int, help=argparse.SUPPRESS)  # port: this process is a rank
    parser.add_argument("--dies", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--joins", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.store:
        return work(args)
    losses, digests, changes = run(args, True)
    undisturbed, _, _ = run(args, False)
    for change in changes:
        print(f"step {change['step']}: {change['ranks']} ranks go on")
    print("step   loss   undisturbed")
    for step, loss in sorted(losses.items()):
        print(f"{step:4}  {loss:6.4f}  {undisturbed[step]:6.4f}")
    print(f"parameters are {'equal on all ranks' if len(digests) == 1 else 'DIFFERENT'}")
    return len(digests) != 1


if __name__ == "__main__":
    sys.exit(main())
