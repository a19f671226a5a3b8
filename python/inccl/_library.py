# SPDX-License-Identifier: Apache-2.0
"""Finds libinccl.so, declares the calls of inccl/ccl.h to ctypes, turns results into exceptions.

A ctypes call releases the GIL while it runs, so other Python threads run during a collective.
"""
import ctypes
import enum
import operator
import os
import pathlib
import re
from ctypes import (POINTER, byref, c_char, c_char_p, c_double, c_float, c_int, c_size_t, c_uint64,
                    c_void_p)
from typing import Optional

__all__ = ["Result", "Error", "InvalidArgument", "InvalidUsage", "RemoteError", "Timeout",
           "OperatingSystemError", "InternalError", "CudaError", "CompressionStats"]

API_VERSION = (0, 1)  # of inccl/ccl.h as it is declared here


class Result(enum.IntEnum):
    """Result codes of the C API; the numbers are NCCL's."""
    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7
    TIMEOUT = 8


_RANK = re.compile(r"\brank (\d+)/\d+")
_PEER = re.compile(r"\b(?:peer|rank) (\d+)@")


class Error(RuntimeError):
    """An error that the library reported.

    code: the Result. rank: this rank, and peer: the rank that is to blame, where the text names
    them, else None.
    """

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = Result(code)
        rank = _RANK.search(message)
        # What a peer reports is about the rank that it names, not about that peer.
        peer = _PEER.search(message.rpartition("reports:")[2]) or _PEER.search(message)
        self.rank: Optional[int] = int(rank[1]) if rank else None
        self.peer: Optional[int] = int(peer[1]) if peer else None

    def __reduce__(self):
        return type(self), (int(self.code), str(self))


class InvalidArgument(Error, ValueError):
    """An argument is wrong; the text names it. The call had no effect."""

    def __init__(self, code, message: Optional[str] = None):
        if message is None:  # raised here, before the library sees the call
            code, message = Result.INVALID_ARGUMENT, code
        super().__init__(code, message)


class InvalidUsage(Error):
    """The ranks do not make the same calls, or the communicator is not usable."""


class RemoteError(Error, ConnectionError):
    """A peer died or left."""


class Timeout(Error, TimeoutError):
    """A deadline passed; the text names the ranks that were awaited."""


class OperatingSystemError(Error):
    """A call to the operating system failed: memory, descriptors, sockets."""


class InternalError(Error):
    """A defect of the library, or corrupted data from a peer."""


class CudaError(Error):
    """A CUDA call failed."""


_ERRORS = {
    Result.UNHANDLED_CUDA_ERROR: CudaError,
    Result.SYSTEM_ERROR: OperatingSystemError,
    Result.INTERNAL_ERROR: InternalError,
    Result.INVALID_ARGUMENT: InvalidArgument,
    Result.INVALID_USAGE: InvalidUsage,
    Result.REMOTE_ERROR: RemoteError,
    Result.TIMEOUT: Timeout,
}


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", c_char * 128)]


class Config(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("blocking", c_int), ("codec", c_char_p),
                ("algorithm", c_char_p), ("channels", c_int), ("reproducible", c_int),
                ("preserve_input", c_int), ("init_timeout_ms", c_int), ("op_timeout_ms", c_int),
                ("heartbeat_ms", c_int), ("dead_ms", c_int), ("socket_ifname", c_char_p),
                ("name", c_char_p)]


class CompressionStats(ctypes.Structure):
    """What a compressed call did. On a stream or in a group, the library fills it when the call has
    completed: `completed` tells.

    elements: elements of the call. payload_bytes, wire_bytes: bytes that this rank sent, without
    and with headers. bits: payload bits per element. ratio: bytes of an uncompressed call over
    payload_bytes. error_bound: upper bound of the absolute error of any element. compressed: 0 if
    the call ran uncompressed because of its type, reduction or size.
    """
    _fields_ = [("size", c_size_t), ("elements", c_uint64), ("payload_bytes", c_uint64),
                ("wire_bytes", c_uint64), ("bits", c_double), ("ratio", c_double),
                ("error_bound", c_double), ("zero_blocks", c_uint64),
                ("dropped_superblocks", c_uint64), ("poisoned_blocks", c_uint64),
                ("compressed", c_int)]

    def __init__(self):
        super().__init__(ctypes.sizeof(CompressionStats), compressed=-1)

    @property
    def completed(self) -> bool:
        """Whether the call has succeeded and the other fields are valid."""
        return self.compressed >= 0

    def as_dict(self) -> dict:
        return {name: getattr(self, name) for name, _ in self._fields_[1:]}

    def __repr__(self):
        return f"CompressionStats({', '.join(f'{k}={v}' for k, v in self.as_dict().items())})"


