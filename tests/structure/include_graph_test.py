#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the sources to the layers and to a length: fails on an #include that is no edge of the design, on a file of src with
more than MOST_LINES lines, and on an array of the host's that a CUDA kernel may read.

LAYERS below lists the folders of src from the lowest to the highest. A file includes files of its own folder and of lower
layers; folders of one layer do not include each other.

usage: include_graph_test.py SOURCE_DIR BINARY_DIR
First proves on a temporary tree that the check finds wrong edges and long files, then checks SOURCE_DIR.
"""
import pathlib
import re
import sys
import tempfile

LAYERS = [
    ["base"],
    ["config", "topology", "device", "compress"],
    ["memory", "bootstrap", "reduce"],
    ["control"],
    ["transport"],
    ["engine"],
    ["collectives"],
    ["tuning", "stream", "failure", "verify"],
    ["communicator"],
    ["init"],
    ["api"],
]

# Folder: the folders that its files may include ("inccl": the public header).
PUBLIC_HEADER_USERS = {"config", "collectives", "init", "api"}
ALLOWED = {"inccl": {"inccl"}}
for number, folders in enumerate(LAYERS):
    for folder in folders:
        ALLOWED[folder] = {folder}.union(*LAYERS[:number])
        if folder in PUBLIC_HEADER_USERS:
            ALLOWED[folder].add("inccl")
for folder in ("memory", "bootstrap", "control", "transport"):
    ALLOWED[folder].discard("compress")  # what they move has no meaning to them
for folder in ("communicator", "init", "api"):
    ALLOWED[folder].discard("verify")  # no part of the library
ALLOWED["ext"] = {"ext", "inccl"}  # users of the C API

# Headers of the system and of dependencies that only these layers may include. Which headers of C++
# and POSIX a layer uses otherwise is its own affair.
RESTRICTED = [
    (re.compile(r"hwy/.*"), {"compress"}),
    (re.compile(r"openssl/.*"), {"bootstrap"}),
    (re.compile(r"(sys/socket|sys/un|netinet/.*|arpa/.*|netdb)\.h"), {"base", "bootstrap", "control", "ext", "transport"}),
    (re.compile(r"(.*intrin|arm_neon|arm_sve)\.h"), {"compress", "base"}),
    (re.compile(r"(infiniband|ucp|ucs|uct|rdma)/.*"), {"transport"}),
    (re.compile(r"hwloc(/.*|\.h)"), {"topology"}),
    (re.compile(r"cuda(_.*)?\.h"), {"compress", "device"}),
    (re.compile(r"mpi\.h|CLI/.*|nlohmann/.*|gtest/.*|gmock/.*|benchmark/.*"), set()),
]

# ISO C99: all that a public header for C may ask of its user. Those for C++ (.hpp) may also include
# the standard library of C++, whose headers alone have names without a dot.
C_HEADERS = set("""assert.h complex.h ctype.h errno.h fenv.h float.h inttypes.h iso646.h limits.h
locale.h math.h setjmp.h signal.h stdarg.h stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h
tgmath.h time.h wchar.h wctype.h""".split())

MOST_LINES = 800

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]*)"|<([^>]*)>)', re.MULTILINE)
SUFFIXES = {".h", ".hpp", ".cc", ".cpp", ".c", ".inc", ".cu", ".cuh"}


def layer_of(path, root):
    """The layer of a file of the library, or None."""
    parts = path.relative_to(root).parts
    if parts[0] == "include":
        return "inccl"
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else "src"
    return None


def target_layer(header, path, root):
    """The layer of a file that an #include names, or None if it is none of ours."""
    for base in (root / "src", root / "include", path.parent):
        if (base / header).is_file():
            return layer_of((base / header).resolve(), root)
    first = header.split("/")[0]
    return first if "/" in header and first in ALLOWED else None


