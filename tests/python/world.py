# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, each a forked process, for pytest.

The test's own process makes no communicator, so its children may. A child that raises, dies or is
late fails the test with the rank and the traceback.
"""
import faulthandler
import functools
import itertools
import multiprocessing
import os
import pickle
import select
import signal
import time
import traceback

import pytest

LATE = 120  # seconds; nothing here depends on it unless ranks hang

_numbers = itertools.count()


class Ranks:
    """Forked ranks. `function(rank)` runs in each. The process that makes them has no threads that use
    the C library's resolver, as a TCPStore's server does: a child could find its lock taken."""

    def __init__(self, nranks, function, environment=None):
        self.pids, self._pipes = [], []
        for rank in range(nranks):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _child(rank, function, environment or {}, writer)
            os.close(writer)
            self.pids.append(pid)
            self._pipes.append(reader)

    def join(self):
        """By rank: ("returned", value), ("raised", text) or ("died", status)."""
        outcomes = [b""] * len(self.pids)
        open_pipes = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        end = time.monotonic() + LATE
        try:
            while open_pipes:
                ready, _, _ = select.select(list(open_pipes), [], [], end - time.monotonic())
                if not ready:
                    late = sorted(open_pipes.values())
                    for rank in late:  # they print where they are
                        os.kill(self.pids[rank], signal.SIGUSR1)
                    time.sleep(1)
                    others = [data and pickle.loads(data) for data in outcomes]
                    raise AssertionError(f"ranks {late} are late; outcomes of the others: {others}")
                for pipe in ready:
                    data = os.read(pipe, 1 << 20)
                    outcomes[open_pipes[pipe]] += data
                    if not data:
                        del open_pipes[pipe]
        finally:
            statuses = []
            for pid, pipe in zip(self.pids, self._pipes):
                if open_pipes:
                    os.kill(pid, signal.SIGKILL)
                os.close(pipe)
                statuses.append(os.waitpid(pid, 0)[1])
        return [pickle.loads(data) if data else ("died", status)
                for data, status in zip(outcomes, statuses)]


def _child(rank, function, environment, writer):
    try:
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        os.environ.update(environment)
        outcome = ("returned", function(rank))
    except BaseException:
        outcome = ("raised", traceback.format_exc())
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(pickle.dumps(outcome))
    os._exit(0)


class Meeting:
    """A place in the code where `count` ranks wait for each other, once. One that dies there is in no
    call that another has not left yet."""

    def __init__(self, count):
        self._barrier, self._met = multiprocessing.Barrier(count, timeout=LATE), False

    def __call__(self):
        if not self._met:
            self._met = True
            self._barrier.wait()


def run(nranks, function, environment=None):
    """What `function(rank)` returns on each rank; fails if it raises on any."""
    outcomes = Ranks(nranks, function, environment).join()
    bad = [f"rank {rank} {kind}: {value}" for rank, (kind, value) in enumerate(outcomes)
           if kind != "returned"]
    assert not bad, "\n".join(bad)
    return [value for _, value in outcomes]


def job(nranks):
    """Environment by which `nranks` ranks meet; INCCL_RANK is each rank's own."""
    return {"INCCL_SIZE": str(nranks), "INCCL_JOB": f"pytest-{os.getpid()}-{next(_numbers)}",
            "INCCL_CONF_FILE": "/dev/null", "INCCL_SOCKET_IFNAME": "lo"}


def ranks(*sizes, **config):
    """Decorates test(comm): runs it on communicators of these sizes."""
    def decorate(test):
        @pytest.mark.parametrize("nranks", sizes)
        @functools.wraps(test)
        def runs(nranks):
            def rank_main(rank):
                import inccl
                os.environ["INCCL_RANK"] = str(rank)
                with inccl.init(**config) as comm:
                    return test(comm)
            run(nranks, rank_main, job(nranks))
        del runs.__wrapped__  # pytest would see the argument `comm`
        return runs
    return decorate
