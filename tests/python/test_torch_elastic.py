# SPDX-License-Identifier: Apache-2.0
"""inccl.torch.elastic and sync_state: every step that counts is the mean over exactly the ranks that
took it, whoever dies or joins, and all ranks have the same bits."""
import os
import random
import signal
import time
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

import inccl
import inccl._state
import inccl.torch.elastic
from torch_world import store_server
from world import Meeting, Ranks, job, ranks

ROWS, WIDTH, STEPS = 12, 5, 30


def rows(step, rank, size):
    random = np.random.default_rng(step)
    x, y = random.standard_normal((ROWS, WIDTH)), random.standard_normal((ROWS, 1))
    return torch.tensor(x[rank::size]), torch.tensor(y[rank::size])


def make(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(WIDTH, 1).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def expected(sizes, seed=1):
    """The parameters after steps that `sizes` ranks took, by plain loops."""
    model, _ = make(seed)
    parameters = [p.detach().numpy().copy() for p in model.parameters()]
    velocity = [np.zeros_like(p) for p in parameters]
    for step, size in enumerate(sizes):
        gradients = [np.zeros_like(p) for p in parameters]
        for rank in range(size):
            x, y = (t.numpy() for t in rows(step, rank, size))
            error = 2 * (x @ parameters[0].T + parameters[1] - y) / len(x)
            gradients[0] += (error.T @ x) / size
            gradients[1] += error.sum(0) / size
        for p, v, g in zip(parameters, velocity, gradients):
            v *= 0.9
            v += g
            p -= 0.05 * v
    return parameters


def train(comm, store, at=None, seed=1, **options):
    """Returns {step: size} of the steps that this rank took itself, and the parameters. at: what
    happens before the average of a step, and what after it, as at("before", step)."""
    model, optimizer = make(seed)
    elastic = inccl.torch.elastic.Elastic(comm, {"model": model, "optimizer": optimizer}, store, **options)
    at = at or (lambda when, step: None)
    taken = {}
    for step in elastic.steps(STEPS):
        at("before", step)
        size = elastic.size
        x, y = rows(step, elastic.rank, size)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        if elastic.average(model.parameters()):
            at("after", step)
            optimizer.step()
            taken[step] = size
    elastic.close()
    return taken, [p.detach().numpy() for p in model.parameters()], elastic.changes


def check(results, joined=()):
    """Of the ranks that reached the end: one size for each step, and the parameters that follow."""
    sizes = {}
    for taken, _, _ in results:
        for step, size in taken.items():
            assert sizes.setdefault(step, size) == size, (step, sizes[step], size)
    assert sorted(sizes) == list(range(STEPS))
    first = results[0][1]
    for _, parameters, _ in results:
        for mine, others in zip(parameters, first):
            assert mine.tobytes() == others.tobytes()
    for mine, plain in zip(first, expected([sizes[step] for step in range(STEPS)])):
        assert np.abs(mine - plain).max() < 1e-9
    return [sizes[step] for step in range(STEPS)]


@pytest.fixture
def store(tmp_path):
    """One that outlives ranks; each process opens it."""
    return lambda: dist.FileStore(str(tmp_path / "store"))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def outcomes(count, process, nranks):
    return Ranks(count, process, job(nranks)).join()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_dies(moment, victim):
    """With the step before it, or with the one whose average all have."""
    met = Meeting(3)

    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)

        def at(when, step):
            if (when, step) == (moment, 11):
                met()
                if rank == victim:
                    die()
        return train(inccl.init(), None, at)

    ends = outcomes(3, process, 3)
    assert [kind for kind, _ in ends] == ["died" if rank == victim else "returned" for rank in range(3)], ends
    sizes = check([value for kind, value in ends if kind == "returned"])
    assert sizes == [3] * (11 + (moment == "after")) + [2] * (STEPS - 11 - (moment == "after"))


