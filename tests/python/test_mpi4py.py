# SPDX-License-Identifier: Apache-2.0
"""inccl beside mpi4py in the ranks of mpirun: the same calls have the same results."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).resolve().parent / "mpi_program.py"


@pytest.mark.parametrize("nranks", [2, 3])
def test_same_results(nranks):
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
                   "INCCL_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["mpirun", "-np", str(nranks), sys.executable, PROGRAM], env=environment,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{nranks} ranks agree" in done.stdout
