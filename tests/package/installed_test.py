#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a user does first: install, move, find_package and pkg-config, build the examples, run them.

usage: installed_test.py SOURCE_DIR BINARY_DIR [--mpi] PROGRAM...
Installs the build in BINARY_DIR, with the given programs, into a temporary prefix, and moves that, so
that an absolute path in it would lead nowhere. With --mpi the MPI example is built and run too.
"""
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1"}
MPIRUN = ["mpirun", "-np", "4", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]

SOURCE = pathlib.Path(__file__).resolve().parents[2]

ENVIRONMENT = {k: v for k, v in os.environ.items()
               if not re.match(r"LD_|PKG_CONFIG|CMAKE_|INCCL_|CFLAGS|CXXFLAGS|LDFLAGS|MAKE", k)}
ENVIRONMENT.update(MPI, INCCL_CONF_FILE="/dev/null")


def run(*command, **more):
    """The output of a command that must succeed."""
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False,
                            env={**ENVIRONMENT, **more.pop("env", {})}, timeout=240, **more)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit status {result.returncode}\n"
                             f"{result.stdout}{result.stderr}")
    return result.stdout


def check_numbers(output, bits):
    """One line of an allreduce example: bits, ratio, and a value near 990."""
    found = re.fullmatch(r"([\d.]+) bits, ratio ([\d.]+): 990 is ([\d.]+)\n", output)
    assert found, output
    sent, ratio, value = map(float, found.groups())
    assert abs(sent - bits) < 1 and 32 / ratio - 0.5 < sent < 32 / ratio + 0.5, output
    assert abs(value - 990) < 40, output  # 990 is the largest of its block: 4 % of it


def check_examples(folder, mpi):
    check_numbers(run(folder / "allreduce"), 6)
    check_numbers(run(folder / "allreduce_cpp"), 8)
    lines = sorted(run(folder / "threads").splitlines())
    assert lines == [f"rank {r}: the sum is 10" for r in range(4)], lines
    lines = run(folder / "groups").splitlines()
    assert lines == [f"rank {r}: from the left {(r - 1) % 3}, back at home {r}, mean 1"
                     for r in range(3)], lines
    if mpi:
        output = run(*MPIRUN, folder / "mpi")
        assert "uncompressed: differs from MPI by 0\n" in output, output
        assert output.endswith("right\n"), output


def check_man_pages(prefix, programs):
    """Every program has one, of what it prints; groff has no complaints."""
    folder = prefix / "share/man/man1"
    assert {p.name for p in folder.iterdir()} == {f"{p}.1" for p in programs}, list(folder.iterdir())
    for program in programs:
        page = folder / f"{program}.1"
        assert f"\n{program} \\- " in page.read_text(), program
        if shutil.which("groff"):
            said = subprocess.run(["groff", "-man", "-Tutf8", "-ww", page], capture_output=True, text=True, check=True)
            assert not said.stderr, said.stderr
            assert "--help" in said.stdout.replace("\u2010", "-").replace("\u2212", "-"), program


def check_files(prefix, programs, libdir, binary_dir):
    def files(folder):
        return {p.name for p in (prefix / folder).iterdir()}

    assert files("bin") == set(programs), (files("bin"), programs)
    check_man_pages(prefix, programs)
    assert files("include/inccl") == {"ccl.h", "ccl.hpp", "nccl_options.h", "detail"}, files("include/inccl")
    version = run("pkg-config", "--modversion", "inccl",
                  env={"PKG_CONFIG_PATH": prefix / libdir / "pkgconfig"}).strip()
    cuda = set()
    if (binary_dir / "src/libinccl_cuda.so.0").exists():
        cuda = {"libinccl_cuda.so.0", f"libinccl_cuda.so.{version}"}
    modules = set()
    if (binary_dir / "perf/libinccl_bench_mpi.so").exists():
        modules = {"inccl"}
        assert files(f"{libdir}/inccl") == {"libinccl_bench_mpi.so"}, files(f"{libdir}/inccl")
    assert files(libdir) == {"libinccl.a", "libinccl.so", "libinccl.so.0", f"libinccl.so.{version}", "inccl-nccl", "cmake",
                             "pkgconfig"} | cuda | modules, files(libdir)
    header = (prefix / "include/inccl/ccl.h").read_text()
    numbers = [re.search(rf"#define CCL_{n} (\d+)", header).group(1)
               for n in ("MAJOR", "MINOR", "PATCH")]
    assert ".".join(numbers) == version, (numbers, version)
    for document in ("README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "docs/design.md", "docs/format.md"):
        assert (prefix / "share/doc/inccl" / document).is_file(), document
    for path in [*(prefix / "bin").iterdir(), prefix / libdir / "libinccl.so"]:
        said = run("readelf", "-d", path)
        paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", said)
        assert all(p.startswith("$ORIGIN") for p in paths), (path, paths)
        assert "libmpi" not in said, path  # all of them start where there is none
    return version


def check_programs(prefix, programs, mpi):
    for program in programs:
        run(prefix / "bin" / program, "--help")
    if "inccl-allreduce-bench" in programs:
        bench = prefix / "bin/inccl-allreduce-bench"
        size = ["-b", "4K", "-e", "4K", "-n", "1", "-w", "0"]
        output = run(bench, "--ranks", "2", *size, "--data", "gradients:late", "--codec", "hbi:bits=6", cwd="/")
        assert "Out of bounds values : 0 OK" in output, output
        if mpi:
            output = run(*MPIRUN, bench, *size, "--baseline", "mpi", cwd="/")
            assert "4 ranks, mpirun" in output and "Out of bounds values : 0 OK" in output, output
        assert run(bench, "--version").startswith("inccl-allreduce-bench (inccl) "), bench


def uninstall(manifests, **more):
    return subprocess.run(["cmake", "-D", f"BUILD={manifests}", "-P", "uninstall.cmake"], cwd=manifests, check=False,
                          capture_output=True, text=True, timeout=60, env=ENVIRONMENT, **more)


def check_uninstall(binary, root):
    """What was installed is gone, and so are inccl's directories; what else lies there stays. Who may not remove a file
    learns of it, and removes it later with the rights to do so."""
    prefix = root / "uninstall"
    (prefix / "include").mkdir(parents=True)
    (prefix / "include/other.h").touch()
    run("cmake", "--install", binary, "--prefix", prefix)
    manifests = root / "manifests"  # and not what else was installed from this build
    manifests.mkdir()
    shutil.copy(binary / "install_manifest.txt", manifests)
    shutil.copy(SOURCE / "cmake/uninstall.cmake", manifests)
    # Root may remove everything: somebody else, whom only the directory of the headers does not obey.
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    headers = prefix / "include/inccl"
    if nobody:
        root.chmod(0o755)
        for path in [prefix, manifests, *prefix.rglob("*"), *manifests.rglob("*")]:
            os.lchown(path, 65534, 65534)
    headers.chmod(0o555)
    installed = set(headers.glob("*.h*"))
    refused = uninstall(manifests, **nobody)
    assert refused.returncode != 0 and "this user may not remove" in refused.stderr, refused
    assert str(headers) in refused.stderr.replace("\n  ", ""), refused.stderr
    assert (manifests / "install_manifest.txt").exists() and set(headers.glob("*.h*")) == installed
    headers.chmod(0o755)
    done = uninstall(manifests, **nobody)
    assert done.returncode == 0 and not (manifests / "install_manifest.txt").exists(), done
    left = [p for p in prefix.rglob("*") if not p.is_dir()]
    assert left == [prefix / "include/other.h"], left
    ours = [p for p in prefix.rglob("*") if "inccl" in p.name]
    assert not ours, ours


@contextlib.contextmanager
def manifest_kept(binary):
    """The target `uninstall` shall still know what was installed before."""
    manifest = binary / "install_manifest.txt"
    kept = manifest.read_bytes() if manifest.exists() else None
    try:
        yield
    finally:
        if kept is not None:
            manifest.write_bytes(kept)
        elif manifest.exists():
            manifest.unlink()


def indented(text):
    """The lines of a document that are commands."""
    return [line[4:] for line in text.splitlines() if re.match(r"    \S", line)]


def check_output(readme, printed):
    """The first program prints the line that the README shows, and its error is that of 6 bits."""
    shown, = re.findall(r"```output\n(.*?)```", readme, re.DOTALL)
    number = r"\d+(?:\.\d+)?"
    assert re.fullmatch(re.sub(number, number.replace("\\", r"\\"), shown), printed), (shown, printed)
    ratio, error = map(float, re.findall(number, printed))
    assert 0 < error < 0.2 and 4 < ratio < 6, printed


def check_readme(prefix, libdir, scratch, mpi):
    """README: the first program, built by its CMake lines and by its compiler's line, runs."""
    scratch.mkdir()
    readme = (prefix / "share/doc/inccl/README.md").read_text()
    program, = re.findall(r"```c\n(.*?)```", readme, re.DOTALL)
    (scratch / "train.c").write_text(program)
    commands = [c for c in indented(readme) if re.match(r"export PKG_CONFIG_PATH=|cc |mpirun .*\./train", c)]
    assert [c.split()[0] for c in commands] == ["export", "cc", "mpirun"], commands
    script = "\n".join(commands if mpi else commands[:2])
    script = script.replace("/opt/inccl/lib/", f"{prefix / libdir}/")
    printed = run("sh", "-ec", script, cwd=scratch)
    if mpi:
        check_output(readme, printed)
    run("cc", "-std=c99", "-Wall", "-Werror", f"-I{prefix}/include", "-fsyntax-only", scratch / "train.c")
    alone = {"INCCL_RANK": "0", "INCCL_SIZE": "1", "INCCL_JOB": scratch.parent.parent.name}
    run(scratch / "train", env=alone)

    lines, = re.findall(r"```cmake\n(.*?)```", readme, re.DOTALL)
    (scratch / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.16)\nproject(train C)\nadd_executable(train train.c)\n{lines}")
    said, = re.findall(r"CMAKE_PREFIX_PATH=(\S+)", lines)
    assert said == "/opt/inccl", said
    run("cmake", "-S", scratch, "-B", scratch / "b", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", scratch / "b")
    run(scratch / "b/train", env=alone)


def check_jobs(documents):
    """No command starts as many compilers as there are files: each takes hundreds of megabytes."""
    for page in [documents / "README.md", *documents.glob("docs/*.md"), *documents.glob("examples/*.md")]:
        for command in indented(page.read_text()):
            assert not re.search(r"(-j|--parallel)\s*(&|;|\||#|$)", command), (page.name, command)


def check_documents(prefix, libdir, scratch, mpi):
    """The programs in the installed documents compile; what the README says to type works as written."""
    scratch.mkdir()
    check_readme(prefix, libdir, scratch / "readme", mpi)
    environment = {"PKG_CONFIG_PATH": prefix / libdir / "pkgconfig"}
    flags = run("pkg-config", "--cflags", "--libs", "inccl", env=environment).split()
    documents = prefix / "share/doc/inccl"
    check_jobs(documents)
    text = (documents / "docs/install.md").read_text()
    part, = re.findall(r"```cpp\n(.*?)```", text, re.DOTALL)
    (scratch / "install.cc").write_text(part)
    run("c++", "-std=c++17", "-Wall", "-Werror", "-c", scratch / "install.cc", "-o",
        scratch / "install.o", *flags)


# C++ of a program that contains the library: its own classes of names that the library has, too.
NEIGHBOUR = """#include <inccl/ccl.h>
namespace inccl {
struct Status { virtual ~Status(); int member = 7; };
Status::~Status() {}
Status* MakeStatus() { return new Status; }
}
int main() {
  int version = 0;
  inccl::Status* status = inccl::MakeStatus();
  const bool good = ccl_get_version(&version) == CCL_SUCCESS && version > 0 && status->member == 7;
  delete status;
  return good ? 0 : 1;
}
"""


def check_static(prefix, libdir, scratch):
    """Programs with libinccl.a inside, by pkg-config and by CMake, run without libinccl.so."""
    scratch.mkdir()
    examples = prefix / "share/doc/inccl/examples"
    environment = {"PKG_CONFIG_PATH": prefix / libdir / "pkgconfig"}
    flags = run("pkg-config", "--cflags", "--libs", "inccl-static", env=environment).split()
    private = run("pkg-config", "--static", "--libs", "inccl", env=environment)
    assert "-lcrypto" in private and "-lstdc++" in private, private
    run("cc", examples / "threads.c", "-o", scratch / "threads", "-pthread", *flags)
    (scratch / "neighbour.cc").write_text(NEIGHBOUR)
    (scratch / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(p C CXX)\nfind_package(inccl 0.1 CONFIG REQUIRED)\n"
        "add_executable(neighbour neighbour.cc)\ntarget_link_libraries(neighbour PRIVATE inccl::inccl_static)\n")
    run("cmake", "-S", scratch, "-B", scratch / "b", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", scratch / "b")
    for program in (scratch / "threads", scratch / "b/neighbour"):
        assert "libinccl" not in run("readelf", "-d", program), program
    lines = sorted(run(scratch / "threads").splitlines())
    assert lines == [f"rank {r}: the sum is 10" for r in range(4)], lines
    run(scratch / "b/neighbour")


def check_versions(prefix, scratch):
    """find_package takes this version for itself, for no other minor version, and for every range that has it."""
    scratch.mkdir()
    for wanted, good in (("0.1", True), ("0.1.0", True), ("0.1.0 EXACT", True), ("0.1.1", False), ("0.0", False),
                         ("0.2", False), ("1.0", False), ("", True), ("0.1...0.3", True), ("0.1...<0.3", True),
                         ("0.0...0.1", True), ("0.0...0.1.0", True), ("0.0...<0.1", False), ("0.0...0.0.9", False),
                         ("0.2...0.3", False), ("0.1...<1", True)):
        (scratch / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.19)\nproject(p NONE)\n"
            f"find_package(inccl {wanted} CONFIG QUIET)\nmessage(STATUS \"found ${{inccl_FOUND}}\")\n")
        output = run("cmake", "-S", scratch, "-B", scratch / "b", f"-DCMAKE_PREFIX_PATH={prefix}")
        assert ("found 1" in output) == good, (wanted, output)
        shutil.rmtree(scratch / "b")


def check_subproject(source, scratch):
    """In another project the library is built, and what that project does not ask for is not."""
    scratch.mkdir()
    (scratch / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(p C CXX)\n"
        f"add_subdirectory({source} inccl)\n"
        "foreach(option BUILD_TESTS BUILD_PERF BUILD_TOOLS INSTALL FAULT_POINTS)\n"
        "  message(STATUS \"${option} is ${INCCL_${option}}\")\nendforeach()\n"
        "get_target_property(type inccl::inccl TYPE)\nmessage(STATUS \"inccl::inccl is ${type}\")\n")
    output = run("cmake", "-S", scratch, "-B", scratch / "b", "-DINCCL_CUDA=OFF")
    for option in ("BUILD_TESTS", "BUILD_PERF", "BUILD_TOOLS", "INSTALL", "FAULT_POINTS"):
        assert re.search(rf"-- {option} is (OFF|FALSE)\n", output), output
    assert "inccl::inccl is SHARED_LIBRARY" in output, output


def main():
    source, binary = map(pathlib.Path, sys.argv[1:3])
    mpi = "--mpi" in sys.argv[3:]
    programs = [a for a in sys.argv[3:] if a != "--mpi"]
    cache = dict(re.findall(r"^(CMAKE_\w+):\w+=(.*)$", (binary / "CMakeCache.txt").read_text(),
                            re.MULTILINE))
    libdir = cache["CMAKE_INSTALL_LIBDIR"]
    with tempfile.TemporaryDirectory(prefix="inccl-installed-") as name, manifest_kept(binary):
        root = pathlib.Path(name)
        check_uninstall(binary, root)
        run("cmake", "--install", binary, "--prefix", root / "first")
        prefix = (root / "first").rename(root / "moved")
        version = check_files(prefix, programs, libdir, binary)
        check_programs(prefix, programs, mpi)
        check_documents(prefix, libdir, root / "documents", mpi)
        check_versions(prefix, root / "versions")
        check_subproject(source, root / "subproject")
        check_static(prefix, libdir, root / "static")

        examples = prefix / "share/doc/inccl/examples"
        kept = {p.relative_to(source / "examples") for p in (source / "examples").rglob("*")
                if p.suffix in (".c", ".cc", ".h", ".md", ".py", ".txt") or p.name == "Makefile"}
        installed = {p.relative_to(examples) for p in examples.rglob("*") if p.is_file()}
        assert kept == installed, kept ^ installed
        run("cmake", "-S", examples, "-B", root / "by_cmake", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_C_COMPILER={cache['CMAKE_C_COMPILER']}",
            f"-DCMAKE_CXX_COMPILER={cache['CMAKE_CXX_COMPILER']}", "-DCMAKE_C_FLAGS=-Wall -Werror",
            "-DCMAKE_CXX_FLAGS=-Wall -Werror")
        run("cmake", "--build", root / "by_cmake", "-j", "2")
        check_examples(root / "by_cmake", mpi)

        shutil.copytree(examples, root / "by_make")
        run("make", "-C", root / "by_make", "-j", "2", *(["all", "mpi"] if mpi else ["all"]),
            f"PKG_CONFIG_PATH={prefix / libdir / 'pkgconfig'}")
        check_examples(root / "by_make", mpi)
    print(f"installed {version}: {len(programs)} programs, {len(kept)} files of examples"
          f"{', MPI' if mpi else ''}")


if __name__ == "__main__":
    main()
