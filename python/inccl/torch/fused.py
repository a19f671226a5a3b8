# SPDX-License-Identifier: Apache-2.0
"""Averages of gradients without DDP, in groups of tensors that inccl.plan.groups chooses."""
import time
from typing import Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

import inccl

from ._tensors import flat, unflatten
from .hooks import State, group_of


class Fused:
    """In place of DDP: averages the gradients of a model while its backward pass goes on (MergeComp, arXiv 2103.15195).

        fused = inccl.torch.Fused(model, inccl.torch.State(codec="hbi:bits=6"))
        loss.backward(); fused.wait(); optimizer.step()

    Tensors are those parameters that require a gradient, the last one first, as a backward pass makes them ready. sizes:
    how many of them go into each call, by default all into one; a call begins when all its tensors are ready and the
    calls before have begun. state: codec, residual, seed, compress and process_group count; it has no other setting. All
    ranks make it at the same time, which gives them rank 0's sizes, parameters and buffers. CPU tensors.

    elements and ready_ms are what inccl.plan.groups takes: of each tensor, and when it was ready in the last step, after
    the first one. call_ms has (elements, ms) of the last step's calls, for inccl.plan.fit. Raises ValueError for settings
    that do not fit, BackendError from wait() where a call failed; the gradients are then lost. Not thread-safe.
    """

    def __init__(self, model: torch.nn.Module, state: Optional[State] = None, sizes: Optional[Sequence[int]] = None):
        self.state = State() if state is None else state
        for name, value in State.__init__.__kwdefaults__.items():
            if name not in ("min_elements", "compress", "seed", "residual") and self.state._arguments[name] != value:
                raise ValueError(f"state: Fused does not have {name}")
        self._tensors = [one for one in model.parameters() if one.requires_grad][::-1]
        if not self._tensors or any(one.device.type != "cpu" for one in self._tensors):
            raise ValueError("model: expected parameters on the CPU that require a gradient")
        self.elements = [one.numel() for one in self._tensors]
        self.ready_ms: List[float] = []
        self.call_ms: List[Tuple[int, float]] = []
        self._group = group_of(self.state.process_group)
        self._residuals: Dict[int, inccl.Residual] = {}
        self._place = {one: place for place, one in enumerate(self._tensors)}
        self.set_sizes([len(self._tensors)] if sizes is None else sizes)
        whole_model = [one.detach() for one in model.state_dict().values()]
        for kind in dict.fromkeys(one.dtype for one in whole_model):  # in one order on all ranks, as no set is
            same = [one for one in whole_model if one.dtype == kind]
            whole = flat(same)
            self._group.broadcast([whole]).wait()
            unflatten(whole, same)
        for one in self._tensors:
            one.register_post_accumulate_grad_hook(self._ready)

    def set_sizes(self, sizes: Sequence[int]) -> None:
        """For the next steps: those of rank 0, since times differ between ranks, which all call this. No backward pass is
        in progress."""
        if sum(sizes) != len(self._tensors) or any(size < 1 for size in sizes):
            raise ValueError(f"sizes: {list(sizes)} are not of {len(self._tensors)} tensors")
        agreed = torch.zeros(len(self._tensors), dtype=torch.int64)
        agreed[:len(sizes)] = torch.tensor(sizes)
        self._group.broadcast([agreed]).wait()
        sizes = [size for size in agreed.tolist() if size > 0]
        ends = [sum(sizes[:i + 1]) for i in range(len(sizes))]
        self._calls = [(end, self._tensors[end - size:end]) for size, end in zip(sizes, ends)]
        self._begin()

    def _begin(self) -> None:
        self._at: Dict[torch.Tensor, float] = {}
        self._works, self._timed = [], []
        self._reached = 0  # so many tensors are ready, with all before them

    def _ready(self, tensor: torch.Tensor) -> None:
        if tensor in self._at:
            raise RuntimeError("Fused: a second backward pass without wait()")
        self._at[tensor] = time.perf_counter()
        while self._reached < len(self._tensors) and self._tensors[self._reached] in self._at:
            self._reached += 1
            end, tensors = self._calls[len(self._works)]
            if end == self._reached:
                self._works.append(self._launch(tensors))

    def _launch(self, tensors):
        state, parts = self.state, {}
        for one in tensors:
            key = one.dtype, one.is_floating_point() and state.compress(one)
            parts.setdefault(key, []).append(one)
        calls = []
        for (_, compressed), same in parts.items():
            codec = state.codec if compressed else None
            residuals = [self._residual_of(one) for one in same] if compressed and state.residual else None
            calls.append(([one.grad.contiguous() for one in same], same, codec, residuals))

        def call():
            begin = time.perf_counter()
            for gradients, same, codec, residuals in calls:
                stats = self._group.communicator.Allreduce_fused(inccl.IN_PLACE, gradients, inccl.AVG, codec=codec,
                                                                 seed=state.seed, residuals=residuals)
                for gradient, one in zip(gradients, same):
                    if gradient is not one.grad:
                        one.grad.copy_(gradient)
                if codec is None:
                    state._statistics.add_uncompressed(sum(one.numel() for one in same))
                else:
                    state._statistics.add(stats, codec)
            timed.append((sum(one.numel() for one in tensors), 1e3 * (time.perf_counter() - begin)))
        timed = self._timed
        gradients = [one.grad for one in tensors]
        return self._group._launch("Fused", "allreduce", call, None, gradients, gradients, True, state.codec.spec)

    def _residual_of(self, tensor: torch.Tensor) -> inccl.Residual:
        place = self._place[tensor]
        if place not in self._residuals:
            self._residuals[place] = inccl.Residual(tensor.numel())
        return self._residuals[place]

    @torch.no_grad()
    def wait(self) -> None:
        """Ends a step: waits until all gradients are averages. A parameter that has none counts as zero, and gets one.
        Every backward pass is followed by one; to accumulate gradients, use a copy of them."""
        begin = min(self._at.values(), default=0.0)
        self.ready_ms = [1e3 * (self._at.get(one, begin) - begin) for one in self._tensors]
        for place in range(1, len(self.ready_ms)):  # a call waits for all tensors before
            self.ready_ms[place] = max(self.ready_ms[place - 1:place + 1])
        for one in self._tensors:
            if one not in self._at:
                one.grad = torch.zeros_like(one) if one.grad is None else one.grad
                self._ready(one)
        works, timed = self._works, self._timed
        self._begin()
        for work in works:
            work.wait()
        self.call_ms = timed
