# SPDX-License-Identifier: Apache-2.0
"""Compressed DDP and FSDP2, against the same training on one rank."""
import copy
import gc
import io
import warnings
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import inccl
import inccl.plan
import inccl.torch
from torch_world import check_equal, group_ranks


def model():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.ReLU(),
                               torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def batch(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(16, 64, generator=generator), torch.randint(0, 10, (16,),
                                                                  generator=generator)


def loss_of(net, rank):
    inputs, labels = batch(rank)
    return torch.nn.functional.cross_entropy(net(inputs), labels)


def expected_gradients(n):
    """The mean over the ranks, computed here."""
    net = model()
    (sum(loss_of(net, rank) for rank in range(n)) / n).backward()
    return [parameter.grad for parameter in net.parameters()]


def check_gradients(got, expected, tolerance):
    for mine, exact in zip(got, expected):
        limit = tolerance * exact.abs().max() + 1e-7
        assert (mine - exact).abs().max() <= limit, ((mine - exact).abs().max(), limit)


@group_ranks(1, 2)
def test_ddp(rank, n):
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    for step in range(2):
        ddp.zero_grad()
        loss_of(ddp, rank).backward()
    check_gradients([p.grad for p in ddp.parameters()], expected_gradients(n), 1e-5)


@group_ranks(2)
def test_ddp_compressed(rank, n):
    expected = expected_gradients(n)
    for as_view in (False, True):
        ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02, gradient_as_bucket_view=as_view)
        state = inccl.torch.State(codec="hbi:bits=8", min_elements=1000)
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
        for step in range(3):
            ddp.zero_grad(set_to_none=False)
            loss_of(ddp, rank).backward()
        for parameter, exact in zip(ddp.parameters(), expected):
            compressed = parameter.dim() > 1 and parameter.numel() >= 1000
            error = (parameter.grad - exact).abs().max()
            assert error <= (0.05 if compressed else 1e-5) * exact.abs().max() + 1e-7
            assert not compressed or error > 0  # something was compressed
        same = [torch.empty_like(parameter.grad) for _ in range(n)]
        dist.all_gather(same, parameter.grad)
        assert torch.equal(same[0], same[1])
        counts = state.statistics
        assert counts.elements > 0 and counts.uncompressed_elements > 0 and counts.ratio > 2
        assert counts.payload_bytes < 3 * 4 * sum(p.numel() for p in ddp.parameters())
        assert counts.error_bound > 0
    with pytest.raises(inccl.InvalidArgument, match="nonsense"):
        inccl.torch.State(codec="nonsense")


class Branches(torch.nn.Module):
    """One has large gradients, one small ones, one zeros."""

    def __init__(self):
        super().__init__()
        self.large, self.small, self.zero = (torch.nn.Linear(64, 128) for _ in range(3))

    def forward(self, x):
        return self.large(x) + 1e-7 * self.small(x) + 0 * self.zero(x)


@group_ranks(3)
def test_parameters_that_become_zero_are_named(rank, n):
    for codec, residual, named in (("hbi:bits=1", False, True), ("hbi:bits=1", True, True), ("hbi", False, False)):
        ddp = DistributedDataParallel(Branches())
        state = inccl.torch.State(codec=codec, residual=residual)
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(6):
                ddp.zero_grad()
                ddp(batch(rank)[0]).square().sum().backward()
                assert not ddp.module.zero.weight.grad.any() and ddp.module.large.weight.grad.any()
                assert bool(ddp.module.small.weight.grad.any()) != named
        texts = [str(one.message) for one in caught if "compress_hook" in str(one.message)]
        assert len(texts) == named, texts
        if named:
            assert "left no bits for the gradient of small.weight" in texts[0], texts
            assert ("residual" in texts[0].split(";")[0]) == residual, texts
        assert (state.statistics.dropped_superblocks > 0) == named


@group_ranks(2)
def test_statistics_are_of_all_calls(rank, n):
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    state = inccl.torch.State(codec="hbi:bits=4", min_elements=1000)
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    for step in range(2):
        ddp.zero_grad()
        (loss_of(ddp, rank) * (torch.inf if step == 1 and rank == 0 else 1)).backward()
    counts = state.statistics
    assert counts.calls > 2 and counts.poisoned_blocks > 0
    # Calls of few elements send whole superblocks, so the last call's ratio is not that of all.
    assert counts.ratio == pytest.approx(4 * counts.elements / counts.payload_bytes, rel=1e-3)


@group_ranks(2)
def test_residuals(rank, n):
    """Over many steps with the same batch the mean gradient tends to the exact one."""
    exact = expected_gradients(n)
    errors, states = [], []
    for residual in (False, True):
        ddp = DistributedDataParallel(model())
        states.append(inccl.torch.State(codec="hbi:bits=3,ag=exact", min_elements=1000,
                                        residual=residual))
        ddp.register_comm_hook(states[-1], inccl.torch.compress_hook)
        total = [torch.zeros_like(gradient) for gradient in exact]
        for step in range(8):
            ddp.zero_grad()
            loss_of(ddp, rank).backward()
            for sum_, parameter in zip(total, ddp.parameters()):
                sum_ += parameter.grad
        errors.append(sum((sum_ / 8 - gradient).square().sum()
                          for sum_, gradient in zip(total, exact)))
    assert 0 < errors[1] < errors[0] / 4, errors
    kept = states[1].state_dict()
    assert not states[0].state_dict()["residuals"] and kept["residuals"]
    other = inccl.torch.State(residual=True)
    other.load_state_dict(kept)
    check_equal(other.state_dict(), kept)


