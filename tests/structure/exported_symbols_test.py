#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libinccl.so and libinccl.a export what ccl.h declares and nothing else; libinccl.so needs few other libraries.

usage: exported_symbols_test.py SOURCE_DIR BINARY_DIR
Needs nm and readelf (binutils). The library lives in processes that hold other libraries of the
same purpose: a global symbol that is not ccl_* can meet one of theirs. And what it needs every
program that uses it loads: what only some ranks or tools need is loaded by these.
"""
import pathlib
import re
import subprocess
import sys

SONAME = "libinccl.so.0"
# The C and C++ runtime, OpenSSL's libcrypto and Highway; sanitizers bring their own.
NEEDED = re.compile(r"(ld-linux.*|lib(c|m|gcc_s|stdc\+\+|crypto|hwy|(a|l|t|ub)san|clang_rt.*|dl|pthread|rt))\.so\.[\d.]*")


def declared(header):
    """Names of the functions that a header's text declares with CCL_API."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.)*", "", text, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"\bCCL_API\b[^;(]*?\b(\w+)\s*\(", text))


def exported(nm_output):
    """{name: type} of nm -D --defined-only, without version suffixes."""
    symbols = {}
    for line in nm_output.splitlines():
        fields = line.split()
        if len(fields) >= 2:
            symbols[fields[-1].split("@")[0]] = fields[-2]
    return symbols


def compare(names, symbols):
    """Failures, as texts. A version node (INCCL_0) is an absolute symbol, type A."""
    failures = [f"declared with CCL_API, not exported: {n}" for n in sorted(names - set(symbols))]
    for name, kind in sorted(symbols.items()):
        if kind == "A" and re.fullmatch(r"INCCL_\d+", name):
            continue
        if not name.startswith("ccl_"):
            failures.append(f"exported but not ccl_*: {name} ({kind})")
        elif name not in names:
            failures.append(f"exported but not declared in ccl.h: {name} ({kind})")
        elif kind != "T":
            failures.append(f"exported but not as a function: {name} ({kind})")
    return failures


def needed(readelf_output):
    """Names of the libraries that the loader brings in with it, of readelf -d."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", readelf_output)


def self_test():
    header = """
    #define CCL_API __attribute__((visibility("default")))
    /* CCL_API int ccl_comment(void); */
    CCL_API ccl_result_t ccl_one(int* a);
    /** Text. */
    CCL_API const char* ccl_two(ccl_result_t r,
                                int b);
    """
    assert declared(header) == {"ccl_one", "ccl_two"}, declared(header)
    good = "0000000000001000 T ccl_one@@INCCL_0\n0000000000001010 T ccl_two@@INCCL_0\n"
    node = "0000000000000000 A INCCL_0\n"
    names = {"ccl_one", "ccl_two"}
    assert compare(names, exported(good + node)) == []
    assert len(compare(names, exported(good + "0000000000002000 W _ZN5inccl3FooEv\n"))) == 1
    assert len(compare(names, exported(good + "0000000000002000 T ccl_three@@INCCL_0\n"))) == 1
    assert len(compare(names, exported(good.replace("T ccl_two", "B ccl_two")))) == 1
    assert len(compare(names | {"ccl_four"}, exported(good))) == 1
    assert needed(" 0x01 (NEEDED)  Shared library: [libhwloc.so.15]\n 0x0e (SONAME) [x]") == ["libhwloc.so.15"]
    wanted = ("libc.so.6", "libstdc++.so.6", "libcrypto.so.3", "ld-linux-x86-64.so.2", "libubsan.so.1")
    assert all(NEEDED.fullmatch(n) for n in wanted)
    assert not any(NEEDED.fullmatch(n) for n in ("libhwloc.so.15", "libucp.so.0", "libmpi.so.40", "libfmt.so.9"))


def main():
    self_test()
    source, binary = map(pathlib.Path, sys.argv[1:3])
    library = binary / "src" / "libinccl.so"
    if not library.exists():
        print(f"{library} is not built")
        return 1

    def run(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    names = declared((source / "include/inccl/ccl.h").read_text())
    failures = compare(names, exported(run("nm", "-D", "--defined-only", str(library))))
    archive = binary / "src" / "libinccl.a"
    if archive.exists():  # a target of its own, which is not built with single tests
        failures += compare(names, exported(run("nm", "-g", "--defined-only", str(archive))))
    if len(names) < 10:
        failures.append(f"only {len(names)} declarations found in ccl.h")
    dynamic = run("readelf", "-d", str(library))
    if f"[{SONAME}]" not in dynamic:
        failures.append(f"{library}: its soname is not {SONAME}")
    libraries = needed(dynamic)
    if "libc.so.6" not in libraries:
        failures.append(f"{library}: needs no libc.so.6? {libraries}")
    failures += [f"{library}: needs {n}" for n in libraries if not NEEDED.fullmatch(n)]
    for failure in failures:
        print(failure)
    print(f"exported symbols: {len(names)} declared, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
