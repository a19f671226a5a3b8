#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes real gradients: trains a small GPT data-parallel and writes every rank's gradient.

The model (byte-level, 4 layers, width 128, about 0.9 million parameters) learns the Python standard
library's sources, which are on any machine that can run this. All ranks live in this one process:
each has a shard of the files and a batch of its own, the mean of the gradients drives AdamW, and at
an early, a middle and the last step each rank's own gradient, before the mean, is written:

    OUT/step{S}_rank{R}.npy    fp32, one dimension, all parameters flattened in the model's order
    OUT/LAYERS.txt             the parameters in that order: a name, a number of elements and,
                               of a matrix that is written whole, a number of columns

With --sample N only N superblocks (256 consecutive elements each) are written, in order, spread
over every kind of parameter in proportion to its size, at least four of each; SAMPLE.txt beside
them lists which. The same seed, versions and CPU give the same bytes; another CPU's matrix
products may differ in the last bits.

Needs torch and numpy: python3 -m venv build/venv && build/venv/bin/pip install torch numpy
"""
import argparse
import math
import pathlib
import sys
import sysconfig
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

SUPERBLOCK = 256
EARLY_STEP = 5


class Block(nn.Module):
    """Pre-norm transformer block: causal attention, then a 4x wide GELU MLP."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.attention_in(self.norm1(x))
        qkv = qkv.view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(functional.gelu(self.mlp_in(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context):
        super().__init__()
        self.embedding_token = nn.Embedding(256, width)
        self.embedding_position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("attention_out.weight", "mlp_out.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, targets):
        x = self.embedding_token(tokens) + self.embedding_position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def load_shards(ranks, seed):
    """The bytes of the standard library's *.py files, dealt to the ranks file by file."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    skip = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    files = [f for f in sorted(root.rglob("*.py")) if not skip & set(f.relative_to(root).parts)]
    order = np.random.default_rng(seed).permutation(len(files))
    shards = [b"".join(files[i].read_bytes() for i in order[r::ranks]) for r in range(ranks)]
    print(f"text: {len(files)} files, {sum(map(len, shards))} bytes below {root}", flush=True)
    return [torch.frombuffer(bytearray(s), dtype=torch.uint8) for s in shards]


def kind_of(name):
    """The kind of a parameter, for the sample: biases and norms are small vectors, one kind."""
    if "norm" in name or name.endswith("bias"):
        return "norm_bias"
    return next(kind for kind in ("embedding", "attention", "mlp", "head") if kind in name)


def choose_superblocks(model, wanted):
    """Sorted superblock numbers and their kinds. A superblock is of the rarest kind it touches."""
    sizes = {}
    kinds = []
    for name, p in model.named_parameters():
        kinds += [kind_of(name)] * p.numel()
        sizes[kind_of(name)] = sizes.get(kind_of(name), 0) + p.numel()
    rarity = sorted(sizes, key=sizes.get)
    whole = len(kinds) // SUPERBLOCK
    by_kind = {kind: [] for kind in rarity}
    for s in range(whole):
        here = set(kinds[s * SUPERBLOCK : (s + 1) * SUPERBLOCK])
        by_kind[next(kind for kind in rarity if kind in here)].append(s)
    if wanted >= whole:
        return list(range(whole)), {kind: len(by_kind[kind]) for kind in rarity}
    chosen, counts, left = [], {}, wanted
    for i, kind in enumerate(rarity):
        rest = sum(sizes[k] for k in rarity[i:])
        share = min(max(4, round(left * sizes[kind] / rest)), len(by_kind[kind]), left)
        chosen += [by_kind[kind][j * len(by_kind[kind]) // share] for j in range(share)]
        counts[kind] = share
        left -= share
    return sorted(chosen), counts


def write_step(out, step, gradients, superblocks):
    for rank, gradient in enumerate(gradients):
        if superblocks is not None:
            gradient = gradient[: len(gradient) // SUPERBLOCK * SUPERBLOCK]
            gradient = gradient.reshape(-1, SUPERBLOCK)[superblocks].reshape(-1)
        np.save(out / f"step{step}_rank{rank}.npy", np.ascontiguousarray(gradient, np.float32))


def write_selection(out, superblocks, counts, elements):
    """The chosen superblocks of the flattened gradient, as text."""
    lines = [f"# {len(superblocks)} superblocks of {SUPERBLOCK} elements, of {elements} elements"]
    lines += [f"# {kind}: {counts[kind]}" for kind in sorted(counts)]
    for i in range(0, len(superblocks), 16):
        lines.append(" ".join(map(str, superblocks[i : i + 16])))
    (out / "SAMPLE.txt").write_text("\n".join(lines) + "\n")


def write_layers(out, model, superblocks):
    """Each parameter's name and number of elements that were written, in order; a whole matrix's
    columns, too."""
    lines = ["# name of a parameter, number of its elements in the files"]
    if superblocks is None:
        lines[0] += ", columns of a matrix"
    begin = 0
    for name, p in model.named_parameters():
        end = begin + p.numel()
        count = p.numel() if superblocks is None else sum(
            max(0, min(end, (s + 1) * SUPERBLOCK) - max(begin, s * SUPERBLOCK)) for s in superblocks)
        if count:
            columns = f" {p.shape[1]}" if superblocks is None and p.dim() == 2 else ""
            lines.append(f"{name} {count}{columns}")
        begin = end
    (out / "LAYERS.txt").write_text("\n".join(lines) + "\n")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="steps of training (default 600)")
    parser.add_argument("--ranks", type=int, default=8, help="data-parallel ranks (default 8)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory of the files")
    parser.add_argument("--sample", type=int, default=0, metavar="N",
                        help="write N superblocks of 256 elements only; 0: everything")
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches (default 1)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64, help="tokens a sequence (default 64)")
    parser.add_argument("--batch", type=int, default=8,
                        help="sequences per rank and step (default 8)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    args = parser.parse_args()
    if args.steps <= EARLY_STEP + 1 or args.ranks < 1 or args.sample < 0:
        parser.error(f"--steps must exceed {EARLY_STEP + 1}, --ranks 0, --sample not be negative")
    return args


def learning_rate(step, steps, peak=1e-3, warmup=20):
    """Linear warm-up, then a cosine down to a tenth."""
    if step <= warmup:
        return peak * step / warmup
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    model = Gpt(args.layers, args.width, args.heads, args.context)
    parameters = list(model.parameters())
    elements = sum(p.numel() for p in parameters)
    print(f"torch {torch.__version__}, numpy {np.__version__}, python {sys.version.split()[0]}")
    print(f"model: {elements} parameters in {len(parameters)} tensors")
    shards = load_shards(args.ranks, args.seed)
    generators = [torch.Generator().manual_seed(args.seed * 1000 + r) for r in range(args.ranks)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    superblocks, counts = choose_superblocks(model, args.sample) if args.sample else (None, None)
    write_layers(args.out, model, superblocks)
    written = {EARLY_STEP, args.steps // 2, args.steps}
    begin = time.monotonic()
    for step in range(1, args.steps + 1):
        gradients, losses = [], []
        for shard, generator in zip(shards, generators):
            last = len(shard) - args.context - 1
            starts = torch.randint(last, (args.batch,), generator=generator)
            rows = torch.stack([shard[s : s + args.context + 1] for s in starts.tolist()]).long()
            model.zero_grad(set_to_none=True)
            loss = model(rows[:, :-1], rows[:, 1:])
            loss.backward()
            gradients.append(torch.cat([p.grad.reshape(-1) for p in parameters]))
            losses.append(loss.item())
        if step in written:
            write_step(args.out, step, [g.numpy() for g in gradients], superblocks)
        mean, offset = torch.stack(gradients).mean(0), 0
        for p in parameters:
            p.grad = mean[offset : offset + p.numel()].view_as(p)
            offset += p.numel()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        optimizer.step()
        if step in written or step % 50 == 0:
            print(f"step {step}: loss {sum(losses) / len(losses):.4f}, "
                  f"{time.monotonic() - begin:.0f} s", flush=True)
    if superblocks is not None:
        write_selection(args.out, superblocks, counts, elements)


if __name__ == "__main__":
    main()
