# SPDX-License-Identifier: Apache-2.0
"""What belongs to no communicator: codecs, streams, groups, memory, unique ids."""
import contextlib
import ctypes
import functools
import os
import threading
import weakref
from ctypes import byref, c_double, c_void_p
from typing import Any, Iterator, Tuple, Union

from ._library import (InvalidArgument, InvalidUsage, ResidualConfig, Result, UniqueId, check,
                       in_range, lib)
from ._types import DataType, datatype

__all__ = ["Codec", "Reducer", "ReducerState", "Residual", "Stream", "group", "alloc", "empty", "unique_id"]


class Unpicklable:
    """Has a handle of this process, which means nothing in another one, nor twice in this one."""
    __slots__ = ()

    def __reduce__(self):
        raise TypeError(f"inccl.{type(self).__name__}: cannot be pickled or copied"
                        + (", save() returns what it holds" if hasattr(self, "save") else ""))


class _Parsed:
    """A specification that the library has parsed: ccl_<_KIND>_create, _spec and _destroy."""
    _KIND: str

    def __init__(self, spec: str):
        if not isinstance(spec, str):
            raise TypeError(f"spec: expected str, got {type(spec).__name__}")
        handle = c_void_p()
        check(getattr(lib, f"ccl_{self._KIND}_create")(byref(handle), spec.encode()))
        self._handle = handle.value
        destroy = getattr(lib, f"ccl_{self._KIND}_destroy")
        weakref.finalize(self, destroy, handle.value).atexit = False

    @property
    def spec(self) -> str:
        """The canonical specification: equal texts mean equal bytes."""
        text = ctypes.create_string_buffer(1024)
        check(getattr(lib, f"ccl_{self._KIND}_spec")(self._handle, text, len(text)))
        return text.value.decode()

    def __repr__(self):
        return f"inccl.{type(self).__name__}({self.spec!r})"

    def __reduce__(self):
        return type(self), (self.spec,)


class Codec(_Parsed):
    """A parsed codec specification such as "hbi:bits=6" (docs/codecs.md)."""
    _KIND = "codec"

    def bound(self, count: int, nranks: int) -> Tuple[float, float]:
        """(bits per element, error relative to nranks times the largest element of a block)."""
        bits, relative = c_double(), c_double()
        check(lib.ccl_codec_bound(self._handle, in_range("count", count, 0, 2**63 - 1),
                                  in_range("nranks", nranks), byref(bits), byref(relative)))
        return bits.value, relative.value


@functools.lru_cache(maxsize=256)
def _parsed(spec: str) -> Codec:
    return Codec(spec)


def codec_of(codec: Union[str, Codec]) -> Codec:
    if isinstance(codec, Codec):
        return codec
    if isinstance(codec, str):
        return _parsed(codec)
    raise TypeError(f"codec: expected str or inccl.Codec, got {type(codec).__name__}")


def _handle_of(comm):
    if not hasattr(comm, "_get"):
        raise TypeError(f"comm: expected a Communicator, got {type(comm).__name__}")
    return comm._get()


class Residual(Unpicklable):
    """Error feedback: what compressed calls of `count` elements left out, which the next one sends.

    One call at a time uses it. storage: float32, or bfloat16 for half the memory. keep: in [0, 1);
    new = keep * scale * old + (1 - keep) * error of the call. docs/codecs.md, "Error feedback".
    """

    def __init__(self, count: int, *, storage: Any = DataType.FLOAT32, keep: float = 0.0):
        self.count = in_range("count", count, 0, 2**63 - 1)
        config = ResidualConfig(ctypes.sizeof(ResidualConfig), datatype(storage), keep)
        handle = c_void_p()
        check(lib.ccl_residual_create(byref(handle), self.count, byref(config)))
        self._handle = handle.value
        weakref.finalize(self, lib.ccl_residual_destroy, handle.value).atexit = False

    def set_scale(self, scale: float) -> None:
        """The factor of the residual in the next calls, 1 at first: former over new step size."""
        check(lib.ccl_residual_set_scale(self._handle, scale))

    def save(self) -> bytes:
        """The values, as float32, for a checkpoint."""
        values = (ctypes.c_float * self.count)()
        check(lib.ccl_residual_export(self._handle, values, self.count))
        return bytes(values)

    def load(self, values: bytes) -> None:
        """Replaces the values by those of save()."""
        if len(values) != 4 * self.count:
            raise InvalidArgument(f"values: {len(values)} bytes, expected {4 * self.count}")
        array = (ctypes.c_float * self.count).from_buffer_copy(values)
        check(lib.ccl_residual_import(self._handle, array, self.count))

    def reset(self) -> None:
        """Sets the values to zero."""
        check(lib.ccl_residual_reset(self._handle))

    def rollback(self, comm) -> None:
        """Takes back the last call if some rank of comm, which comes from shrink, has not completed it. A call on
        comm does this first."""
        check(lib.ccl_residual_rollback(self._handle, _handle_of(comm)))


