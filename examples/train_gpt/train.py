#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small character-level GPT data-parallel, with or without compressed gradients.

    torchrun --standalone --nproc-per-node 4 train.py --backend inccl --hook inccl --codec hbi:bits=6

All configurations of one seed start from the same weights and see the same characters in the same
order, also with other numbers of ranks. docs/training.md has what they reach.
"""
import argparse
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun sets it, too

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

TEXT = pathlib.Path(__file__).resolve().parent / "devils_dictionary.txt"


@dataclasses.dataclass
class Preset:
    """layers to mlp: the model; batch: sequences of all ranks in a step, each of `context`
    characters."""
    layers: int
    width: int
    heads: int
    mlp: int  # width of the hidden layer over that of the model
    context: int
    batch: int
    optimizer: str
    peak: float  # learning rate


# "wide" has many parameters for few characters: communication takes most of a step.
PRESETS = {
    "small": Preset(3, 128, 4, 4, 64, 32, "adamw", 2e-3),
    "wide": Preset(2, 256, 4, 32, 8, 8, "sgd", 0.1),
}


class Block(nn.Module):
    """Causal attention, then a GELU layer, each behind a norm."""

    def __init__(self, preset):
        super().__init__()
        width = preset.width
        self.heads = preset.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in = nn.Linear(width, preset.mlp * width)
        self.mlp_out = nn.Linear(preset.mlp * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.attention_in(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(functional.gelu(self.mlp_in(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, preset, letters):
        super().__init__()
        self.token = nn.Embedding(letters, preset.width)
        self.position = nn.Embedding(preset.context, preset.width)
        self.blocks = nn.ModuleList(Block(preset) for _ in range(preset.layers))
        self.norm = nn.LayerNorm(preset.width)
        self.head = nn.Linear(preset.width, letters, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                inner = name.endswith(("attention_out.weight", "mlp_out.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * preset.layers) if inner else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, rows):
        """The mean loss in nats per character; rows: context + 1 characters each."""
        tokens, targets = rows[:, :-1], rows[:, 1:]
        x = self.token(tokens) + self.position.weight
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


class Data:
    """The text as numbers: nine tenths to learn from, the last tenth for the validation loss."""

    def __init__(self, preset, seed):
        text = TEXT.read_text(encoding="ascii")
        letters = sorted(set(text))
        number = {letter: i for i, letter in enumerate(letters)}
        self.letters, self.preset = len(letters), preset
        self._all = torch.tensor([number[letter] for letter in text])
        self._split = len(text) * 9 // 10
        self._random = torch.Generator().manual_seed(seed)

    def batch(self, rank, ranks):
        """This rank's rows of the next batch; every rank draws the places of all."""
        length, rows = self.preset.context + 1, self.preset.batch
        starts = torch.randint(self._split - length, (rows,), generator=self._random)
        mine = starts[rank * rows // ranks:(rank + 1) * rows // ranks]
        return self._all[mine[:, None] + torch.arange(length)]

    def validation(self, rank, ranks):
        """Every `ranks`-th row of the last tenth, in as many parts on all ranks."""
        rows = self._all[self._split:].unfold(0, self.preset.context + 1, self.preset.context)
        return rows[rank::ranks].tensor_split(math.ceil(len(rows) / ranks / 32))


def make_model(preset, letters, seed):
    torch.manual_seed(seed)
    return Gpt(preset, letters)


OPTIMIZERS = {"adamw": 2e-3, "sgd": 0.1, "momentum": 0.1, "cdsgd": 0.1, "lans": 3e-2}  # and their peak learning rates


def make_optimizer(preset, parameters, args=None):
    if preset.optimizer == "cdsgd":
        from inccl.torch import CdSgd
        return CdSgd(parameters, lr=preset.peak, momentum=0.9, codec=args.codec, correct_every=args.correct_every,
                     residual=args.residual, seed=args.seed)
    if preset.optimizer == "momentum":
        return torch.optim.SGD(parameters, lr=preset.peak, momentum=0.9)
    if preset.optimizer == "lans":
        from inccl.torch import Lans
        return Lans(parameters, lr=preset.peak, betas=(0.9, 0.95), weight_decay=0.01)
    if preset.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=preset.peak)
    return torch.optim.AdamW(parameters, lr=preset.peak, betas=(0.9, 0.95), weight_decay=0.1)


def learning_rate(preset, step, steps, warmup=20):
    """Linear warm-up, then a cosine down to a tenth."""
    if step <= warmup:
        return preset.peak * step / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return preset.peak * (0.55 + 0.45 * math.cos(math.pi * done))


def train_step(model, optimizer, preset, step, steps, rows, clip=1.0, fused=None):
    """Returns the loss of this rank's rows."""
    optimizer.zero_grad(set_to_none=False)
    loss = model(rows)
    loss.backward()
    if fused is not None:
        fused.wait()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(preset, step, steps)
    optimizer.step()
    return loss.item()


