# SPDX-License-Identifier: Apache-2.0
"""What a communication hook of DDP keeps between steps."""
import contextlib
import gc
import weakref
from typing import Dict, List, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

import inccl
from inccl._library import in_range

from ._tensors import TYPES

TABLES = ("residuals", "velocities", "reducers")

_models = weakref.WeakKeyDictionary()  # DDP models that have been found: {id of a parameter: (it, its name)}


def _named_in_known(parameter: torch.Tensor) -> Optional[Tuple[DistributedDataParallel, str]]:
    for model, names in _models.items():
        reference, name = names.get(id(parameter), (None, ""))
        if reference is not None and reference() is parameter:
            return model, name
    return None


def owners_of(parameters: List[torch.Tensor]) -> List[Optional[Tuple[DistributedDataParallel, str]]]:
    """For each the DDP model that has it, and its name there; hooks know parameters alone."""
    found = [_named_in_known(parameter) for parameter in parameters]
    if None in found:
        for model in gc.get_objects():
            if issubclass(type(model), DistributedDataParallel):
                _models[model] = {id(p): (weakref.ref(p), name) for name, p in model.module.named_parameters()}
        found = [_named_in_known(parameter) for parameter in parameters]
    return found


class Feedback:
    """The residual of a vector, and what happens to it between calls. In bfloat16 for gradients of 16 bits, whose
    rounding loses more than the residual's: half the memory to pass."""

    def __init__(self, count: int, dtype: torch.dtype, keep: float):
        storage = inccl.DataType.BFLOAT16 if dtype in (torch.float16, torch.bfloat16) else inccl.DataType.FLOAT32
        self.residual = inccl.Residual(count, storage=storage, keep=keep)
        self.count = count
        self._scale = 1.0  # of the next call

    @staticmethod
    def check(residual: bool, keep: float, reset_every: int) -> None:
        if not residual and (keep or reset_every):
            raise ValueError(f"{'keep' if keep else 'reset_every'}: it is about the residual, and residual is False")
        if not 0 <= keep < 1:
            raise ValueError(f"keep: {keep} is not in [0, 1)")
        in_range("reset_every", reset_every, 0, 2**63 - 1)

    @staticmethod
    def check_factor(factor: float) -> None:
        if not 0 < factor < float("inf"):
            raise ValueError(f"factor: {factor} is not a finite positive number")

    def rescale(self, factor: float) -> None:
        """Of the next call: it has as input a multiple of what earlier ones had."""
        self._scale *= factor

    def values(self) -> torch.Tensor:
        values = bytearray(self.residual.save())
        top = torch.finfo(torch.float32).max
        return (torch.frombuffer(values, dtype=torch.float32) * self._scale).clamp(-top, top) if values else torch.empty(0)

    def load(self, values: torch.Tensor) -> None:
        self.residual.load(values.numpy().tobytes())
        self._scale = 1.0

    @contextlib.contextmanager
    def call(self, tensor: torch.Tensor, reset: bool):
        """Around a call that takes the residual. reset: it begins with zero."""
        if tensor.is_cuda and (reset or self._scale != 1):
            torch.cuda.current_stream(tensor.device).synchronize()  # an earlier call may still use it
        if reset:
            self.residual.reset()
        if self._scale != 1:
            self.residual.set_scale(self._scale)
        yield
        if self._scale != 1:
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()
            self.residual.set_scale(1.0)
            self._scale = 1.0


class Bucket:
    """What is kept for the parameters of a bucket, in their order."""

    def __init__(self, parameters: List[torch.Tensor], names: List[str], model: Optional[DistributedDataParallel]):
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self.sizes = [parameter.numel() for parameter in parameters]
        self.names = names
        self.model = (lambda: None) if model is None else weakref.ref(model)
        self.feedback: Optional[Feedback] = None
        self.velocity: Optional[torch.Tensor] = None
        self.reducers: Dict[int, inccl.ReducerState] = {}  # by the place of a parameter; 0 for all as a vector
        self.layerwise = False
        self.dropped, self.calls_with_drops = 0, 0  # of the State's statistics when it was last looked

    def parameters(self) -> list:
        """None in the place of one that has gone."""
        return [parameter() for parameter in self._parameters]

    def has(self, parameters: List[torch.Tensor]) -> bool:
        return all(mine() is other for mine, other in zip(self._parameters, parameters))

    def values(self) -> dict:
        """By table, what belongs to each parameter: [(place, value)]."""
        found = {table: [] for table in TABLES}
        if self.feedback is not None:
            found["residuals"] = list(enumerate(self.feedback.values().split(self.sizes)))
        if self.velocity is not None:
            found["velocities"] = list(enumerate(self.velocity.split(self.sizes)))
        if self.layerwise:
            found["reducers"] = list(self.reducers.items())
        return found


