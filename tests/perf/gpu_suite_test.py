#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""perf/gpu_suite.sh and scripts/gpu_report.py on a build of stand-ins: what is run, in what time, what
comes out of it, and what the report makes of good, bad and missing numbers.

usage: gpu_suite_test.py SOURCE_DIR BINARY_DIR
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

MB = 1 << 20

# As the benchmarks write them, with times that are easy to follow: 1 us for each KB and rank, HBI a
# quarter of it (over a link), the copies a third.
BENCH = r'''#!/usr/bin/env python3
import json, os, sys, time
a = sys.argv[1:]
def value(name, otherwise=None):
    return a[a.index(name) + 1] if name in a else otherwise
def size(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]
device = value("--device") == "cuda"
assert device or "--digest" in a, a
if os.environ.get("STAND_IN_FAILS") in a:
    sys.exit("allreduce_bench: rank 0: it does not work")
assert os.environ["INCCL_OP_TIMEOUT_MS"] == "8000"
if "STAND_IN_HANGS" in os.environ:
    time.sleep(100)
nccl = value("--baseline") == "nccl"
if nccl and "STAND_IN_NCCL" not in os.environ:
    print("# NCCL left out: 2 ranks, 1 GPU: NCCL needs one for each rank")
ranks = int(value("--ranks") or value("--threads"))
codecs = [a[i + 1] for i, x in enumerate(a) if x == "--codec"] or ["none"]
rows = []
at = size(value("-b"))
while at <= size(value("-e")):
    for codec in codecs:
        for in_place in (False, True):
            us = at / 1024 * ranks / (4 if codec != "none" and "--link-gbps" in a else 1)
            us *= 1 if "--ranks" in a else 0.5
            rows.append({"op": os.path.basename(sys.argv[0]).split("_bench")[0], "codec": codec,
                         "nranks": ranks, "bytes": at, "in_place": in_place, "time_us": us,
                         "p99_us": 2 * us, "max_us": 3 * us,
                         "limit_us": us / 3 if "--limit" in a else None,
                         "vs_limit": 3 if "--limit" in a else None,
                         "baseline_us": us * 2 if nccl and "STAND_IN_NCCL" in os.environ else None,
                         "vs_baseline": 0.5 if nccl and "STAND_IN_NCCL" in os.environ else None,
                         "digest": f"{at}{codec}{'STAND_IN_DIFFERS' in os.environ and device}",
                         "wrong": None if value("-c") == "0" else 0, "identical": True})
    at *= int(value("-f", "1000000"))
with open(value("--json"), "w") as file:
    json.dump({"header": {"device": "Stand-in", "devices": 1}, "rows": rows}, file)
if "STAND_IN_SLOW" in os.environ:
    time.sleep(100)
'''
KERNELS = r'''#!/usr/bin/env python3
import json, os, sys
assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
assert os.environ["LD_LIBRARY_PATH"].split(":")[0].endswith("/build/lib")  # as --pack leaves it
if "STAND_IN_NO_START" in os.environ:
    print("version `GLIBC_2.99' not found", file=sys.stderr)
    sys.exit(127)
if "STAND_IN_NO_GPU" in os.environ:
    print("no CUDA device: none here", file=sys.stderr)
    sys.exit(4)
rows = [{"bits": b, "kernel": k, "ms": 1.0, "gb_per_s": 3000.0 * f, "of_copy": f,
         "bytes_per_element": e}
        for b in (8.0, 6.0, 4.0)
        for k, f, e in (("side words", 0.95, 4.03), ("encode", 0.9, 4.8),
                        ("packed sum, 1 + 1", 0.7 if b == 4 else 0.85, 2.3),
                        ("decode", 0.88, 4.8))]
rows += [{"bits": b, "kernel": "reduce, 2 inputs", "ms": 1.0, "gb_per_s": 2910.0, "of_copy": 0.97,
          "bytes_per_element": 3 * b / 8} for b in (32.0, 16.0)]
if "--json" in sys.argv:
    json.dump({"device": "Stand-in", "elements": 1 << 27, "rounds": 11, "copy_gb_per_s": 3000.0,
               "kernels": rows}, open(sys.argv[sys.argv.index("--json") + 1], "w"))
'''
TESTS = r'''#!/usr/bin/env python3
import json, os, sys
if "--gtest_filter=CudaHangs.*" in sys.argv:
    sys.exit(os.environ["CUDA_MODULE_LOADING"] not in ("LAZY", "EAGER"))
assert os.environ["INCCL_TEST_ELEMENTS"] == "100000000"
json.dump({"testsuites": [{"testsuite": [
    {"name": "Casts", "result": "COMPLETED"},
    {"name": "ManyElementsEqualTheCpu", "result": "COMPLETED"}]}]},
    open(os.environ["GTEST_OUTPUT"].split(":", 1)[1], "w"))
'''


