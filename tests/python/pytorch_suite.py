# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own distributed_test.py, which its wheel contains, on a backend.

usage: pytorch_suite.py [--backend inccl|gloo] [--pretend gloo|mpi] [--ranks N] [--match REGEX]
                        [--output FILE]

PyTorch runs many tests only for backends that it knows by name. --pretend tells it such a name; the
process groups are those of --backend all the same. Ranks are forked. Writes {test: [outcome,
reason]} as JSON. Needs torch, numpy and expecttest.
"""
import argparse
import json
import os
import pathlib
import re
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class Outcomes(unittest.TestResult):
    def __init__(self, file):
        super().__init__()
        self.outcomes, self._file, self._begin = {}, file, 0.0

    def startTest(self, test):
        super().startTest(test)
        self._begin = time.monotonic()

    def _note(self, test, outcome, reason=""):
        name = test._testMethodName
        self.outcomes[name] = [outcome, reason[-3000:]]
        print(f"{outcome:8} {time.monotonic() - self._begin:6.1f} s  {name}", flush=True)
        with open(self._file, "w") as out:
            json.dump(self.outcomes, out, indent=1)

    def addSuccess(self, test):
        self._note(test, "passed")

    def addSkip(self, test, reason):
        self._note(test, "skipped", reason)

    def addFailure(self, test, error):
        self._note(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure


def pretend(name, backend):
    """Process groups of the backend `name` are made by `backend`."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
    make, init = distributed_c10d._new_process_group_helper, dist.init_process_group

    def actual(given):
        return dist.Backend(backend) if str(given).lower() == name else given

    def make_actual(size, rank, ranks, given, *rest, **options):
        return make(size, rank, ranks, actual(given), *rest, **options)

    def init_actual(*args, **options):
        if "backend" in options:
            options["backend"] = actual(options["backend"])
        return init(*[actual(arg) if isinstance(arg, str) else arg for arg in args], **options)
    distributed_c10d._new_process_group_helper = make_actual
    dist.init_process_group = init_actual
    dist.is_mpi_available = lambda: True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backend", default="inccl")
    parser.add_argument("--pretend", default="")
    parser.add_argument("--ranks", default="3")
    parser.add_argument("--match", default="")
    parser.add_argument("--output", default="pytorch_suite.json")
    options = parser.parse_args()
    sys.argv[1:] = []
    folder = tempfile.mkdtemp()
    os.makedirs(f"{folder}/barrier")
    os.environ.update(BACKEND=options.pretend or options.backend, WORLD_SIZE=options.ranks,
                      TEMP_DIR=folder, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", INCCL_SOCKET_IFNAME="lo",
                      MASTER_ADDR="127.0.0.1")
    sys.path.insert(0, str(HERE.parent.parent / "python"))
    import torch
    import torch._dynamo  # noqa: F401  once, not in each rank
    import torch.distributed.tensor  # noqa: F401
    from torch.testing._internal.common_distributed import DistTestCases
    if options.backend == "inccl":
        import inccl.torch  # noqa: F401
        for feature in ("ddp", "subgroup", "plugin"):
            DistTestCases.backend_feature[feature].add("inccl")
    if options.pretend:
        pretend(options.pretend, options.backend)
    from torch.testing._internal.distributed.distributed_test import (DistributedTest,
                                                                      TestDistBackend)

    class TestBackend(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    names = [name for name in unittest.TestLoader().getTestCaseNames(TestBackend)
             if re.search(options.match, name)]
    result = Outcomes(options.output)
    for name in names:
        unittest.TestSuite([TestBackend(name)]).run(result)
    counts = {}
    for outcome, _ in result.outcomes.values():
        counts[outcome] = counts.get(outcome, 0) + 1
    print(counts)


if __name__ == "__main__":
    main()
