#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that cpack makes: what they say of themselves, what is in them, that it runs.

usage: debian_test.py SOURCE_DIR BINARY_DIR PROGRAM...
Needs dpkg-deb, dpkg-shlibdeps and cpack. Nothing is installed: the packages are unpacked together
into a temporary directory.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile


CONTACT = "Test <test@localhost>"


def run(*command, **more):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True,
                          timeout=240, **more).stdout


def fields(deb):
    """The control fields; continuation lines joined with newlines."""
    text = run("dpkg-deb", "-f", deb)
    return {k: v for k, v in re.findall(r"^([\w-]+): (.*(?:\n .*)*)$", text, re.MULTILINE)}


def contents(deb):
    """{path: mode} of regular files and links."""
    found = {}
    for line in run("dpkg-deb", "-c", deb).splitlines():
        mode, owner, _, _, _, path = line.split(maxsplit=5)
        assert owner == "root/root", line
        if not mode.startswith("d"):
            found[path.split(" -> ")[0].removeprefix("./")] = mode
    return found


def main():
    binary = pathlib.Path(sys.argv[2])
    programs = sys.argv[3:]
    cache = (binary / "CMakeCache.txt").read_text()
    libdir = re.search(r"^CMAKE_INSTALL_LIBDIR:\w+=(.*)$", cache, re.MULTILINE).group(1)
    with tempfile.TemporaryDirectory(prefix="inccl-debian-") as name:
        root = pathlib.Path(name)
        cpack = ["cpack", "--config", str(binary / "CPackConfig.cmake"), "-G", "DEB", "-B", name]
        anonymous = subprocess.run([*cpack, "-D", "CPACK_PACKAGE_CONTACT="], capture_output=True, text=True, check=False,
                                timeout=240, cwd=root)
        assert anonymous.returncode != 0 and "INCCL_PACKAGE_CONTACT" in anonymous.stderr, anonymous
        assert not list(root.glob("*.deb")), "packages without a maintainer"
        run(*cpack, "-D", f"CPACK_PACKAGE_CONTACT={CONTACT}", cwd=root)
        debs = {d.name.split("_")[0]: d for d in root.glob("*.deb")}
        expected = {"libinccl0", "libinccl-dev"} | ({"inccl-tools"} if programs else set())
        mpi = (binary / "perf/libinccl_bench_mpi.so").exists()
        expected |= {"inccl-tools-mpi"} if mpi else set()
        assert set(debs) == expected, debs
        about = {package: fields(deb) for package, deb in debs.items()}
        files = {package: contents(deb) for package, deb in debs.items()}
        version = about["libinccl0"]["Version"]
        architecture = run("dpkg", "--print-architecture").strip()
        seen = {}
        for package, said in about.items():
            assert said["Package"] == package and said["Version"] == version, said
            assert said["Architecture"] == architecture, said
            assert said["Maintainer"] == CONTACT, said
            synopsis, *rest = said["Description"].split("\n")
            assert 20 < len(synopsis) < 80 and not synopsis.endswith(".") and len(rest) > 3, said
            for document in ("copyright", "changelog.gz"):
                assert f"usr/share/doc/{package}/{document}" in files[package], document
            for path, mode in files[package].items():
                assert path not in seen, f"{path} is in {package} and in {seen[path]}"
                seen[path] = package
                wanted = "l" if mode[0] == "l" else "-rwxr-xr-x" if "/bin/" in path else "-rw-r--r--"
                assert mode.startswith(wanted), (path, mode)
                assert path.startswith("usr/"), path
        needs = about["libinccl0"]["Depends"]
        for library in ("libc6", "libstdc++6", "libssl3"):
            assert library in needs, needs
        assert "openmpi" not in needs and "libinccl" not in needs and "hwloc" not in needs, needs
        for package in expected - {"libinccl0", "inccl-tools-mpi"}:
            assert f"libinccl0 (= {version})" in about[package]["Depends"], about[package]
            assert "mpi" not in about[package]["Depends"], about[package]
        if mpi:
            assert f"inccl-tools-mpi (= {version})" in about["inccl-tools"]["Recommends"], about["inccl-tools"]
            needs = about["inccl-tools-mpi"]["Depends"]
            assert f"inccl-tools (= {version})" in needs and "mpi" in needs.replace("inccl-tools", ""), needs
            assert f"usr/{libdir}/inccl/libinccl_bench_mpi.so" in files["inccl-tools-mpi"]
        for program in programs:
            assert f"usr/share/man/man1/{program}.1.gz" in files["inccl-tools"], program
        assert f"usr/{libdir}/libinccl.so.{version}" in files["libinccl0"]
        assert f"usr/{libdir}/libinccl.so.0" in files["libinccl0"]
        assert f"usr/{libdir}/libinccl.so" in files["libinccl-dev"]
        assert f"usr/{libdir}/libinccl.a" in files["libinccl-dev"]
        assert "usr/include/inccl/ccl.h" in files["libinccl-dev"]
        assert f"usr/{libdir}/pkgconfig/inccl.pc" in files["libinccl-dev"]
        run("dpkg-deb", "-e", debs["libinccl0"], root / "control")
        shlibs = {f"{library} libinccl0 (>= {version})" for library in ("libinccl 0", "libnccl 2")}
        assert set((root / "control/shlibs").read_text().splitlines()) == shlibs
        assert (root / "control/triggers").read_text() == "activate-noawait ldconfig\n"

        for deb in debs.values():
            run("dpkg-deb", "-x", deb, root / "unpacked")
        usr = root / "unpacked/usr"
        if programs:
            assert {p.name for p in (usr / "bin").iterdir()} == set(programs)
        for path in [*usr.glob("bin/*"), usr / libdir / "libinccl.so.0", *usr.glob(f"{libdir}/inccl/*.so")]:
            said = run("readelf", "-S", "-d", path)
            assert "RPATH" not in said and "RUNPATH" not in said, path
            assert ".debug_info" not in said and ".symtab" not in said, f"{path} is not stripped"
        environment = {**os.environ, "LD_LIBRARY_PATH": str(usr / libdir), "INCCL_CONF_FILE": ""}
        if "inccl-allreduce-bench" in programs:
            output = run(usr / "bin/inccl-allreduce-bench", "--ranks", "2", "-b", "4K", "-e", "4K", "-n",
                         "1", "-w", "0", "--data", "gradients:late", env=environment)
            assert "Out of bounds values : 0 OK" in output, output
    print(f"Debian packages {version}: {', '.join(sorted(debs))}, {len(seen)} files")


if __name__ == "__main__":
    main()