PROBE = r'''#!/bin/sh
echo "cuMemFree  DOES NOT"
'''


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make_build(root):
    build = root / "build"
    for name in ("allreduce", "alltoall", "sendrecv"):
        program(build / f"perf/{name}_bench", BENCH)
    program(build / "perf/cuda_kernel_bench", KERNELS)
    program(build / "perf/cuda_probe", PROBE)
    program(build / "tests/cuda_tests", TESTS)
    (build / "lib").mkdir()
    program(root / "bin/compute-sanitizer", "#!/bin/sh\nexit 0\n")
    # Of the system, and not to be given the libraries of another one.
    program(root / "bin/python3", "#!/bin/bash\n"
            "[[ ${1:-} == scripts/gpu_report.py ]] && [ -n \"${LD_LIBRARY_PATH:-}\" ] && exit 77\n"
            f"exec {sys.executable} \"$@\"\n")
    return build


def run(source, root, out, **environment):
    """(exit status, output) of the suite."""
    env = {**os.environ, **environment, "LD_LIBRARY_PATH": "",
           "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(source / "perf/gpu_suite.sh"), str(root / "build"),
                           str(out)], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def check_probe(binary):
    """The probe itself, over the fake of the driver, which waits where an H100's does (but for cuMemFree)."""
    program_file = binary / "perf/cuda_probe"
    if not program_file.exists():
        return
    env = {**os.environ, "LD_LIBRARY_PATH": str(binary / "tests/fake_driver")}
    done = subprocess.run([program_file], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line[:47].strip(): line[47:] for line in done.stdout.splitlines()}
    for call in ("cuCtxSynchronize", "cuModuleLoadData and its kernel's first launch", "5000 launches behind it"):
        assert lines[call].startswith("DOES NOT"), done.stdout
    for call in ("copy of pinned memory", "cuMemHostAlloc", "cuMemHostRegister", "cuStreamDestroy",
                 "1000 launches behind the waiting stream"):
        assert lines[call].startswith("returns"), done.stdout
    assert [name for name, text in lines.items() if "HELD UP" in text] == ["cuModuleLoadData and its kernel's first launch"]
    assert done.stdout.count("0 of 40 other streams") == 2, done.stdout


def check_whole(source, root):
    out = root / "whole"
    status, text = run(source, root, out)
    assert status == 0, text
    suite = json.loads((out / "suite.json").read_text())
    assert not suite["failed"]
    steps = {step["step"]: step for step in suite["steps"]}
    assert "PyTorch" in steps.pop("ddp")["not_run"]
    assert all(step["exit_status"] == 0 for step in steps.values()), steps
    assert {"cuda_tests", "memcheck", "synccheck", "initcheck", "kernels", "probe", "probe.CUDA_LAUNCH_BLOCKING=1",
            "hangs.LAZY", "hangs.EAGER"} <= set(steps)
    # Every number of ranks over every link, small and large.
    for ranks in (2, 4, 8):
        for link in ("shm", "100", "10"):
            sizes = {row["bytes"] for part in ("small", "large")
                     for row in suite["benches"][f"sweep.threads.{ranks}.{link}.{part}"]["rows"]}
            assert min(sizes) == 64 << 10 and max(sizes) == 1 << 30, sizes
    assert {row["codec"] for row in suite["benches"]["sweep.threads.8.10.small"]["rows"]} == {
        "none", "hbi:bits=8", "hbi:bits=6", "hbi:bits=4"}
    # The limits of all parts that can be run out together are not what bounds the suite: it is.
    assert all(step["limit"] <= 120 for step in steps.values())
    # Without a GPU for each rank NCCL is tried once.
    assert [name for name in suite["benches"] if name.startswith("nccl")] == [
        "nccl.processes.2.shm"]
    table = (out / "table.md").read_text()
    for line in (
            "| 4 ranks, 256 MB, emulated 100 Gbit/s: HBI 6 bits / fp32 | <= 0.3 | 0.25 | reached |",
            "| 2 ranks, 4 KB: time | <= 30 us | 4 us (threads) | reached |",
            "| 10^8 elements against the CPU | 0 bytes differ | 0 differ | reached |",
            "| slowest kernel / copy of the device | >= 0.8 | 0.70 (packed sum, 1 + 1, 4 bits) | "
            "missed |",
            "the copies' time / ours | >= 0.5 | 0.33 (threads) | missed |",
            "kernels' sizes | <= 16 | 15.93 | reached |",
            "L2 cache | <= 12 | 11.93 | reached |",
            "results | all equal | 36 of 36 equal | reached |",
            "| kernel launches for a slice | <= 3 | - | not measured |",
            "NCCL was left out: 2 ranks, 1 GPU: NCCL needs one for each rank.",
            "**All-reduce, 8 ranks on one GPU, an emulated link of 10 Gbit/s**",
            "| 256 MB | 1.05 s | 262 ms | 262 ms | 262 ms | - | 0.25 | - |",
            "| 64 KB | 256 us | 256 us | 256 us | 256 us | 85.3 us | 1.00 | 3.00 |",
            "| packed sum, 1 + 1 | 2550 | 0.85 | 2.30 | 2550 | 0.85 | 2.30 | 2100 | 0.70 | 2.30 |",
            "| reduce, 2 inputs | 2910 | 0.97 | 12.00 | 2910 | 0.97 | 6.00 |",
            "| allreduce, threads | 2 | 4 KB | 4 us | 8 us | - |"):
        assert line in table, f"{line}\n{table}"
    assert table in text