@torch.no_grad()
def validation_loss(model, parts, total):
    """Over the rows of all ranks."""
    summed = torch.zeros(2, dtype=torch.float64)
    for part in parts:
        summed += torch.tensor([model(part).item() * len(part), len(part)], dtype=torch.float64)
    total(summed)
    return (summed[0] / summed[1]).item()


def regroup(fused, groups, step):
    """Which tensors go into a call. By their times: of steps with a call for each."""
    if groups == "each" and step == 1 or groups == "timed" and step == 3:
        fused.set_sizes([1] * len(fused.elements))
    if groups == "timed" and step == 6:
        import inccl.plan
        alpha, beta = inccl.plan.fit(fused.call_ms)
        fused.set_sizes(inccl.plan.groups(fused.elements, fused.ready_ms, max(alpha, 0), beta)[0])


def bits_of(statistics, beside=True):
    """A function that gives what install_hook's does. beside: uncompressed elements count as zero in compressed calls, too."""
    share = 2 * (dist.get_world_size() - 1) / dist.get_world_size()

    def bits():
        counts = statistics()
        whole = counts.elements + (0 if beside else counts.uncompressed_elements)
        return (8 * counts.payload_bytes / share + 32 * counts.uncompressed_elements) / max(1, whole)
    return bits


def install_hook(args, model):
    """Registers the hook; returns a function that gives the mean number of bits that a rank has
    sent for an element of the gradient in each of the two phases of an all-reduce."""
    if args.hook == "inccl":
        import inccl.torch
        args.recorder = inccl.torch.Recorder(args.record) if args.record else None
        state = inccl.torch.State(codec=args.codec, residual=args.residual, seed=args.seed, plan=args.plan,
                                  record=args.recorder, reducer=args.reducer, momentum=args.momentum,
                                  keep=args.keep, reset_every=args.reset_every, start=args.uncompressed,
                                  clip=args.local_clip)
        model.register_comm_hook(state, inccl.torch.compress_hook)
        return bits_of(lambda: state.statistics)
    if args.hook == "bf16":
        # By another name: DDP refuses bf16_compress_hook where there is no GPU.
        model.register_comm_hook(None, lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket))
        return lambda: 16.0
    if args.hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4,
                                            start_powerSGD_iter=max(2, args.steps // 10), random_seed=args.seed)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

        def bits():
            # The state counts the calls that it has compressed; those before went in fp32.
            _, before, after = state.compression_stats()
            whole = sum(p.numel() for p in model.parameters())
            first = min(args.done, state.start_powerSGD_iter) * whole
            return 32 * (after + first) / max(1, before + first)
        return bits
    if args.hook == "local":
        model.register_comm_hook(None, lambda _, bucket: completed(bucket.buffer()))
        return lambda: 0.0
    return lambda: 32.0


def shard(args, model):
    """FSDP2, a group of parameters for each block and one for the rest; returns what install_hook does."""
    kind = torch.bfloat16 if args.fsdp == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=kind)
    hooks = []
    for module in [*model.blocks, model]:
        fully_shard(module, mp_policy=policy)
        if args.hook == "inccl":
            import inccl.torch
            hooks.append(inccl.torch.CompressedReduceScatter(
                args.codec, seed=args.seed, residual=args.residual, keep=args.keep, reset_every=args.reset_every))
            module.set_custom_reduce_scatter(hooks[-1])

    def bits():
        counts = [hook.statistics for hook in hooks]
        sent = sum(8 * one.payload_bytes for one in counts) / (dist.get_world_size() - 1)
        return sent / max(1, sum(one.elements for one in counts)) if hooks else 16.0 if kind else 32.0
    return bits


def completed(value):
    future = torch.futures.Future()
    future.set_result(value)
    return future


