#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The public headers compile by themselves in the languages they promise, and ccl.hpp refuses misuse.

usage: public_headers_test.py SOURCE_DIR BINARY_DIR
The compilers are those of BINARY_DIR. ccl.h: C99 and later, C++11 and later. ccl.hpp: C++17 and
later, without exceptions and run-time types; older C++ is told so.
"""
import pathlib
import re
import subprocess
import sys

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
CPP_WARNINGS = WARNINGS + ["-Wold-style-cast", "-Wnon-virtual-dtor"]
NO_RUNTIME = ["-fno-exceptions", "-fno-rtti"]

USES_C = """#include <inccl/ccl.h>
ccl_result_t use(ccl_comm_t comm, float* data);
ccl_result_t use(ccl_comm_t comm, float* data) {
  ccl_config_t config = CCL_CONFIG_INIT;
  ccl_compression_t how = CCL_COMPRESSION_INIT;
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  how.stats = &stats;
  if (config.size == 0) return CCL_INTERNAL_ERROR;
  return ccl_allreduce_compressed(data, data, 1, CCL_FLOAT32, CCL_SUM, &how, comm, NULL);
}
"""

USES_CPP = """#include <inccl/ccl.hpp>
#include <vector>
struct Half { unsigned short bits; };
template <> struct inccl::api::TypeOf<Half> { static constexpr auto value = CCL_FLOAT16; };
namespace ccl = inccl::api;
ccl::Status Use(ccl::Communicator& comm, std::vector<float>& data, const std::vector<float>& input,
                std::vector<Half>& halves) {
  const int numbers[2] = {1, 2};
  (void)numbers;
  ccl::Stats stats;
  ccl::Compression how;
  how.stats = &stats;
  if (ccl::Status s = comm.AllReduce(halves, halves, CCL_SUM); !s.ok()) return s;
  %s
  return comm.AllReduceCompressed(input, data, CCL_SUM, how);
}
"""

# Lines that must not compile, with a part of what the compiler says.
MISUSES = [
    ("comm.AllReduce(input, data, CCL_SUM);", r"unused|nodiscard|warn_unused"),
    ("ccl::Codec::Create(\"none\");", r"unused|nodiscard|warn_unused"),
    ("(void)comm.AllReduce(data, input, CCL_SUM);", "must not be const"),
    ("std::vector<double> d; (void)comm.AllReduce(input, d, CCL_SUM);", "different element types"),
    ("std::vector<short> d; (void)comm.AllReduce(d, d, CCL_SUM);", "no 16-bit integers"),
    ("std::vector<char*> d; (void)comm.AllReduce(d, d, CCL_SUM);", "no element type of ccl.h"),
    ("(void)comm.Recv(numbers, 1);", "const"),
    ("ccl::Communicator copy = comm;", "deleted|implicitly"),
    ("ccl::Span<float> view(input);", "no match|no viable|no matching"),
]


class Compiler:
    def __init__(self, command, include):
        self.command, self.include = command, include

    def compile(self, language, standard, text, flags):
        """What the compiler says; None if it accepts the text."""
        run = subprocess.run(
            [self.command, "-x", language, f"-std={standard}", "-fsyntax-only", "-I", self.include,
             *flags, "-"], input=text, capture_output=True, text=True, check=False)
        return None if run.returncode == 0 else run.stderr


def main():
    source, binary = map(pathlib.Path, sys.argv[1:3])
    cache = (binary / "CMakeCache.txt").read_text()
    found = dict(re.findall(r"^CMAKE_(C|CXX)_COMPILER:\w+=(.*)$", cache, re.MULTILINE))
    c, cpp = (Compiler(found[key], str(source / "include")) for key in ("C", "CXX"))
    failures = []

    def accept(name, said):
        if said is not None:
            failures.append(f"{name}:\n{said}")

    for standard in ("c99", "c11", "c17"):
        accept(f"ccl.h in {standard}",
               c.compile("c", standard, USES_C, WARNINGS + ["-Wstrict-prototypes"]))
    for standard in ("c++11", "c++17", "c++20"):
        accept(f"ccl.h in {standard}", cpp.compile("c++", standard, USES_C, WARNINGS))
    good = USES_CPP % ""
    for standard in ("c++17", "c++20"):
        accept(f"ccl.hpp in {standard}",
               cpp.compile("c++", standard, good, CPP_WARNINGS + NO_RUNTIME))
    for header in sorted((source / "include").rglob("*.hpp")):
        name = header.relative_to(source / "include").as_posix()
        text = f"#include <{name}>\n#include <{name}>\n"
        accept(f"{name} alone", cpp.compile("c++", "c++17", text, CPP_WARNINGS + NO_RUNTIME))
    for standard in ("c++11", "c++14"):
        said = cpp.compile("c++", standard, good, [])
        errors = [line for line in (said or "").splitlines() if "error:" in line]
        if not errors or "needs C++17" not in errors[0]:
            failures.append(f"ccl.hpp in {standard} does not say first that it needs C++17: {errors[:1]}")
    for line, expected in MISUSES:
        said = cpp.compile("c++", "c++17", USES_CPP % line, CPP_WARNINGS)
        if said is None:
            failures.append(f"compiles, but must not: {line}")
        elif not re.search(expected, said):
            failures.append(f"{line}: expected {expected}, got:\n{said}")
    for failure in failures:
        print(failure)
    print(f"public headers: {len(MISUSES)} misuses tried, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