class Kept:
    """Residuals, velocities and states of reducers, of each parameter.

    DDP rebuilds its buckets after the first step: then what was kept for a parameter goes with it to
    its next bucket. So does what load() has read. Reducers that take a bucket as a vector begin
    anew with a bucket of other parameters.
    """

    def __init__(self):
        self._buckets: Dict[tuple, Bucket] = {}  # by ids of the parameters
        self._bucket_of: Dict[int, tuple] = {}  # by id of a parameter
        self._loose = {table: {} for table in TABLES}  # by id: (the parameter, value)
        self._loaded = {table: {} for table in TABLES}  # by name
        self._models: List[weakref.ref] = []
        self._steps: Dict[str, int] = {}  # by model: backward passes that have ended

    def of(self, bucket) -> Bucket:
        parameters = bucket.parameters()
        ids = tuple(map(id, parameters))
        found = self._buckets.get(ids)
        if found is None or not found.has(parameters):
            found = self._make(bucket.index(), ids, parameters)
        return found

    def _make(self, index: int, ids: tuple, parameters: list) -> Bucket:
        former = {self._bucket_of[one] for one in ids if one in self._bucket_of}
        former.update(key for key, bucket in self._buckets.items()
                      if any(parameter is None for parameter in bucket.parameters()))
        for one in former:
            self._dissolve(one)
        for table in TABLES:
            self._loose[table] = {one: kept for one, kept in self._loose[table].items() if kept[0]() is not None}
        owners = owners_of(parameters)
        model = next((found[0] for found in owners if found is not None), None)
        prefix = self._prefix_of(model)
        names = [prefix + (found[1] if found else f"bucket {index} parameter {place}") for place, found in enumerate(owners)]
        made = self._buckets[ids] = Bucket(parameters, names, model)
        self._bucket_of.update(dict.fromkeys(ids, ids))
        return made

    def group(self):
        """Of a model whose gradients have been reduced, or None."""
        models = (bucket.model() for bucket in self._buckets.values())
        return next((model.process_group for model in models if model is not None), None)

    def _place_of(self, model) -> int:
        """Of a model among those whose gradients this has seen; most States have one."""
        if model is None:
            return 0
        place = next((i for i, one in enumerate(self._models) if one() is model), None)
        if place is None:
            place = next((i for i, one in enumerate(self._models) if one() is None), len(self._models))
            if self._models[place:]:
                self._steps.pop(f"model {place + 1}", None)
            self._models[place:place + 1] = [weakref.ref(model)]
        return place

    def _prefix_of(self, model) -> str:
        """Of the names in state_dict()."""
        place = self._place_of(model)
        return f"model {place + 1}: " if place > 0 else ""

    def step(self, bucket: Bucket, is_last: bool) -> int:
        """How many backward passes of the bucket's model have ended before this one."""
        name = f"model {self._place_of(bucket.model()) + 1}"
        before = self._steps.get(name, 0)
        self._steps[name] = before + is_last
        return before

    def _dissolve(self, ids: tuple) -> None:
        gone = self._buckets.pop(ids)
        parameters = gone.parameters()
        for table, values in gone.values().items():
            for place, value in values:
                if parameters[place] is not None:
                    self._loose[table][id(parameters[place])] = weakref.ref(parameters[place]), value
        for one in ids:
            if self._bucket_of.get(one) == ids:  # not another parameter of that id
                del self._bucket_of[one]

    def _waiting(self, table: str, bucket: Bucket, place: int):
        """What was kept or loaded for a parameter of a bucket."""
        parameter = bucket.parameters()[place]
        reference, value = self._loose[table].get(id(parameter), (None, None))
        if reference is not None and reference() is parameter:
            return value
        return self._loaded[table].get(bucket.names[place])

    def _taken(self, table: str, bucket: Bucket, place: int) -> None:
        """The bucket has it now."""
        self._loose[table].pop(id(bucket.parameters()[place]), None)
        self._loaded[table].pop(bucket.names[place], None)

    def _joined(self, table: str, bucket: Bucket, dtype: torch.dtype) -> Optional[torch.Tensor]:
        places = range(len(bucket.sizes))
        parts = [self._waiting(table, bucket, place) for place in places]
        for name, size, part in zip(bucket.names, bucket.sizes, parts):
            if part is not None and part.numel() != size:
                raise ValueError(f"{table}: {name} has {size} elements, what was loaded for it {part.numel()}")
        for place in places:
            self._taken(table, bucket, place)
        if all(part is None for part in parts):
            return None
        return torch.cat([torch.zeros(size, dtype=dtype) if part is None else part.to("cpu", dtype).flatten()
                          for size, part in zip(bucket.sizes, parts)])

    def feedback(self, bucket: Bucket, dtype: torch.dtype, keep: float) -> Feedback:
        if bucket.feedback is None:
            values = self._joined("residuals", bucket, torch.float32)
            bucket.feedback = Feedback(sum(bucket.sizes), dtype, keep)
            if values is not None:
                bucket.feedback.load(values)
        return bucket.feedback

    def velocity(self, bucket: Bucket, buffer: torch.Tensor) -> torch.Tensor:
        if bucket.velocity is None:
            values = self._joined("velocities", bucket, buffer.dtype)
            bucket.velocity = torch.zeros_like(buffer) if values is None else values
        bucket.velocity = bucket.velocity.to(buffer)
        return bucket.velocity

    def reducer_state(self, bucket: Bucket, part: int, reducer: inccl.Reducer, layerwise: bool, rows: int,
                      cols: int, dtype: torch.dtype) -> inccl.ReducerState:
        bucket.layerwise = layerwise
        state = bucket.reducers.get(part)
        if state is None or state.type != TYPES[dtype]:
            whole = ",".join(bucket.names)
            kept = self._waiting("reducers", bucket, part) if layerwise else self._loaded["reducers"].get(whole)
            state = reducer.state(rows, cols, dtype)
            if isinstance(kept, inccl.ReducerState) and kept.type == state.type:
                state = kept
            if isinstance(kept, dict):
                if (kept["rows"], kept["cols"]) != (rows, cols):
                    raise ValueError(f"reducers: {bucket.names[part]} is of {rows} x {cols}, what was loaded for it of "
                                     f"{kept['rows']} x {kept['cols']}")
                state.load(kept["state"].numpy().tobytes())
            if layerwise:
                self._taken("reducers", bucket, part)
            self._loaded["reducers"].pop(whole, None)
        bucket.reducers[part] = state
        return state

    def rescale(self, factor: float, tables=("residuals", "velocities")) -> None:
        for bucket in self._buckets.values():
            if bucket.feedback is not None and "residuals" in tables:
                bucket.feedback.rescale(factor)
            if bucket.velocity is not None and "velocities" in tables:
                bucket.velocity.mul_(factor)
        for table in tables:
            for _, value in self._loose[table].values():
                value.mul_(factor)
            for value in self._loaded[table].values():
                value.mul_(factor)

    def save(self) -> dict:
        """By name of a parameter; of a vector by the names of its bucket, with commas."""
        saved = {table: dict(values) for table, values in self._loaded.items()}
        for bucket in self._buckets.values():
            for table, values in bucket.values().items():
                for place, value in values:
                    saved[table][bucket.names[place]] = value
            if bucket.reducers and not bucket.layerwise:
                saved["reducers"][",".join(bucket.names)] = bucket.reducers[0]
        for table, values in self._loose.items():
            for reference, value in values.values():
                parameter = reference()
                found = None if parameter is None else owners_of([parameter])[0]
                if found is not None:
                    saved[table].setdefault(self._prefix_of(found[0]) + found[1], value)
        saved["reducers"] = {name: state if isinstance(state, dict) else
                             {"rows": state.rows, "cols": state.cols, "type": int(state.type),
                              "state": torch.frombuffer(bytearray(state.save()), dtype=torch.uint8)}
                             for name, state in saved["reducers"].items()}
        saved = {table: {name: value if isinstance(value, dict) else value.clone() for name, value in values.items()}
                 for table, values in saved.items()}
        return {**saved, "steps": dict(self._steps)}

    def load(self, saved: dict, reducer: Optional[inccl.Reducer]) -> None:
        loaded = {}
        for table in TABLES:
            for name, value in saved[table].items():
                if not isinstance(name, str):
                    raise TypeError(f"{table}: expected the name of a parameter as key, got {name!r}")
                if table == "reducers":
                    if not isinstance(value, dict) or not {"rows", "cols", "type", "state"} <= value.keys():
                        raise TypeError(f"reducers: expected rows, cols, type and state for {name}")
                    continue
                if not isinstance(value, torch.Tensor):
                    raise TypeError(f"{table}: expected a tensor for {name}, got {type(value).__name__}")
                if not bool(value.isfinite().all()):
                    raise ValueError(f"{table}: {name} has elements that are not finite")
            loaded[table] = {name: value.clone() if table != "reducers" else dict(value)
                             for name, value in saved[table].items()}
        for name, state in loaded["reducers"].items():
            if reducer is None:
                raise ValueError("reducers: the state has some, this State has no reducer")
            reducer.state(state["rows"], state["cols"], inccl.DataType(state["type"])).load(state["state"].numpy().tobytes())
        steps = saved.get("steps", {})
        if not isinstance(steps, dict) or not all(isinstance(value, int) for value in steps.values()):
            raise TypeError("steps: expected a number for each model")
        self.__init__()
        self._loaded, self._steps = loaded, dict(steps)
