# SPDX-License-Identifier: Apache-2.0
"""Training whose ranks come, go and come back: data-parallel steps over a communicator that shrinks
after failures and grows by processes that join. docs/elastic.md shows how it is used."""
import array
import contextlib
import pickle
import re
import time
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, Optional

import torch

from .. import AVG, IN_PLACE, Communicator, Error, InvalidUsage, RemoteError, Stream, Timeout, sync_state

__all__ = ["Elastic", "NoQuorum", "join"]

_OF_NUMPY = (torch.float32, torch.float64, torch.float16)


class NoQuorum(RuntimeError):
    """Of the former ranks, most are not here: they may go on elsewhere, so this part must not."""


def join(store, *, name: str = "elastic", wait: float = 120.0, **options) -> Communicator:
    """Joins a job whose ranks use Elastic with this store, as one more rank; returns its
    communicator for Elastic.

    store: a torch.distributed Store that the job has, too, under the same `name`. The ranks let a
    process in between two steps. options: of inccl.Communicator, equal to those of the job.
    inccl.Timeout: nobody has let this process in within `wait` seconds.
    """
    end = time.monotonic() + wait
    while True:
        ticket = store.add(f"{name}/joiners", 1)
        place = f"{name}/place/{ticket}"
        while not store.check([place]):
            if time.monotonic() >= end:
                raise Timeout(8, f"no rank of {name!r} has let this process in within {wait} s")
            time.sleep(0.01)
        id, rank, size = pickle.loads(store.get(place))
        try:
            return Communicator(id, rank, size, **options)
        except (RemoteError, Timeout, InvalidUsage):  # a rank has failed meanwhile: take another ticket
            if time.monotonic() >= end:
                raise


