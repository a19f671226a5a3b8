# SPDX-License-Identifier: Apache-2.0
"""examples/train_gpt: a few steps on some ranks, against the same steps in this process, without DDP."""
import copy
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import inccl
import inccl.torch
from torch_world import group_ranks

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "train_gpt"
sys.dont_write_bytecode = True  # beside the example
sys.path.insert(0, str(EXAMPLE))
import compare  # noqa: E402
import train  # noqa: E402

STEPS, SEED = 3, 7


def expected_losses():
    """Per step that of the whole batch; the last one is that of the validation text."""
    preset = train.PRESETS["small"]
    data = train.Data(preset, SEED)
    model = train.make_model(preset, data.letters, SEED)
    optimizer = train.make_optimizer(preset, model.parameters())
    losses = [train.train_step(model, optimizer, preset, step, STEPS, data.batch(0, 1))
              for step in range(1, STEPS + 1)]
    return losses + [train.validation_loss(model, data.validation(0, 1), lambda summed: None)]


def run_ranks(nranks, program, *options):
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "INCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                   "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nranks),
                           EXAMPLE / program, *options], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("fsdp", [(), ("--fsdp", "fp32", "--keep", "0.2", "--reset-every", "2"), ("--fsdp", "bf16")])
def test_three_steps(tmp_path, fsdp):
    log = tmp_path / "hbi8.7.jsonl"
    run_ranks(2, "train.py", "--hook", "inccl", "--codec", "hbi:bits=8", "--residual", "--seed", str(SEED), "--steps",
              str(STEPS), "--every", "1", "--log-file", log, *fsdp)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[-1] == {"equal": True}
    entries = lines[1:-1]
    assert [entry["step"] for entry in entries] == [1, 2, 3]
    torch.set_num_threads(1)
    expected = expected_losses()
    got = [entry["loss"] for entry in entries] + [entries[-1]["validation"]]
    assert got[0] == pytest.approx(expected[0], rel=1e-3 if "bf16" in fsdp else 1e-5)  # of the same weights and rows
    assert got[1:] == pytest.approx(expected[1:], rel=5e-3 if "bf16" in fsdp else 2e-3)
    # 1.7 % of the elements, biases and norms, are summed as they are; the codes of 8 bits have scales beside them.
    assert all(8 < entry["bits"] < 9 for entry in entries)


def expected_local_sgd(ranks, steps, inner, rate, momentum):
    """The last validation loss; the models of all ranks are in this process."""
    preset = train.PRESETS["small"]
    data = [train.Data(preset, SEED) for _ in range(ranks)]
    models = [train.make_model(preset, data[0].letters, SEED) for _ in range(ranks)]
    optimizers = [train.make_optimizer(preset, model.parameters()) for model in models]
    common = [p.detach().clone() for p in models[0].parameters()]
    velocity = [torch.zeros_like(p) for p in common]
    for step in range(1, steps + 1):
        for rank, model in enumerate(models):
            train.train_step(model, optimizers[rank], preset, step, steps, data[rank].batch(rank, ranks))
        if step % inner == 0:
            of_ranks = [[p.detach() for p in model.parameters()] for model in models]
            for i, own in enumerate(zip(*of_ranks)):
                gradient = common[i] - sum(own) / ranks
                velocity[i] = momentum * velocity[i] + gradient
                common[i] = common[i] - rate * (gradient + momentum * velocity[i])
                for p in own:
                    p.copy_(common[i])
    return train.validation_loss(models[0], data[0].validation(0, 1), lambda summed: None)


@pytest.mark.parametrize("nranks, codec, tolerance, bits", [(2, "none", 1e-5, 32), (2, "hbi:bits=4", 1e-3, 4)])
def test_local_sgd(tmp_path, nranks, codec, tolerance, bits):
    log = tmp_path / "local_sgd.jsonl"
    run_ranks(nranks, "local_sgd.py", "--steps", "4", "--inner", "2", "--validate", "4", "--codec", codec, "--seed",
              str(SEED), "--log-file", log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line.get("step") for line in lines] == [None, 4, None] and lines[-1] == {"equal": True}
    torch.set_num_threads(1)
    expected = expected_local_sgd(nranks, 4, 2, 0.7, 0.9)
    assert lines[-2]["validation"] == pytest.approx(expected, rel=tolerance)
    assert codec == "none" or lines[-2]["validation"] != expected  # something was compressed
    assert lines[-2]["bits"] == pytest.approx(bits / 2, rel=0.05)


