# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/recipes, each under torchrun with two ranks."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

RECIPES = sorted((pathlib.Path(__file__).resolve().parents[2] / "examples" / "recipes").glob("*.py"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe(recipe):
    for module in re.findall(r"^import (\w+)", recipe.read_text(), re.M):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module} here")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(recipe)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
