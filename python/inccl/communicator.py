# SPDX-License-Identifier: Apache-2.0
"""The communicator: one rank's end of a group of ranks.

One thread at a time uses a communicator, except for abort, revoke and async_error.
"""
import ctypes
import os
import struct
from ctypes import byref, c_int, c_uint64, c_void_p
from typing import Any, Iterable, List, Optional

from ._buffer_calls import BufferCalls
from ._config import config_of, takes_options
from ._interrupt import watch
from ._library import InvalidArgument, InvalidUsage, Result, UniqueId, check, error, in_range, lib
from ._object_calls import ObjectCalls
from ._objects import Unpicklable, thread_group
from ._types import View, datatype, view

__all__ = ["Communicator", "PremulSum", "init", "init_all"]


def _id_of(id: bytes) -> UniqueId:
    if len(id) != ctypes.sizeof(UniqueId):
        raise InvalidArgument(f"id: {len(id)} bytes, expected the 128 of unique_id()")
    return UniqueId.from_buffer_copy(id)


class Communicator(Unpicklable, BufferCalls, ObjectCalls):
    """One rank's end of a communicator.

    Options, as keywords: codec (default of compressed calls), algorithm, channels, reproducible,
    preserve_input, init_timeout, op_timeout, heartbeat, dead_timeout (seconds), socket_ifname,
    name. inccl/ccl.h, ccl_config_t, describes them. What split, shrink and grow make has the
    options of this communicator, but for those that are given.

    A buffer is anything with __array_interface__, __cuda_array_interface__, __dlpack__ or the
    buffer protocol, C-contiguous, or (buffer, dtype) to give raw memory a type. Without a stream, a
    call on host memory returns with its result. With stream=inccl.Stream() it returns at once.

    Creation and every call may raise: TypeError or InvalidArgument, which name the argument, before
    anything is sent; InvalidUsage if ranks disagree or the communicator has ended; RemoteError if a
    peer died or has failed, Timeout if one is late, both with `peer`; OperatingSystemError. After an
    error of a call in which ranks take part together the communicator has failed: only destroy,
    abort and shrink work.
    """
    __slots__ = ("_handle", "_rank", "_size", "_pid", "_written", "_options", "__weakref__")

    @takes_options
    def __init__(self, id: bytes, rank: int, size: int, **config):
        id = _id_of(id)
        size, rank = in_range("size", size), in_range("rank", rank)
        self._create(lambda out: lib.ccl_comm_init_rank_config(
            out, size, id, rank, byref(config_of(**config))), config)

    # ------------------------------------------------------------------ life cycle

    @classmethod
    def _new(cls, make, options) -> "Communicator":
        comm = cls.__new__(cls)
        comm._create(make, options)
        return comm

    def _create(self, make, options):
        self._handle, self._options = None, options
        watch()
        out = c_void_p()
        check(make(byref(out)))
        if thread_group.depth > 0:
            thread_group.kept.append(out)
            thread_group.at_end.append(lambda: self._adopt(out.value))
        else:
            self._adopt(out.value)

    def _adopt(self, handle):
        self._pid = os.getpid()
        self._written = []  # what compressed calls write to that may not have completed
        self._handle = handle
        if handle is not None:
            number = c_int()
            check(lib.ccl_comm_user_rank(handle, byref(number)))
            self._rank = number.value
            check(lib.ccl_comm_count(handle, byref(number)))
            self._size = number.value

    @classmethod
    @takes_options
    def from_env(cls, **config) -> "Communicator":
        """Joins with rank, size and meeting point from mpirun, PMI, Slurm, torchrun, or INCCL_RANK,
        INCCL_SIZE and INCCL_JOB."""
        return cls._new(lambda out: lib.ccl_comm_init_env(out, byref(config_of(**config))), config)

    def _get(self):
        if self._handle is None:
            raise InvalidUsage(Result.INVALID_USAGE, "comm: destroyed, aborted, or not created yet")
        return self._handle

    def _child(self, make, config):
        """`make` gets where to put the handle, and the configuration; None: that of this one."""
        options = {**self._options, **config}
        given = byref(config_of(**options)) if config else None
        return self._new(lambda out: make(out, given), options)

    @takes_options
    def split(self, color: Optional[int], key: int = 0, **config) -> Optional["Communicator"]:
        """Ranks with equal color (>= 0) form a new communicator, ordered by key. With color None a
        rank takes part and gets None. Collective. Raises Timeout if a member of the part does not
        join within init_timeout."""
        if color is not None and color < 0:
            raise InvalidArgument(f"color: {color}, must be None or at least 0")
        number = -1 if color is None else in_range("color", color)
        key = in_range("key", key)
        comm = self._child(lambda out, given: lib.ccl_comm_split(self._get(), number, key, out, given), config)
        return None if color is None else comm

    @takes_options
    def shrink(self, excluded: Iterable[int] = (), *, abort: bool = False,
               **config) -> "Communicator":
        """A communicator of the ranks that are neither excluded nor dead. All remaining ranks call
        it, also after an error. abort: calls in progress end with an error first. Raises Timeout,
        which names the ranks that do not call it within init_timeout, and InvalidUsage on an excluded
        rank that calls it."""
        ranks = [in_range("excluded", rank) for rank in excluded]
        array = (c_int * len(ranks))(*ranks)
        return self._child(lambda out, given: lib.ccl_comm_shrink(
            self._get(), array if ranks else None, len(ranks), out, given, int(abort)), config)

    def unique_id(self) -> bytes:
        """An id with which new processes join in the next grow, as Communicator(id, rank, size). It
        contains a secret, and serves while this process and communicator live."""
        made = UniqueId()
        check(lib.ccl_comm_get_unique_id(self._get(), byref(made)))
        return bytes(made)

    @takes_options
    def grow(self, size: int, id: Optional[bytes] = None, rank: Optional[int] = None,
             **config) -> "Communicator":
        """A communicator of `size` ranks: this one's, which all call it, and those that join.

        id: from unique_id() of a member; members that pass None get it from one that does. rank: in
        the new communicator; None: as in this one. After shrink, members that pass their former
        ranks leave the places of the dead to those who join. Raises InvalidUsage if members disagree,
        Timeout or RemoteError if the ranks that join do not come or fail; this communicator goes on
        then."""
        number = -1 if rank is None else in_range("rank", rank)
        meeting = None if id is None else byref(_id_of(id))
        return self._child(lambda out, given: lib.ccl_comm_grow(
            self._get(), in_range("size", size), meeting, number, out, given), config)

    def finalize(self) -> None:
        """Waits until every call has completed; afterwards only destroy, abort and shrink work. Raises
        the error of a call that failed."""
        check(lib.ccl_comm_finalize(self._get()))

    def destroy(self) -> None:
        """Ends the communicator after its last call. Waits for this rank's calls on streams."""
        handle, self._handle = self._handle, None
        if handle is not None and self._pid == os.getpid():
            check(lib.ccl_comm_destroy(handle))

    close = destroy

    def abort(self) -> None:
        """Ends the communicator at any time, from any thread; calls in progress fail."""
        handle, self._handle = self._handle, None
        if handle is not None and self._pid == os.getpid():
            check(lib.ccl_comm_abort(handle))

    def revoke(self) -> None:
        """Makes the communicator fail on all ranks, from any thread."""
        check(lib.ccl_comm_revoke(self._get()))

    def set_timeout(self, seconds: float) -> None:
        """Sets the limit of operations of this rank, also of those in progress, from any thread.
        0: that of the creation."""
        if not 0 <= seconds <= 86400 or 0 < seconds < 0.001:
            raise InvalidArgument(f"seconds: {seconds}, must be 0 or in 0.001..86400")
        check(lib.ccl_comm_set_timeout(self._get(), int(seconds * 1000)))

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.destroy()
        else:
            self.abort()

    def __del__(self):
        if getattr(self, "_handle", None) is not None and self._pid == os.getpid():
            lib.ccl_comm_destroy(self._handle)

    # ------------------------------------------------------------------ queries

    @property
    def rank(self) -> int:
        self._get()
        return self._rank

    @property
    def size(self) -> int:
        self._get()
        return self._size

    Get_rank = rank.fget
    Get_size = size.fget

    @property
    def device(self) -> int:
        """The CUDA device of this rank; -1 in a process without devices."""
        number = c_int()
        check(lib.ccl_comm_device(self._get(), byref(number)))
        return number.value

    def async_error(self) -> Optional[Exception]:
        """The sticky error, or None. Any thread; does not wait."""
        code = c_int()
        check(lib.ccl_comm_get_async_error(self._get(), byref(code)))
        if code.value in (Result.SUCCESS, Result.IN_PROGRESS):
            return None
        return error(code.value, self._get())

    def last_completed(self) -> int:
        """After shrink: the last collective of the parent that completed on every rank of this
        communicator, from 1. Otherwise: how many have completed on this rank."""
        number = c_uint64()
        check(lib.ccl_comm_last_completed(self._get(), byref(number)))
        return number.value

    def register(self, buf: Any) -> "Registration":
        """Exports memory of inccl.alloc or inccl.empty to the other ranks until the result's
        close(); they then access it in place from their next call on."""
        return Registration(self, view(buf, "buf"))

    def premul_sum(self, scalar: float, dtype: Any) -> "PremulSum":
        """A reduction that multiplies this rank's input by `scalar` before the sum."""
        return PremulSum(self, scalar, dtype)

    def __repr__(self):
        if self._handle is None:
            return "<inccl.Communicator: ended>"
        return f"<inccl.Communicator: rank {self._rank}/{self._size}>"


