# SPDX-License-Identifier: Apache-2.0
"""inccl.plan against a simulation in small time steps, and against all plans there are."""
import itertools
import json
import random
import xml.etree.ElementTree

import pytest

from inccl.plan import _Step, Model, Plan, Run, Trace, fit, groups, main, make_plan, picture, predict, read_samples

ERRORS = {"none": 0.0, "8": 0.01, "6": 0.04, "4": 0.2}


def simulated(alone, durations, slowdown, step=0.001):
    """(ready, begin, end) of calls that run one after the other and slow the computation down."""
    ready, begin, end = [], [], []
    now = done = 0.0
    while len(end) < len(alone):
        busy = len(begin) > len(end)
        if busy and now >= begin[-1] + durations[len(end)]:
            end.append(now)
            continue
        while len(ready) < len(alone) and done >= alone[len(ready)]:
            ready.append(now)
        if not busy and len(begin) < len(ready):
            begin.append(now)
            continue
        now += step
        done += step * (1 - slowdown if busy else 1)
    return ready, begin, end


def random_trace(rng, buckets, codecs, slowdown, step=0.001):
    alone = list(itertools.accumulate(rng.uniform(0, 3) for _ in range(buckets)))
    elements = [rng.randrange(1000, 1000000) for _ in range(buckets)]
    runs = []
    for codec in codecs:
        bits = 32 if codec == "none" else int(codec)
        durations = [0.1 + rng.uniform(0.8, 1.2) * n * bits / 1e7 for n in elements]
        runs.append(Run(codec, *simulated(alone, durations, slowdown, step)))
    return Trace(4, elements, runs), alone


@pytest.fixture
def rng():
    seed = random.randrange(2**32)
    print("seed", seed)
    return random.Random(seed)


def test_model_against_the_simulation(rng):
    for slowdown in (0.0, 0.4, 0.8):
        trace, alone = random_trace(rng, 6, ["none", "6"], slowdown)
        model = Model(trace)
        assert model.slowdown == pytest.approx(slowdown, abs=0.02)
        assert model.alone_ms == pytest.approx(alone, abs=0.1)
        for codecs in itertools.product(["none", "6"], repeat=6):
            durations = [times[codec] for times, codec in zip(model.call_ms, codecs)]
            expected = list(zip(*simulated(model.alone_ms, durations, model.slowdown)))
            for row, exact in zip(model.timeline(codecs), expected):
                assert row == pytest.approx(exact, abs=0.05)


def test_against_all_plans(rng):
    """The time of the best of all plans within 2 %; and no bucket could take a codec of less error."""
    for _ in range(5):
        trace, _ = random_trace(rng, 8, ["none", "6", "4"], rng.choice([0, 0.5]), step=0.01)
        model, plan = Model(trace), make_plan(trace, 0.01, ERRORS)
        best = min(model.step_ms(codecs) for codecs in itertools.product(["none", "6", "4"], repeat=8))
        assert plan.step_ms == pytest.approx(model.step_ms(plan.codecs))
        assert plan.step_ms <= 1.02 * best
        for i, codec in enumerate(plan.codecs):
            for other in ERRORS:
                if other in model.call_ms[i] and ERRORS[other] < ERRORS[codec]:
                    changed = plan.codecs[:i] + [other] + plan.codecs[i + 1:]
                    assert model.step_ms(changed) > 1.01 * best * (1 - 1e-9)


def greedy(trace, tolerance):
    """make_plan with a timeline for each question."""
    model, names = Model(trace), [run.codec for run in trace.runs]
    codecs = [min(names, key=lambda codec: (times[codec], ERRORS[codec])) for times in model.call_ms]
    limit, first = model.step_ms(codecs) * (1 + tolerance), list(codecs)

    def gain(change):
        bucket, codec = change
        saved = trace.elements[bucket] * (ERRORS[first[bucket]] ** 2 - ERRORS[codec] ** 2)
        return saved / max(1e-6, model.call_ms[bucket][codec] - model.call_ms[bucket][first[bucket]])
    changes = [(bucket, codec) for bucket in range(len(codecs)) for codec in names if ERRORS[codec] < ERRORS[first[bucket]]]
    for bucket, codec in sorted(changes, key=gain, reverse=True):
        trial = [*codecs[:bucket], codec, *codecs[bucket + 1:]]
        if ERRORS[codec] < ERRORS[codecs[bucket]] and model.step_ms(trial) <= limit:
            codecs = trial
    return codecs


def test_plans_equal_those_of_whole_timelines(rng):
    for _ in range(60):
        names = rng.sample(list(ERRORS), rng.randrange(1, 5))
        trace, _ = random_trace(rng, rng.choice([1, 2, 7, 30]), names, rng.uniform(0, 0.9), step=0.05)
        for tolerance in (0, 0.01, 0.3):
            assert make_plan(trace, tolerance, ERRORS).codecs == greedy(trace, tolerance)