def check_nccl(source, root):
    out = root / "nccl"
    status, text = run(source, root, out, STAND_IN_NCCL="1")
    assert status == 0, text
    assert "| 8 | 16 MB | fp32 | 131 ms | 262 ms | 0.50 |" in (out / "table.md").read_text()


def check_failures(source, root):
    # No GPU: nothing is written, and it is not an error of the suite.
    out = root / "none"
    status, text = run(source, root, out, STAND_IN_NO_GPU="1")
    assert status == 4 and "no CUDA device: none here" in text, text
    assert not (out / "suite.json").exists()
    # Programs that do not start here are no machine without a GPU, and the rest is not tried.
    out = root / "start"
    status, text = run(source, root, out, STAND_IN_NO_START="1")
    assert status == 1 and "GLIBC_2.99" in text and "==" not in text, text
    # Results that are not the host's.
    out = root / "differs"
    status, text = run(source, root, out, STAND_IN_DIFFERS="1")
    assert "results | all equal | 0 of 36 equal | missed |" in (out / "table.md").read_text()
    # A part that fails is shown, and the others run.
    out = root / "failing"
    status, text = run(source, root, out, STAND_IN_FAILS="--link-gbps")
    assert status == 1 and "it does not work" in text, text
    suite = json.loads((out / "suite.json").read_text())
    assert suite["failed"]
    table = (out / "table.md").read_text()
    assert "| sweep.threads.4.100.small | failed (1) |" in table, table
    assert "HBI 6 bits / fp32 | <= 0.3 | - | not measured |" in table, table
    assert "sweep.threads.4.shm.small" in suite["benches"]
    # What a benchmark had when it ran out of time stays, and is no failure.
    out = root / "slow"
    status, text = run(source, root, out, STAND_IN_SLOW="1", INCCL_GPU_SUITE_SECONDS="11")
    assert status == 0 and "stopped after" in text, text
    suite = json.loads((out / "suite.json").read_text())
    stopped = [s["step"] for s in suite["steps"] if s.get("exit_status") == 124]
    assert stopped == ["latency.processes.2.shm"], suite["steps"]
    assert suite["benches"][stopped[0]]["rows"], suite["benches"]
    # One that hangs in its first call has nothing.
    out = root / "hanging"
    status, text = run(source, root, out, STAND_IN_HANGS="1", INCCL_GPU_SUITE_SECONDS="11")
    assert status == 1 and "\n   stopped after" not in text, text
    # No time: what is left over is named.
    out = root / "late"
    status, text = run(source, root, out, INCCL_GPU_SUITE_SECONDS="0")
    suite = json.loads((out / "suite.json").read_text())
    assert {step["not_run"] for step in suite["steps"] if step["step"] != "ddp"} == {"no time was left"}, suite["steps"]
    assert "| kernels | not run: no time was left | |" in (out / "table.md").read_text()
    # Something is missing in the build.
    (root / "build/perf/allreduce_bench").rename(root / "away")
    status, text = run(source, root, root / "missing")
    assert status == 1 and "no " in text and "perf/allreduce_bench" in text, text
    (root / "away").rename(root / "build/perf/allreduce_bench")


def check_wrong_results(source):
    spec = importlib.util.spec_from_file_location("gpu_report", source / "scripts/gpu_report.py")
    report = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)
    row = {"op": "allreduce", "codec": "none", "nranks": 2, "bytes": 1 << 20, "in_place": False,
           "time_us": 10, "p99_us": 1, "limit_us": None, "vs_limit": None, "baseline_us": None,
           "wrong": 7, "identical": False}
    suite = {"seconds": 1, "steps": [], "kernels": None, "tests": {}, "nccl_left_out": None,
             "benches": {"sweep.threads.2.shm.small": {"rows": [row]}, "sweep.threads.8.10.large": None}}
    text = report.table(suite)
    assert "- **WRONG**: sweep.threads.2.shm.small, 1 MB, none: 7 elements" in text, text
    # A test that did not compare all elements proves nothing, one that failed the contrary.
    def tests(**result):
        return {"tests": {"a": {"testsuites": [{"testsuite": [
            {"name": report.ELEMENTS, **result}]}]}}}
    assert report.elements_test(tests(result="SKIPPED")) is None
    assert report.elements_test(tests(result="COMPLETED", failures=[{}]))[0] is False
    assert [report.time_text(t) for t in (None, 0.5, 123.4, 1234, 98765, 2.5e6)] == [
        "-", "0.5 us", "123 us", "1.2 ms", "98.8 ms", "2.50 s"]


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    check_probe(pathlib.Path(sys.argv[2]).resolve())
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        make_build(root)
        check_whole(source, root)
        check_nccl(source, root)
        check_failures(source, root)
    check_wrong_results(source)
    print("ok")


if __name__ == "__main__":
    main()