class Registration(Unpicklable):
    """Memory that the other ranks may access in place; see Communicator.register."""

    def __init__(self, comm: Communicator, memory: View):
        handle = c_void_p()
        check(lib.ccl_comm_register(comm._get(), memory.address, memory.count * memory.itemsize,
                                    byref(handle)))
        self._comm, self._handle, self._memory = comm, handle.value, memory

    @property
    def exported(self) -> bool:
        """False for memory of another allocator: calls on it copy."""
        return self._handle is not None

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None and self._comm._handle is not None:
            check(lib.ccl_comm_deregister(self._comm._handle, handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class PremulSum(Unpicklable):
    """A reduction of one communicator: each rank multiplies its input by its scalar, then sums.
    Ranks create these in the same order. See Communicator.premul_sum."""

    def __init__(self, comm: Communicator, scalar: float, dtype: Any):
        self.type = datatype(dtype)
        self._comm = comm
        code = c_int()
        value = _scalar(scalar, self.type)
        check(lib.ccl_redop_create_premulsum(byref(code), value, self.type, 1, comm._get()))
        self.code = code.value

    def close(self) -> None:
        code, self.code = self.code, None
        if code is not None and self._comm._handle is not None:
            check(lib.ccl_redop_destroy(code, self._comm._handle))

    def __int__(self):
        if self.code is None:
            raise InvalidArgument("op: a closed PremulSum")
        return self.code


def _scalar(value, kind):
    """`value` as bytes of an element."""
    name = kind.name.lower()
    formats = {"int8": "b", "uint8": "B", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
               "float16": "e", "float32": "f", "float64": "d"}
    if name in formats:
        return struct.pack("=" + formats[name],
                           value if name.startswith("float") else int(value))
    if name == "bfloat16":  # to nearest, ties to even
        bits, = struct.unpack("=I", struct.pack("=f", value))
        return struct.pack("=H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    raise InvalidArgument(f"dtype: {name}: no scalars of this type")


@takes_options
def init(**config) -> Communicator:
    """The communicator of this job: Communicator.from_env. Options have the names of ccl_config_t; times are in
    seconds, 0 and None mean the default. Raises InvalidArgument for a bad option, Timeout or RemoteError if the
    ranks do not meet."""
    return Communicator.from_env(**config)


def init_all(nranks: int, devices: Optional[List[int]] = None) -> List[Communicator]:
    """All ranks of a communicator in this process; a thread of its own uses each of them."""
    nranks = in_range("nranks", nranks, 1)
    watch()
    if devices is not None and len(devices) != nranks:
        raise InvalidArgument(f"devices: {len(devices)}, expected {nranks}")
    handles = (c_void_p * nranks)()
    numbers = [in_range("devices", device) for device in devices or ()]
    check(lib.ccl_comm_init_all(ctypes.cast(handles, ctypes.POINTER(c_void_p)), nranks,
                                (c_int * nranks)(*numbers) if numbers else None))
    comms = []
    for handle in handles:
        comm = Communicator.__new__(Communicator)
        comm._options = {}
        comm._adopt(handle)
        comms.append(comm)
    return comms
