# SPDX-License-Identifier: Apache-2.0
"""Asynchronous work: what a caller waits for, and the thread that runs a communicator's calls.

The C API runs one call of a communicator at a time, in the order of the calls. A Runner keeps that
order over calls that wait and calls that do not. A call that waits runs in the caller's thread if
no earlier call is pending, so it costs no change of threads.
"""
import os
import queue
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work as _Work

import inccl


class BackendError(dist.DistBackendError):
    """An error of an operation. code: inccl.Result; rank: this rank; peer: the rank that is to
    blame (None where the text does not name them). __cause__: the inccl.Error."""
    code: Optional[inccl.Result] = None
    rank: Optional[int] = None
    peer: Optional[int] = None


def backend_error(what: str, cause: BaseException) -> BackendError:
    late = "the timeout expired: " if isinstance(cause, TimeoutError) else ""
    error = BackendError(f"{what}: {late}{cause}")
    error.__cause__ = cause
    error.code = getattr(cause, "code", None)
    error.rank = getattr(cause, "rank", None)
    error.peer = getattr(cause, "peer", None)
    return error


class _Completer:
    """Threads that complete futures, and so run their callbacks.

    A callback may wait for other operations and their futures. So the threads that run operations
    run no callbacks, and a completion never waits for another one: it gets a new thread where all
    are busy.
    """

    def __init__(self):
        self._forked()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self):
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._counting = threading.Lock()
        self._idle = 0  # threads without a completion, less the completions that are queued
        self._threads = 0

    def complete(self, future: torch.futures.Future) -> None:
        with self._counting:
            if self._idle == 0:
                self._threads += 1
                threading.Thread(target=self._loop, args=(future,), name="inccl-callbacks",
                                 daemon=True).start()
                return
            self._idle -= 1
        self._queue.put(future)

    def drain(self, deadline: float) -> None:
        """Waits for the callbacks, until `deadline`, of time.monotonic()."""
        while self._idle < self._threads and time.monotonic() < deadline:
            time.sleep(0.002)

    def _loop(self, future):
        while True:
            future.set_result(None)
            del future
            with self._counting:
                self._idle += 1
            future = self._queue.get()


completer = _Completer()


class Work(_Work):
    """The outcome of one operation. `result`: what futures have as value."""

    def __init__(self, result: Any, what: str, limit: Optional[float] = None, done: bool = False):
        super().__init__()
        self._result, self._what, self._limit = result, what, limit
        self._error: Optional[BaseException] = None
        self._done = done
        self._source: Optional[int] = None
        self._entry = None  # of the flight recorder, for sends and receives
        self._future: Optional[torch.futures.Future] = None
        if not done:
            self._changing = threading.Lock()  # guards _done and _future while they change
            self._waiting = threading.Lock()  # released at completion
            self._waiting.acquire()

    # Called once, by the thread that has run the operation.
    def _complete(self, error: Optional[BaseException] = None) -> None:
        if self._entry is not None:
            self._entry.finish(error, self._source)
        with self._changing:
            self._error = error
            self._done = True
            future = self._future
        self._waiting.release()
        if future is not None:
            completer.complete(future)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the result; raises the operation's error. `timeout` 0: no limit of its own."""
        if not self._done:
            seconds = timeout.total_seconds() if timeout is not None else 0
            limit = seconds if seconds > 0 else self._limit
            if not self._waiting.acquire(timeout=limit if limit is not None else -1):
                raise backend_error(self._what, TimeoutError(
                    f"not complete after {int(limit * 1000)} ms"))
            self._waiting.release()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._done

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def result(self) -> Any:
        self.wait()
        return self._result

    def source_rank(self) -> int:
        if self._source is None:
            raise RuntimeError(f"{self._what}: source_rank: of a completed receive only")
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """A future of the result; fails with the operation's error."""
        # A Python future has no errors that C++ sees, but one that a callback has made does.
        base = torch.futures.Future()
        public = base.then(lambda _: self._outcome())
        if not self._done:
            with self._changing:
                if not self._done:
                    if self._future is None:
                        self._future = base
                    else:
                        self._future.add_done_callback(lambda _: base.set_result(None))
                    return public
        base.set_result(None)
        return public

    def _outcome(self):
        if self._error is not None:
            raise self._error
        return self._result


def _attempt(call: Callable[[], None], what: str) -> Optional[BaseException]:
    try:
        call()
    except BackendError as error:
        return error
    except Exception as error:
        return backend_error(what, error)
    return None


class Runner:
    """Runs calls one at a time, in the order in which they come."""

    def __init__(self, name: str):
        self._name = name
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._calls = threading.Lock()  # held while a call runs
        self._counting = threading.Lock()
        self._pending = 0  # queued and running on the thread
        self._thread: Optional[threading.Thread] = None
        self._closed = False

    def run(self, call: Callable[[], None], what: str) -> None:
        """Runs the call after all earlier ones and waits for it; raises its error."""
        if self._pending == 0 and self._calls.acquire(blocking=False):
            try:
                if self._pending == 0:
                    error = _attempt(call, what)
                    if error is not None:
                        raise error
                    return
            finally:
                self._calls.release()
        self.submit(call, Work(None, what)).wait()

    def submit(self, call: Callable[[], None], work: Work) -> Work:
        """Runs the call on the thread after all earlier ones."""
        with self._counting:
            if not self._closed:
                self._pending += 1
                if self._thread is None:
                    self._thread = threading.Thread(target=Runner._loop, args=(
                        weakref.ref(self), self._queue), name=self._name, daemon=True)
                    self._thread.start()
                self._queue.put((call, work))
                return work
        work._complete(backend_error(work._what, RuntimeError("the process group has ended")))
        return work

    def close(self, deadline: Optional[float] = None) -> bool:
        """Waits for the calls, then ends the thread. False: some have not ended at `deadline`, of
        time.monotonic()."""
        with self._counting:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if self._thread in (None, threading.current_thread()):
            return True
        self._thread.join(None if deadline is None else max(0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def __del__(self):
        self._queue.put(None)

    @staticmethod
    def _loop(reference, calls):
        # The thread keeps no reference to an idle runner, so that the runner can go.
        while True:
            item = calls.get()
            runner = reference()
            if item is None or runner is None:
                return
            call, work = item
            with runner._calls:
                error = _attempt(call, work._what)
            with runner._counting:
                runner._pending -= 1
            work._complete(error)
            del item, call, work, error, runner