def test_a_process_joins_after_a_death(store):
    """Three ranks, two, three; who joins has other weights at first."""
    met = Meeting(3)

    def process(number):
        mine = store()
        if number < 3:
            os.environ["INCCL_RANK"] = str(number)

            def at(when, step):
                if (when, step) == ("before", 8):
                    met()
                    if number == 1:
                        die()
                if (when, step) == ("before", 12):
                    mine.set("go", "1")
                if (when, step) == ("before", 14):
                    while mine.add("elastic/joiners", 0) == 0:
                        time.sleep(0.001)
            return train(inccl.init(), mine, at)
        while not mine.check(["go"]):
            time.sleep(0.001)
        return train(inccl.torch.elastic.join(mine), mine, seed=5)

    ends = outcomes(4, process, 3)
    assert [kind for kind, _ in ends] == ["returned", "died", "returned", "returned"], ends
    results = [value for kind, value in ends if kind == "returned"]
    assert [changes for _, _, changes in results] == [2, 2, 0]
    sizes = check(results)
    joined = sizes.index(3, 8)
    assert sizes == [3] * 8 + [2] * (joined - 8) + [3] * (STEPS - joined) and 12 < joined <= 15, sizes


def test_a_job_keeps_its_options(store):
    """Who joins has the same, and after that the ranks still wait for one whose step takes longer than join_timeout."""
    met = Meeting(3)

    def process(number):
        mine, options, slept = store(), {"reproducible": True, "algorithm": "direct"}, []

        def at(when, step):
            if number == 0 and (when, step) == ("before", 5):
                while mine.add("elastic/joiners", 0) == 0:
                    time.sleep(0.001)
            if (when, step) == ("before", 11):
                met()
                if number == 1:
                    die()
                if number == 2 and not slept:
                    slept.append(time.sleep(5))
        if number < 2:
            os.environ["INCCL_RANK"] = str(number)
            return train(inccl.init(**options), mine, at, quorum=False, join_timeout=3)
        return train(inccl.torch.elastic.join(mine, **options), mine, at, quorum=False, join_timeout=3)

    ends = outcomes(3, process, 2)
    assert [kind for kind, _ in ends] == ["returned", "died", "returned"], ends
    sizes = check([value for kind, value in ends if kind == "returned"])
    joined = sizes.index(3)
    assert sizes == [2] * joined + [3] * (11 - joined) + [2] * (STEPS - 11)


def test_random_deaths_and_joins(store):
    """INCCL_TEST_SEED replays it."""
    seed = int(os.environ.get("INCCL_TEST_SEED") or time.time_ns() % 1_000_000)
    print(f"INCCL_TEST_SEED={seed}")
    choose = random.Random(seed)
    first, spares = choose.choice([3, 4, 5]), choose.choice([1, 2, 3])
    deaths = {choose.randrange(first + spares): (choose.choice(["before", "after"]), choose.randrange(3, STEPS - 3))
              for _ in range(2)}
    starts = [choose.randrange(2, STEPS - 10) for _ in range(spares)]

    def process(number):
        mine = store()

        def at(when, step):
            mine.add("step", max(0, step - mine.add("step", 0)))
            if deaths.get(number) == (when, step):
                die()
            time.sleep(0.002)
        if number < first:
            os.environ["INCCL_RANK"] = str(number)
            return train(inccl.init(), mine, at, quorum=False, join_timeout=5)
        while mine.add("step", 0) < starts[number - first]:
            time.sleep(0.001)
        return train(inccl.torch.elastic.join(mine, wait=20), mine, at, seed=number, quorum=False, join_timeout=5)

    ends = outcomes(first + spares, process, first)
    died = [number for number, (kind, _) in enumerate(ends) if kind != "returned"]
    # A spare may come when the others have finished: nobody lets it in.
    assert all(number in deaths or (number >= first and "has let this process in" in str(ends[number][1]))
               for number in died), ends
    check([value for kind, value in ends if kind == "returned"])