class Vector(ctypes.Structure):
    _fields_ = [("send", c_void_p), ("recv", c_void_p), ("count", c_size_t), ("residual", c_void_p)]


class Compression(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("codec", c_void_p), ("seed", c_uint64), ("step", c_uint64),
                ("residual", c_void_p), ("stats", POINTER(CompressionStats))]


class ResidualConfig(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("storage", c_int), ("keep", c_float)]


def _candidates():
    """(path or name, why it is tried), in order."""
    here = pathlib.Path(__file__).resolve().parent
    for name in ("libinccl.so.0", "libinccl.so"):
        if (here / name).exists():
            yield str(here / name), "in the package"
    if os.environ.get("INCCL_LIBRARY"):
        yield os.environ["INCCL_LIBRARY"], "INCCL_LIBRARY"
    yield "libinccl.so.0", "found by the loader"


def _open():
    tried = []
    for path, why in _candidates():
        try:
            return ctypes.CDLL(path), path, why
        except OSError as error:
            tried.append(f"{path} ({why}): {error}")
    raise ImportError("libinccl.so is not found; set INCCL_LIBRARY to its path. Tried:\n  " +
                      "\n  ".join(tried))


lib, PATH, FOUND = _open()

_buffers = [c_void_p, c_void_p, c_size_t, c_int]
_SIGNATURES = {
    "get_version": [POINTER(c_int)],
    "get_unique_id": [POINTER(UniqueId)],
    "comm_init_rank_config": [POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)],
    "comm_init_env": [POINTER(c_void_p), POINTER(Config)],
    "comm_init_all": [POINTER(c_void_p), c_int, POINTER(c_int)],
    "comm_split": [c_void_p, c_int, c_int, POINTER(c_void_p), POINTER(Config)],
    "comm_shrink": [c_void_p, POINTER(c_int), c_int, POINTER(c_void_p), POINTER(Config), c_int],
    "comm_get_unique_id": [c_void_p, POINTER(UniqueId)],
    "comm_grow": [c_void_p, c_int, POINTER(UniqueId), c_int, POINTER(c_void_p), POINTER(Config)],
    "comm_last_completed": [c_void_p, POINTER(c_uint64)],
    "comm_finalize": [c_void_p],
    "comm_destroy": [c_void_p],
    "comm_abort": [c_void_p],
    "comm_revoke": [c_void_p],
    "comm_set_timeout": [c_void_p, c_int],
    "comm_get_async_error": [c_void_p, POINTER(c_int)],
    "comm_count": [c_void_p, POINTER(c_int)],
    "comm_user_rank": [c_void_p, POINTER(c_int)],
    "comm_device": [c_void_p, POINTER(c_int)],
    "allreduce": [*_buffers, c_int, c_void_p, c_void_p],
    "reduce_scatter": [*_buffers, c_int, c_void_p, c_void_p],
    "allgather": [*_buffers, c_void_p, c_void_p],
    "broadcast": [*_buffers, c_int, c_void_p, c_void_p],
    "reduce": [*_buffers, c_int, c_int, c_void_p, c_void_p],
    "alltoall": [*_buffers, c_void_p, c_void_p],
    "gather": [*_buffers, c_int, c_void_p, c_void_p],
    "scatter": [*_buffers, c_int, c_void_p, c_void_p],
    "send": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "recv": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "group_start": [],
    "group_end": [],
    "redop_create_premulsum": [POINTER(c_int), c_void_p, c_int, c_int, c_void_p],
    "redop_destroy": [c_int, c_void_p],
    "stream_create": [POINTER(c_void_p)],
    "stream_synchronize": [c_void_p],
    "stream_query": [c_void_p],
    "stream_destroy": [c_void_p],
    "mem_alloc": [POINTER(c_void_p), c_size_t],
    "mem_alloc_device": [POINTER(c_void_p), c_size_t, c_int],
    "mem_free": [c_void_p],
    "comm_register": [c_void_p, c_void_p, c_size_t, POINTER(c_void_p)],
    "comm_deregister": [c_void_p, c_void_p],
    "codec_create": [POINTER(c_void_p), c_char_p],
    "codec_spec": [c_void_p, c_char_p, c_size_t],
    "codec_destroy": [c_void_p],
    "residual_create": [POINTER(c_void_p), c_size_t, POINTER(ResidualConfig)],
    "residual_destroy": [c_void_p],
    "residual_set_scale": [c_void_p, c_float],
    "residual_export": [c_void_p, POINTER(c_float), c_size_t],
    "residual_import": [c_void_p, POINTER(c_float), c_size_t],
    "residual_reset": [c_void_p],
    "residual_rollback": [c_void_p, c_void_p],
    "reducer_create": [POINTER(c_void_p), c_char_p],
    "reducer_spec": [c_void_p, c_char_p, c_size_t],
    "reducer_destroy": [c_void_p],
    "reducer_state_create": [POINTER(c_void_p), c_void_p, c_size_t, c_size_t, c_int],
    "reducer_state_destroy": [c_void_p],
    "reducer_state_reset": [c_void_p],
    "reducer_state_export": [c_void_p, c_void_p, POINTER(c_size_t)],
    "reducer_state_import": [c_void_p, c_void_p, c_size_t],
    "reducer_state_rollback": [c_void_p, c_void_p],
    "codec_bound": [c_void_p, c_size_t, c_int, POINTER(c_double), POINTER(c_double)],
    "allreduce_compressed": [*_buffers, c_int, POINTER(Compression), c_void_p, c_void_p],
    "allreduce_fused": [POINTER(Vector), c_size_t, c_int, c_int, POINTER(Compression), c_void_p, c_void_p],
    "allreduce_reduced": [c_void_p, c_void_p, c_void_p, c_int, POINTER(Compression), c_void_p, c_void_p],
    "reduce_scatter_compressed": [*_buffers, c_int, POINTER(Compression), c_void_p, c_void_p],
    "allgather_compressed": [*_buffers, POINTER(Compression), c_void_p, c_void_p],
}
for _name, _arguments in _SIGNATURES.items():
    try:
        _function = getattr(lib, "ccl_" + _name)
    except AttributeError:
        raise ImportError(f"{PATH} has no ccl_{_name}: an older version") from None
    _function.argtypes, _function.restype = _arguments, c_int
