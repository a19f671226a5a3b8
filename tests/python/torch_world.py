# SPDX-License-Identifier: Apache-2.0
"""Ranks with a default process group of the backend "inccl"."""
import functools
import os
import tempfile
from datetime import timedelta

import pytest
import torch
import torch._dynamo  # noqa: F401  what DDP and DTensor import late: once, not in each rank
import torch.distributed as dist
import torch.distributed.tensor  # noqa: F401

from world import job, run


def group_ranks(*sizes, backend="inccl", timeout=60.0, **options):
    """Decorates test(rank, nranks): runs it in process groups of these sizes."""
    def decorate(test):
        @pytest.mark.parametrize("nranks", sizes)
        @functools.wraps(test)
        def runs(nranks):
            with tempfile.TemporaryDirectory() as folder:
                def rank_main(rank):
                    import inccl.torch  # noqa: F401  registers the backend
                    torch.set_num_threads(1)
                    dist.init_process_group(
                        backend, store=dist.FileStore(os.path.join(folder, "store"), nranks),
                        rank=rank, world_size=nranks, timeout=timedelta(seconds=timeout), **options)
                    result = test(rank, nranks)
                    dist.destroy_process_group()
                    return result
                run(nranks, rank_main, job(nranks))
        del runs.__wrapped__
        return runs
    return decorate


def check_equal(mine, other):
    """Of states."""
    assert mine.keys() == other.keys(), (mine.keys(), other.keys())
    for name, value in mine.items():
        if isinstance(value, dict):
            check_equal(value, other[name])
        elif isinstance(value, torch.Tensor):
            assert value.equal(other[name]), name
        else:
            assert value == other[name], name
