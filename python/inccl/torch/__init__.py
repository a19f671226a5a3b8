# SPDX-License-Identifier: Apache-2.0
"""inccl for PyTorch: the process group backend "inccl", and compressed communication hooks.

    import torch.distributed as dist, inccl.torch
    dist.init_process_group("inccl")
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(inccl.torch.State(codec="hbi:bits=6"), inccl.torch.compress_hook)

docs/pytorch.md has the rest. Importing this module registers the backend.
"""
from inccl_torch_backend import register

from . import elastic, flight_recorder
from ._work import BackendError, Work
from .fused import Fused
from .hooks import CompressedAllGather, CompressedReduceScatter, State, Statistics, compress_hook
from .memory import empty, release
from .optim import CdSgd, Lans
from .process_group import Options, ProcessGroup
from .recorder import Recorder

__all__ = ["BackendError", "CdSgd", "CompressedAllGather", "CompressedReduceScatter", "Fused", "Lans", "Options",
           "ProcessGroup", "Recorder", "State", "Statistics", "Work", "compress_hook", "elastic",
           "empty", "flight_recorder", "release"]


register()
