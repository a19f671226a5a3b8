# SPDX-License-Identifier: Apache-2.0
"""Sends and receives. Each pair of ranks and direction has a communicator of its own.

So a send waits for nothing but its receive: not for collectives, and not for sends and receives of
other pairs. The ranks make such a communicator when both have first used the pair; they meet
through the store of the process group. A message is a header (tag, bytes) and the elements.
"""
import collections
import contextlib
import ctypes
import threading
import time
from typing import Callable, Optional

import torch

import inccl
from inccl._library import check, lib

from ._meeting import poll
from ._tensors import UINT8, as_it_lies, check_writable, contiguous, nbytes, write
from ._work import Runner, Work, backend_error

_NO_LIMIT = 24 * 3600.0  # the library's longest: the limits of sends and receives are those of Work


class _Header(ctypes.Structure):
    _fields_ = [("tag", ctypes.c_int64), ("length", ctypes.c_uint64)]


class Closed(RuntimeError):
    pass


class _Channel:
    """One direction of one pair; makes its communicator when it is first used."""

    def __init__(self, store, source: int, dest: int, sends: bool, timeout: float, options: dict,
                 group_error: Callable[[], Optional[Exception]]):
        self._store, self._key = store, f"pair/{source}-{dest}"
        self._group_error = group_error
        self._sends, self._timeout, self._options = sends, timeout, options
        self._comm: Optional[inccl.Communicator] = None
        self._creating = threading.Lock()
        self.closed = False

    def comm(self) -> inccl.Communicator:
        """Waits for the other rank, on a thread of the channel."""
        if self._comm is not None:
            return self._comm
        # The sender makes its id when the receiver is there: a creation cannot be interrupted.
        if self._sends:
            self._await(self._key + "/receiver")
            made = inccl.unique_id()
            self._store.set(self._key, made.hex())
        else:
            self._store.set(self._key + "/receiver", "here")
            self._await(self._key)
            made = bytes.fromhex(self._store.get(self._key).decode())
        comm = inccl.Communicator(made, 0 if self._sends else 1, 2,
                                  **{**self._options, "init_timeout": self._timeout,
                                     "op_timeout": _NO_LIMIT})
        with self._creating:
            if self.closed:
                comm.abort()
                raise Closed("the process group has ended")
            self._comm = comm
        return comm

    def _await(self, key: str) -> None:
        for _ in poll(lambda: self._store.check([key])):
            if self.closed:
                raise Closed("the process group has ended")
            error = self._group_error()
            if error is not None:
                raise error

    def abort(self) -> None:
        with self._creating:
            self.closed = True
            comm, self._comm = self._comm, None
        if comm is not None:
            comm.abort()

    def destroy(self, deadline: float) -> None:
        """Waits until the other rank has what was sent, at most until `deadline`."""
        with self._creating:
            self.closed = True
            comm = self._comm
        if comm is not None:
            thread = threading.Thread(target=_destroy, args=(comm._get(),), daemon=True)
            thread.start()
            thread.join(max(0, deadline - time.monotonic()))
            if thread.is_alive():
                with contextlib.suppress(inccl.InvalidArgument):  # it has ended meanwhile
                    self.abort()
                thread.join()
            else:
                comm._handle = None


def _destroy(handle):
    lib.ccl_comm_destroy(handle)


class Outgoing:
    """Sends to one rank, in order."""

    def __init__(self, channel: _Channel):
        self._channel = channel
        self._runner = Runner("inccl-send")

    def post(self, tensor: torch.Tensor, tag: int, work: Work) -> None:
        """`tensor` is contiguous and on the host."""
        def call():
            handle = self._channel.comm()._get()
            header = _Header(tag, nbytes(tensor))
            check(lib.ccl_send(ctypes.addressof(header), ctypes.sizeof(header), UINT8, 1, handle,
                               None))
            check(lib.ccl_send(tensor.data_ptr(), header.length, UINT8, 1, handle, None))
        self._runner.submit(call, work)

    def close(self, deadline: float) -> None:
        """Waits for the sends until `deadline`, of time.monotonic(); later ones fail."""
        if not self._runner.close(deadline):
            self._channel.abort()
            self._runner.close()
        self._channel.destroy(deadline)

    def abort(self) -> None:
        self._channel.abort()

    def join(self, deadline: float) -> None:
        """After abort: waits until the sends have failed."""
        self._runner.close(deadline)


