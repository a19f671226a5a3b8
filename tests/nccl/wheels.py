# SPDX-License-Identifier: Apache-2.0
"""NCCL's own headers and symbol tables, for comparisons: from the wheels nvidia-nccl-cu13, where pip can have them. They
stay in the build tree and are no part of the project."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

VERSIONS = ("2.28.9", "2.29.7", "2.30.7", "2.32.3")


class Wheel:
    """`include` has nccl.h, `symbols` maps the names that libnccl.so.2 exports to their types in nm's letters."""

    def __init__(self, folder):
        self.include = folder
        lines = (folder / "symbols").read_text().splitlines()
        self.symbols = {line.split()[-1]: line.split()[-2] for line in lines}


def _download(version, folder):
    with tempfile.TemporaryDirectory(dir=folder.parent) as directory:
        work = pathlib.Path(directory)
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0", "--timeout",
                               "10", "--dest", directory, f"nvidia-nccl-cu13=={version}"],
                              capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            raise OSError(lines[-1] if lines else "pip download failed")
        with zipfile.ZipFile(next(work.glob("*.whl"))) as archive:
            archive.extract("nvidia/nccl/include/nccl.h", work)
            archive.extract("nvidia/nccl/lib/libnccl.so.2", work)
        names = subprocess.run(["nm", "-D", "--defined-only", work / "nvidia/nccl/lib/libnccl.so.2"], check=True,
                               capture_output=True, text=True).stdout
        made = work / "made"
        made.mkdir()
        shutil.copy(work / "nvidia/nccl/include/nccl.h", made)
        (made / "symbols").write_text(names)
        made.rename(folder)


def get(version, binary_dir):
    """The wheel; a test that needs it is skipped where it cannot be had."""
    folder = binary_dir / "tests" / "nccl_wheels" / version
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            _download(version, folder)
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            if not folder.exists():  # another test may have made it
                raise unittest.SkipTest(f"pip cannot download nvidia-nccl-cu13 {version}: {error}")
    return Wheel(folder)


def stand_in(wheel, directory):
    """A libnccl.so.2 with these symbols, each of which returns ncclInternalError."""
    source = directory / "stand_in.c"
    lines = []
    for name, kind in wheel.symbols.items():
        weak = "__attribute__((weak)) " if kind == "W" else ""
        lines.append(f"{weak}int {name}(void) {{ return 3; }}\n")
    source.write_text("".join(lines))
    library = directory / "libnccl.so.2"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", str(source), "-o", str(library)], check=True)
    return library
