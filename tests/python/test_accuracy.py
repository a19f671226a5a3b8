# SPDX-License-Identifier: Apache-2.0
"""perf/accuracy.py: its reference rings against all codes of their formats, its measures, its table and its picture. That the
numbers themselves are right is what `accuracy.py --acceptance` compares with the definition's."""
import importlib.util
import math
import os
import pathlib
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "perf/accuracy.py"
SEED = int(os.environ.get("INCCL_TEST_SEED", "0") or 0) or int.from_bytes(os.urandom(4), "little")
print(f"INCCL_TEST_SEED={SEED}")


@pytest.fixture(scope="module")
def accuracy():
    spec = importlib.util.spec_from_file_location("accuracy", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["accuracy"] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


def run(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=200, check=False)


# ---------------------------------------------------------------- reference rings

def e4m3(code):
    """From its bits, as the OCP specification of 8-bit floating point tabulates it."""
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
    return -magnitude if code >> 7 else magnitude


CODES = [code for code in range(256) if code & 127 != 127]  # those are NaN


def nearest_e4m3(x):
    """By looking at all codes; ties go to the even mantissa."""
    return e4m3(min(CODES, key=lambda code: (abs(e4m3(code) - x), code % 2)))


def test_bf16_is_the_nearest_of_its_neighbours(accuracy):
    bits = np.random.default_rng(SEED).integers(0, 2**32, 100000, np.uint32)
    x = bits.view(np.float32)
    finite = np.isfinite(x)
    bits, x = bits[finite], x[finite]
    below = bits & np.uint32(0xffff0000)
    above = below + np.uint32(0x10000)
    low, high = (one.view(np.float32).astype(np.float64) for one in (below, above))
    high = np.where(np.isinf(high), np.copysign(2.0**128, high), high)
    down, up = np.abs(x - low), np.abs(high - x)
    expected = np.where((down < up) | ((down == up) & ((below >> 16) % 2 == 0)), below, above)
    assert (accuracy.to_bf16(x).view(np.uint32) == expected).all()


def test_mxfp8_is_the_nearest_code_under_the_shared_scale(accuracy):
    rng = np.random.default_rng(SEED)
    for _ in range(100):
        shift = int(rng.integers(-100, 100))
        block = np.ldexp(rng.random(32) - 0.5, shift - rng.integers(0, 20, 32))
        codes = np.ldexp([e4m3(int(code)) for code in rng.integers(0, 127, 32)], shift - 9)
        halfway = np.ldexp(2.0 * rng.integers(0, 16, 32) + 1, shift - 6)
        block = np.choose(rng.integers(0, 3, 32), [block, codes, halfway])
        scale = 2.0**(math.floor(math.log2(np.abs(block).max())) - 8)
        assert accuracy.to_mxfp8(block[None])[0].tolist() == [nearest_e4m3(x / scale) * scale for x in block]


def test_the_shared_scale_stays_in_its_range(accuracy):
    tiny = np.array([[2.0**-140, 0.0, -2.0**-136] + 29 * [0.0]])
    assert accuracy.to_mxfp8(tiny)[0, :3].tolist() == [0.0, 0.0, -2.0**-136]
    assert not accuracy.to_mxfp8(np.zeros((1, 32))).any()


def test_rings_round_at_every_hop(accuracy):
    # 1 + 2^-8 + 2^-8 is 1 where each hop rounds, 1 + 2^-7 where only the end does; 16 + 1 + 1 of four digits stays 16.
    assert accuracy.bf16_ring(np.array([[1], [2**-8], [2**-8]], np.float32)).tolist() == [1]
    assert accuracy.mxfp8_ring(np.array([[16, 3], [1, 0], [1, 0]], np.float32)).tolist() == [16, 3]


def test_blocks_do_not_share_scales(accuracy):
    x = np.full((1, 35), 2.0**-20, np.float32)
    x[0, 0] = 448
    assert accuracy.mxfp8_ring(x).tolist() == [448] + 31 * [0] + 3 * [2.0**-20]


# ---------------------------------------------------------------- measures

def test_errors_of_a_known_result(accuracy):
    exact = accuracy.exact_sum(np.array([[1, 2, 0], [2, -2, 4]], np.float32))
    assert exact.tolist() == [3, 0, 4]
    result = np.array([3.0, 2.0, 3.0])
    assert accuracy.vnmse(result, exact) == 0.2
    assert accuracy.cosine(result, exact) == pytest.approx(21 / math.sqrt(25 * 22))


def test_nothing_that_is_not_finite_looks_small(accuracy):
    assert math.isnan(accuracy.vnmse(np.array([math.nan, 1]), np.array([1.0, 1])))
    assert accuracy.vnmse(np.zeros(1), np.zeros(1)) == 0
    assert accuracy.vnmse(np.ones(1), np.zeros(1)) == math.inf


def test_each_layer_is_relative_to_its_own_sum(accuracy):
    errors = accuracy.layer_errors(np.array([3.0, 4, 1, 0, 0]), np.array([3.0, 5, 2, 0, 0]), [("a", 2, 2), ("b", 1, 1), ("zero", 2, 2)])
    assert errors == [pytest.approx(1 / 34), 0.25, 0]


def test_layers_of_a_file(accuracy, tmp_path):
    path = tmp_path / "layers.txt"
    path.write_text("# comment\nblocks.0.weight 300 20\n\nhead 5\n")
    assert accuracy.layers_of(path) == [("blocks.0.weight", 300, 20), ("head", 5, 5)]
    for line in ("head", "head x", "head 0", "head 6 4", "head 6 0", "head 6 2 1", "head -1"):
        path.write_text(line + "\n")
        with pytest.raises(SystemExit, match=line):
            accuracy.layers_of(path)


def test_the_steps_of_a_level(accuracy):
    x = np.zeros((1, 256), np.float32)
    x[0, 0] = 1.0  # the other blocks count as seven fifths of an octave below
    assert accuracy.squared_steps(x, 3) == pytest.approx((32 + 7 * 32 * 2**(-14 / 5)) / 9)


# ---------------------------------------------------------------- ways

def test_series_and_usual_algorithms(accuracy):
    for spec, algo, series in [("hbi:bits=6", None, "hbi (direct)"), ("hbi:bits=6,rht=1", None, "hbi:rht=1 (direct)"),
                               ("hbi:ref=ring,bits=6,rht=1", None, "hbi:ref=ring,rht=1 (ring)"),
                               ("hbi:k=7,k2=15", "tree", "hbi (tree)"), ("qsgd:q=8", None, "qsgd (direct)"),
                               ("mxfp8", None, "mxfp8 (ring)")]:
        assert accuracy.codec_way(spec, algo).series == series


def test_a_reducer_sums_tensor_by_tensor(accuracy):
    way = accuracy.Way("topk:k=0.34", "reducer", tensors=[("a", 3, 3), ("b", 3, 3)])
    inputs = np.array([[3, 1, 0, 0, 4, -9], [0, -8, 1, 0, 6, 0]], np.float32)
    with accuracy.Ranks(way, 2) as ranks:
        first, bits = ranks.take(inputs, 1)
        assert first.tolist() == [3, -8, 0, 0, 6, -9]
        assert bits == pytest.approx(2 * 64 / 6)
        assert ranks.take(np.zeros_like(inputs), 2)[0].tolist() == [0, 1, 1, 0, 4, 0]  # what had been left out


# ---------------------------------------------------------------- the program

def test_it_measures_and_leaves_out_what_is_not_known(tmp_path):
    plot = tmp_path / "a.svg"
    done = run("--data", "normal", "t3", "--ranks", "3", "--count", "5000", "--repeats", "2", "--bits", "6", "--codec",
               "hbi:k=15,ag=exact", "--codec", "nothing:of=this", "--csv", "--plot", str(plot))
    assert done.returncode == 3, done.stderr
    assert "# skipped: " in done.stderr and "nothing" in done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + 2 * 4
    assert any(line.startswith('normal,3,5000,"hbi:k=15,ag=exact",direct,') for line in lines)
    tree = ElementTree.parse(plot)
    panels = tree.findall("{http://www.w3.org/2000/svg}g")
    assert len(panels) == 2
    marks = [len(panel.findall("{http://www.w3.org/2000/svg}circle")) for panel in panels]
    assert marks == [4 + 7, 4]  # with Shannon's limit of normal data


def test_the_picture(accuracy):
    rows = [{"data": "a<b&c", "nranks": 2, "series": name, "bits": bits, "vnmse": error} for name, bits, error in
            [("mxfp8 (ring)", 8.25, 1e-2), ("hbi (direct)", 4, 1e-2), ("hbi (direct)", 6, 1e-3), ("hbi (direct)", 8, 1e-4),
             ("exact (ring)", 32, 0.0)]]
    svg = accuracy.picture(rows)
    tree = ElementTree.fromstring(svg)
    assert "outside of the axes: exact (ring)" in svg and "a&lt;b&amp;c, n = 2" in svg
    marks = tree.find("{http://www.w3.org/2000/svg}g").findall("{http://www.w3.org/2000/svg}circle")
    assert len(marks) == 4
    # hbi is drawn last, above the others, and a decade of error is as far as the next one.
    x, y = ([float(mark.get(axis)) for mark in marks[-3:]] for axis in ("cx", "cy"))
    assert y[1] - y[0] == pytest.approx(y[2] - y[1], abs=0.2) and y[0] < y[1]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)


