# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed into a fresh environment that has nothing else."""
import os
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

PROGRAM = """
import sys, pathlib, inccl
from inccl import _library
assert _library.FOUND == "in the package", _library.FOUND
assert pathlib.Path(sys.prefix) in pathlib.Path(_library.PATH).parents
with inccl.Communicator(inccl.unique_id(), 0, 1) as comm:
    data = bytearray(b"\\1" * 8)
    comm.Allreduce(inccl.IN_PLACE, data)
    print(comm.allreduce(41) + data[7])
"""


def test_wheel(tmp_path):
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("INCCL_", "PYTHONPATH"))}
    build = subprocess.run(
        [sys.executable, "-c", "import sys, wheel_builder as b; print(b.build_wheel(sys.argv[1]))",
         str(tmp_path)], cwd=ROOT / "python", capture_output=True, text=True,
        env={**environment, "INCCL_WHEEL_LIBRARY": os.environ["INCCL_LIBRARY"]})
    assert build.returncode == 0, build.stderr
    text = tmp_path / "text"
    text.write_text("no library")
    bad = subprocess.run([sys.executable, "-c", "import sys, wheel_builder as b; print(b.build_wheel(sys.argv[1]))",
                          str(tmp_path)], cwd=ROOT / "python", capture_output=True, text=True,
                         env={**environment, "INCCL_WHEEL_LIBRARY": str(text)})
    assert bad.returncode == 1 and bad.stderr.startswith(f"INCCL_WHEEL_LIBRARY: {text} is not a shared library"), bad.stderr
    wheel = tmp_path / build.stdout.strip()
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert "inccl/libinccl.so.0" in names
    assert "inccl/torch/process_group.py" in names and "inccl/py.typed" in names
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                          capture_output=True, text=True, check=True).stdout.strip()
    with zipfile.ZipFile(wheel) as opened:  # what an installer does with it
        opened.extractall(site)
    done = subprocess.run([python, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True,
                          env={**environment, "INCCL_CONF_FILE": "/dev/null"})
    assert done.stdout.strip() == "42", done.stderr


def test_sdist(tmp_path):
    """A wheel is built from what the archive has, by the backend that its pyproject.toml names."""
    built = subprocess.run([sys.executable, "-c", "import sys, wheel_builder as b; print(b.build_sdist(sys.argv[1]))",
                            str(tmp_path)], cwd=ROOT / "python", capture_output=True, text=True, check=True)
    with tarfile.open(tmp_path / built.stdout.strip()) as opened:
        assert all(name.startswith("inccl-0.1.0/") for name in opened.getnames())
        opened.extractall(tmp_path)
    top = tmp_path / "inccl-0.1.0"
    assert 'backend-path = ["python"]' in (top / "pyproject.toml").read_text()
    assert (top / "PKG-INFO").read_text().startswith("Metadata-Version: 2.1\nName: inccl\n")
    made = subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, 'python'); import wheel_builder as b; "
                           "print(b.__file__, b.build_wheel(sys.argv[1]))", str(tmp_path)], cwd=top,
                          capture_output=True, text=True,
                          env={**os.environ, "INCCL_WHEEL_LIBRARY": os.environ["INCCL_LIBRARY"]})
    assert made.returncode == 0 and made.stdout.startswith(str(top)), made.stderr
    configured = subprocess.run(["cmake", "--preset", "install", "-B", "build", "-DINCCL_BUILD_PERF=OFF",
                                 "-DINCCL_BUILD_TOOLS=OFF", "-DINCCL_CUDA=OFF"], cwd=top, capture_output=True, text=True)
    assert configured.returncode == 0, configured.stderr


TORCH_PROGRAM = """
import sys, torch, torch.distributed as dist
assert "inccl" not in sys.modules  # `import torch` does not load the library
dist.init_process_group("inccl", store=dist.HashStore(), rank=0, world_size=1)
one = torch.ones(3)
dist.all_reduce(one)
print(int(one.sum()), sys.modules["inccl"].__file__)
dist.destroy_process_group()
"""


def test_torch_knows_the_backend_without_an_import(tmp_path):
    pytest.importorskip("torch")
    library = os.environ["INCCL_LIBRARY"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("INCCL_", "PYTHONPATH"))}
    built = subprocess.run([sys.executable, "-c", "import sys, wheel_builder as b; print(b.build_wheel(sys.argv[1]))",
                            str(tmp_path)], cwd=ROOT / "python", capture_output=True, text=True, check=True,
                           env={**environment, "INCCL_WHEEL_LIBRARY": library})
    with zipfile.ZipFile(tmp_path / built.stdout.strip()) as opened:
        opened.extractall(tmp_path / "site")
    done = subprocess.run([sys.executable, "-c", TORCH_PROGRAM], cwd=tmp_path, capture_output=True, text=True,
                          env={**environment, "PYTHONPATH": str(tmp_path / "site"), "INCCL_CONF_FILE": "/dev/null"})
    assert done.stdout.split() == ["3", str(tmp_path / "site" / "inccl" / "__init__.py")], done.stderr