def test_a_step_that_grows_is_as_long_as_its_timeline(rng):
    for _ in range(30):
        trace, _ = random_trace(rng, 20, list(ERRORS), rng.uniform(0, 0.9), step=0.05)
        model = Model(trace)
        step = _Step(model, ["4"] * 20)
        for _ in range(60):
            bucket, codec = rng.randrange(20), rng.choice(list(ERRORS))
            expected = model.step_ms([*step.codecs[:bucket], codec, *step.codecs[bucket + 1:]])
            assert step.with_codec(bucket, codec) == pytest.approx(expected, rel=1e-9)
            step.set_codec(bucket, codec)
            assert step.ms == pytest.approx(model.step_ms(step.codecs), rel=1e-9)


def test_hidden_calls_are_not_compressed():
    """The computation is long, so only the last call is seen."""
    ready = [100.0, 200.0, 300.0]
    slow, fast = (Run(codec, ready, ready, [at + ms for at in ready]) for codec, ms in (("none", 30), ("4", 10)))
    plan = make_plan(Trace(2, [1000] * 3, [slow, fast]), 0.01, ERRORS)
    assert plan.codecs == ["none", "none", "4"] and plan.step_ms == 310


def test_one_codec_and_one_bucket():
    plan = make_plan(Trace(1, [5], [Run("8", [1.0], [1.0], [2.0])]), errors=ERRORS)
    assert plan.codecs == ["8"] and plan.step_ms == 2


def test_errors_come_from_the_library():
    ready = [1.0]
    runs = [Run(codec, ready, ready, [2.0]) for codec in ("hbi:bits=4", "none", "hbi:bits=8")]
    assert make_plan(Trace(4, [5], runs)).codecs == ["none"]


def test_prediction_for_another_network(rng):
    """Recorded where the processor is the limit, predicted from three sizes where the link is, against the simulation there."""
    for slowdown in (0.0, 0.4):
        trace, alone = random_trace(rng, 9, ["none", "6"], slowdown)
        costs = {"none": (0.5, 6e-6), "6": (0.2, 8e-7), "4": (0.6, 5e-7)}  # 4 has not been recorded
        samples = {codec: [(n, (alpha + beta * n) * rng.uniform(0.98, 1.02)) for n in (1000, 30000, 1000000)]
                   for codec, (alpha, beta) in costs.items()}
        predicted = predict(trace, samples)
        assert predicted.elements == trace.elements and [run.codec for run in predicted.runs] == ["none", "6", "4"]
        near = {run.codec: [end - begin for begin, end in zip(run.begin_ms, run.end_ms)] for run in trace.runs}
        near["4"] = [min(both) for both in zip(*near.values())]
        for run in predicted.runs:
            alpha, beta = costs[run.codec]
            calls = [max(mine, alpha + beta * n) for mine, n in zip(near[run.codec], trace.elements)]
            ready, _, end = simulated(alone, calls, slowdown * sum(near[run.codec]) / sum(calls))
            assert run.step_ms == pytest.approx(end[-1], rel=0.05), run.codec
            assert run.ready_ms == pytest.approx(ready, rel=0.1, abs=0.3)
        make_plan(predicted, errors=ERRORS)
    assert fit([(n, 0.5 + 3e-6 * n) for n in (1000, 40000, 700000)]) == pytest.approx((0.5, 3e-6))
    assert fit([(1000, 2.0), (2000, 1.0)])[1] == 0
    # The fit has no call shorter than half the shortest sample, and less for fewer elements.
    steep = predict(trace, {"none": [(1000, 0.1), (2000, 1.0)]})
    assert all(end > begin for run in steep.runs for begin, end in zip(run.begin_ms, run.end_ms))
    for wrong in ([(1000, 1.0)], [(1000, 1.0), (1000, 2.0)], [(1000, 1.0), (0, 1.0)], [(1000, 1.0), (2000, 0.0)]):
        with pytest.raises(ValueError, match="samples: none has"):
            predict(trace, {"none": wrong})


def test_samples_of_a_benchmark(tmp_path, capsys, rng):
    trace, _ = random_trace(rng, 4, ["none", "6"], 0.2)
    trace.save(tmp_path / "trace.json")
    table = tmp_path / "bench.csv"
    table.write_text("op,codec,count,in_place,time_us\nallreduce,none,1000,true,500\nallreduce,none,1000,false,9\n"
                     "allgather,none,1000,true,9\nallreduce,none,400000,true,12000\nallreduce,hbi:bits=6,1000,true,300\n"
                     "allreduce,hbi:bits=6,400000,true,3000\n")
    assert read_samples(table) == {"none": [(1000, 0.5), (400000, 12.0)], "hbi:bits=6": [(1000, 0.3), (400000, 3.0)]}
    assert main([str(tmp_path / "trace.json"), "--network", str(table)]) == 0
    printed = capsys.readouterr().out
    assert "predicted, ms" in printed and "hbi:bits=6" in printed
    for text, named in (("op,codec\n", "no all-reduce"), ("op,codec\nallreduce,none\n", "not what"),
                        ("op,codec,count,in_place,time_us\nallreduce,none,x,true,1\n", "not what")):
        table.write_text(text)
        assert main([str(tmp_path / "trace.json"), "--network", str(table)]) == 1
        assert named in capsys.readouterr().err