class Incoming:
    """Receives from one rank, matched by tag. A thread takes messages while receives are posted;
    those that match none are kept."""

    def __init__(self, channel: Optional[_Channel], rank: int):
        self._channel, self._rank = channel, rank  # channel None: from this rank itself
        self._changed = threading.Condition()
        self._posted = []  # (tag, tensor, work, claim)
        self._kept = collections.defaultdict(collections.deque)  # by tag
        self._error: Optional[BaseException] = None
        self._thread: Optional[threading.Thread] = None
        self._receiving = True  # the thread is, or will be, in a call

    def post(self, tensor: torch.Tensor, tag: int, work: Work, claim: Callable[[], bool]) -> None:
        """claim: True for the first of the ranks that has a message for this receive."""
        with self._changed:
            if self._error is None and self._kept[tag]:
                if claim():
                    self._finish(self._kept[tag].popleft(), tensor, work)
                return
            if self._error is None:
                self._posted.append((tag, tensor, work, claim))
                if self._thread is None and self._channel is not None:
                    self._thread = threading.Thread(target=self._loop, name="inccl-recv",
                                                    daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                return
        if claim():
            work._complete(backend_error(work._what, self._error))

    def deliver(self, message: torch.Tensor, tag: int) -> None:
        """A message from this rank itself; the caller leaves it alone."""
        with self._changed:
            match = self._match(tag)
            if match is None:
                self._kept[tag].append(message)
                return
        self._finish(message, *match)

    def _match(self, tag):
        """The first posted receive of this tag that no other rank has claimed."""
        for index, (posted_tag, tensor, work, claim) in enumerate(self._posted):
            if posted_tag == tag:
                del self._posted[index]
                return (tensor, work) if claim() else self._match(tag)
        return None

    def _finish(self, message, tensor, work):
        work._source = self._rank
        if nbytes(message) != nbytes(tensor):
            work._complete(backend_error(work._what, ValueError(
                f"tensor: {nbytes(tensor)} bytes, rank {self._rank} has sent {nbytes(message)}")))
            return
        if tensor.numel() > 0:
            write(tensor.detach().view(-1).view(torch.uint8), message)
        work._complete()

    def _loop(self):
        try:
            handle = self._channel.comm()._get()
            while True:
                with self._changed:
                    self._receiving = False
                    while not self._posted and not self._channel.closed:
                        self._changed.wait()
                    if self._channel.closed:
                        raise Closed("the process group has ended")
                    self._receiving = True
                self._take_one(handle)
        except Exception as error:
            with self._changed:
                self._error = error
                posted, self._posted = self._posted, []
            for _, _, work, claim in posted:
                if claim():
                    work._complete(backend_error(work._what, error))

    def _take_one(self, handle):
        header = _Header()
        check(lib.ccl_recv(ctypes.addressof(header), ctypes.sizeof(header), UINT8, 0, handle, None))
        with self._changed:
            match = self._match(header.tag)
        if match is not None and nbytes(match[0]) == header.length:
            tensor, work = match
            check_or_fail(lib.ccl_recv(tensor.data_ptr(), header.length, UINT8, 0, handle, None),
                          work)
            work._source = self._rank
            work._complete()
            return
        message = torch.empty(header.length, dtype=torch.uint8)
        check_or_fail(lib.ccl_recv(message.data_ptr(), header.length, UINT8, 0, handle, None),
                      match[1] if match else None)
        if match is not None:
            self._finish(message, *match)
            return
        with self._changed:
            match = self._match(header.tag)  # posted meanwhile
            if match is None:
                self._kept[header.tag].append(message)
        if match is not None:
            self._finish(message, *match)

    def close(self, deadline: float = 0) -> None:
        with self._changed:
            if self._channel is not None and not self._receiving:
                self._channel.destroy(deadline)
            elif self._channel is not None:
                self._channel.abort()
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    abort = close

    def join(self, deadline: float) -> None:
        """close() has waited."""


def check_or_fail(result: int, work: Optional[Work]) -> None:
    """As check; a receive that was taken out of the list gets the error, too."""
    try:
        check(result)
    except inccl.Error as error:
        if work is not None:
            work._complete(backend_error(work._what, error))
        raise


class Pairs:
    """All sends and receives of one rank of a process group."""

    def __init__(self, store, rank: int, size: int, options: dict,
                 group_error: Callable[[], Optional[Exception]]):
        """group_error: the error of the process group, such as a dead rank, or None."""
        self._store, self._rank, self._size, self._options = store, rank, size, options
        self._group_error = group_error
        self._creating = threading.Lock()
        self._out, self._in = {}, {}
        self._closed = False

    def _to(self, dest: int, timeout: float) -> Outgoing:
        with self._creating:
            self._check_open()
            if dest not in self._out:
                self._out[dest] = Outgoing(_Channel(self._store, self._rank, dest, True, timeout,
                                                    self._options, self._group_error))
            return self._out[dest]

    def _from(self, source: int, timeout: float) -> Incoming:
        with self._creating:
            self._check_open()
            if source not in self._in:
                channel = None if source == self._rank else _Channel(
                    self._store, source, self._rank, False, timeout, self._options,
                    self._group_error)
                self._in[source] = Incoming(channel, source)
            return self._in[source]

    def _check_open(self):
        if self._closed:
            raise backend_error("send or recv", Closed("the process group has ended"))

    def send(self, tensor: torch.Tensor, dest: int, tag: int, timeout: float, entry=None) -> Work:
        """entry: of the flight recorder."""
        work = Work([tensor], f"send to rank {dest}", timeout)
        work._entry = entry
        if dest == self._rank:
            message = contiguous(tensor.detach()).view(-1).view(torch.uint8).clone() \
                if tensor.numel() else torch.empty(0, dtype=torch.uint8)
            self._from(dest, timeout).deliver(message, tag)
            work._complete()
        else:
            self._to(dest, timeout).post(contiguous(tensor), tag, work)
        return work

    def recv(self, tensor: torch.Tensor, source: Optional[int], tag: int, timeout: float,
             entry=None) -> Work:
        """source None: any rank. entry: of the flight recorder."""
        what = "recv from any rank" if source is None else f"recv from rank {source}"
        work = Work([tensor], what, timeout)
        work._entry = entry
        target, posted = tensor, work
        if not as_it_lies(tensor):
            check_writable(tensor)
            target = torch.empty(tensor.shape, dtype=tensor.dtype)
            posted = _CopyBack(target, tensor, work)
        claim = _Claim()
        sources = [source] if source is not None else [
            rank for rank in range(self._size) if rank != self._rank]
        for rank in sources:
            self._from(rank, timeout).post(target, tag, posted, claim)
        return work

    def close(self, seconds: float) -> None:
        """Waits for sends, for so long at most; then these and receives that are posted fail."""
        deadline = time.monotonic() + seconds
        for channel in self._end():
            channel.close(deadline)

    def abort(self, deadline: float = 0) -> None:
        """Pending sends and receives fail; until `deadline` this waits for their threads."""
        channels = self._end()
        for channel in channels:
            channel.abort()
        for channel in channels:
            channel.join(deadline)

    def _end(self):
        with self._creating:
            self._closed = True
            return [*self._out.values(), *self._in.values()]


class _Claim:
    def __init__(self):
        self._first = threading.Lock()

    def __call__(self) -> bool:
        return self._first.acquire(blocking=False)


class _CopyBack:
    """Stands for a Work whose tensor is not contiguous."""

    def __init__(self, temporary, tensor, work):
        self._temporary, self._tensor, self._work, self._what = temporary, tensor, work, work._what

    @property
    def _source(self):
        return self._work._source

    @_source.setter
    def _source(self, rank):
        self._work._source = rank

    def _complete(self, error=None):
        if error is None:
            write(self._tensor, self._temporary)
        self._work._complete(error)