class Elastic:
    """One rank of a job whose ranks change.

        elastic = inccl.torch.elastic.Elastic(comm, {"model": model, "optimizer": optimizer}, store)
        for step in elastic.steps(1000):
            optimizer.zero_grad()
            loss = model(batch(step, elastic.rank, elastic.size))
            loss.backward()
            if elastic.average(model.parameters()):
                optimizer.step()

    comm: of inccl.init(), or of join() in a process that comes later; it belongs to this object.
    state: objects with state_dict() and load_state_dict(), equal in kind on all ranks; who joins
    gets their contents. A rank with other keys, shapes or types gets an error, and the others go on
    without it. store: a torch.distributed Store at which processes join, or None: none do. codec: of
    the gradients; None: uncompressed. join_timeout: seconds that ranks wait for those who join; a
    process that has died while it waited holds them up as long, once. quorum: after a failure the
    ranks go on only if they are more than half of those before, or half with the former rank 0; else
    NoQuorum. False: always.

    Tensors of the state and gradients are dense and in host memory, else TypeError. One thread uses
    an object.
    """

    def __init__(self, comm: Communicator, state: Dict[str, Any], store=None, *, name: str = "elastic",
                 codec: Optional[str] = None, join_timeout: float = 10.0, quorum: bool = True,
                 on_change: Optional[Callable[["Elastic"], None]] = None):
        for key, value in state.items():
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise TypeError(f"state[{key!r}]: {type(value).__name__} has no state_dict() and load_state_dict()")
        self.comm, self.step = comm, 0  # step: how many steps are done
        self.changes = 0  # how often the ranks have changed
        self._state, self._store, self._name, self._codec = state, store, name, codec
        self._join_timeout, self._quorum, self._on_change = join_timeout, quorum, on_change
        self._init_timeout = comm._options.get("init_timeout", 0)  # that of a growth is shorter
        self._store_failed = False  # as rank 0 has seen it
        self._averages = 0  # that this step has had; -1: one has failed
        self._core = None  # after growth, until the state is settled: how many ranks were there before
        # How many wait to join, which rank 0 tells the others while a step computes.
        self._joiners, self._stream = array.array("q", [0]), Stream()
        self._until_settled(self._settle)

    @property
    def rank(self) -> int:
        """This rank now; it may change between steps."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """The number of ranks now."""
        return self.comm.size

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps that are left, from 0; one again that had no average(), or one that
        was False."""
        while True:
            while self.step < total:
                if not self._admit():
                    continue
                yield self.step
                if self._averages > 0:
                    self.step += 1
                self._averages = 0
            # Nobody leaves while another may need the result of the last step.
            try:
                self.comm.Barrier()
                return
            except (RemoteError, Timeout) as error:
                self._recover(error)

    def average(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Averages the gradients of `parameters` over the ranks, in place; None, if so on all ranks,
        stays None. False: ranks have failed, the gradients are lost, and the same step comes again
        with those that are left; or another rank had finished the step, whose result this rank has
        got. A step may have several averages. Those after a False one are False, and all ranks get the
        state of one that has had the fewest of this step."""
        if self._averages < 0:
            return False
        by_type = {}
        for i, parameter in enumerate(parameters):
            if parameter.grad is not None:
                _check(parameter.grad, f"parameters[{i}].grad")
                by_type.setdefault(parameter.grad.dtype, []).append(parameter.grad.detach())
        try:
            for same in by_type.values():
                whole = [g if g.is_contiguous() else g.contiguous() for g in same]
                arrays = [w.numpy() for w in whole] if whole[0].dtype in _OF_NUMPY else whole  # found faster
                self.comm.Allreduce_fused(IN_PLACE, arrays, AVG, codec=self._codec, step=self.step)
                for g, w in zip(same, whole):
                    if g is not w:
                        g.copy_(w)
        except (RemoteError, Timeout) as error:
            self._recover(error)
            self._averages = -1
            return False
        self._averages += 1
        return True

    def close(self) -> None:
        """Ends the communicator after the last step."""
        self._stream.close()
        self.comm.destroy()

    # ------------------------------------------------------------------ changes

    def _admit(self) -> bool:
        """Lets those in who waited when the last step began. False: the ranks have changed."""
        try:
            failed = self.comm.async_error()  # of a call of the caller's own
            if failed is not None:
                raise failed
            if self._store is None:
                return True
            self._stream.synchronize()
            if self._joiners[0] == 0 or not self._grow(self._joiners[0]):
                if self.rank == 0:
                    self._joiners[0] = self._of_store(self._waiting) or 0
                self.comm.Bcast(self._joiners, stream=self._stream)
                return True
        except (RemoteError, Timeout) as error:
            self._recover(error)
            return False
        self._until_settled(self._settle)
        return False

    def _of_store(self, ask):
        """What ask() returns; None from the first time on that the store fails."""
        try:
            return None if self._store_failed else ask()
        except RuntimeError as error:  # torch.distributed.DistError is one
            self._store_failed = True
            reason = str(error).partition("\n")[0]
            warnings.warn(f"{self._name!r}: no process can join any more: {reason}", RuntimeWarning)
            return None

    def _waiting(self) -> int:
        """How many have a ticket and no place."""
        taken, served = (self._store.add(f"{self._name}/{key}", 0) for key in ("joiners", "served"))
        return taken - served

    def _give_places(self, id, joiners: int):
        served = self._store.add(f"{self._name}/served", 0)
        for i in range(joiners):
            place = id, self.size + i, self.size + joiners
            self._store.set(f"{self._name}/place/{served + 1 + i}", pickle.dumps(place))
        self._store.add(f"{self._name}/served", joiners)

    def _grow(self, joiners: int) -> bool:
        """By those with the next tickets. False: they have failed."""
        id = self.comm.unique_id() if self.rank == 0 else None
        if self.rank == 0:
            self._of_store(lambda: self._give_places(id, joiners))
        try:
            larger = self.comm.grow(self.size + joiners, id, init_timeout=self._join_timeout)
        except (RemoteError, Timeout, InvalidUsage):
            if self.comm.async_error() is not None:
                raise
            return False
        self._core = self.size
        self._replace(larger)
        return True

    def _replace(self, comm):
        old, self.comm = self.comm, comm
        self._joiners[0] = 0
        old.abort() if old.async_error() is not None else old.destroy()
        self.changes += 1

    def _recover(self, error: Error):
        """Goes on with the ranks that are left."""
        self.comm.revoke()  # others may not have noticed
        before, rank, core = self.comm.size, self.comm.rank, self._core
        smaller = self._shrink()
        with contextlib.suppress(Error):  # of the calls that have ended
            self._stream.synchronize()
        self._replace(smaller)

        def settle():
            former = self.comm.allgather(rank)
            for count in {before, core or before}:  # of those that have just joined, none counts alone
                left = [r for r in former if r < count]
                half = 2 * len(left) - count
                if self._quorum and (half < 0 or (half == 0 and 0 not in left)):
                    raise NoQuorum(f"{len(left)} of {count} ranks are left: {left}") from error
            self._settle()

        self._until_settled(settle)

    def _shrink(self) -> Communicator:
        """Of the ranks that are alive; if some do not come within the limit, of the others."""
        late = set()
        for attempts_left in (3, 2, 1, 0):
            try:
                return self.comm.shrink(late, abort=True, init_timeout=self._init_timeout)
            except (RemoteError, Timeout) as error:
                if attempts_left == 0:
                    raise
                said = re.search(r"did not call ccl_comm_shrink:((?: peer \d+@\S+)+)", str(error))
                late.update(map(int, re.findall(r"peer (\d+)@", said[1] if said else "")))

    def _until_settled(self, settle):
        try:
            settle()
        except (RemoteError, Timeout) as error:
            self._recover(error)
            return
        except Exception:
            self.comm.abort()  # the others go on without this rank
            raise
        if self._on_change is not None:
            self._on_change(self)

    def _settle(self):
        """All ranks get the state of those that have done most steps, and no part of the next if possible."""
        done = self.comm.allgather((self.step, -max(0, self._averages)))
        source = done.index(max(done))
        mine = {key: value.state_dict() for key, value in self._state.items()}
        tensors = []
        outline = _without_tensors(mine, tensors, "state")
        theirs = self.comm.bcast((outline, [(t.dtype, t.shape) for t in tensors]) if self.rank == source else None,
                                 source)
        if theirs[0].keys() != mine.keys():
            raise ValueError(f"state: {sorted(theirs[0])} on rank {source}, {sorted(mine)} on rank {self.rank}")
        if self.rank != source:
            fits = pickle.dumps(outline) == pickle.dumps(theirs[0]) and \
                [(t.dtype, t.shape) for t in tensors] == theirs[1]
            # Into copies if this rank has another state: should the source die, what is here stays whole.
            other = done[self.rank] != max(done)
            tensors = [t.detach().clone() if other else t.detach().contiguous() for t in tensors] if fits else \
                [torch.zeros(shape, dtype=dtype) for dtype, shape in theirs[1]]
        else:
            tensors = [t.detach().contiguous() for t in tensors]
        changed = sync_state(self.comm, tensors, source)
        if self.rank != source and (changed or not fits):
            filled = _with_tensors(theirs[0], iter(tensors))
            for key, value in self._state.items():
                value.load_state_dict(filled[key])
                if isinstance(value, torch.nn.Module):
                    self._check_types(f"state[{key!r}]", value.state_dict(), filled[key], source)
        self.step, self._averages, self._core = done[source][0], 0, None

    def _check_types(self, where, mine, theirs, source):
        """load_state_dict() converts tensors without a word; the next average would fail on all ranks."""
        for name, tensor in mine.items():
            other = theirs.get(name)
            if isinstance(tensor, torch.Tensor) and isinstance(other, torch.Tensor) and tensor.dtype != other.dtype:
                raise ValueError(f"{where}[{name!r}]: {other.dtype} on rank {source}, "
                                 f"{tensor.dtype} on rank {self.rank}")


class _Place:
    """Where a tensor is in a state_dict."""


def _check(tensor, name):
    special = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # such as DTensor
    if special or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise TypeError(f"{name}: {type(tensor).__name__} of {tensor.layout} on {tensor.device}, expected a dense "
                        "tensor in host memory")


def _without_tensors(value, tensors, name):
    if isinstance(value, torch.Tensor):
        _check(value, name)
        tensors.append(value)
        return _Place
    if isinstance(value, dict):
        return {key: _without_tensors(item, tensors, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_tensors(item, tensors, f"{name}[{i}]") for i, item in enumerate(value))
    return value


def _with_tensors(value, tensors):
    if value is _Place:
        return next(tensors)
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(item, tensors) for item in value)
    return value