@group_ranks(2)
def test_rebuilt_buckets(rank, n):
    """DDP's buckets of the first step are others than later; what is kept for a parameter goes with it."""
    for options in ({"residual": True}, {"reducer": "powersgd:rank=1"}, {"reducer": "topk:k=0.1", "momentum": 0.5}):
        ddp, buckets, before = DistributedDataParallel(model(), bucket_cap_mb=0.02), [], []
        state = inccl.torch.State(codec="hbi:bits=3", min_elements=1000, **options)

        def hook(state, bucket):
            buckets[-1].append((bucket.index(), bucket.buffer().numel()))
            if len(buckets) == 2 and state.residual:  # the buckets are others now, and begin with what was kept
                kept = state._kept.of(bucket)
                values = torch.frombuffer(bytearray(state._kept.feedback(kept, torch.float32, 0).residual.save()), dtype=torch.float32)
                for name, value in zip(kept.names, values.split(kept.sizes)):
                    assert value.equal(before[1]["residuals"][name]), name
                    carried.add(name)
            return inccl.torch.compress_hook(state, bucket)
        ddp.register_comm_hook(state, hook)
        carried = set()
        names = {name for name, _ in ddp.module.named_parameters()}
        for step in range(3):
            buckets.append([])
            ddp.zero_grad()
            before.append(state.state_dict())
            loss_of(ddp, rank).backward()
        assert buckets[0] != buckets[1] == buckets[2], buckets
        kept = state.state_dict()
        for table in ("residuals", "velocities", "reducers"):
            used = set(",".join(kept[table]).split(",")) - {""}
            assert used <= names, (table, used)
        assert kept["residuals"] or kept["reducers"]
        if "residual" in options:
            assert carried == names == kept["residuals"].keys() and any(v.any() for v in before[1]["residuals"].values())


