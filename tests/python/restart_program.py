# SPDX-License-Identifier: Apache-2.0
"""Started by torchrun: a rank is killed once; its successors go on from the last checkpoint."""
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist

import inccl.torch  # noqa: F401  registers the backend


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("inccl")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    checkpoint = folder / "step"
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for step in range(first, 10):
        tensor = torch.tensor([float(rank + 1)])
        dist.all_reduce(tensor)
        dist.barrier()
        if rank == 0 and step < 5:
            checkpoint.write_text(str(step + 1))
        dist.barrier()
        if attempt == 0 and step == 6 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"done-{rank}").write_text(f"attempt {attempt}, from step {first}, sum {tensor.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
