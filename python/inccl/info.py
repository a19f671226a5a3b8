# SPDX-License-Identifier: Apache-2.0
"""python -m inccl.info: which library the package has loaded, and whether it works."""
import importlib.metadata
import os
import platform
import sys


def main() -> int:
    try:
        import inccl
        from inccl import _library
    except ImportError as error:
        print(error, file=sys.stderr)
        return 1
    rows = [("inccl (Python)", inccl.__version__),
            ("libinccl.so", ".".join(map(str, _library.library_version()))),
            ("path", f"{_library.PATH} ({_library.FOUND})"),
            ("Python", platform.python_version())]
    for name in ("numpy", "torch"):
        try:
            rows.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            rows.append((name, "-"))
    rows += [(name, value) for name, value in sorted(os.environ.items())
             if name.startswith("INCCL_") and name != "INCCL_LIBRARY"]
    for name, value in rows:
        print(f"{name:<16} {value}")
    try:
        with inccl.Communicator(inccl.unique_id(), 0, 1) as comm:
            total = comm.allreduce(1)
    except inccl.Error as error:
        print(f"{'one rank':<16} {error.code.name}: {error}")
        return 1
    print(f"{'one rank':<16} {'works' if total == 1 else 'WRONG RESULT'}")
    return 0 if total == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
