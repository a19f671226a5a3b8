# SPDX-License-Identifier: Apache-2.0
"""The communicator: one rank's end of a group of ranks.

One thread at a time uses a communicator, except for abort, revoke and async_error.
"""
import ctypes
import os
import struct
from ctypes import byref, c_int, c_uint64, c_void_p
from typing import Any, Iterable, List, Optional

from ._library import (Compression, CompressionStats, Config, InvalidArgument, InvalidUsage, Result,
                       UniqueId, check, error, in_range, lib)
from ._objects import Residual, Stream, codec_of, outside_groups, stream_handle, thread_group
from ._object_calls import ObjectCalls
from ._types import IN_PLACE, Op, View, datatype, view

__all__ = ["Communicator", "PremulSum", "init", "init_all"]

_UINT8 = 1
_MAX, _MIN, _PROD = 2, 3, 1


def _config(codec: Optional[str] = None, algorithm: Optional[str] = None, channels: int = 0,
            reproducible: bool = False, preserve_input: bool = False,
            init_timeout: float = 0, op_timeout: float = 0, heartbeat: float = 0,
            dead_timeout: float = 0, socket_ifname: Optional[str] = None,
            name: Optional[str] = None) -> Config:
    """ccl_config_t. Times are in seconds; 0 and None mean the default."""
    def milliseconds(what, seconds):
        if seconds == 0 or (what == "dead_timeout" and seconds == -1):
            return int(seconds)
        if not 0.001 <= seconds <= 2147483:
            raise InvalidArgument(f"{what}: {seconds} is not in 0.001..2147483 seconds")
        return int(seconds * 1000)

    def text(value):
        return None if value is None else value.encode()

    return Config(ctypes.sizeof(Config), 1, text(codec), text(algorithm),
                  in_range("channels", channels),
                  int(reproducible), int(preserve_input),
                  milliseconds("init_timeout", init_timeout),
                  milliseconds("op_timeout", op_timeout), milliseconds("heartbeat", heartbeat),
                  milliseconds("dead_timeout", dead_timeout), text(socket_ifname), text(name))


class PremulSum:
    """A reduction of one communicator: each rank multiplies its input by its scalar, then sums.
    Ranks create these in the same order. See Communicator.premul_sum."""

    def __init__(self, comm: "Communicator", scalar: float, dtype: Any):
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