def test_no_layer_stands_still():
    """Of the least to the largest movement of a parameter over that in fp32, for branches of all scales."""
    out = run_ranks(2, "layer_scale.py", "--steps", "20", "--codec", "hbi", "hbi:bits=4", "hbi:bits=4+residual",
                    "hbi:bits=4,levels=energy")
    rows = [line for line in out.splitlines() if line.startswith("| 0") or line.startswith("| 1e-")]
    assert len(rows) == 5, out
    for row in rows:
        six, four, residual, energy = [[float(x) for x in re.findall(r"\d+\.\d+", cell)] for cell in row.split("|")[2:-1]]
        assert min(six) >= 0.98 and max(six) <= 1.02, row
        for ratios in (four, residual):
            assert min(ratios) >= 0.95 and max(ratios) <= 1.05, row
        assert min(energy) < 0.1, row  # the test can tell


def entries(losses):
    return [{"step": 10 * i, "validation": loss, "bits": 6.5} for i, loss in enumerate(losses, 1)]


def test_compare_reports(tmp_path, capsys):
    for name, seed, losses in (("gloo", 1, [3, 2]), ("gloo", 2, [3, 2.5]), ("hbi6", 1, [3.03, 2.02]),
                               ("hbi6", 2, [2.97, 2.45])):
        lines = [{"seed": seed}, *entries(losses), {"equal": True}]
        (tmp_path / f"{name}.{seed}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "hbi4.1.jsonl").write_text('{"seed": 1}\n{"step": 10, "validati')  # still running
    found = compare.load(tmp_path)
    assert list(found) == ["gloo", "hbi6"]
    compare.print_table(found)
    table = capsys.readouterr().out.splitlines()
    assert table[-1] == ("| `hbi:bits=6` | 6.5 | 2.2350 | 2.0200 to 2.4500 | -0.50 % | -2.00 to +1.00 % | 2 |")
    compare.plot(found, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text().count("<polyline") == 4


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lans_is_its_papers_loop(decay):
    """Algorithm 2 of arXiv 2006.13484 element by element in float64, with a parameter and a gradient of zeros."""
    numpy = pytest.importorskip("numpy")
    import inccl.torch
    random = numpy.random.default_rng(3)
    shapes = [(7, 5), (11,), (4,), (3,)]
    values = [random.standard_normal(shape) for shape in shapes]
    values[2][:] = 0
    parameters = [torch.nn.Parameter(torch.tensor(value)) for value in values]
    lr, beta1, beta2, eps = 0.1, 0.8, 0.95, 1e-6
    optimizer = inccl.torch.Lans(parameters, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    first, second = [0 * value for value in values], [0 * value for value in values]
    for step in range(1, 6):
        for i, x in enumerate(values):
            g = random.standard_normal(x.shape) * 10.0 ** (i - 2) * (i < 3)
            parameters[i].grad = torch.tensor(g)
            g = g / (numpy.sqrt((g * g).sum()) or 1)
            first[i] = beta1 * first[i] + (1 - beta1) * g
            second[i] = beta2 * second[i] + (1 - beta2) * g * g
            root = numpy.sqrt(second[i] / (1 - beta2 ** step)) + eps
            length = numpy.sqrt((x * x).sum())
            moved = 0
            for share, part in ((beta1, first[i] / (1 - beta1 ** step) / root), (1 - beta1, g / root)):
                part = part + decay * x
                norm = numpy.sqrt((part * part).sum())
                moved = moved + share * part * (length / norm if length > 0 and norm > 0 else 1)
            values[i] = x - lr * moved
        optimizer.step()
        for parameter, value in zip(parameters, values):
            assert numpy.abs(parameter.detach().numpy() - value).max() < 1e-9, step
    for wrong, named in (({"lr": -1}, "lr"), ({"betas": (1, .9)}, r"betas\[0\]"), ({"betas": (.9, 2)}, r"betas\[1\]"),
                         ({"eps": float("nan")}, "eps"), ({"weight_decay": -1}, "weight_decay")):
        with pytest.raises(ValueError, match=named):
            inccl.torch.Lans(parameters, **wrong)


LATE_SHAPES = [(6, 5), (8,), ()]


def late_gradient(rank, values, numpy):
    """Of a quadratic function that each rank has for itself."""
    return [(1 + 0.2 * rank) * (value - numpy.float64(rank - i)) for i, value in enumerate(values)]


@group_ranks(1, 3)
def test_cd_sgd_is_sgd_with_averages_of_the_step_before(rank, n):
    """All ranks are simulated here, in float64 and without a library."""
    import numpy
    random = numpy.random.default_rng(4)
    start = [random.standard_normal(shape) for shape in LATE_SHAPES]
    # Only rank 0's parameters count.
    parameters = [torch.nn.Parameter(torch.tensor(value + rank, dtype=torch.float64)) for value in start]
    optimizer = inccl.torch.CdSgd([{"params": parameters[:1], "lr": 0.2}, {"params": parameters[1:]}], lr=0.1, local_lr=0.05,
                                  momentum=0.75, codec="none", correct_every=2)
    common = [value.copy() for value in start]
    local = [[value.copy() for value in start] for _ in range(n)]
    velocity, average, rates = [0 * value for value in start], None, [0.2, 0.1, 0.1]

    def move():
        for i in range(len(common)):
            velocity[i] = 0.75 * velocity[i] + average[i]
            common[i] = common[i] - sent_rates[i] * velocity[i]

    def check(expected):
        for parameter, value in zip(parameters, expected):
            assert numpy.abs(parameter.detach().numpy() - value).max() < 1e-9

    check(start)
    for step in range(1, 8):
        if step == 4:  # of what travels from now on
            optimizer.param_groups[0]["lr"] = rates[0] = 0.15
        gradients = [late_gradient(r, local[r], numpy) for r in range(n)]
        for parameter, gradient in zip(parameters, late_gradient(rank, [p.detach().numpy() for p in parameters], numpy)):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
        if average is not None:
            move()
        average, sent_rates = [sum(gradient[i] for gradient in gradients) / n for i in range(len(common))], list(rates)
        for r in range(n):
            local[r] = [value - 0.05 * gradient for value, gradient in zip(common, gradients[r])]
        check(local[rank])
        if step == 5:  # an evaluation on the way
            optimizer.synchronize()
            move()
            average = None
            check(common)
            local = [[value.copy() for value in common] for _ in range(n)]
    optimizer.synchronize()
    move()
    check(common)
    optimizer.synchronize()  # nothing is under way
    check(common)
    statistics = optimizer.statistics  # steps 2, 4 and 6 are uncompressed, as those of codec "none" are
    assert statistics.uncompressed_elements == 7 * 39, statistics


@group_ranks(2)
def test_cd_sgd_goes_on_where_it_was_saved(rank, n):
    def make():
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 4))
        return net, inccl.torch.CdSgd(net.parameters(), lr=0.1, momentum=0.5, codec="bf16", correct_every=3)

    def train_on(net, optimizer, steps):
        for step in steps:
            torch.manual_seed(10 * step + rank)
            optimizer.zero_grad()
            net(torch.randn(8, 20)).square().mean().backward()
            optimizer.step()

    net, optimizer = make()
    train_on(net, optimizer, range(4))
    optimizer.synchronize()
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    train_on(net, optimizer, range(4, 7))
    optimizer.synchronize()
    again, other = make()
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    train_on(again, other, range(4, 7))
    other.synchronize()
    for mine, theirs in zip(net.parameters(), again.parameters()):
        assert mine.equal(theirs)
        flat = mine.detach().reshape(-1)
        both = [torch.empty_like(flat) for _ in range(n)]
        dist.all_gather(both, flat)
        assert both[0].equal(both[1])  # on all ranks
    statistics = optimizer.statistics
    assert (statistics.calls, statistics.uncompressed_elements) == (5, 2 * 754), statistics


@group_ranks(1)
def test_wrong_settings_of_cd_sgd(rank, n):
    for wrong, named in (({"lr": -1}, "lr"), ({"local_lr": float("inf")}, "local_lr"), ({"momentum": 1.0}, "momentum"),
                         ({"correct_every": -1}, "correct_every"), ({"codec": "hbi:bits=99"}, "bits=99")):
        with pytest.raises((ValueError, inccl.Error), match=named):
            inccl.torch.CdSgd([torch.nn.Parameter(torch.zeros(3))], **{"lr": 0.1, **wrong})
    with pytest.raises(TypeError, match="state_dict"):
        inccl.torch.CdSgd([torch.zeros(3)], lr=0.1).load_state_dict(torch.optim.SGD([torch.zeros(3)], lr=0.1).state_dict())
    for kinds in ((torch.float32, torch.float64), (torch.int64, torch.int64)):
        with pytest.raises(ValueError, match="params: expected one floating type"):
            inccl.torch.CdSgd([torch.zeros(3, dtype=kind) for kind in kinds], lr=0.1)