lib.ccl_get_error_string.argtypes, lib.ccl_get_error_string.restype = [c_int], c_char_p
lib.ccl_get_last_error.argtypes, lib.ccl_get_last_error.restype = [c_void_p], c_char_p


def library_version() -> tuple:
    """(major, minor, patch) of the loaded library."""
    code = c_int()
    check(lib.ccl_get_version(byref(code)))
    return code.value // 10000, code.value // 100 % 100, code.value % 100


def error(result: int, comm: Optional[int] = None) -> Error:
    """The exception for a result of the calling thread's last call, or, with `comm`, for that
    communicator's sticky error."""
    text = lib.ccl_get_last_error(comm) or lib.ccl_get_error_string(result)
    return _ERRORS.get(result, Error)(result, text.decode("utf-8", "replace"))


def check(result: int) -> None:
    """Raises the exception for a result of the calling thread's last call."""
    if result != 0:
        raise error(result)


def in_range(name: str, value, least: int = -2**31, most: int = 2**31 - 1) -> int:
    """`value`, an integer that ctypes, which cuts integers without an error, passes as it is."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}") from None
    if not least <= number <= most:
        raise InvalidArgument(f"{name}: {number} is not in [{least}, {most}]")
    return number


if library_version()[:2] != API_VERSION:
    raise ImportError(f"{PATH}: version {'.'.join(map(str, library_version()))}, expected "
                      f"{'.'.join(map(str, API_VERSION))}")