class Communicator(ObjectCalls):
    """One rank's end of a communicator.

    Options, as keywords: codec (default of compressed calls), algorithm, channels, reproducible,
    preserve_input, init_timeout, op_timeout, heartbeat, dead_timeout (seconds), socket_ifname,
    name. inccl/ccl.h, ccl_config_t, describes them.

    A buffer is anything with __array_interface__, __cuda_array_interface__, __dlpack__ or the
    buffer protocol, C-contiguous, or (buffer, dtype) to give raw memory a type. Without a stream, a
    call on host memory returns with its result. With stream=inccl.Stream() it returns at once.
    """
    __slots__ = ("_handle", "_rank", "_size", "_pid", "_written", "__weakref__")

    def __init__(self, id: bytes, rank: int, size: int, **config):
        if len(id) != ctypes.sizeof(UniqueId):
            raise InvalidArgument(f"id: {len(id)} bytes, expected the 128 of unique_id()")
        size, rank = in_range("size", size), in_range("rank", rank)
        self._create(lambda out: lib.ccl_comm_init_rank_config(
            out, size, UniqueId.from_buffer_copy(id), rank, byref(_config(**config))))

    # ------------------------------------------------------------------ life cycle

    @classmethod
    def _new(cls, make) -> "Communicator":
        comm = cls.__new__(cls)
        comm._create(make)
        return comm

    def _create(self, make):
        self._handle = None
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
    def from_env(cls, **config) -> "Communicator":
        """Joins with rank, size and meeting point from mpirun, PMI, Slurm, torchrun, or INCCL_RANK,
        INCCL_SIZE and INCCL_JOB."""
        return cls._new(lambda out: lib.ccl_comm_init_env(out, byref(_config(**config))))

    def _get(self):
        if self._handle is None:
            raise InvalidUsage(Result.INVALID_USAGE, "comm: destroyed, aborted, or not created yet")
        return self._handle

    def split(self, color: Optional[int], key: int = 0, **config) -> Optional["Communicator"]:
        """Ranks with equal color (>= 0) form a new communicator, ordered by key. With color None a
        rank takes part and gets None. Collective."""
        if color is not None and color < 0:
            raise InvalidArgument(f"color: {color}, must be None or at least 0")
        given = byref(_config(**config)) if config else None
        number = -1 if color is None else in_range("color", color)
        key = in_range("key", key)
        comm = self._new(lambda out: lib.ccl_comm_split(self._get(), number, key, out, given))
        return None if color is None else comm

    def shrink(self, excluded: Iterable[int] = (), *, abort: bool = False,
               **config) -> "Communicator":
        """A communicator of the ranks that are neither excluded nor dead. All remaining ranks call
        it, also after an error. abort: calls in progress end with an error first."""
        ranks = [in_range("excluded", rank) for rank in excluded]
        array = (c_int * len(ranks))(*ranks)
        given = byref(_config(**config)) if config else None
        return self._new(lambda out: lib.ccl_comm_shrink(
            self._get(), array if ranks else None, len(ranks), out, given, int(abort)))

    def finalize(self) -> None:
        """Waits until every call has completed; afterwards only destroy, abort and shrink work."""
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

    def premul_sum(self, scalar: float, dtype: Any) -> PremulSum:
        """A reduction that multiplies this rank's input by `scalar` before the sum."""
        return PremulSum(self, scalar, dtype)

    # ------------------------------------------------------------------ collectives on buffers

    def Allreduce(self, sendbuf, recvbuf, op=Op.SUM, *, codec=None, seed=0, step=0, residual=None,
                  stream=None) -> Optional[CompressionStats]:
        """recvbuf = op over the ranks of sendbuf; equal lengths. IN_PLACE for one of them.

        codec: a specification, an inccl.Codec, or True for the communicator's default: compressed
        bytes travel, and the statistics of the call are returned. residual: see inccl.Residual.
        """
        send, recv = self._pair(sendbuf, recvbuf, True)
        if send.count != recv.count:
            raise InvalidArgument(f"recvbuf: {recv.count} elements, sendbuf has {send.count}")
        kind = _reduced(send, recv, op)
        if codec is None and residual is None:
            return self._finish(lib.ccl_allreduce(
                send.address, recv.address, send.count, kind, _number(op), self._get(),
                stream_handle(stream)), stream, send, recv)
        return self._compressed(
            lambda how, on: lib.ccl_allreduce_compressed(
                send.address, recv.address, send.count, kind, _number(op), how, self._get(), on),
            codec, seed, step, residual, stream, send, recv)

    def Reduce_scatter(self, sendbuf, recvbuf, op=Op.SUM, *, codec=None, seed=0, step=0,
                       residual=None, stream=None) -> Optional[CompressionStats]:
        """sendbuf holds size segments of recvbuf's length; rank r gets the reduction of segment r.
        In place: recvbuf is segment `rank` of sendbuf."""
        send, recv = view(sendbuf, "sendbuf"), view(recvbuf, "recvbuf", True)
        self._segments("sendbuf", send, "recvbuf", recv)
        kind = _reduced(send, recv, op)
        if codec is None and residual is None:
            return self._finish(lib.ccl_reduce_scatter(
                send.address, recv.address, recv.count, kind, _number(op), self._get(),
                stream_handle(stream)), stream, send, recv)
        return self._compressed(
            lambda how, on: lib.ccl_reduce_scatter_compressed(
                send.address, recv.address, recv.count, kind, _number(op), how, self._get(), on),
            codec, seed, step, residual, stream, send, recv)

    Reduce_scatter_block = Reduce_scatter

    def Allgather(self, sendbuf, recvbuf, *, codec=None, seed=0, step=0, residual=None,
                  stream=None) -> Optional[CompressionStats]:
        """recvbuf holds size segments of sendbuf's length; segment r is rank r's sendbuf. IN_PLACE
        as sendbuf: this rank's input is segment `rank` of recvbuf."""
        recv = view(recvbuf, "recvbuf", True)
        send = self._own_segment("recvbuf", recv) if sendbuf is IN_PLACE else \
            view(sendbuf, "sendbuf")
        self._segments("recvbuf", recv, "sendbuf", send)
        kind, count = _moved(send, recv, send.count)
        if codec is None and residual is None:
            return self._finish(lib.ccl_allgather(send.address, recv.address, count, kind,
                                                  self._get(), stream_handle(stream)),
                                stream, send, recv)
        kind = _reduced(send, recv, Op.SUM)
        return self._compressed(
            lambda how, on: lib.ccl_allgather_compressed(
                send.address, recv.address, send.count, kind, how, self._get(), on),
            codec, seed, step, residual, stream, send, recv)

    def Bcast(self, buf, root: int = 0, *, stream=None) -> None:
        """buf of every rank = buf of root."""
        data = view(buf, "buf", self._root(root) != self._rank)
        kind, count = _moved(data, data, data.count)
        self._finish(lib.ccl_broadcast(data.address, data.address, count, kind, root, self._get(),
                                       stream_handle(stream)), stream, data)

    def Reduce(self, sendbuf, recvbuf, op=Op.SUM, root: int = 0, *, stream=None) -> None:
        """recvbuf of root = op over the ranks of sendbuf. Other ranks may pass None as recvbuf."""
        if self._root(root) == self._rank:
            send, recv = self._pair(sendbuf, recvbuf, True)
            if send.count != recv.count:
                raise InvalidArgument(f"recvbuf: {recv.count} elements, sendbuf has {send.count}")
        else:
            send = recv = view(sendbuf, "sendbuf")
        kind = _reduced(send, recv, op)
        to = recv.address if root == self._rank else None
        self._finish(lib.ccl_reduce(send.address, to, send.count, kind, _number(op), root,
                                    self._get(), stream_handle(stream)), stream, send, recv)

    def Alltoall(self, sendbuf, recvbuf, *, stream=None) -> None:
        """Both hold size segments of equal lengths; segment d of sendbuf goes to rank d, segment s
        of recvbuf comes from rank s. There is no in-place form."""
        send, recv = view(sendbuf, "sendbuf"), view(recvbuf, "recvbuf", True)
        if send.count * send.itemsize != recv.count * recv.itemsize:
            raise InvalidArgument(f"recvbuf: {recv.count * recv.itemsize} bytes, sendbuf has "
                                  f"{send.count * send.itemsize}")
        count = self._segment_length("sendbuf", send)
        kind, count = _moved(send, recv, count)
        self._finish(lib.ccl_alltoall(send.address, recv.address, count, kind, self._get(),
                                      stream_handle(stream)), stream, send, recv)

    def Gather(self, sendbuf, recvbuf, root: int = 0, *, stream=None) -> None:
        """recvbuf of root holds size segments: segment r is rank r's sendbuf. IN_PLACE as root's
        sendbuf. Other ranks may pass None as recvbuf."""
        if self._root(root) == self._rank:
            recv = view(recvbuf, "recvbuf", True)
            send = self._own_segment("recvbuf", recv) if sendbuf is IN_PLACE else \
                view(sendbuf, "sendbuf")
            self._segments("recvbuf", recv, "sendbuf", send)
        else:
            send = recv = view(sendbuf, "sendbuf")
        kind, count = _moved(send, recv, send.count)
        to = recv.address if root == self._rank else None
        self._finish(lib.ccl_gather(send.address, to, count, kind, root, self._get(),
                                    stream_handle(stream)), stream, send, recv)

    def Scatter(self, sendbuf, recvbuf, root: int = 0, *, stream=None) -> None:
        """sendbuf of root holds size segments; rank r gets segment r. IN_PLACE as root's recvbuf.
        Other ranks may pass None as sendbuf."""
        if self._root(root) == self._rank:
            send = view(sendbuf, "sendbuf")
            recv = self._own_segment("sendbuf", send) if recvbuf is IN_PLACE else \
                view(recvbuf, "recvbuf", True)
            self._segments("sendbuf", send, "recvbuf", recv)
        else:
            send = recv = view(recvbuf, "recvbuf", True)
        kind, count = _moved(send, recv, recv.count)
        origin = send.address if root == self._rank else None
        self._finish(lib.ccl_scatter(origin, recv.address, count, kind, root, self._get(),
                                     stream_handle(stream)), stream, send, recv)

    def Send(self, buf, dest: int, *, stream=None) -> None:
        """Sends to rank `dest`, which receives the same count and type. May wait for the receive:
        an exchange needs inccl.group()."""
        data = view(buf, "buf")
        dest = in_range("dest", dest, 0, self.size - 1)
        kind, count = _moved(data, data, data.count)
        self._finish(lib.ccl_send(data.address, count, kind, dest, self._get(),
                                  stream_handle(stream)), stream, data)

    def Recv(self, buf, source: int, *, stream=None) -> None:
        """Receives what rank `source` sends; messages of one rank arrive in their order."""
        data = view(buf, "buf", True)
        source = in_range("source", source, 0, self.size - 1)
        kind, count = _moved(data, data, data.count)
        self._finish(lib.ccl_recv(data.address, count, kind, source, self._get(),
                                  stream_handle(stream)), stream, data)

    def Barrier(self) -> None:
        """Waits until all ranks have called it; not in a group."""
        outside_groups("Barrier")
        one = (ctypes.c_ubyte * 1)()
        check(lib.ccl_allreduce(one, one, 1, _UINT8, _MAX, self._get(), None))

    barrier = Barrier

    # ------------------------------------------------------------------ helpers

    def _root(self, root):
        return in_range("root", root, 0, self.size - 1)

    @staticmethod
    def _pair(sendbuf, recvbuf, write):
        """Views of both; IN_PLACE stands for the other one."""
        if recvbuf is IN_PLACE:
            if sendbuf is IN_PLACE:
                raise InvalidArgument("sendbuf and recvbuf: both are IN_PLACE")
            both = view(sendbuf, "sendbuf", write)
            return both, both
        recv = view(recvbuf, "recvbuf", write)
        return (recv if sendbuf is IN_PLACE else view(sendbuf, "sendbuf")), recv

    def _segment_length(self, name, whole):
        count, rest = divmod(whole.count, self.size)
        if rest:
            raise InvalidArgument(f"{name}: {whole.count} elements are not {self._size} equal "
                                  "segments")
        return count

    def _own_segment(self, name, whole: View) -> View:
        count = self._segment_length(name, whole)
        return whole._replace(address=whole.address + self._rank * count * whole.itemsize,
                              count=count)

    def _segments(self, whole_name, whole, name, one):
        if whole.count * whole.itemsize != one.count * one.itemsize * self.size:
            raise InvalidArgument(
                f"{whole_name}: {whole.count * whole.itemsize} bytes, expected {self._size} "
                f"segments of {name}'s {one.count * one.itemsize}")

    def _compressed(self, call, codec, seed, step, residual, stream, *views):
        seed, step = in_range("seed", seed, 0, 2**64 - 1), in_range("step", step, 0, 2**64 - 1)
        if residual is not None and not isinstance(residual, Residual):
            raise TypeError(f"residual: expected inccl.Residual, got {type(residual).__name__}")
        stats = CompressionStats()
        parsed = None if codec in (None, True) else codec_of(codec)
        how = Compression(ctypes.sizeof(Compression), parsed._handle if parsed else None, seed,
                          step, residual._handle if residual else None, ctypes.pointer(stats))
        self._finish(call(byref(how), stream_handle(stream)), stream, *views, stats, parsed,
                     residual)
        # A CUDA stream cannot keep them. What has completed goes one call later: the library may
        # still be about to write stats.size, its last store.
        self._written = [used for used in self._written if not used[0]]
        for used in self._written:
            used[0] = used[1].completed
        if not stats.completed:
            self._written.append([False, stats, parsed, views, residual])
        return stats

    @staticmethod
    def _finish(result, stream, *kept):
        """Keeps what the call uses until it has completed, if that is later; raises its error."""
        if result != 0:
            raise error(result)
        if thread_group.depth > 0:
            thread_group.kept.append(kept)
        if isinstance(stream, Stream):
            stream._keep(kept)

    def __repr__(self):
        if self._handle is None:
            return "<inccl.Communicator: ended>"
        return f"<inccl.Communicator: rank {self._rank}/{self._size}>"


