#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes .venv in the source tree, with what the tests of the Python package need: numpy, pytest, PyTorch for CPUs, expecttest for
# PyTorch's own tests, and mpi4py and torchft where they can be had. CMake finds it there. Does nothing if it is complete.
#
# usage: scripts/python_environment.sh [--without-torch]
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(numpy pytest)
modules="numpy, pytest"
torch=2.13.0
if [ "${1:-}" != --without-torch ]; then
  packages+=("torch==$torch+cpu" expecttest)
  modules="$modules, expecttest, torch; assert torch.__version__.startswith('$torch')"
fi
if ! .venv/bin/python -c "import $modules" 2> /dev/null; then
  python3 -m venv .venv
  # PyTorch's build for CPUs: from where pip looks by itself, or else from PyTorch's own index. PyPI's build brings CUDA's
  # libraries.
  .venv/bin/pip install --quiet "${packages[@]}" 2> /dev/null ||
    .venv/bin/pip install --quiet --extra-index-url https://download.pytorch.org/whl/cpu "${packages[@]}"
fi
# Their tests are skipped without them.
.venv/bin/python -c "import mpi4py" 2> /dev/null || .venv/bin/pip install --quiet mpi4py 2> /dev/null || true
if [ "${1:-}" != --without-torch ]; then
  .venv/bin/python -c "import torchft, parameterized" 2> /dev/null ||
    .venv/bin/pip install --quiet torchft==0.2.0 parameterized 2> /dev/null || true
fi
.venv/bin/python -c "import $modules; print(torch.__version__ if 'torch' in globals() else numpy.__version__)"
