# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/recipes, each under torchrun with two ranks."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from torch_world import group_ranks

RECIPES = sorted((pathlib.Path(__file__).resolve().parents[2] / "examples" / "recipes").glob("*.py"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe(recipe):
    for module in re.findall(r"^import (\w+)", recipe.read_text(), re.M):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module} here")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(recipe)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def recipe_of(name):
    spec = importlib.util.spec_from_file_location(name, RECIPES[0].parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@group_ranks(8)
def test_power_gossip_of_full_rank_is_gossip(rank, n):
    """On a ring, against plain loops; with a rank below that the mean stays and the ranks approach each other."""
    def start(r):
        torch.manual_seed(r)
        return [torch.randn(6, 4), torch.randn(5), torch.randn(())]

    ring = [(rank - 1) % n, (rank + 1) % n]
    whole, thin = start(rank), start(rank)
    gossip = recipe_of("power_gossip").PowerGossip
    full, narrow = gossip(whole, ring, rank=6, weight=0.25), gossip(thin, ring, rank=1)
    every = [start(r) for r in range(n)]
    mean = [sum(parts) / n for parts in zip(*every)]
    for _ in range(5):
        full.step()
        every = [[one + 0.25 * (before - one) + 0.25 * (after - one) for before, one, after in
                  zip(every[(r - 1) % n], every[r], every[(r + 1) % n])] for r in range(n)]
    for mine, expected in zip(whole, every[rank]):
        assert (mine - expected).abs().max() < 1e-5
    distances = []
    for _ in range(4):
        for _ in range(25):
            narrow.step()
        distances.append(sum((mine - right).square().sum() for mine, right in zip(thin, mean)))
    distances = torch.stack(distances)
    dist.all_reduce(distances)
    assert (distances[1:] < distances[:-1]).all(), distances
    assert distances[-1] < distances[0] / 10, distances
    for mine, right in zip(thin, mean):
        total = mine.clone()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        assert (total - right).abs().max() < 1e-6


@group_ranks(1, 3)
def test_signum_is_a_vote(rank, n):
    """Against a loop over all ranks, with ties."""
    def gradient(r, step):
        torch.manual_seed(10 * step + r)
        return torch.randn(7, 300) * (torch.rand(7, 300) < 0.5)

    weight = torch.nn.Parameter(torch.zeros(7, 300))
    optimizer = recipe_of("signum").Signum([weight], dist.group.WORLD.communicator, lr=0.5, momentum=0.75)
    expected, velocities = torch.zeros(7, 300), [torch.zeros(7, 300) for _ in range(n)]
    for step in range(3):
        weight.grad = gradient(rank, step)
        optimizer.step()
        for r in range(n):
            velocities[r] = velocities[r] * 0.75 + gradient(r, step) * 0.25
        expected -= 0.5 * sum(one.sign() for one in velocities).sign()
        assert weight.equal(expected), step