class Reducer(_Parsed):
    """A parsed specification of a sparse, low-rank or sketching method and the codec of its values,
    such as "topk:k=0.01|fp16" (docs/reducers.md)."""
    _KIND = "reducer"

    def state(self, rows: int, cols: int, type: Any = DataType.FLOAT32) -> "ReducerState":
        return ReducerState(self, rows, cols, type)


class ReducerState(Unpicklable):
    """What a reducer keeps of a row-major tensor of rows x cols elements between calls: the residual
    (error feedback), a warm start, the number of calls. Each rank has its own. One call at a time
    uses it. type: float32, float16 or bfloat16.
    """

    def __init__(self, reducer: Union[str, Reducer], rows: int, cols: int,
                 type: Any = DataType.FLOAT32):
        self.reducer = Reducer(reducer) if isinstance(reducer, str) else reducer
        if not isinstance(self.reducer, Reducer):
            raise TypeError(f"reducer: expected str or inccl.Reducer, got {reducer.__class__.__name__}")
        self.rows, self.cols = in_range("rows", rows, 0, 2**63 - 1), in_range("cols", cols, 0, 2**63 - 1)
        handle = c_void_p()
        check(lib.ccl_reducer_state_create(byref(handle), self.reducer._handle, self.rows, self.cols,
                                           datatype(type)))
        self._handle, self.type = handle.value, datatype(type)
        weakref.finalize(self, lib.ccl_reducer_state_destroy, handle.value).atexit = False

    def save(self) -> bytes:
        """The state, for a checkpoint."""
        size = ctypes.c_size_t()
        check(lib.ccl_reducer_state_export(self._handle, None, byref(size)))
        data = ctypes.create_string_buffer(max(1, size.value))
        check(lib.ccl_reducer_state_export(self._handle, data, byref(size)))
        return data.raw[:size.value]

    def load(self, data: bytes) -> None:
        """Replaces it by what save() of a state of equal specification and shape has returned."""
        check(lib.ccl_reducer_state_import(self._handle, bytes(data), len(data)))

    def reset(self) -> None:
        """As a new state."""
        check(lib.ccl_reducer_state_reset(self._handle))

    def rollback(self, comm) -> None:
        """As Residual.rollback."""
        check(lib.ccl_reducer_state_rollback(self._handle, _handle_of(comm)))


class Stream(Unpicklable):
    """An order of asynchronous calls on host memory, for any communicators of this process.

    A call with stream=s returns at once; the stream keeps its buffers alive until synchronize() or
    a successful query(). As a context manager it synchronizes at the end of the block.
    """

    def __init__(self):
        handle = c_void_p()
        check(lib.ccl_stream_create(byref(handle)))
        self._handle = handle.value
        self._pid = os.getpid()
        self._keeping = threading.Lock()
        self._kept = []  # what calls use that may not have completed

    def _keep(self, used) -> None:
        with self._keeping:
            self._kept.append(used)

    def _release(self, completed) -> None:
        gone = set(map(id, completed))
        with self._keeping:
            self._kept = [used for used in self._kept if id(used) not in gone]

    def _begun(self):
        """The calls that have been submitted: other threads may add some meanwhile."""
        with self._keeping:
            return list(self._kept)

    def synchronize(self) -> None:
        """Waits until all calls have completed; raises the first error since the last raised."""
        begun = self._begun()
        result = lib.ccl_stream_synchronize(stream_handle(self))
        self._release(begun)
        check(result)

    def query(self) -> bool:
        """Whether all calls have completed; raises as synchronize(). Does not wait."""
        begun = self._begun()
        result = lib.ccl_stream_query(stream_handle(self))
        if result == Result.IN_PROGRESS:
            return False
        self._release(begun)
        check(result)
        return True

    def close(self) -> None:
        """Waits for the calls, without raising their error, and frees the stream."""
        handle, self._handle = self._handle, None
        # The thread that runs the calls does not exist in a forked child.
        if handle is not None and self._pid == os.getpid():
            lib.ccl_stream_synchronize(handle)
            lib.ccl_stream_destroy(handle)
            self._kept = []

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind, value, trace):
        try:
            if kind is None:
                self.synchronize()
        finally:
            self.close()

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self.close()