@group_ranks(2)
def test_one_bucket_in_another_order(rank, n):
    """After the first step DDP has the same elements in one bucket, in the order in which they are ready."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128, bias=False), torch.nn.ReLU(), torch.nn.Linear(128, 1024, bias=False))
    inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))

    def gradients(model):
        model.zero_grad()
        model(inputs).square().mean().backward()
        return [p.grad.clone() for p in net.parameters()]
    exact = gradients(net)
    dist.all_reduce(exact[0], dist.ReduceOp.AVG), dist.all_reduce(exact[1], dist.ReduceOp.AVG)
    loaded = None
    for options in ({"reducer": "powersgd:rank=16"}, {"codec": "hbi:bits=3,ag=exact", "residual": True},
                    {"codec": "hbi:bits=3,ag=exact", "residual": True}):
        ddp, shapes = DistributedDataParallel(net), []
        state = inccl.torch.State(min_elements=1000, **options)
        if loaded is not None:
            state.load_state_dict(loaded)
            check_equal(state.state_dict(), loaded)

        def hook(state, bucket):
            shapes.append([p.shape for p in bucket.parameters()])
            return inccl.torch.compress_hook(state, bucket)
        ddp.register_comm_hook(state, hook)
        total, errors = [torch.zeros_like(one) for one in exact], []
        for step in range(9):
            for sum_, gradient in zip(total, gradients(ddp)):
                other = gradient.clone()
                dist.broadcast(other, 0)
                assert other.equal(gradient)
                sum_ += gradient
            errors.append(sum((sum_ / (step + 1) - one).norm() for sum_, one in zip(total, exact)))
        assert shapes[0] == shapes[1][::-1] and shapes[1] == shapes[8] and len(shapes) == 9
        if "codec" in options:  # what the first step left out goes to its own parameters
            assert errors[-1] < 0.2 * errors[0], errors
            if loaded is None:
                first = errors[0]
            else:
                assert errors[0] != first, "the first step had no residual"
            loaded = state.state_dict()
            assert loaded["residuals"].keys() == {"0.weight", "2.weight"}
            assert loaded["residuals"]["0.weight"].numel() == 64 * 128


@group_ranks(2)
def test_training_goes_on_as_it_was(rank, n):
    """From a checkpoint in the middle, in a new DDP, whose first step has other buckets. A cast rounds each element by
    itself, whatever its bucket, so the parameters are the same bits."""
    def start(weights=None):
        ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)
        state = inccl.torch.State(codec="bf16", min_elements=1000, residual=True)
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
        if weights is not None:
            ddp.module.load_state_dict(weights)
        return ddp, state, torch.optim.SGD(ddp.parameters(), lr=0.1)

    def steps(ddp, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            loss_of(ddp, rank).backward()
            optimizer.step()
    ddp, state, optimizer = start()
    steps(ddp, optimizer, 4)
    file = io.BytesIO()
    torch.save((ddp.module.state_dict(), state.state_dict()), file)
    file.seek(0)
    weights, kept = torch.load(file)  # weights_only
    assert all(isinstance(name, str) for name in kept["residuals"])
    steps(ddp, optimizer, 2)
    for with_state in (True, False):
        other, its_state, optimizer = start(weights)
        if with_state:
            its_state.load_state_dict(kept)
        steps(other, optimizer, 2)
        same = [mine.equal(exact) for mine, exact in zip(other.parameters(), ddp.parameters())]
        assert all(same) == with_state, same


@group_ranks(2)
def test_the_scale_of_the_loss_changes(rank, n):
    exact = expected_gradients(n)
    errors = []
    for told in (False, True):
        ddp = DistributedDataParallel(model())
        state = inccl.torch.State(codec="hbi:bits=3,ag=exact", min_elements=1000, residual=True)
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
        total = [torch.zeros_like(gradient) for gradient in exact]
        for step in range(8):
            scale = 1024.0 if step < 4 else 1.0
            if step == 4 and told:
                state.rescale(1 / 1024)
            ddp.zero_grad()
            (loss_of(ddp, rank) * scale).backward()
            for sum_, parameter in zip(total, ddp.parameters()):
                sum_ += parameter.grad / scale
        errors.append(sum((sum_ / 8 - gradient).square().sum() for sum_, gradient in zip(total, exact)))
    assert errors[1] < errors[0] / 100, errors
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="factor"):
            state.rescale(wrong)


@group_ranks(2)
def test_one_state_for_two_models(rank, n):
    ddps = [DistributedDataParallel(model()) for _ in range(2)]
    state = inccl.torch.State(codec="hbi:bits=3", min_elements=1000, residual=True)
    for ddp in ddps:
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
    kept = []
    for _ in range(4):
        for ddp in ddps:
            ddp.zero_grad()
            loss_of(ddp, rank).backward()
        kept.append(state.state_dict()["residuals"])
    names = [name for name, _ in model().named_parameters()]
    assert kept[-1].keys() == {*names, *(f"model 2: {name}" for name in names)}
    # The same data and rounding but for the step of the call: both have a residual of their own.
    assert not kept[-1][names[0]].equal(kept[-1]["model 2: " + names[0]])
    assert kept[-1][names[0]].any() and kept[-1]["model 2: " + names[0]].any()


@group_ranks(2)
def test_models_come_and_go(rank, n):
    """What was kept for a model goes with it, and the next one has its own."""
    state, models = inccl.torch.State(codec="hbi:bits=4", min_elements=1, residual=True), []
    for _ in range(6):
        ddp = DistributedDataParallel(torch.nn.Linear(64, 32))
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
        for _ in range(3):
            ddp(torch.randn(4, 64)).sum().backward()
        models.append(weakref.ref(ddp))
        assert {name.split(": ")[-1] for name in state.state_dict()["residuals"]} == {"weight", "bias"}
        assert len(state.state_dict()["residuals"]) <= 4  # of this model, and of one that the collector has not seen
        del ddp
        gc.collect()
    assert sum(model() is not None for model in models) <= 1


@group_ranks(4)
def test_the_group_is_that_of_the_model(rank, n):
    """Without process_group; another one is an error."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    ddp = DistributedDataParallel(torch.nn.Linear(64, 128), process_group=halves[rank // 2])
    ddp_state = inccl.torch.State(codec="hbi:bits=8", min_elements=1)
    ddp.register_comm_hook(ddp_state, inccl.torch.compress_hook)
    ddp(torch.full((4, 64), float(rank + 1))).sum().backward()
    assert ddp.module.bias.grad.equal(torch.full((128,), 4.0))
    mean = 4 * (1.5 if rank < 2 else 3.5)
    assert (ddp.module.weight.grad - mean).abs().max() < 0.05 * mean
    state = ddp_state.state_dict()
    assert state["world_size"] == 2
    other = DistributedDataParallel(torch.nn.Linear(64, 128))  # of all four ranks
    loaded = inccl.torch.State(codec="hbi:bits=8", min_elements=1)
    loaded.load_state_dict(state)  # its group is not known yet
    assert loaded.state_dict()["world_size"] == 2
    other.register_comm_hook(loaded, inccl.torch.compress_hook)
    with pytest.raises(ValueError, match="world_size: 2, the group has 4 ranks"):
        other(torch.ones(4, 64)).sum().backward()
    wrong = DistributedDataParallel(torch.nn.Linear(64, 128), process_group=halves[rank // 2])
    wrong.register_comm_hook(inccl.torch.State(process_group=dist.group.WORLD), inccl.torch.compress_hook)
    with pytest.raises(ValueError, match=r"process_group: of the ranks \[0, 1, 2, 3\]"):
        wrong(torch.ones(4, 64)).sum().backward()


@group_ranks(2)
def test_power_sgd(rank, n):
    """Its callbacks wait for further all-reduces."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    ddp = DistributedDataParallel(model())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=64, start_powerSGD_iter=2,
                                        min_compression_rate=0.1)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(4):
        ddp.zero_grad()
        loss_of(ddp, rank).backward()
    check_gradients([p.grad for p in ddp.parameters()], expected_gradients(n), 0.5)


@group_ranks(2)
def test_which_parameters_are_compressed(rank, n):
    ddp = DistributedDataParallel(model())
    chosen = []

    def compress(parameter):
        chosen.append(tuple(parameter.shape))
        return False
    state = inccl.torch.State(compress=compress)
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    loss_of(ddp, rank).backward()
    check_gradients([p.grad for p in ddp.parameters()], expected_gradients(n), 1e-5)
    assert state.statistics.calls == 0 and (128, 64) in chosen


@group_ranks(2)
def test_sparse_gradients(rank, n):
    def embedding():
        torch.manual_seed(3)
        return torch.nn.EmbeddingBag(10, 8, mode="sum", sparse=True)
    words = [torch.tensor([[0, 1, 3]]), torch.tensor([[3, 5, 5]])]
    alone = embedding()
    (sum(alone(w).square().sum() for w in words) / n).backward()
    for hook in (False, True):
        ddp = DistributedDataParallel(embedding())
        if hook:
            ddp.register_comm_hook(inccl.torch.State(), inccl.torch.compress_hook)
        ddp(words[rank]).square().sum().backward()
        check_gradients([ddp.module.weight.grad.to_dense()], [alone.weight.grad.to_dense()], 1e-6)


@group_ranks(2)
def test_a_late_rank_is_named_by_backward(rank, n):
    from datetime import timedelta
    group = dist.new_group(timeout=timedelta(seconds=1))
    ddp = DistributedDataParallel(model(), process_group=group)
    ddp.register_comm_hook(inccl.torch.State(group), inccl.torch.compress_hook)
    if rank == 0:
        with pytest.raises(RuntimeError, match="peer 1@"):
            loss_of(ddp, rank).backward()
    else:
        import threading
        while group.communicator.async_error() is None:
            threading.Event().wait(0.01)
    dist.barrier()
    group.abort()


@group_ranks(2, backend="gloo")
def test_beside_another_backend(rank, n):
    ddp = DistributedDataParallel(model())
    state = inccl.torch.State(codec="hbi:bits=8", min_elements=1000)
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    loss_of(ddp, rank).backward()
    check_gradients([p.grad for p in ddp.parameters()], expected_gradients(n), 0.05)
    assert state.statistics.elements > 0


def shard(net):
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def fsdp_modules(net):
    return [module for module in net.modules() if isinstance(module, torch.distributed.fsdp.FSDPModule)]


@group_ranks(2)
def test_fsdp(rank, n):
    expected = expected_gradients(n)
    for hooks in (False, True):
        net = shard(model())
        scatter = inccl.torch.CompressedReduceScatter("hbi:bits=8")
        gather = inccl.torch.CompressedAllGather("lossless")
        if hooks:
            for module in fsdp_modules(net):
                module.set_custom_reduce_scatter(scatter)
                module.set_custom_all_gather(gather)
        for step in range(2):
            net.zero_grad()
            loss_of(net, rank).backward()
        got = [parameter.grad.full_tensor() for parameter in net.parameters()]
        # A small parameter shares blocks with larger ones: its error is relative to those.
        most = max(exact.abs().max() for exact in expected)
        for mine, exact in zip(got, expected):
            assert (mine - exact).abs().max() <= (0.05 * most if hooks else 1e-6)
        if hooks:
            assert scatter.statistics.elements > 0 and scatter.statistics.ratio > 2
            assert gather.statistics.elements > 0 and gather.statistics.error_bound == 0


@group_ranks(2)
def test_fsdp_with_residuals(rank, n):
    """What a step leaves out of a module's gradients, its next one sends."""
    exact, errors = expected_gradients(n), []
    for options in ({}, {"residual": True}, {"residual": True, "reset_every": 1}):
        net, hooks = shard(model()), []
        for module in fsdp_modules(net):
            hooks.append(inccl.torch.CompressedReduceScatter("hbi:bits=3,ag=exact", **options))
            module.set_custom_reduce_scatter(hooks[-1])
        total = [torch.zeros_like(gradient) for gradient in exact]
        for step in range(8):
            net.zero_grad()
            loss_of(net, rank).backward()
            for sum_, parameter in zip(total, net.parameters()):
                sum_ += parameter.grad.full_tensor()
        errors.append(sum((sum_ / 8 - gradient).square().sum().item() for sum_, gradient in zip(total, exact)))
        # The root has small parameters only, which are not compressed.
        assert [hook.statistics.elements > 0 for hook in hooks] == [False, True, True, True]
        kept = [hook.state_dict() for hook in hooks]
        assert all(one["steps"] == 8 * (len(options) > 0) for one in kept)
        assert [bool(one["residual"].any()) for one in kept] == [False] + 3 * [len(options) > 0]
        for hook in hooks:
            assert not copy.deepcopy(hook).state_dict()["residual"].any()
            assert copy.copy(hook).residual == hook.residual and copy.deepcopy(hook).codec.spec == hook.codec.spec
    assert errors[1] < errors[0] / 4, errors
    assert errors[1] < errors[2] / 4, errors


@group_ranks(3)
def test_what_was_loaded_is_sent(rank, n):
    """And only once; then it is what the call has left out."""
    count = 500
    random = torch.Generator().manual_seed(9)
    inputs, kept = torch.randn(2, n, n * count, generator=random)
    hook = inccl.torch.CompressedReduceScatter("bf16", residual=True)
    hook.load_state_dict({"residual": kept[rank], "steps": 4})
    assert hook.state_dict()["residual"].equal(kept[rank])
    output = torch.empty(count)
    hook(output, inputs[rank].clone(), dist.group.WORLD, dist.ReduceOp.SUM)
    part = slice(rank * count, (rank + 1) * count)
    exact = (inputs + kept).sum(0)[part]
    assert ((output - exact).abs() <= 2 ** -7 * (inputs + kept).abs().sum(0)[part]).all()
    assert (output - inputs.sum(0)[part]).abs().max() > 1
    left = hook.state_dict()
    assert left["steps"] == 5
    z = inputs[rank] + kept[rank]
    assert left["residual"].equal(z - z.bfloat16().float())
    for wrong, error in (({}, TypeError), ({"residual": kept[rank] / 0, "steps": 1}, ValueError)):
        with pytest.raises(error):
            hook.load_state_dict(wrong)
    assert hook.state_dict()["residual"].equal(left["residual"]), "an error changes nothing"


class FirstOnes(torch.nn.Module):
    """Of two layers, one or both are used."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(40, 40) for _ in range(2))

    def forward(self, x, used):
        return sum(layer(x).square().sum() for layer in self.layers[:used])


@group_ranks(2)
def test_fsdp_residuals_belong_to_one_module(rank, n):
    net = shard(model())
    shared = inccl.torch.CompressedReduceScatter("hbi:bits=3", residual=True)
    for module in fsdp_modules(net):
        module.set_custom_reduce_scatter(shared)
    with pytest.raises(ValueError, match="4 groups of parameters share this CompressedReduceScatter"):
        loss_of(net, rank).backward()
    for options, named in (({"keep": .5}, "keep"), ({"reset_every": 3}, "reset_every"),
                           ({"residual": True, "keep": 1}, "keep: 1 is not in"),
                           ({"residual": True, "reset_every": -1}, "reset_every")):
        with pytest.raises(ValueError, match=named):
            inccl.torch.CompressedReduceScatter("hbi:bits=3", **options)
        with pytest.raises(ValueError, match=named):
            inccl.torch.State(codec="hbi:bits=3", **options)
    with pytest.raises(ValueError, match="residual is False"):
        inccl.torch.CompressedReduceScatter("hbi").load_state_dict({"residual": torch.ones(3), "steps": 1})
    hook = inccl.torch.CompressedReduceScatter("hbi", residual=True)
    hook.load_state_dict({"residual": torch.ones(3), "steps": 1})
    net = fully_shard(torch.nn.Linear(10, 10), mesh=dist.device_mesh.init_device_mesh("cpu", (n,)))
    net.set_custom_reduce_scatter(hook)
    with pytest.raises(ValueError, match="residual: 3 elements were loaded, the call has 110"):
        net(torch.ones(10)).sum().backward()
    # A step in which a parameter has no gradient goes without the residual.
    net = fully_shard(FirstOnes(), mesh=dist.device_mesh.init_device_mesh("cpu", (n,)))
    hook = inccl.torch.CompressedReduceScatter("hbi:bits=3", residual=True)
    net.set_custom_reduce_scatter(hook)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for used in (2, 1, 2, 1):
            net.zero_grad()
            net(torch.full((40,), 1.0 + rank), used).backward()
            assert all((parameter.grad is None) == (i >= used) for i in range(2) for parameter in net.layers[i].parameters())
    assert hook.state_dict()["steps"] == 2
    texts = [str(one.message) for one in caught if "CompressedReduceScatter" in str(one.message)]
    assert len(texts) == 1 and "1640 elements, and the residual has 3280" in texts[0], texts


class Given(torch.nn.Module):
    """Parameters whose gradients are the factors of its loss."""

    def __init__(self, *shapes):
        super().__init__()
        self.values = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, factors):
        return sum((value * factor).sum() for value, factor in zip(self.values, factors))


def given_factors(shapes, rank, step):
    """Of very different size, so that one vector's largest elements are all of one parameter."""
    random = torch.Generator().manual_seed(1000 * rank + step)
    return [torch.randn(shape, generator=random) * 10.0 ** -place for place, shape in enumerate(shapes)]


def to_bf16(x):
    return x.float().bfloat16().double()


SHAPES = ((40, 30), (30, 20))


@group_ranks(2)
def test_arguments_against_plain_loops(rank, n):
    """All ranks' steps in float64 in one loop, as the papers define them; a bf16 cast, or topk, is what compresses."""
    rates = [0.5, 0.5, 0.1, 0.0, 0.1, 0.4]
    for options in ({"keep": 0.25}, {"keep": 0.25, "reset_every": 2}, {"start": 2}, {"start": 2, "reset_every": 3},
                    {"set_lr": True}, {"set_lr": True, "keep": 0.5}, {"momentum": 0.5, "nesterov": True},
                    {"momentum": 0.5, "nesterov": True, "clip": 9.0}, {"clip": 9.0}):
        set_lr = options.pop("set_lr", False)
        state = inccl.torch.State(codec="bf16", compress=lambda p: True, residual=True, **options)
        ddp = DistributedDataParallel(Given(*SHAPES), bucket_cap_mb=0.001)
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
        velocity = [[torch.zeros(shape, dtype=torch.float64) for shape in SHAPES] for _ in range(n)]
        left = copy.deepcopy(velocity)
        former = rates[0]
        for step, lr in enumerate(rates):
            if set_lr:
                state.set_lr(lr)
            ddp.zero_grad()
            ddp(given_factors(SHAPES, rank, step)).backward()
            mean = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
            for other in range(n):
                for place, g in enumerate(given_factors(SHAPES, other, step)):
                    g = g.double()
                    if "clip" in options:
                        g = g * min(1, options["clip"] / n ** .5 / g.norm())
                    if "momentum" in options:
                        v = velocity[other][place] = options["momentum"] * velocity[other][place] + g
                        g = g + options["momentum"] * v
                    e = left[other][place]
                    if step % options.get("reset_every", 100) == 0:
                        e = e * 0
                    if step < options.get("start", 0):
                        mean[place] += g / n
                        continue
                    if set_lr and lr > 0:
                        e = e * former / lr
                    z = g + e
                    mean[place] += to_bf16(z) / n
                    keep = options.get("keep", 0)
                    left[other][place] = keep * e + (1 - keep) * (z - to_bf16(z))
            former = lr or former
            for parameter, exact, shape in zip(ddp.module.values, mean, SHAPES):
                if step < options.get("start", 0):
                    assert (parameter.grad - exact).abs().max() < 1e-6, (options, step)
                # The sum is rounded to bf16 once more.
                wrong = (parameter.grad - exact).abs() > 2 ** -8 * exact.abs() + 1e-6
                assert wrong.double().mean() < 0.002, (options, step)
            for place, value in enumerate(left[rank]):
                got = state.state_dict()["residuals"].get(f"values.{place}")
                if step >= options.get("start", 0):
                    # Here and there a sum in fp32 lies on the other side of the middle between two numbers of bf16.
                    apart = (got - value.flatten()).abs()
                    assert (apart > 1e-6).double().mean() < 0.002, (options, step, place, apart.max())
        assert state.state_dict()["steps"] == {"model 1": len(rates)}


@group_ranks(2)
def test_each_parameter_by_itself(rank, n):
    """layerwise: each sends a tenth of its elements; as one vector, the larger ones take all places."""
    for layerwise in (False, True):
        state = inccl.torch.State(reducer="topk:k=0.1|none", compress=lambda p: True, layerwise=layerwise)
        ddp = DistributedDataParallel(Given(*SHAPES))
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
        ddp([torch.zeros(shape) for shape in SHAPES]).backward()  # after it, DDP makes its buckets anew
        left = [[torch.zeros(shape).flatten() for shape in SHAPES] for _ in range(n)]
        for step in range(3):
            ddp.zero_grad()
            ddp(given_factors(SHAPES, rank, step)).backward()
            mean = [torch.zeros(shape).flatten() for shape in SHAPES]
            for other in range(n):
                z = [e + g.flatten() for e, g in zip(left[other], given_factors(SHAPES, other, step))]
                sizes = [one.numel() for one in z]
                parts = z if layerwise else [torch.cat(z)]
                sent = [torch.zeros_like(part).index_copy(0, at, part[at])
                        for part in parts for at in [part.abs().topk(len(part) // 10).indices]]
                sent = sent if layerwise else list(sent[0].split(sizes))
                left[other] = [one - part for one, part in zip(z, sent)]
                mean = [total + part / n for total, part in zip(mean, sent)]
            for parameter, exact in zip(ddp.module.values, mean):
                assert (parameter.grad.flatten() - exact).abs().max() < 1e-6, (layerwise, step)
        assert bool(ddp.module.values[1].grad.any()) == layerwise
        names = state.state_dict()["reducers"].keys()
        assert len(names) == (2 if layerwise else 1) and ("values.0" in names) == layerwise
    for wrong, named in (({"nesterov": True}, "nesterov"), ({"clip": 0}, "clip"), ({"layerwise": True}, "layerwise"),
                         ({"clip": float("nan")}, "clip"), ({"start": -1}, "start")):
        with pytest.raises(ValueError, match=named):
            inccl.torch.State(**wrong)
    with pytest.raises(TypeError, match="process_group: expected a process group, got str"):
        inccl.torch.State("hbi:bits=4")
    with pytest.raises(ValueError, match="lr: it is for residuals"):
        inccl.torch.State().set_lr(0.1)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="lr"):
            inccl.torch.State(residual=True).set_lr(wrong)


@group_ranks(2)
def test_memory_is_reused(rank, n):
    first = inccl.torch.empty((300, 1000))
    first.fill_(rank)
    address = first.data_ptr()
    dist.all_reduce(first)
    assert (first == 1).all()
    view = first[5]
    del first
    assert inccl.torch.empty((300, 1000)).data_ptr() != address  # `view` still has it
    del view
    assert inccl.torch.empty((300, 1000)).data_ptr() == address
    copy.deepcopy(inccl.torch.empty(10, dtype=torch.int64))
    inccl.torch.release()
    assert dist.group.WORLD.allocate_tensor(7, dtype=torch.float32, device="cpu").numel() == 7


@group_ranks(2)
def test_recorder_and_plan(rank, n):
    """Steps take the recorder's codecs in turn; a plan gives each bucket its codec."""
    expected = expected_gradients(n)
    recorder = inccl.torch.Recorder(["none", "hbi:bits=8"])
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    state = inccl.torch.State(codec="hbi:bits=4", record=recorder, compress=lambda parameter: True)
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    with pytest.raises(RuntimeError, match="no step with none yet"):
        recorder.trace(n)
    exact = 0
    for _ in range(12):
        ddp.zero_grad()
        loss_of(ddp, rank).backward()
        check_gradients([p.grad for p in ddp.parameters()], expected, 0.05)
        exact += all((p.grad - e).abs().max() <= 1e-6 * e.abs().max() for p, e in zip(ddp.parameters(), expected))
    assert exact == 6
    trace = recorder.trace(n)
    assert [run.codec for run in trace.runs] == ["none", "hbi:bits=8"] and len(trace.elements) > 1
    assert sum(trace.elements) == sum(p.numel() for p in ddp.parameters())

    codecs = ["none"] + ["hbi:bits=8"] * (len(trace.elements) - 1)
    plan = inccl.plan.Plan(n, trace.elements, codecs, 1.0)
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    state = inccl.torch.State(codec="none", plan=plan, compress=lambda parameter: True)
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    for step in range(3):
        ddp.zero_grad()
        loss_of(ddp, rank).backward()
        before, now = (0, 0) if step == 0 else counts, state.statistics
        counts = now.elements, now.uncompressed_elements
    assert counts[0] - before[0] == sum(trace.elements[1:])
    assert counts[1] - before[1] == trace.elements[0]

    # Buckets that the plan does not have.
    other = inccl.plan.Plan(n, [1], ["none"], 1.0)
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    ddp.register_comm_hook(inccl.torch.State(codec="hbi:bits=8", plan=other), inccl.torch.compress_hook)
    with pytest.warns(UserWarning, match="plan: it does not have bucket 0"):
        for _ in range(2):
            loss_of(ddp, rank).backward()


def test_wrong_recorders_and_plans(tmp_path):
    with pytest.raises(ValueError, match="codecs: \\[\\]"):
        inccl.torch.Recorder([])
    with pytest.raises(ValueError, match="each once"):
        inccl.torch.Recorder(["none", "none"])
    with pytest.raises(inccl.InvalidArgument, match="hbi"):
        inccl.torch.Recorder(["hbi:bits=99"])
    with pytest.raises(ValueError, match="not both"):
        inccl.torch.State(plan=inccl.plan.Plan(1, [1], ["none"], 1.0), record=inccl.torch.Recorder(["none"]))
    (tmp_path / "plan").write_text("{}")
    with pytest.raises(ValueError, match="not a file of the format"):
        inccl.torch.State(plan=tmp_path / "plan")


@group_ranks(2)
def test_reducers(rank, n):
    """PowerSGD of full rank is exact, top-k makes up later for what it leaves out; the ranks agree."""
    expected = expected_gradients(n)
    for spec, steps, tolerance in (("powersgd:rank=10,residual=0|none", 1, 1e-3), ("topk:k=0.1|none", 80, 0.15)):
        ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)
        state = inccl.torch.State(reducer=spec, compress=lambda p: p.dim() > 1 and min(p.shape) <= 10 or "topk" in spec)
        ddp.register_comm_hook(state, inccl.torch.compress_hook)
        sums = [torch.zeros_like(p) for p in ddp.parameters()]
        for _ in range(steps):
            ddp.zero_grad()
            loss_of(ddp, rank).backward()
            for total, p in zip(sums, ddp.parameters()):
                total += p.grad
        check_gradients([total / steps for total in sums], expected, tolerance)
        assert state.statistics.elements > 0 and state.statistics.payload_bytes > 0
        for p in ddp.parameters():
            other = p.grad.clone()
            dist.broadcast(other, 0)
            assert other.equal(p.grad)
        saved = state.state_dict()
        again = inccl.torch.State(reducer=spec)
        again.load_state_dict(saved)
        assert again.state_dict()["reducers"] == saved["reducers"] and saved["reducers"]
        with pytest.raises(ValueError, match="this State has no reducer"):
            inccl.torch.State().load_state_dict(saved)


class Scaled(torch.nn.Module):
    """With a parameter that has no dimension."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = model(), torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, inputs):
        return self.inner(inputs) * self.scale


@group_ranks(2)
def test_matrices_of_scalars(rank, n):
    torch.manual_seed(5)
    plain = Scaled()
    (sum(loss_of(plain, other) for other in range(n)) / n).backward()
    ddp = DistributedDataParallel(Scaled(), bucket_cap_mb=0.02)
    state = inccl.torch.State(reducer="powersgd:rank=1000,residual=0", compress=lambda p: True)
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    loss_of(ddp, rank).backward()
    check_gradients([p.grad for p in ddp.parameters()], [p.grad for p in plain.parameters()], 1e-5)


@group_ranks(2)
def test_momentum_before_the_sum(rank, n):
    """With every element sent, as momentum of the optimizer on the mean."""
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    state = inccl.torch.State(reducer="topk:k=1|none", momentum=0.9, compress=lambda p: True)
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    plain = model()
    ours, theirs = torch.optim.SGD(ddp.parameters(), lr=0.1), torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        ours.zero_grad()
        theirs.zero_grad()
        loss_of(ddp, rank).backward()
        (sum(loss_of(plain, other) for other in range(n)) / n).backward()
        ours.step()
        theirs.step()
    for mine, exact in zip(ddp.parameters(), plain.parameters()):
        assert (mine - exact).abs().max() < 1e-4 * max(1, exact.abs().max())
    assert state.state_dict()["velocities"]


@group_ranks(2)
def test_momentum_forgets_an_overflow(rank, n):
    """One that one rank has in one step, as with a loss scale that is too large."""
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    state = inccl.torch.State(reducer="topk:k=1|none", momentum=0.9, compress=lambda p: True)
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    finite = []
    for step in range(5):
        ddp.zero_grad()
        (loss_of(ddp, rank) * (float("inf") if step == 2 and rank == 1 else 1.0)).backward()
        finite.append(all(bool(p.grad.isfinite().all()) for p in ddp.parameters()))
    assert finite == [True, True, False, True, True]
    assert all(bool(v.isfinite().all()) for v in state.state_dict()["velocities"].values())


@group_ranks(2)
def test_models_with_a_state_can_be_copied_and_saved(rank, n):
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    state = inccl.torch.State(codec="hbi:bits=4", residual=True, seed=7, process_group=dist.group.WORLD)
    ddp.register_comm_hook(state, inccl.torch.compress_hook)
    for _ in range(2):
        loss_of(ddp, rank).backward()
    averaged = torch.optim.swa_utils.AveragedModel(ddp)
    averaged.update_parameters(ddp)
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    for again, group in ((averaged.module, dist.group.WORLD), (torch.load(file, weights_only=False), None)):
        (_, copied), = again._comm_hooks
        assert isinstance(copied, inccl.torch.State) and copied is not state
        assert (copied.codec.spec, copied.seed, copied.residual) == (state.codec.spec, 7, True)
        assert copied.process_group is group and not copied.state_dict()["residuals"]
    loss_of(ddp, rank).backward()
    assert state.state_dict()["residuals"]


@group_ranks(1, 3)
def test_fused_is_ddps_average(rank, n):
    """In groups of any sizes, with gradients that come late, a parameter that has none, and a step with other sizes."""
    expected = expected_gradients(n)
    for codec, residual, tolerance in (("none", False, 1e-5), ("hbi:bits=8", True, 0.05)):
        for sizes in (None, [1, 3, 4], [1] * 8):
            torch.manual_seed(rank)  # the ranks begin with different parameters
            net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.ReLU(),
                                      torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
            if rank == 0:
                net.load_state_dict(model().state_dict())
            state = inccl.torch.State(codec=codec, min_elements=1000, residual=residual)
            fused = inccl.torch.Fused(net, state, sizes)
            for step in range(2):
                net.zero_grad()
                loss_of(net, rank).backward()
                fused.wait()
                check_gradients([p.grad for p in net.parameters()], expected, tolerance)
                fused.set_sizes([2, 6])
            assert fused.elements == [p.numel() for p in net.parameters()][::-1]
            assert fused.ready_ms[0] == 0 and fused.ready_ms == sorted(fused.ready_ms)
            if codec != "none" and n > 1:
                assert state.statistics.calls >= 2 and state.statistics.uncompressed_elements == 2 * (650 + 64 + 256 + 128)
            assert sum(count for count, _ in fused.call_ms) == sum(fused.elements)
            assert [count for count, _ in fused.call_ms] == [650, sum(fused.elements) - 650]
            alpha, beta = inccl.plan.fit(fused.call_ms)
            sizes, _ = inccl.plan.groups(fused.elements, fused.ready_ms, max(alpha, 0), beta)
            fused.set_sizes(sizes)
            net.zero_grad()
            net[5](torch.ones(2, 64)).sum().backward()  # no other layer has a gradient
            fused.wait()
            # What the residuals hold has been sent.
            assert residual or all(not p.grad.any() for p in list(net.parameters())[:6])
            assert net[5].bias.grad.equal(torch.full((10,), 2.0))


@group_ranks(2)
def test_fused_with_several_types(rank, n):
    """Buffers are those of rank 0; gradients of two types in one call."""
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4).double())
    net[1].num_batches_tracked += 5 * rank
    net[1].running_mean += rank
    fused = inccl.torch.Fused(net)
    assert net[1].num_batches_tracked == 0 and not net[1].running_mean.any()
    net[2](net[1](net[0](torch.full((4, 8), rank + 1.0) + torch.eye(4, 8))).double()).sum().backward()
    mine = [p.grad.clone() for p in net.parameters()]
    fused.wait()
    for parameter, local in zip(net.parameters(), mine):
        both = [torch.empty_like(local) for _ in range(n)]
        dist.all_gather(both, parameter.grad.contiguous())
        assert both[0].equal(both[1])
    assert net[2].bias.grad.equal(torch.full((4,), 4.0, dtype=torch.float64))


@group_ranks(1)
def test_wrong_use_of_fused(rank, n):
    net = model()
    for settings, named in (({"momentum": 0.9}, "momentum"), ({"reducer": "topk"}, "reducer"), ({"start": 3}, "start")):
        with pytest.raises(ValueError, match=f"state: Fused does not have {named}"):
            inccl.torch.Fused(net, inccl.torch.State(**settings))
    for sizes in ([3, 4], [9], [8, 0]):
        with pytest.raises(ValueError, match="sizes"):
            inccl.torch.Fused(net, sizes=sizes)
    with pytest.raises(ValueError, match="model"):
        inccl.torch.Fused(torch.nn.ReLU())
    fused = inccl.torch.Fused(net)
    loss_of(net, 0).backward()
    with pytest.raises(RuntimeError, match="second backward pass"):
        loss_of(net, 0).backward()
    fused.wait()


def test_wrong_reducers():
    with pytest.raises(inccl.InvalidArgument, match="nosuch"):
        inccl.torch.State(reducer="nosuch")
    with pytest.raises(TypeError, match="reducer: expected str or inccl.Reducer, got int"):
        inccl.torch.State(reducer=3)
    with pytest.raises(ValueError, match="it has its own residual"):
        inccl.torch.State(reducer="topk:k=0.1", residual=True)
    with pytest.raises(ValueError, match="momentum: 1 is not in"):
        inccl.torch.State(momentum=1)
