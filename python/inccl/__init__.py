# SPDX-License-Identifier: Apache-2.0
"""inccl: in-line compressed collectives, from Python.

    import inccl, numpy as np
    comm = inccl.init()                      # rank and size from mpirun, srun or torchrun
    gradient = np.ones(1 << 20, np.float32)
    stats = comm.Allreduce(inccl.IN_PLACE, gradient, inccl.AVG, codec="hbi:bits=6")

Upper-case calls move the memory of arrays, without copies; lower-case calls move Python objects.
docs/python.md has the rest. The package is pure Python over the C API (inccl/ccl.h).
"""
from ._library import (CompressionStats, CudaError, Error, InternalError, InvalidArgument,
                       InvalidUsage, OperatingSystemError, RemoteError, Result, Timeout,
                       library_version)
from ._objects import Codec, Reducer, ReducerState, Residual, Stream, alloc, empty, group, unique_id
from ._state import sync_state
from ._types import AVG, IN_PLACE, MAX, MIN, PROD, SUM, DataType, Op
from .communicator import Communicator, PremulSum, init, init_all

for _class in (CompressionStats, CudaError, Error, InternalError, InvalidArgument, InvalidUsage, OperatingSystemError,
               RemoteError, Result, Timeout):
    _class.__module__ = __name__  # what tracebacks call them

__version__ = "0.1.0"
__all__ = [
    "AVG", "Codec", "Communicator", "CompressionStats", "CudaError", "DataType", "Error",
    "IN_PLACE", "InternalError", "InvalidArgument", "InvalidUsage", "MAX", "MIN", "Op",
    "OperatingSystemError", "PROD", "PremulSum", "Reducer", "ReducerState", "RemoteError", "Residual", "Result", "SUM",
    "Stream",
    "Timeout", "alloc", "empty", "group", "init", "init_all", "library_version", "sync_state",
    "unique_id",
]
