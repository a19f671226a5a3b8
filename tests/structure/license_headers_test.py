#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence in its first line (second after a #! line).

usage: license_headers_test.py SOURCE_DIR BINARY_DIR
"""
import pathlib
import sys

TAG = "SPDX-License-Identifier: Apache-2.0"
SUFFIXES = {".h", ".hpp", ".cc", ".cpp", ".c", ".cu", ".py", ".sh", ".cmake"}
NAMES = {"CMakeLists.txt"}
TOPS = ["include", "src", "tests", "perf", "tools", "cmake", "examples"]


def has_tag(text):
    lines = text.split("\n", 2)
    first = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
    return TAG in first


def main():
    assert has_tag(f"// {TAG}\nint x;") and has_tag(f"#!/bin/sh\n# {TAG}\n")
    assert not has_tag(f"int x;\n// {TAG}\n") and not has_tag("") and not has_tag("#!/bin/sh")
    root = pathlib.Path(sys.argv[1])
    files = [p for top in TOPS for p in sorted((root / top).rglob("*"))
             if p.is_file() and (p.suffix in SUFFIXES or p.name in NAMES)]
    files.append(root / "CMakeLists.txt")
    missing = [p for p in files if not has_tag(p.read_text(encoding="utf-8"))]
    for path in missing:
        print(f"{path.relative_to(root)}: no '{TAG}' in its first line")
    print(f"licence headers: {len(files)} files, {len(missing)} without")
    return 1 if missing or len(files) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
