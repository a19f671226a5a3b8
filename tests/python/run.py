# SPDX-License-Identifier: Apache-2.0
"""Runs pytest on one file of this folder with the package of this source tree.

usage: run.py FILE [OPTION OF PYTEST...]
Exit status 77: skipped, because a module is missing.
"""
import importlib.util
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent / "python"


def main():
    needed = ["numpy", "pytest"] + [name for name in ("torch", "mpi4py", "torchft") if name in sys.argv[1]]
    needed += ["parameterized"] if "torchft" in needed else []  # torchft's own tests do
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {sys.executable} has no {', '.join(missing)}")
        return 77
    sys.path[:0] = [str(PACKAGE), str(HERE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(PACKAGE), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import pytest
    return pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(HERE),
                        str(HERE / sys.argv[1]), *sys.argv[2:]])


if __name__ == "__main__":
    sys.exit(main())