def test_one_that_joins_dies(store):
    """It has taken a ticket and comes no more: the ranks wait for join_timeout, and go on."""
    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)
        mine = store()

        def at(when, step):
            if rank == 0 and (when, step) == ("before", 5):
                mine.add("elastic/joiners", 1)
        return train(inccl.init(), mine, at, join_timeout=0.5)

    ends = outcomes(2, process, 2)
    assert [kind for kind, _ in ends] == ["returned", "returned"], ends
    assert check([value for _, value in ends]) == [2] * STEPS


@pytest.mark.parametrize("joiners", [0, 1])
def test_the_store_is_gone(joiners):
    """Nobody can join any more; the ranks say so once, and go on. One that waited learns it."""
    met = Meeting(3)

    def process(number):
        mine = dist.TCPStore("127.0.0.1", port, is_master=False)
        if number == 3:
            mine.wait(["go"])
            with pytest.raises(RuntimeError):
                inccl.torch.elastic.join(mine)
            return None

        def at(when, step):
            if (when, step) == ("before", 5):
                mine.set("go", "1")
                while joiners and mine.add("elastic/joiners", 0) == 0:
                    time.sleep(0.001)
                met()
                if number == 0:
                    os.kill(server.pid, signal.SIGKILL)
                    time.sleep(0.1)
        os.environ["INCCL_RANK"] = str(number)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = train(inccl.init(), mine, at, join_timeout=1)
        return result, [str(warning.message) for warning in said]

    with store_server() as (port, server):
        ends = outcomes(3 + joiners, process, 3)
    assert [kind for kind, _ in ends] == ["returned"] * (3 + joiners), ends
    assert check([value[0] for _, value in ends[:3]]) == [3] * STEPS
    said = [value[1] for _, value in ends[:3]]
    assert len(said[0]) == 1 and said[0][0].startswith("'elastic': no process can join any more: "), said
    assert said[1:] == [[], []]


def test_a_step_may_be_skipped(store):
    """On all ranks, before its average; it comes again. Some take tickets meanwhile and come no more."""
    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)
        mine, skipped = store(), 0
        model = torch.nn.Linear(2, 1)
        with torch.no_grad():
            model.weight.fill_(1)
        elastic = inccl.torch.elastic.Elastic(inccl.init(), {"model": model}, mine, join_timeout=0.05)
        steps = []
        for step in elastic.steps(6):
            if skipped < 200 and step == 3:
                skipped += 1
                if rank == 0 and skipped % 10 == 0:
                    mine.add("elastic/joiners", 1)
                continue
            model(torch.ones(3, 2)).sum().backward()
            assert elastic.average(model.parameters())
            steps.append(step)
        elastic.close()
        return steps, skipped, elastic.changes

    ends = outcomes(3, process, 3)
    assert ends == [("returned", ([0, 1, 2, 3, 4, 5], 200, 0))] * 3, ends


@pytest.mark.parametrize("hanging", [[0], [1, 3]])
def test_ranks_that_hang_are_left_behind(hanging):
    """They live, but do not come: after the limits the others go on. When they come they are too few."""
    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)

        def at(when, step):
            if rank in hanging and (when, step) == ("before", 6):
                over()
        result = train(inccl.init(op_timeout=1, init_timeout=4), None, at)
        over()
        return result

    count = 5
    over = Meeting(count)
    ends = outcomes(count, process, count)
    assert check([value for rank, (_, value) in enumerate(ends) if rank not in hanging]) == \
        [count] * 6 + [count - len(hanging)] * (STEPS - 6)
    for rank in hanging:
        said = f"NoQuorum: {len(hanging)} of {count} ranks are left"
        assert ends[rank][0] == "raised" and said in ends[rank][1], ends


def test_those_who_have_not_called_are_left_behind(monkeypatch):
    """Not those of whom the error says something else: they have other numbers in the communicator that failed."""
    asked = []

    def shrink(_, excluded, **options):
        asked.append(set(excluded))
        if len(asked) < 3:
            raise inccl.Timeout(8, "rank 0/5: shrink: did not call ccl_comm_shrink: peer 4@h:104 peer 2@h:102; "
                                "joining failed in an earlier round: peer 1@h:103 closed its connection")
        raise inccl.Timeout(8, "rank 0/5: shrink: ended its call of ccl_comm_shrink: peer 3@h:103")
    monkeypatch.setattr(inccl.Communicator, "shrink", shrink)
    with inccl.Communicator(inccl.unique_id(), 0, 1) as comm:
        with pytest.raises(inccl.Timeout, match="ended its call"):
            inccl.torch.elastic.Elastic(comm, {})._shrink()
    assert asked == [set()] + [{2, 4}] * 3


