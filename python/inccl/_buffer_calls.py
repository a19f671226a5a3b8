# SPDX-License-Identifier: Apache-2.0
"""The upper-case calls of a communicator: collectives, send and receive on memory.

inccl/ccl.h describes each of them. The calls check the buffers and name the argument that is wrong.
"""
import ctypes
from ctypes import byref
from typing import Optional

from ._library import Compression, CompressionStats, InvalidArgument, Vector, check, error, in_range, lib
from ._objects import ReducerState, Residual, Stream, codec_of, outside_groups, stream_handle, thread_group
from ._types import IN_PLACE, Op, View, view

_UINT8 = 1
_MAX, _MIN, _PROD = 2, 3, 1


class BufferCalls:
    """Base of Communicator, which has _get(), _rank, _size and _written."""
    __slots__ = ()

    def Allreduce(self, sendbuf, recvbuf, op=Op.SUM, *, codec=None, seed=0, step=0, residual=None,
                  reducer=None, stream=None) -> Optional[CompressionStats]:
        """recvbuf = op over the ranks of sendbuf; equal lengths. IN_PLACE for one of them.

        codec: a specification, an inccl.Codec, or True for the communicator's default: compressed
        bytes travel, and the statistics of the call are returned. residual: see inccl.Residual.
        reducer: an inccl.ReducerState, without codec and residual; statistics, too.
        """
        send, recv = self._pair(sendbuf, recvbuf, True)
        if send.count != recv.count:
            raise InvalidArgument(f"recvbuf: {recv.count} elements, sendbuf has {send.count}")
        kind = _reduced(send, recv, op)
        if reducer is not None:
            return self._by_reducer(send, recv, kind, op, codec, seed, step, residual, reducer, stream)
        if codec is None and residual is None:
            return self._finish(lib.ccl_allreduce(
                send.address, recv.address, send.count, kind, _number(op), self._get(),
                stream_handle(stream)), stream, send, recv)
        return self._compressed(
            lambda how, on: lib.ccl_allreduce_compressed(
                send.address, recv.address, send.count, kind, _number(op), how, self._get(), on),
            codec, seed, step, residual, stream, send, recv)

    def Allreduce_fused(self, sendbufs, recvbufs, op=Op.SUM, *, codec=None, seed=0, step=0,
                        residuals=None, stream=None) -> CompressionStats:
        """Allreduce of several buffers of one type as one call, which is faster if they are small.

        sendbufs, recvbufs: lists; IN_PLACE for one of them. residuals: None, or a list that has an
        inccl.Residual or None for each buffer. Otherwise as Allreduce.
        """
        if sendbufs is IN_PLACE or recvbufs is IN_PLACE:
            both = recvbufs if sendbufs is IN_PLACE else sendbufs
            if both is IN_PLACE:
                raise InvalidArgument("sendbufs and recvbufs: both are IN_PLACE")
            pairs = [(IN_PLACE, buffer) for buffer in both]
        elif len(sendbufs) != len(recvbufs):
            raise InvalidArgument(f"recvbufs: {len(recvbufs)} buffers, sendbufs has {len(sendbufs)}")
        else:
            pairs = list(zip(sendbufs, recvbufs))
        uses_residuals = residuals is not None
        residuals = list(residuals) if uses_residuals else [None] * len(pairs)
        if len(residuals) != len(pairs):
            raise InvalidArgument(f"residuals: {len(residuals)}, there are {len(pairs)} buffers")
        vectors, kept, kinds = (Vector * len(pairs))(), [], set()
        for i, ((send, recv), residual) in enumerate(zip(pairs, residuals)):
            send, recv = self._pair(send, recv, True)
            if send.count != recv.count:
                raise InvalidArgument(f"recvbufs[{i}]: {recv.count} elements, sendbufs[{i}] has {send.count}")
            if residual is not None and not isinstance(residual, Residual):
                raise TypeError(f"residuals[{i}]: expected inccl.Residual, got {type(residual).__name__}")
            kinds.add(_reduced(send, recv, op))
            vectors[i] = (send.address, recv.address, send.count, residual._handle if residual else None)
            kept += [send, recv, residual]
        if len(kinds) > 1:
            raise InvalidArgument("sendbufs: elements of several types")
        kind = kinds.pop() if kinds else 0
        return self._compressed(
            lambda how, on: lib.ccl_allreduce_fused(
                vectors, len(vectors), kind, _number(op), how, self._get(), on),
            "none" if codec is None and not uses_residuals else codec, seed, step, None, stream, *kept)

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
        of recvbuf comes from rank s. In place: sendbuf and recvbuf are the same."""
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

    def _by_reducer(self, send, recv, kind, op, codec, seed, step, residual, state, stream):
        if not isinstance(state, ReducerState):
            raise TypeError(f"reducer: expected inccl.ReducerState, got {type(state).__name__}")
        if codec is not None or residual is not None:
            raise InvalidArgument("codec, residual: a reducer has its own")
        if send.count != state.rows * state.cols or kind != state.type:
            raise InvalidArgument(f"sendbuf: {send.count} elements of type {kind}, the state is of "
                                  f"{state.rows} x {state.cols} of type {state.type}")
        return self._compressed(
            lambda how, on: lib.ccl_allreduce_reduced(
                send.address, recv.address, state._handle, _number(op), how, self._get(), on),
            None, seed, step, None, stream, send, recv, state)

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
    if not hasattr(op, "__int__"):
        raise InvalidArgument(f"op: expected SUM, PROD, MAX, MIN, AVG or a PremulSum, got {op!r}")
    return in_range("op", int(op))


def _moved(send: View, recv: View, count: int):
    """(type, count) of a call that only moves `count` elements."""
    if send.type != recv.type or send.itemsize != recv.itemsize:
        raise InvalidArgument("recvbuf: elements of another type than sendbuf's")
    return (_UINT8, count * send.itemsize) if send.type is None else (send.type, count)