def stream_handle(stream: Any):
    """The ccl_stream_t of None, a Stream, a CUDA stream's number, or an object that has one."""
    if stream is None:
        return None
    if isinstance(stream, Stream):
        if stream._handle is None:
            raise InvalidArgument("stream: closed")
        if stream._pid != os.getpid():
            raise InvalidUsage(Result.INVALID_USAGE, "stream: of the process that forked this one")
        return stream._handle
    if isinstance(stream, int):
        return in_range("stream", stream, 0, 2**64 - 1)
    for name in ("cuda_stream", "ptr"):  # PyTorch, CuPy
        if isinstance(getattr(stream, name, None), int):
            return getattr(stream, name)
    raise TypeError(f"stream: expected None, inccl.Stream or a CUDA stream, got "
                    f"{type(stream).__name__}")


class _ThreadGroup(threading.local):
    depth = 0
    kept = ()
    at_end = ()


thread_group = _ThreadGroup()


def outside_groups(name: str) -> None:
    """Refuses a call that needs its result before it returns."""
    if thread_group.depth > 0:
        raise InvalidUsage(Result.INVALID_USAGE, f"{name}: not in a group, whose calls start at "
                           "its end")


@contextlib.contextmanager
def group() -> Iterator[None]:
    """The calls of the block start together when it ends, and have completed after it (those
    without a stream). An exception in the block cancels all of them."""
    check(lib.ccl_group_start())
    mine = thread_group
    if mine.depth == 0:
        mine.kept, mine.at_end = [], []
    mine.depth += 1
    try:
        yield
    except BaseException:
        mine.depth -= 1
        lib.ccl_send(None, 0, 0, 0, None, None)  # not a communicator: the group starts nothing
        lib.ccl_group_end()
        if mine.depth == 0:
            mine.kept, mine.at_end = (), ()
        raise
    mine.depth -= 1
    result = lib.ccl_group_end()
    if mine.depth == 0:
        at_end, mine.kept, mine.at_end = mine.at_end, (), ()
        if result == 0:
            for finish in at_end:
                finish()
    check(result)


def alloc(nbytes: int) -> memoryview:
    """Zeroed memory of ccl_mem_alloc. Ranks of this host access it in place (from 1 MiB on). It is
    freed with the last object that uses it."""
    nbytes = in_range("nbytes", nbytes, 1, 2**63 - 1)
    pointer = c_void_p()
    check(lib.ccl_mem_alloc(byref(pointer), nbytes))
    memory = (ctypes.c_ubyte * nbytes).from_address(pointer.value)
    weakref.finalize(memory, lib.ccl_mem_free, pointer.value).atexit = False
    return memoryview(memory).cast("B")


def empty(shape, dtype="float32"):
    """A NumPy array in memory of alloc(). dtype: anything that numpy.dtype takes."""
    import numpy
    dtype = numpy.dtype(dtype)
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    count = 1
    for extent in extents:
        count *= extent
    memory = alloc(max(count * dtype.itemsize, 1))
    return numpy.frombuffer(memory, dtype, count).reshape(extents)


def unique_id() -> bytes:
    """128 bytes that admit ranks to one communicator. They contain a secret: never log them. The
    caller passes them to the other ranks, and must live until all ranks have joined."""
    made = UniqueId()
    check(lib.ccl_get_unique_id(byref(made)))
    return bytes(made)
