# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel (PEP 517), without any other build tool than CMake.

The wheel is the package and libinccl.so. The library is built from the sources beside this folder,
with libcrypto and libstdc++ inside, and with libhwy beside it, which needs the system's libstdc++, as
manylinux allows. So the wheel serves every Python 3: py3-none-manylinux_2_NN. INCCL_WHEEL_LIBRARY names a library that is taken as it is instead; the
wheel's platform is then plain linux, as such a library needs what it was linked with.
"""
import base64
import gzip
import hashlib
import io
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
NAME, VERSION = "inccl", "0.1.0"
BACKEND = HERE / "inccl_torch_backend.py"
ENTRY_POINTS = "[torch.backends]\ninccl = inccl_torch_backend:register\n"
# What every Linux has; manylinux allows a library to need these.
COMMON = re.compile(r"(linux-vdso|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux[^.]*)\.so")
# Debian's packages of what is linked into the library.
LINKED = ("libssl-dev", "libfmt-dev", "libstdc++-12-dev")


def _library():
    """(libinccl.so, further libraries that it needs and finds in its own folder, platform)."""
    machine = platform.machine()
    given = os.environ.get("INCCL_WHEEL_LIBRARY")
    if given:
        library = pathlib.Path(given)
        if not library.is_file() or library.read_bytes()[:4] != b"\x7fELF":
            raise SystemExit(f"INCCL_WHEEL_LIBRARY: {given} is not a shared library; name a libinccl.so.0, or unset it "
                             "to build one from the sources")
        return library, [], f"linux_{machine}"
    for tool in ("cmake", "ninja", "c++"):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is not installed; on Debian, scripts/install_packages.sh --build installs all that the build needs")
    build = HERE.parent / "build" / "wheel"
    subprocess.run(["cmake", "--preset", "install", "-S", str(HERE.parent), "-B", str(build),
                    "-DINCCL_BUILD_PERF=OFF", "-DINCCL_BUILD_TOOLS=OFF",
                    "-DINCCL_CUDA=OFF", "-DOPENSSL_USE_STATIC_LIBS=ON",
                    "-DCMAKE_SHARED_LINKER_FLAGS=-static-libstdc++ -static-libgcc",
                    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN",
                    *os.environ.get("CMAKE_ARGS", "").split()], check=True)
    subprocess.run(["cmake", "--build", str(build), "--target", "inccl", "-j",
                    str(os.cpu_count() or 1)], check=True)
    library = build / "src" / "libinccl.so.0"
    needed = []
    listed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        if path and not COMMON.match(name):
            needed.append(pathlib.Path(path.split(" (")[0]))
    newest = max(int(minor) for file in [library, *needed]
                 for minor in re.findall(rb"GLIBC_2\.(\d+)", file.read_bytes()))
    return library, needed, f"manylinux_2_{newest}_{machine}"


def _licences(needed):
    """{name: text} of what the wheel contains besides inccl, as Debian has it."""
    packages = set(LINKED) if needed else set()
    for path in needed:  # dpkg knows a file below /lib or below /usr/lib
        owner = subprocess.run(["dpkg", "-S", str(path.resolve()).replace("/usr/lib", "*/lib", 1)], capture_output=True, text=True, check=False)
        packages |= {owner.stdout.partition(":")[0]} - {""}
    files = {package: pathlib.Path("/usr/share/doc", package, "copyright") for package in packages}
    return {package: file.read_bytes() for package, file in sorted(files.items()) if file.is_file()}


def _metadata():
    return (f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"
            "Summary: In-line compressed collectives\nLicense: Apache-2.0\n"
            "Requires-Python: >=3.9\nProvides-Extra: torch\n"
            'Requires-Dist: torch>=2.13; extra == "torch"\nProvides-Extra: numpy\n'
            'Requires-Dist: numpy; extra == "numpy"\n'
            "Description-Content-Type: text/markdown\n\n"
            + (HERE.parent / "docs" / "python.md").read_text(encoding="utf-8")).encode()


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = pathlib.Path(metadata_directory) / f"{NAME}-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(_metadata())
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
    return info.name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def _write(folder, tag, files, licences=None):
    """files: {path in the wheel: contents}; licences: those of other projects, {name: text}"""
    info = f"{NAME}-{VERSION}.dist-info"
    files = {**files, f"{info}/METADATA": _metadata(),
             f"{info}/WHEEL": (f"Wheel-Version: 1.0\nGenerator: inccl\nRoot-Is-Purelib: false\n"
                               f"Tag: {tag}\n").encode(),
             f"{info}/entry_points.txt": ENTRY_POINTS.encode(),
             f"{info}/LICENSE": (HERE.parent / "LICENSE").read_bytes()}
    files |= {f"{info}/licenses/{package}": text for package, text in (licences or {}).items()}
    record = ""
    name = f"{NAME}-{VERSION}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(data)}\n"
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))  # equal inputs, equal wheels
            entry.external_attr = (0o755 if ".so" in path else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
        record += f"{info}/RECORD,,\n"
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD", (2020, 1, 1, 0, 0, 0)), record)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    library, needed, system = _library()
    files = {f"inccl/{path.relative_to(HERE / 'inccl')}": path.read_bytes()
             for path in sorted((HERE / "inccl").rglob("*"))
             if path.suffix == ".py" or path.name == "py.typed"}
    files[BACKEND.name] = BACKEND.read_bytes()
    files["inccl/libinccl.so.0"] = _stripped(library)
    for path in needed:
        files[f"inccl/{path.name}"] = path.read_bytes()
    return _write(wheel_directory, f"py3-none-{system}", files, _licences(needed))


def _stripped(library):
    strip = shutil.which("strip")
    if strip is None:
        return library.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "libinccl.so"
        subprocess.run([strip, "--strip-unneeded", "-o", str(copy), str(library)], check=True)
        return copy.read_bytes()


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """The package of the source tree; INCCL_LIBRARY names the library when it runs."""
    return _write(wheel_directory, "py3-none-any", {"inccl.pth": f"{HERE}\n".encode()})


# What a wheel is built from, beside this folder.
SOURCES = ("CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "docs/python.md", "cmake", "include", "src",
           "python", "scripts/install_packages.sh")


def build_sdist(sdist_directory, config_settings=None):
    """The package and the library's sources. This folder is one below the top of the archive, whose
    pyproject.toml says so."""
    top = f"{NAME}-{VERSION}"
    project = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    project = project.replace('backend-path = ["."]', 'backend-path = ["python"]').replace('"../docs', '"docs')
    files = {f"{top}/pyproject.toml": project.encode(), f"{top}/PKG-INFO": _metadata()}
    for source in SOURCES:
        path = HERE.parent / source
        for file in sorted(path.rglob("*") if path.is_dir() else [path]):
            if file.is_file() and "__pycache__" not in file.parts:
                files[f"{top}/{file.relative_to(HERE.parent)}"] = file.read_bytes()
    name = f"{top}.tar.gz"
    with gzip.GzipFile(os.path.join(sdist_directory, name), "wb", mtime=0) as compressed, \
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755 if path.endswith(".sh") else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return name