def test_without_a_quorum_any_part_goes_on():
    met = Meeting(4)

    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)
        comm = inccl.init()
        comm.Barrier()

        def at(when, step):
            if (when, step) == ("before", 4):
                met()
                if rank > 0:
                    die()
        return train(comm, None, at, quorum=False)

    ends = outcomes(4, process, 4)
    assert ends[0][0] == "returned", ends[0]
    assert check([ends[0][1]]) == [4] * 4 + [1] * (STEPS - 4)


def test_a_minority_ends():
    """One of three that reaches no other, as after a partition, does not go on."""
    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)
        comm = inccl.init()
        if rank == 2:
            with pytest.raises(inccl.torch.elastic.NoQuorum, match=r"1 of 3 ranks are left: \[2\]"):
                elastic = inccl.torch.elastic.Elastic(comm, {})
                comm.Barrier()
                elastic._recover(inccl.RemoteError(6, "a partition"))
            return
        elastic = inccl.torch.elastic.Elastic(comm, {})
        comm.Barrier()
        die()

    ends = outcomes(3, process, 3)
    assert ends[2][0] == "returned", ends[2]


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_dies_between_two_averages_of_a_step(late):
    """A rank that has done the first one, and one that has not, take the step again together."""
    met, average = Meeting(3), inccl.Communicator.Allreduce_fused

    def fails_at_the_end(*args, **kwargs):
        average(*args, **kwargs)
        met()
        inccl.Communicator.Allreduce_fused = average
        raise inccl.RemoteError(6, "the death came before the result")

    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)
        torch.manual_seed(0)
        first, second = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        elastic = inccl.torch.elastic.Elastic(inccl.init(), {"first": first, "second": second})
        taken = []
        for step in elastic.steps(8):
            model = torch.nn.Sequential(first, torch.nn.Linear(1, 2), second)
            model(torch.ones(2) * elastic.rank).sum().backward()
            if (rank, step) == (late, 3) and elastic.size == 3:
                inccl.Communicator.Allreduce_fused = fails_at_the_end
            if elastic.average(first.parameters()):
                with torch.no_grad():
                    first.weight += 1
                if step == 3:
                    met()
                if (rank, step) == (2, 3):
                    die()
            if elastic.average(second.parameters()):
                taken.append(step)
        result = taken, elastic.size, first.weight.tolist()
        elastic.close()
        return result

    ends = outcomes(3, process, 3)
    assert ends[2][0] == "died" and ends[0] == ends[1], ends
    assert ends[0][0] == "returned" and ends[0][1][:2] == (list(range(8)), 2), ends


@pytest.mark.parametrize("first", [True, False])
def test_other_calls_in_a_step(first):
    """When they fail, `continue` is enough."""
    met = Meeting(3)

    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)
        model = torch.nn.Linear(2, 1)
        elastic, taken, tries = inccl.torch.elastic.Elastic(inccl.init(), {"model": model}), [], 0
        for step in elastic.steps(8):
            tries += 1
            assert tries < 20
            if step == 3:
                met()
                if rank == 1:
                    die()
            try:
                if first:
                    assert elastic.comm.allreduce(1) == elastic.size
                model(torch.ones(2)).sum().backward()
                if elastic.average(model.parameters()):
                    taken.append(step)
                if not first:
                    assert elastic.comm.allreduce(1) == elastic.size
            except inccl.RemoteError:
                continue
        size = elastic.size
        elastic.close()
        return taken, size

    ends = outcomes(3, process, 3)
    assert ends[0] == ends[2] == ("returned", (list(range(8)), 2)), ends


