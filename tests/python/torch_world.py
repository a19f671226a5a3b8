# SPDX-License-Identifier: Apache-2.0
"""Ranks with a default process group of the backend "inccl"."""
import contextlib
import functools
import os
import subprocess
import sys
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


_STORE_SERVER = """
import sys
import torch.distributed as dist
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(server.port, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def store_server():
    """A process with a TCPStore of this host, for as long as the block: its port and the process."""
    with subprocess.Popen([sys.executable, "-c", _STORE_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as server:
        yield int(server.stdout.readline()), server


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
