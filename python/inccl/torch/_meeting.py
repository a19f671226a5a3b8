# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a process group meet through its store.

The store may have what earlier groups of the same name have left: torchrun starts workers again with
the store of those that it has killed, and a process may destroy its groups and make them again. So
rank 0 names each meeting anew, and goes on only when all other ranks have answered to that name. The
name has the number of ranks: a rank that earlier, smaller groups did not have has answered to none of
their meetings, and would else take the id of one.
"""
import secrets
import time
from typing import Callable, Tuple

from torch.distributed import PrefixStore, Store

import inccl

_POLL_FIRST, _POLL_MOST = 0.0005, 0.02
_NAME = "inccl/meeting"


def poll(condition: Callable[[], bool]):
    """Yields, with a pause that grows, until the condition holds. The store is asked, not waited
    on: a waiting client would keep other threads from it."""
    pause = _POLL_FIRST
    while not condition():
        yield
        time.sleep(pause)
        pause = min(2 * pause, _POLL_MOST)


def meet(store: Store, rank: int, size: int, seconds: float) -> Tuple[Store, bytes]:
    """A part of the store that no other group has used, and the id of a communicator."""
    end = time.monotonic() + seconds
    if rank == 0:
        return _call_the_others(store, size, end)
    known = None
    for _ in poll(lambda: False):
        name = store.get(_NAME).decode() if store.check([_NAME]) else None
        if name is not None and name != known and name.startswith(f"{size}/"):
            known, ours = name, PrefixStore(f"inccl/{name}", store)
            # Not the first to answer as this rank: the meeting is an earlier one.
            current = ours.add(f"answer/{rank}", 1) == 1
        if known is not None and current and ours.check(["id"]):
            return ours, bytes.fromhex(ours.get("id").decode())
        if time.monotonic() > end:
            raise TimeoutError("rank 0 has not called it, or another rank has not")


def _call_the_others(store, size, end):
    name = f"{size}/{secrets.token_hex(8)}"
    ours = PrefixStore(f"inccl/{name}", store)
    store.set(_NAME, name)
    for other in range(1, size):
        for _ in poll(lambda: ours.check([f"answer/{other}"])):
            if time.monotonic() > end:
                late = [one for one in range(1, size) if not ours.check([f"answer/{one}"])]
                raise TimeoutError(f"ranks {late} have not called it")
    made = inccl.unique_id()
    ours.set("id", made.hex())
    return ours, made


# What rank 0 waits for longer than the others, so that its answer reaches them.
_ANSWER = 2.0


def monitored_barrier(ours: Store, number: int, rank: int, size: int, seconds: float) -> None:
    """The `number`-th of a group, whose part of the store is `ours`. TimeoutError names the ranks that
    have not come."""
    came, answer = f"monitored/{number}/", f"monitored/{number}/answer"
    end = time.monotonic() + seconds
    if rank != 0:
        ours.set(f"{came}{rank}", "")
        for _ in poll(lambda: ours.check([answer])):
            if time.monotonic() > end + _ANSWER:
                raise TimeoutError(f"rank 0 has not called it for {seconds:g} s")
        text = ours.get(answer).decode()
        ours.delete_key(f"{came}{rank}")
    else:
        waiting = list(range(1, size))
        for _ in poll(lambda: not waiting):
            waiting = [one for one in waiting if not ours.check([f"{came}{one}"])]
            if time.monotonic() > end:
                break
        text = f"ranks {waiting} have not called it for {seconds:g} s" if waiting else ""
        ours.set(answer, text)
        ours.delete_key(f"monitored/{number - 1}/answer")  # who has come here has read it
    if text:
        raise TimeoutError(text)
