#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The edits of scripts/mutate_sources.py fit the sources, and name tests that there are.

usage: mutate_sources_test.py SOURCE_DIR BINARY_DIR
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])

names = set()
for options in ([], ["--format"]):
    listed = subprocess.run([sys.executable, ROOT / "scripts/mutate_sources.py", "--list", *options], capture_output=True, text=True)
    if listed.returncode != 0:
        sys.exit(listed.stdout + listed.stderr)
    names |= set(re.findall(r" \((\w+/\w+_test\.cc)\)$", listed.stdout, re.M))
missing = sorted(name for name in names if not (ROOT / "tests" / name).is_file())
if missing or not names:
    sys.exit(f"no such tests: {missing}")
print(f"edits for {len(names)} files of tests")
