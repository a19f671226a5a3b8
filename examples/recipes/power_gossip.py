# SPDX-License-Identifier: Apache-2.0
"""PowerGossip (arXiv 2008.01425): ranks of a graph average their models with their neighbours alone, by messages of low rank.
torchrun --standalone --nproc-per-node 8 power_gossip.py"""
import torch
import torch.distributed as dist

import inccl.torch  # noqa: F401  registers the backend


class PowerGossip:
    """Moves `tensors` towards those of the neighbours. A step estimates each difference of two ranks by one power iteration
    of `rank` columns, which begins with the last step's; both ends then move by `weight` of the estimate, so the mean over
    all ranks stays. weight: at most 1 / (1 + neighbours). Both ends of an edge name each other."""

    def __init__(self, tensors, neighbours, rank=1, weight=1 / 3):
        self.tensors, self.neighbours, self.weight, self.me = tensors, neighbours, weight, dist.get_rank()
        self.columns = {}  # by neighbour: of each matrix, equal at both ends
        for peer in neighbours:
            generator = torch.Generator().manual_seed(1000 * min(self.me, peer) + max(self.me, peer))
            self.columns[peer] = [torch.randn(self.matrix(one).shape[1], min(rank, *self.matrix(one).shape), generator=generator)
                                  for one in tensors]

    @staticmethod
    def matrix(tensor):
        return tensor.reshape(len(tensor), -1) if tensor.dim() > 0 else tensor.reshape(1, 1)

    def differences(self, mine):
        """By neighbour: what the lower rank of the two has, less what the higher one has. `mine`: by neighbour, matrices."""
        sent = {peer: torch.cat([part.reshape(-1) for part in parts]) for peer, parts in mine.items()}
        came = {peer: torch.empty_like(message) for peer, message in sent.items()}
        pending = [dist.irecv(came[peer], peer) for peer in sent] + [dist.isend(sent[peer], peer) for peer in sent]
        for work in pending:
            work.wait()
        found = {}
        for peer, parts in mine.items():
            difference = sent[peer] - came[peer] if self.me < peer else came[peer] - sent[peer]
            pieces = difference.split([part.numel() for part in parts])
            found[peer] = [piece.view_as(part) for piece, part in zip(pieces, parts)]
        return found

    @torch.no_grad()
    def step(self):
        """Returns how many elements this rank has sent."""
        matrices = [self.matrix(one.detach()) for one in self.tensors]
        left = {peer: [one @ column for one, column in zip(matrices, self.columns[peer])] for peer in self.neighbours}
        bases = {peer: [torch.linalg.qr(part).Q for part in parts] for peer, parts in self.differences(left).items()}
        right = {peer: [one.T @ basis for one, basis in zip(matrices, bases[peer])] for peer in self.neighbours}
        factors = self.differences(right)
        for peer in self.neighbours:
            sign = -1 if self.me < peer else 1
            for one, basis, factor in zip(self.tensors, bases[peer], factors[peer]):
                one.add_((basis @ factor.T).view_as(one), alpha=sign * self.weight)
            self.columns[peer] = [torch.where(factor.norm(dim=0) > 0, factor / factor.norm(dim=0), before)
                                  for factor, before in zip(factors[peer], self.columns[peer])]
        return sum(part.numel() for parts in [*left.values(), *right.values()] for part in parts)


def main():
    dist.init_process_group("inccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Tanh(), torch.nn.Linear(48, 10))
    ring = sorted({(rank - 1) % ranks, (rank + 1) % ranks} - {rank})
    gossip = PowerGossip(list(model.parameters()), ring, rank=2)

    def spread():
        """The mean over ranks, and the largest distance of an element from it."""
        whole = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
        mean = whole.clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        distance = (whole - mean).abs().max()
        dist.all_reduce(distance, dist.ReduceOp.MAX)
        return mean, distance.item()

    mean, first = spread()
    for _ in range(400):
        sent = gossip.step()
    after, last = spread()
    if rank == 0:
        print(f"{sent} of {2 * len(mean)} elements a step; the ranks differ by {last:.1e}, {first:.1e} at first")
    assert (after - mean).abs().max() < 1e-6 and last < first / 10
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
