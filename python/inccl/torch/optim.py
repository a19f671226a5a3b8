# SPDX-License-Identifier: Apache-2.0
"""LANS, the optimizer that BytePS-Compress pairs with compressed gradients."""
from typing import Tuple

import torch


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