def test_groups_against_all_partitions(rng):
    for _ in range(40):
        n = rng.randint(1, 8)
        elements = [rng.choice([1, 10, 500, 4000]) for _ in range(n)]
        ready = sorted(rng.uniform(0, 10) for _ in range(n))
        call, each = rng.choice([0.0, 0.3, 2.0]), rng.choice([0.0, 1e-4, 1e-3])

        def end_of(sizes):
            end, first = 0.0, 0
            for size in sizes:
                last = first + size
                end = max(ready[last - 1], end) + call + each * sum(elements[first:last])
                first = last
            return end
        partitions = []
        for cuts in itertools.product([False, True], repeat=n - 1):
            sizes = [1]
            for cut in cuts:
                sizes = sizes + [1] if cut else sizes[:-1] + [sizes[-1] + 1]
            partitions.append(sizes)
        sizes, end = groups(elements, ready, call, each)
        assert sum(sizes) == n and end_of(sizes) == pytest.approx(end)
        assert end == pytest.approx(min(end_of(sizes) for sizes in partitions))
    assert groups([], [], 1, 1) == ([], 0.0)
    assert groups([5] * 100, [0.0] * 100, 1.0, 0.001) == ([100], 1.5)
    assert groups([1000, 1], [0.0, 1.0], 0.1, 0.001)[0] == [1, 1]  # the first one is sent meanwhile
    for wrong, text in ((([1], [], 0, 0), "ready_ms: 0 entries"), (([1, 1], [2, 1], 0, 0), "rise"),
                        (([1], [0], -1, 0), "negative")):
        with pytest.raises(ValueError, match=text):
            groups(*wrong)


def test_files(tmp_path, capsys, rng):
    trace, _ = random_trace(rng, 3, ["none"], 0.0, step=0.01)
    trace.save(tmp_path / "trace")
    assert Trace.load(tmp_path / "trace") == trace
    assert main([str(tmp_path / "trace"), "-o", str(tmp_path / "plan"), "--svg", str(tmp_path / "svg")]) == 0
    assert "plan " in capsys.readouterr().out
    plan = Plan.load(tmp_path / "plan")
    assert plan == make_plan(trace) and plan.codecs == ["none"] * 3
    assert plan.codec_of(1, trace.elements[1]) == "none"
    assert plan.codec_of(1, 1) is None and plan.codec_of(3, 1) is None and plan.codec_of(-1, 1) is None
    boxes = xml.etree.ElementTree.parse(tmp_path / "svg").iter("{http://www.w3.org/2000/svg}rect")
    assert len(list(boxes)) == 7  # 3 of the run, 3 of the plan, the background
    assert picture(trace, plan) == (tmp_path / "svg").read_text()


@pytest.mark.parametrize("change, message", [
    (lambda t: t.pop("runs"), "'runs' is missing"),
    (lambda t: t.update(format="inccl-plan 1"), "not a file of the format"),
    (lambda t: t.update(elements=[]), "buckets: none"),
    (lambda t: t.update(runs=[]), "runs: none"),
    (lambda t: t["runs"].append(t["runs"][0]), "a codec appears twice"),
    (lambda t: t["runs"][0].update(ready_ms=[1, 2, 3]), "ready_ms has 3 entries for 2 buckets"),
    (lambda t: t["runs"][0].update(ready_ms=[2, 1]), "ready_ms does not rise"),
    (lambda t: t["runs"][0].update(end_ms=[1, 2]), "not ready, begun and ended in this order"),
])
def test_wrong_files(tmp_path, capsys, change, message):
    text = {"format": "inccl-trace 1", "ranks": 2, "elements": [10, 20], "runs": [
        {"codec": "none", "ready_ms": [1, 2], "begin_ms": [2, 3], "end_ms": [3, 4]}]}
    change(text)
    (tmp_path / "trace").write_text(json.dumps(text))
    assert main([str(tmp_path / "trace")]) == 1
    assert message in capsys.readouterr().err
    for content in ("", "[]", "{"):
        (tmp_path / "trace").write_text(content)
        assert main([str(tmp_path / "trace")]) == 1
    assert main([str(tmp_path / "nothing")]) == 1