def test_a_rank_with_other_state_ends():
    """It knows why, and the others go on without it."""
    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)
        state = {"model": torch.nn.Linear(3 if odd == "shape" and rank == 1 else 4, 2)}
        if odd == "type" and rank == 1:
            state["model"].half()
        if (odd == "more" and rank == 1) or (odd == "less" and rank != 1):
            state["optimizer"] = torch.optim.SGD(state["model"].parameters())
        elastic = inccl.torch.elastic.Elastic(inccl.init(), state)
        for _ in elastic.steps(2):
            elastic.average([])
        size = elastic.size
        elastic.close()
        return size, elastic.changes

    for odd, said in [("more", "ValueError: state: ['model'] on rank 0, ['model', 'optimizer'] on rank 1"),
                      ("less", "ValueError: state: ['model', 'optimizer'] on rank 0, ['model'] on rank 1"),
                      ("shape", "size mismatch for weight"),
                      ("type", "state['model']['weight']: torch.float32 on rank 0, torch.float16 on rank 1")]:
        ends = outcomes(3, process, 3)
        assert ends[0] == ends[2] == ("returned", (2, 1)), ends
        assert ends[1][0] == "raised" and said in ends[1][1], ends[1]


def test_state_of_any_type():
    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)
        module = torch.nn.Module()
        for i, kind in enumerate([torch.bool, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.complex64, torch.uint16,
                                  torch.bfloat16, torch.int64]):
            module.register_buffer(f"scalar{i}", torch.tensor(rank == 0).to(kind))
            module.register_buffer(f"matrix{i}", torch.full((2, 3), rank == 0).to(kind).t())
            module.register_buffer(f"none{i}", torch.zeros(0).to(kind))
        inccl.torch.elastic.Elastic(inccl.init(), {"module": module}).close()
        return all((value.to(torch.complex64) == 1).all() for value in module.state_dict().values())

    assert outcomes(2, process, 2) == [("returned", True)] * 2


class State(dict):
    state_dict = load_state_dict = dict.copy


def test_tensors_are_dense_and_of_the_host(tmp_path):
    def process(_):
        dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
        shards = distribute_tensor(torch.ones(4), dist.init_device_mesh("cpu", (1,)), [Shard(0)])
        for weight, said in [(torch.empty(2, device="meta"), "Tensor of torch.strided on meta"),
                             (shards, "DTensor of torch.strided on cpu")]:
            said = rf"state\['m'\]\['w'\]: {said}, expected a dense tensor in host memory"
            with inccl.Communicator(inccl.unique_id(), 0, 1) as comm, pytest.raises(TypeError, match=said):
                inccl.torch.elastic.Elastic(comm, {"m": State(w=weight)})
        with inccl.Communicator(inccl.unique_id(), 0, 1) as comm:
            with pytest.raises(inccl.InvalidArgument, match="tensors.0.: DTensor without memory of its own"):
                inccl.sync_state(comm, [shards])
            embedding = torch.nn.Embedding(3, 2, sparse=True)
            elastic = inccl.torch.elastic.Elastic(comm, {})
            embedding(torch.tensor([1])).sum().backward()
            with pytest.raises(TypeError, match=r"parameters\[0\].grad: Tensor of torch.sparse_coo on cpu, expected"):
                elastic.average(embedding.parameters())

    assert outcomes(1, process, 1) == [("returned", None)]


def test_state_has_state_dicts():
    with inccl.Communicator(inccl.unique_id(), 0, 1) as comm:
        with pytest.raises(TypeError, match=r"state\['model'\]: int has no state_dict"):
            inccl.torch.elastic.Elastic(comm, {"model": 3})


# ---------------------------------------------------------------- sync_state

def contents():
    random = np.random.default_rng(3)
    return {"weights": random.standard_normal(5000).astype("f4"), "steps": np.arange(7), "empty": np.zeros(0, "f4"),
            "bytes": random.integers(0, 255, 1001).astype("u1"), "half": random.standard_normal(333).astype("f2"),
            "bf16": torch.arange(77).to(torch.bfloat16)}


