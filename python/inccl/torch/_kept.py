# SPDX-License-Identifier: Apache-2.0
"""What a communication hook of DDP keeps between steps for each bucket."""
import gc
from typing import Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

import inccl

_TABLES = ("residuals", "reducers", "velocities")


def key_of(bucket) -> Tuple[int, int]:
    return bucket.index(), bucket.buffer().numel()


def name_of(parameter: torch.Tensor) -> str:
    """Its name in the DDP model that has it; hooks know parameters alone. Slow."""
    for model in gc.get_objects():
        if issubclass(type(model), DistributedDataParallel):
            for name, other in model.module.named_parameters():
                if other is parameter:
                    return name
    return f"a parameter of shape {tuple(parameter.shape)}"


class Kept:
    """Residuals, states of reducers and velocities, by index and elements of a bucket.

    DDP rebuilds its buckets after the first step. Others may then have an old key, and so may the
    same parameters in another order, so what was kept for them goes. What load() has read is for
    rebuilt buckets: it waits for the second step, and for buckets of equal shapes.
    """

    def __init__(self):
        self.residuals, self.reducers, self.velocities = {}, {}, {}  # keys begin with that of the bucket
        self._parameters, self._shapes = {}, {}  # of each bucket: ids and shapes
        self._bucket_of = {}  # by id of a parameter
        self._loaded, self._steps = None, 0

    def recognize(self, bucket) -> None:
        """Before anything is looked up for a bucket of a step."""
        key, parameters = key_of(bucket), bucket.parameters()
        ids = tuple(map(id, parameters))
        if self._parameters.get(key) != ids:
            former = {self._bucket_of.get(one) for one in ids if one in self._parameters.get(self._bucket_of.get(one), ())}
            for gone in former | {key}:
                self._drop(gone)
                self._parameters.pop(gone, None)
                self._shapes.pop(gone, None)
            self._parameters[key] = ids
            self._shapes[key] = tuple(tuple(parameter.shape) for parameter in parameters)
            self._bucket_of.update(dict.fromkeys(ids, key))
        if self._loaded is not None:
            self._steps += key[0] == 0
            if self._steps == 2 and self._loaded["shapes"].get(key) == self._shapes[key]:
                self._drop(key)
                for name in _TABLES:
                    table = getattr(self, name)
                    table.update((other, one) for other, one in self._loaded[name].items() if other[:2] == key)
            if self._steps > 2:
                self._loaded = None

    def _drop(self, key) -> None:
        for name in _TABLES:
            table = getattr(self, name)
            for gone in [other for other in table if other[:2] == key]:
                del table[gone]

    def save(self) -> dict:
        loaded = self._loaded or dict.fromkeys((*_TABLES, "shapes"), {})
        residuals, reducers, velocities = ({**getattr(self, name), **loaded[name]} for name in _TABLES)
        return {"residuals": {key: residual.save() for key, residual in residuals.items()},
                "reducers": {key: (state.rows, state.cols, int(state.type), state.save())
                             for key, state in reducers.items()},
                "velocities": {key: velocity.clone() for key, velocity in velocities.items()},
                "shapes": {**self._shapes, **loaded["shapes"]}}

    def load(self, saved: dict, reducer: Optional[inccl.Reducer]) -> None:
        loaded = {"residuals": {}, "reducers": {}, "shapes": dict(saved["shapes"]),
                  "velocities": {key: velocity.clone() for key, velocity in saved["velocities"].items()}}
        for key, values in saved["residuals"].items():
            if not (isinstance(key, tuple) and len(key) == 2
                    and all(isinstance(part, int) for part in key)):
                raise TypeError(f"residuals: expected (index, elements) as key, got {key!r}")
            loaded["residuals"][key] = inccl.Residual(key[1])
            loaded["residuals"][key].load(values)
        for key, (rows, cols, kind, values) in saved["reducers"].items():
            if reducer is None:
                raise ValueError("reducers: the state has some, this State has no reducer")
            loaded["reducers"][key] = reducer.state(rows, cols, inccl.DataType(kind))
            loaded["reducers"][key].load(values)
        self.__init__()
        self._loaded = loaded