def check_file(path, root):
    """The violations of one file, as texts."""
    layer = layer_of(path, root)
    if layer not in ALLOWED:
        return [f"{path.relative_to(root)}: below no known layer of src"]
    found = []
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if layer != "inccl" and lines > MOST_LINES:
        found.append(f"{path.relative_to(root)}: {lines} lines, more than {MOST_LINES}")
    for match in INCLUDE.finditer(text):
        quoted, angled = match.groups()
        header = quoted if quoted is not None else angled
        where = f"{path.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}"
        target = target_layer(header, path, root)
        if target is not None:
            if target not in ALLOWED[layer]:
                found.append(f"{where}: {layer} must not include {header} ({target})")
            continue
        if quoted is not None and not quoted.startswith("hwy/"):
            found.append(f'{where}: "{quoted}" is no file below src or include')
        if layer == "inccl" and header not in C_HEADERS and not header.startswith("inccl/"):
            standard = path.suffix == ".hpp" and re.fullmatch("[a-z_0-9]+", header)
            if not standard:
                found.append(f"{where}: a public header may include standard headers only, not {header}")
        for pattern, layers in RESTRICTED:
            if pattern.fullmatch(header) and layer not in layers:
                found.append(f"{where}: {layer} must not include <{header}>")
    return found


# An array outside functions, in a file that a kernel is made of. nvcc takes it for memory of the host, and whatever reads it
# becomes a trap or is dropped without a warning, so that only a GPU shows it. A function that copies the whole array into a
# constexpr variable of its own can read the copy.
HOST_ARRAY = re.compile(r"^(?:inline |static )*constexpr [\w:<>, ]+?\b(\w+)(?:\[\w*\])+ *=|"
                        r"^(?:inline |static )*constexpr std::array<[^;=]*> (\w+) *=", re.MULTILINE)


def check_kernels(root):
    """The violations of the files that the .cu files below `root` are made of."""
    files, todo = {}, sorted((root / "src").rglob("*.cu"))
    while todo:
        path = todo.pop()
        if path in files:
            continue
        files[path] = re.sub("//.*", "", path.read_text(encoding="utf-8"))
        todo += [root / "src" / quoted for quoted, _ in INCLUDE.findall(files[path])
                 if quoted and (root / "src" / quoted).is_file()]
    found = []
    for path, text in sorted(files.items()):
        for match in HOST_ARRAY.finditer(text):
            name = match.group(1) or match.group(2)
            uses = [use for other in files.values()
                    for use in re.findall(rf"[^\n]*\b{name}\b[^\n]*", other)]
            copies = [use for use in uses if re.search(rf"^ +constexpr std::array<.*= {name};", use)]
            if match.group(1) or len(copies) != len(uses) - 1:
                found.append(f"{path.relative_to(root)}: {name}: an array of the host's, which a "
                             "kernel cannot read")
    return found


def check_tree(root):
    """(number of files, violations) of a source tree."""
    root = root.resolve()
    files = [p for top in ("src", "include") for p in sorted((root / top).rglob("*"))
             if p.suffix in SUFFIXES and p.is_file()]
    return len(files), [v for p in files for v in check_file(p, root)] + check_kernels(root)


