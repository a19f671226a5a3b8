# SPDX-License-Identifier: Apache-2.0
"""Optimizers of papers about compressed gradients: LANS of BytePS-Compress, and CD-SGD."""
import ctypes
from typing import Optional, Tuple

import torch
import torch.distributed as dist

import inccl
from inccl._library import check, in_range, lib
from inccl._objects import codec_of

from ._statistics import Statistics
from ._tensors import TYPES, flat
from .hooks import compression, group_of


class Lans(torch.optim.Optimizer):
    """AdamW with each parameter's gradient divided by its norm, Nesterov's momentum, and steps as long as lr times
    the parameter's norm (arXiv 2006.13484, algorithm 2; phi is the identity). With
    State(codec="onebit", residual=True) it is CLAN (arXiv 2105.07829).

    lr: step size over the norm of a parameter. betas: of the two moments, in [0, 1). eps: added to the root of the
    second moment. weight_decay: 0 or more. Of a parameter or an update of norm 0 the length is lr itself. Raises
    ValueError for settings out of range. Not thread-safe.
    """

    def __init__(self, params, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
                 weight_decay: float = 0.01):
        for name, value, most in (("lr", lr, float("inf")), ("betas[0]", betas[0], 1), ("betas[1]", betas[1], 1),
                                  ("eps", eps, float("inf")), ("weight_decay", weight_decay, float("inf"))):
            if not 0 <= value < most:
                raise ValueError(f"{name}: {value} is not in [0, {most})")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """One step; returns what `closure` does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(group, parameter)
        return loss

    def _step_one(self, group, parameter):
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = 0
            state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        norm = torch.linalg.vector_norm(parameter.grad)
        gradient = parameter.grad / torch.where(norm > 0, norm, 1)
        state["first"].lerp_(gradient, 1 - beta1)
        state["second"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (state["second"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        length, update = torch.linalg.vector_norm(parameter), torch.zeros_like(parameter)
        for share, part in ((beta1, state["first"] / (1 - beta1 ** state["step"])), (1 - beta1, gradient)):
            part = part / root + group["weight_decay"] * parameter
            norm = torch.linalg.vector_norm(part)
            update += share * torch.where((length > 0) & (norm > 0), length / norm, 1) * part
        parameter.sub_(update, alpha=group["lr"])


class CdSgd(torch.optim.Optimizer):
    """SGD with averages that come one step late, so that they travel while the next step computes (CD-SGD, arXiv
    2106.10796). In place of DDP: the model is not wrapped.

    All ranks have the same common weights. A step waits for the average of the step before, moves the common weights by
    it, and lets this rank's gradient begin to travel. Until its average is there, the rank computes with the common
    weights minus local_lr times its own gradient.

    lr: step size of the common weights. local_lr: of the rank's own correction, by default lr. momentum: of the common
    weights, as torch.optim.SGD has it. codec: a specification (docs/codecs.md) or inccl.Codec. correct_every: each step
    whose number is a multiple of it travels uncompressed; 0: none. process_group: by default the world. seed: equal on
    all ranks. residual: error feedback of the codec. Parameters are of one floating type and device; all ranks make the
    optimizer at the same time, which gives them rank 0's parameters, and take equally many steps. Raises ValueError for
    settings out of range, inccl.Error or BackendError where a call fails, mostly in the next step. A GradScaler, which skips
    steps of single ranks, does not go with it. Not thread-safe. `statistics` counts what has
    been sent.
    """

    def __init__(self, params, lr: float, local_lr: Optional[float] = None, momentum: float = 0.0, *, codec="hbi:bits=2",
                 correct_every: int = 0, process_group: Optional[dist.ProcessGroup] = None, seed: int = 0,
                 residual: bool = False):
        local_lr = lr if local_lr is None else local_lr
        for name, value, most in (("lr", lr, float("inf")), ("local_lr", local_lr, float("inf")), ("momentum", momentum, 1)):
            if not 0 <= value < most:
                raise ValueError(f"{name}: {value} is not in [0, {most})")
        self._codec, self._seed = codec_of(codec), in_range("seed", seed, 0, 2**64 - 1)
        self._every = in_range("correct_every", correct_every, 0, 2**63 - 1)
        super().__init__(params, {"lr": lr, "local_lr": local_lr, "momentum": momentum})
        parameters = self._parameters()
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
        if len(kinds) != 1 or parameters[0].dtype not in TYPES or not parameters[0].is_floating_point():
            raise ValueError(f"params: expected one floating type and device, got {sorted(map(str, kinds))}")
        self._group, self._statistics = group_of(process_group), Statistics()
        count = sum(parameter.numel() for parameter in parameters)
        self._residual = inccl.Residual(count) if residual else None
        self._steps, self._pending = 0, None  # (work, step size and momentum by parameter) of the last step
        self._average = flat([parameter.detach() for parameter in parameters])
        sizes = [parameter.numel() for parameter in parameters]
        self._parts = [part.view_as(parameter) for part, parameter in zip(self._average.split(sizes), parameters)]
        self._group.broadcast([self._average]).wait()
        with torch.no_grad():
            for parameter, part in zip(parameters, self._parts):
                parameter.copy_(part)
                self.state[parameter]["common"] = part.clone()

    @property
    def statistics(self) -> Statistics:
        return self._statistics.settle()

    def _parameters(self):
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _settle(self):
        """Waits for the average of the last step, and moves the common weights by it."""
        if self._pending is None:
            return
        (work, rates), self._pending = self._pending, None
        work.wait()
        for parameter, part, (lr, momentum) in zip(self._parameters(), self._parts, rates):
            state = self.state[parameter]
            if momentum:
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(parameter)
                part = torch.add(part, state["velocity"], alpha=momentum, out=state["velocity"])
            state["common"].sub_(part, alpha=lr)

    def _send(self):
        self._steps += 1
        codec = None if self._every and self._steps % self._every == 0 else self._codec
        how, stats = compression(codec, self._seed, self._residual)
        average, count = self._average, self._average.numel()
        kind, stream = TYPES[average.dtype], self._group._stream(average)

        def call():
            handle = self._group.communicator._get()
            if codec is None:
                check(lib.ccl_allreduce(average.data_ptr(), average.data_ptr(), count, kind, inccl.AVG, handle, stream))
                self._statistics.add_uncompressed(count)
            else:
                check(lib.ccl_allreduce_compressed(average.data_ptr(), average.data_ptr(), count, kind, inccl.AVG,
                                                   ctypes.byref(how), handle, stream))
                self._statistics.add(stats, codec, average)
        work = self._group._launch("CdSgd", "allreduce", call, average, [average], [average], True,
                                   codec.spec if codec else None)
        self._pending = work, [(group["lr"], group["momentum"]) for group in self.param_groups for _ in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        """One step; returns what `closure` does. Parameters without a gradient count as zero."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._settle()
        parts = iter(self._parts)
        for group in self.param_groups:
            for parameter, part in zip(group["params"], parts):
                if parameter.grad is None:
                    part.zero_()
                else:
                    part.copy_(parameter.grad)
                torch.sub(self.state[parameter]["common"], part, alpha=group["local_lr"], out=parameter)
        self._send()
        return loss

    @torch.no_grad()
    def synchronize(self):
        """Waits for what is under way and gives the parameters the common weights, which are equal on all ranks: before
        they are evaluated or saved. The next step goes on from there."""
        self._settle()
        for parameter in self._parameters():
            parameter.copy_(self.state[parameter]["common"])

    def state_dict(self):
        """Waits for what is under way, as synchronize(). A residual begins with zero where this is loaded."""
        with torch.no_grad():
            self._settle()
        return {**super().state_dict(), "steps": self._steps}

    def load_state_dict(self, state_dict):
        """What state_dict() has returned; all ranks load it."""
        if not isinstance(state_dict.get("steps"), int):
            raise TypeError("state_dict: expected what CdSgd.state_dict() returns")
        with torch.no_grad():
            self._settle()
        super().load_state_dict(state_dict)
        self._steps = state_dict["steps"]