def equal_on_all_ranks(model):
    """Whether all ranks have the same bits in all parameters."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    digest = hashlib.sha256(b"".join(p.detach().float().numpy().tobytes() for p in whole)).hexdigest()
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    return len(set(digests)) == 1


def train(args):
    preset = PRESETS[args.preset]
    if args.optimizer:
        preset = dataclasses.replace(preset, optimizer=args.optimizer, peak=args.peak or OPTIMIZERS[args.optimizer])
    if args.backend == "inccl":
        import inccl.torch  # noqa: F401  registers the backend
    dist.init_process_group(args.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = Data(preset, args.seed)
    plain = make_model(preset, data.letters, args.seed)
    late = preset.optimizer == "cdsgd"
    fused = None
    if late:
        model = plain
    elif args.hook == "fused":
        state = inccl.torch.State(codec=args.codec, residual=args.residual, seed=args.seed)
        model = plain
        fused = inccl.torch.Fused(plain, state)
        bits = bits_of(lambda: state.statistics, beside=False)
    elif args.fsdp:
        model, bits = plain, shard(args, plain)
    else:
        # With several buckets, ranks start the all-reduces of PowerSGD's callbacks in different orders, and gloo fails.
        megabytes = 1024 if args.hook == "powersgd" else args.bucket_mb
        model = nn.parallel.DistributedDataParallel(plain, bucket_cap_mb=megabytes, gradient_as_bucket_view=True)
        bits = install_hook(args, model)
    optimizer = make_optimizer(preset, plain.parameters(), args)
    if late:
        bits = bits_of(lambda: optimizer.statistics, beside=False)
    check = data.validation(rank, ranks)
    log = open(args.log_file, "w", encoding="utf-8") if args.log_file and rank == 0 else None

    def write(**entry):
        if rank == 0:
            print(json.dumps(entry), file=log, flush=True)

    write(backend=args.backend, hook=args.hook, codec=args.codec if args.hook == "inccl" else None,
          residual=args.residual, keep=args.keep, reset_every=args.reset_every, fsdp=args.fsdp, seed=args.seed,
          steps=args.steps, preset=args.preset, ranks=ranks,
          parameters=sum(p.numel() for p in plain.parameters()), torch=torch.__version__)
    losses, times = [], []
    for step in range(1, args.steps + 1):
        rows = data.batch(rank, ranks)
        begin = time.perf_counter()
        losses.append(train_step(model, optimizer, preset, step, args.steps, rows, 0 if args.local_clip else 1.0,
                                 fused))
        if fused is not None:
            regroup(fused, args.groups, step)
        times.append(time.perf_counter() - begin)
        args.done = step
        validates = args.validate and (step == args.steps or step % args.validate == 0)
        if not validates and step < args.steps and step % args.every:
            continue
        mean = torch.tensor(sum(losses) / len(losses), dtype=torch.float64)
        dist.all_reduce(mean)
        entry = {"step": step, "loss": mean.item() / ranks, "bits": round(bits(), 3),
                 "step_ms": round(1e3 * statistics.median(times), 2)}
        if validates:
            if late:
                optimizer.synchronize()
            entry["validation"] = validation_loss(plain, check, dist.all_reduce)
        write(**entry)
        losses, times = [], []
    if args.trace and rank == 0:
        args.recorder.trace(ranks).save(args.trace)
    write(equal=equal_on_all_ranks(plain))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["gloo", "inccl"], default="inccl")
    parser.add_argument("--hook", choices=["none", "inccl", "fused", "bf16", "powersgd", "local"], default="inccl",
                        help="none: DDP's own all-reduce; fused: without DDP; local: no communication, to time the computation")
    parser.add_argument("--codec", default="hbi:bits=6", help="of --hook inccl and fused (docs/codecs.md)")
    parser.add_argument("--reducer", help="of --hook inccl, in place of a codec (docs/reducers.md)")
    parser.add_argument("--groups", choices=["one", "each", "timed"], default="timed", help="of --hook fused")
    parser.add_argument("--momentum", type=float, default=0.0, help="of each rank's gradients, with --hook inccl")
    parser.add_argument("--residual", action="store_true", help="error feedback, with --hook inccl")
    parser.add_argument("--keep", type=float, default=0.0, help="of the former residual (LoCo's moving average)")
    parser.add_argument("--reset-every", type=int, default=0, metavar="STEPS", help="residuals begin with zero again")
    parser.add_argument("--uncompressed", type=int, default=0, metavar="STEPS", help="the first ones, with --hook inccl")
    parser.add_argument("--fsdp", choices=["fp32", "bf16"],
                        help="FSDP2 in place of DDP; of the parameters and gradients that are sent, with --hook none or inccl")
    parser.add_argument("--record", nargs="+", metavar="CODEC", help="the steps take these codecs in turn; see --trace")
    parser.add_argument("--trace", help="rank 0 writes the times of --record here, for python -m inccl.plan")
    parser.add_argument("--plan", help="file of python -m inccl.plan: a codec for each bucket")
    parser.add_argument("--bucket-mb", type=float, help="size of DDP's buckets (default: PyTorch's)")
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--optimizer", choices=OPTIMIZERS,
                        help="in place of the preset's; momentum: SGD with 0.9; cdsgd: so, one step late, without a hook")
    parser.add_argument("--correct-every", type=int, default=0, metavar="STEPS", help="of cdsgd: these travel uncompressed")
    parser.add_argument("--local-clip", type=float, help="of each rank's gradients, as State(clip=...), in place of the mean's")
    parser.add_argument("--peak", type=float, help="its largest learning rate")
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=10,
                        help="steps from one line of the log to the next, which has their mean loss and median time")
    parser.add_argument("--validate", type=int, default=40,
                        help="steps from one validation loss to the next; there is one after the last step; 0: none")
    parser.add_argument("--log-file", help="file of JSON lines that rank 0 writes; without it they are printed")
    args = parser.parse_args()
    if bool(args.record) != bool(args.trace):
        parser.error("--record and --trace belong together")
    if args.fsdp and (args.hook not in ("none", "inccl") or args.uncompressed or args.record or args.plan or args.reducer):
        parser.error("--fsdp takes --hook none or inccl, without --record, --plan, --reducer and --uncompressed")
    args.done = 0
    torch.set_num_threads(1)
    train(args)


if __name__ == "__main__":
    main()