# A tree that is right, and single additions that each break it: (file, line, part of the message).
GOOD = {
    "include/inccl/ccl.h": "#include <stdint.h>\n",
    "include/inccl/ccl.hpp": '#include <memory>\n#include "inccl/ccl.h"\n',
    "src/base/status.h": "#include <string>\n",
    "src/bootstrap/hmac.cc": '#include <openssl/hmac.h>\n#include "base/status.h"\n',
    "src/control/control.h": '#include <sys/socket.h>\n#include "base/status.h"\n',
    "src/transport/transport.h": '#include "base/status.h"\n#include "memory/region.h"\n',
    "src/memory/region.h": "#include <cstdint>\n",
    "src/memory/full.h": "\n" * MOST_LINES,
    "src/compress/codec.h": '#include "base/status.h"\n',
    "src/compress/cuda/sum.cu": '#include "compress/cuda/sum.h"\n',
    "src/compress/cuda/sum.h": "inline constexpr std::array<int, 2> kOdd = {1, 3};\n"
                               "  constexpr std::array<int, 2> odd = kOdd;\n",
    "src/compress/kernels/pack.cc": '#include "hwy/highway.h"\n#include "compress/codec.h"\n',
    "src/engine/engine.h": '#include "compress/codec.h"\n#include "transport/transport.h"\n',
    "src/collectives/schedule.h": '#include "engine/engine.h"\n',
    "src/tuning/tuner.h": '#include <vector>\n#include "collectives/schedule.h"\n',
    "src/failure/failure.h": '#include "control/control.h"\n',
    "src/communicator/communicator.h": '#include "tuning/tuner.h"\n#include "failure/failure.h"\n',
    "src/api/query.cc": '#include "communicator/communicator.h"\n#include "inccl/ccl.h"\n',
}
BAD = [
    ("src/base/status.h", '#include "transport/transport.h"', "base must not include"),
    ("src/base/status.h", '#include "tuning/tuner.h"', "base must not include"),
    ("src/memory/region.h", '#include "transport/transport.h"', "memory must not include"),
    ("src/transport/transport.h", '#include "collectives/schedule.h"', "transport must not include"),
    ("src/transport/transport.h", "#include <inccl/ccl.h>", "transport must not include"),
    ("src/transport/transport.h", '#include "compress/codec.h"', "transport must not include"),
    ("src/transport/transport.h", '#include "../engine/engine.h"', "transport must not include"),
    ("src/bootstrap/hmac.cc", '#include "control/control.h"', "bootstrap must not include"),
    ("src/compress/codec.h", '  #  include "transport/transport.h"', "compress must not include"),
    ("src/compress/codec.h", '#include "inccl/ccl.h"', "compress must not include"),
    ("src/engine/engine.h", '#include "inccl/ccl.h"', "engine must not include"),
    ("src/engine/engine.h", '#include "collectives/schedule.h"', "engine must not include"),
    ("src/collectives/schedule.h", '#include "tuning/tuner.h"', "collectives must not include"),
    ("src/collectives/schedule.h", "#include <sys/socket.h>", "collectives must not include"),
    ("src/collectives/schedule.h", "#include <immintrin.h>", "collectives must not include"),
    ("src/collectives/schedule.h", '#include "hwy/highway.h"', "collectives must not include"),
    ("src/tuning/tuner.h", '#include "failure/failure.h"', "tuning must not include"),
    ("src/communicator/communicator.h", '#include "api/query.cc"', "communicator must not include"),
    ("src/api/query.cc", "#include <mpi.h>", "api must not include"),
    ("src/api/query.cc", '#include "verify/validate.h"', "api must not include"),
    ("src/base/status.h", "#include <hwloc.h>", "base must not include"),
    ("src/transport/transport.h", "#include <cuda_runtime.h>", "transport must not include"),
    ("src/api/query.cc", '#include "perf/support/npy.h"', "no file below src"),
    ("src/api/query.cc", '#include "support/seed.h"', "no file below src"),
    ("include/inccl/ccl.h", '#include "base/status.h"', "inccl must not include"),
    ("include/inccl/ccl.h", "#include <vector>", "standard headers only"),
    ("include/inccl/ccl.hpp", "#include <unistd.h>", "standard headers only"),
    ("include/inccl/ccl.hpp", "#include <fmt/format.h>", "standard headers only"),
    ("src/compress/cuda/sum.h", "  for (int odd : kOdd) sum += odd;", "kOdd: an array of the host's"),
    ("src/compress/cuda/sum.h", "inline constexpr uint32_t kEven[2] = {0, 2};", "kEven: an array"),
    ("src/extra/new.cc", "", "no known layer"),
    ("src/loose.cc", "", "no known layer"),
    ("src/memory/full.h", "// one line more", "801 lines, more than 800"),
    ("src/ext/nccl/long.cc", "\n" * MOST_LINES, "801 lines, more than 800"),
]


def self_test():
    """The check finds each wrong addition by itself, and nothing in the right tree."""
    failures = []
    for bad in [None] + BAD:
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for path, text in GOOD.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            if bad is not None:
                (root / bad[0]).parent.mkdir(parents=True, exist_ok=True)
                with open(root / bad[0], "a") as file:
                    file.write(bad[1] + "\n")
            found = check_tree(root)[1]
        if bad is None and found:
            failures.append(f"self-test: a right tree is refused: {found}")
        if bad is not None and (len(found) != 1 or bad[2] not in found[0]):
            failures.append(f"self-test: {bad[0]} with {bad[1]!r} gave {found}")
    return failures


def main():
    failures = self_test()
    count, violations = check_tree(pathlib.Path(sys.argv[1]))
    failures += violations
    if count == 0:
        failures.append(f"no sources below {sys.argv[1]}")
    for failure in failures:
        print(failure)
    print(f"include graph: {count} files, {len(BAD)} wrong additions tried, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