def equal(state, other):
    return all(np.asarray(state[key].view(torch.int16) if key == "bf16" else state[key]).tobytes() ==
               np.asarray(other[key].view(torch.int16) if key == "bf16" else other[key]).tobytes() for key in state)


@ranks(4)
def test_sync_state_by_majority(comm):
    inccl._state._GATHERED = 16384  # several rounds
    state, right = contents(), contents()
    if comm.rank == 1:
        state["weights"][[0, 4999]] = 0
        state["bf16"][3] = 7
    if comm.rank in (0, 3):
        state["bytes"][:] = 0
    got = inccl.sync_state(comm, state)
    right["bytes"][:] = 0  # of two and two, those with the lowest rank
    assert equal(state, right)
    assert got == {0: [], 1: ["weights", "bytes", "bf16"], 2: ["bytes"], 3: []}[comm.rank]
    assert inccl.sync_state(comm, state) == []


@ranks(3)
def test_sync_state_from_a_source(comm):
    state = [np.full(100_000, comm.rank, "f4"), np.full(3, comm.rank)]
    got = inccl.sync_state(comm, state, source=2)
    assert got == ([] if comm.rank == 2 else [0, 1])
    assert (state[0] == 2).all() and (state[1] == 2).all()


@ranks(3)
def test_sync_state_sees_each_bit(comm):
    inccl._state._GATHERED = 50_000  # the last round is shorter
    block = inccl._state._BLOCK
    right = np.random.default_rng(4).integers(0, 255, 2 * block + 3).astype("u1")
    for at in (0, block - 1, block, len(right) - 1):
        for bit in (0, 7):
            state = right.copy()
            if comm.rank == 2:
                state[at] ^= 1 << bit
            assert inccl.sync_state(comm, [state]) == ([0] if comm.rank == 2 else [])
            assert (state == right).all()
    state = right.copy()
    if comm.rank == 1:  # the same blocks in another order
        state[:block], state[block:2 * block] = right[block:2 * block], right[:block]
    assert inccl.sync_state(comm, [state]) == ([0] if comm.rank == 1 else [])
    assert (state == right).all()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_dies_in_sync_state(victim):
    """A holder or the one that takes, after two rounds: the others learn who, and repair what is left."""
    def process(rank):
        os.environ["INCCL_RANK"] = str(rank)
        inccl._state._GATHERED = 4096
        comm = inccl.init()
        state, right = np.arange(20_000, dtype="f4"), np.arange(20_000, dtype="f4")
        if rank == 1:
            state[::2] = -1
        gather, rounds = inccl.Communicator.Allgather, []

        def dying(*args, **kwargs):
            rounds.append(1)
            if rank == victim and len(rounds) == 3:
                die()
            return gather(*args, **kwargs)
        inccl.Communicator.Allgather = dying
        with pytest.raises(inccl.RemoteError) as caught:
            inccl.sync_state(comm, [state])
        rest = comm.shrink(abort=True)
        got = inccl.sync_state(rest, [state])
        return caught.value.peer, got == ([0] if rank == 1 else []), (state == right).all()
    ends = outcomes(4, process, 4)
    assert ends == [("died", signal.SIGKILL) if rank == victim else ("returned", (victim, True, True))
                    for rank in range(4)]


@ranks(2)
def test_sync_state_refuses_what_differs_in_kind(comm):
    one, other = np.zeros(3, "f4"), np.zeros(4, "f8")
    for state, text in (([one] * (1 + comm.rank), "tensors: 1 on rank 0, 2 on rank 1"),
                        ([one if comm.rank else other], "4 of FLOAT64 on rank 0; rank 1 has .* 3 of FLOAT32"),
                        ({"ab"[comm.rank]: one}, r"tensors\['a'\].*tensors\['b'\]")):
        with pytest.raises(inccl.InvalidArgument, match=text):
            inccl.sync_state(comm, state)
    with pytest.raises(inccl.InvalidArgument, match="source: 2"):
        inccl.sync_state(comm, [one], source=2)
    assert comm.allreduce(1) == 2