class Registration:
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


def _reduced(send: View, recv: View, op) -> int:
    """The element type of a reduction."""
    kind = send.type
    if kind is None or recv.type is None:
        name, bad = ("sendbuf", send) if kind is None else ("recvbuf", recv)
        raise TypeError(f"{name}: elements of {bad.itemsize} bytes of a type that has no "
                        "reductions")
    if kind != recv.type or send.is_bool != recv.is_bool:
        raise InvalidArgument("recvbuf: elements of another type than sendbuf's")
    if send.is_bool and op not in (_MAX, _MIN, _PROD):
        raise TypeError(f"op: bool has MAX, MIN and PROD only, got {op!r}")
    return kind


def _number(op) -> int:
    return in_range("op", int(op))


def _moved(send: View, recv: View, count: int):
    """(type, count) of a call that only moves `count` elements."""
    if send.type != recv.type or send.itemsize != recv.itemsize:
        raise InvalidArgument("recvbuf: elements of another type than sendbuf's")
    return (_UINT8, count * send.itemsize) if send.type is None else (send.type, count)


def init(**config) -> Communicator:
    """The communicator of this job: Communicator.from_env."""
    return Communicator.from_env(**config)


def init_all(nranks: int, devices: Optional[List[int]] = None) -> List[Communicator]:
    """All ranks of a communicator in this process; a thread of its own uses each of them."""
    nranks = in_range("nranks", nranks, 1)
    if devices is not None and len(devices) != nranks:
        raise InvalidArgument(f"devices: {len(devices)}, expected {nranks}")
    handles = (c_void_p * nranks)()
    numbers = [in_range("devices", device) for device in devices or ()]
    check(lib.ccl_comm_init_all(ctypes.cast(handles, ctypes.POINTER(c_void_p)), nranks,
                                (c_int * nranks)(*numbers) if numbers else None))
    comms = []
    for handle in handles:
        comm = Communicator.__new__(Communicator)
        comm._adopt(handle)
        comms.append(comm)
    return comms
