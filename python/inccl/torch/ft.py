# SPDX-License-Identifier: Apache-2.0
"""torchft over inccl: a process group that torchft's Manager reconfigures at each quorum.

    manager = torchft.Manager(pg=inccl.torch.ft.ProcessGroupInccl(codec="hbi:bits=6"), ...)

Needs the package torchft.
"""
from datetime import timedelta
from typing import Optional

import torch
from torch.distributed import AllreduceOptions, ReduceOp
from torchft.process_group import ProcessGroupWrapper

import inccl

from ._tensors import single
from .process_group import Options, ProcessGroup

__all__ = ["ProcessGroupInccl"]

_COMPRESSED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class ProcessGroupInccl(ProcessGroupWrapper):
    """The backend "inccl" as a reconfigurable process group of torchft.

    timeout: of creation and of each call. codec: of sums and averages of floats in all-reduces of
    one tensor; None: uncompressed. options: of the communicators.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), codec: Optional[str] = None,
                 options: Optional[Options] = None):
        super().__init__(timeout)
        self._codec = None if codec is None else inccl.Codec(codec)
        self._options, self._error = options, None

    def _create_pg(self, store, rank: int, world_size: int) -> ProcessGroup:
        self._error = None
        return ProcessGroup(store, rank, world_size, self._timeout, self._options)

    def getBackendName(self) -> str:
        return "torchft-inccl"

    def allreduce(self, tensors, opts):
        """As the process group's; with a codec, compressed."""
        op = opts if isinstance(opts, ReduceOp) else opts.reduceOp
        if not isinstance(opts, AllreduceOptions):
            opts = AllreduceOptions()
            opts.reduceOp = op
        tensor = single(tensors, sparse=True)
        if self._codec is None or tensor.layout != torch.strided or tensor.dtype not in _COMPRESSED or \
                op not in (ReduceOp.SUM, ReduceOp.AVG) or not tensor.is_contiguous():
            return super().allreduce(tensors, opts)
        group, how = self.parent, inccl.AVG if op == ReduceOp.AVG else inccl.SUM

        def call():
            group.communicator.Allreduce(inccl.IN_PLACE, tensor.detach(), how, codec=self._codec)

        return group._do("compressed allreduce", call, [tensor], opts)

    def abort(self, errored: bool = True) -> None:
        """Ends the calls in progress. errored: they have failed, which errored() then says."""
        if errored and self._error is None:
            self._error = self.errored() or RuntimeError("aborted")
        super().abort(errored)

    def shutdown(self) -> None:
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()

    def errored(self) -> Optional[Exception]:
        """Why calls fail since the last configure(); None: they do not."""
        if self._error is not None or self._pg is None:
            return self._error
        return self._pg.communicator.async_error()