def test_a_scale_changes_no_relative_error_and_the_worst_layer_is_named(tmp_path):
    layers = tmp_path / "layers.txt"
    layers.write_text("first 300\nsecond 700\n")
    arguments = ["--data", "normal", "--ranks", "2", "--count", "1000", "--repeats", "1", "--bits", "", "--codec", "bf16", "--csv",
                 "--layers", str(layers)]
    one, two = (run(*arguments, *more).stdout.splitlines()[1].split(",") for more in ([], ["--scale", str(2.0**54)]))
    assert one[6] == two[6] and one[10:] == two[10:] and one[11] in ("first", "second")
    assert float(one[10]) >= float(one[6])
    assert float(two[7]) == pytest.approx(float(one[7]) * 2**54, rel=1e-5)
    other = run(*arguments[:4], "--count", "999", "--layers", str(layers))
    assert other.returncode == 1 and "layers of 1000 elements" in other.stderr


def test_bad_input_is_named(tmp_path):
    for bad in (math.nan, math.inf):
        path = tmp_path / "bad.npy"
        np.save(path, np.array([[1, 2, 3], [1, 2, bad]], np.float32))
        done = run("--ranks", "2", "--data", str(path))
        assert done.returncode == 1 and "element 2 of rank 1" in done.stderr and str(path) in done.stderr
        assert "bf16" not in done.stdout
    done = run("--data", "/no/such.npy", "--ranks", "2")
    assert done.returncode == 1 and "/no/such.npy" in done.stderr
    assert run("--data", "nrmal", "--ranks", "2").returncode == 1
    for option, value in [("--ranks", "65"), ("--scale", "0"), ("--scale", "inf"), ("--repeats", "0"), ("--ref", "tree")]:
        done = run("--data", "normal", option, value)
        assert done.returncode == 2 and option in done.stderr, (option, value)
    for scale in ("1e38", "1e-60"):
        done = run("--data", "normal", "--ranks", "2", "--count", "1000", "--scale", scale)
        assert done.returncode != 0 and "--scale" in done.stderr


def test_recorded_samples_are_consecutive_ranks(accuracy):
    everyone = accuracy.inputs_of("gradients:late", 8)
    pairs = accuracy.table_samples("late", 2)
    assert len(pairs) == 4 and (np.concatenate(pairs) == everyone).all()
    assert len(accuracy.table_samples("gauss", 8)) == 4


def test_acceptance():
    done = run("--acceptance")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    passed, failed, skipped, _ = (int(part.split()[0]) for part in done.stdout.splitlines()[-1].split(", "))
    assert passed > 300 and failed == 0 and skipped == 0
