#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Types what PAGES say, as a user with sudo on a bare Debian 12.

usage: bare_debian.py [--check] [PAGE...]
  --check   only finds the commands: every indented line of a page is one that will be typed
  PAGE      only these pages

Each page has a Debian of its own, of debootstrap's minbase with sudo, and a clone of the sources in which no command has
run yet. Its commands run in one shell, in their order; the first that fails fails the page. A compiler cache that stays,
beside the user's own, keeps later runs short. Needs root (or sudo), debootstrap, and Debian's mirror as apt knows it.
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/install.md", "docs/python.md", "docs/pytorch.md", "docs/hosts.md")
# Commands that are not typed here, each with the reason.
NOT_TYPED = {"tools/check.sh": "runs all tests, which this test is one of"}
SUITE = "bookworm"
HOME = "/home/user/inccl"

# In namespaces of its own, where all mounts and processes end with it.
ENTER = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"  # its root is a mount, as `ip netns` wants
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
mount --bind "$2" "$1/ccache"
exec chroot "$1" su - user -c 'exec bash /commands'
"""
# Of this machine's environment, nothing.
BARE = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def commands(text):
    """The lines of a page's indented blocks, but not those of samples of output."""
    found = []
    for block in re.findall(r"(?:(?<=\n\n)|^)(?:    \S.*\n(?:\n(?=    \S))?)+", text):
        lines = [line[4:] for line in block.splitlines() if line]
        if not lines[0].startswith("$ "):
            found += lines
    return found


def typed(page):
    return [c for c in commands((SOURCE / page).read_text()) if word(c) not in NOT_TYPED]


def word(command):
    """Without the comment behind it."""
    return re.sub(r"\s+#.*", "", command)


def check():
    assert commands("a\n\n    b c\n    d\n\n    e\n\nf\n\n    $ g\n    h\n") == ["b c", "d", "e"]
    failures = []
    everything = [word(c) for page in PAGES for c in commands((SOURCE / page).read_text())]
    for page in PAGES:
        number = len(typed(page))
        if number < 4:
            failures.append(f"{page}: only {number} commands found")
    failures += [f"no page has the command that is not typed: {c}" for c in NOT_TYPED if c not in everything]
    for command in everything:
        if subprocess.run(["bash", "-n", "-c", command], check=False).returncode != 0:
            failures.append(f"no command: {command}")
    for failure in failures:
        print(failure)
    print(f"pages: {len(everything)} commands, {len(failures)} failures")
    return 1 if failures else 0


def output(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout


def debian_sources():
    """[(address, suite, component)] of Debian's archives, as this machine's apt has them."""
    listed = output("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)",
                    "Created-By: Packages")
    found = {tuple(line.split()[:3]) for line in listed.splitlines() if line.endswith(" Debian") and f" {SUITE}" in line}
    assert any(suite == SUITE for _, suite, _ in found), f"apt knows no mirror of {SUITE}"
    return sorted(found)


def copy_network(root):
    """How this machine reaches the world: names, certificates, apt's and pip's settings."""
    for path in ("etc/resolv.conf", "etc/hosts", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt"):
        if (pathlib.Path("/") / path).exists():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(pathlib.Path("/") / path, root / path)
    (root / "etc/apt/sources.list").write_text("".join(
        f"deb {address} {suite} {component}\n" for address, suite, component in debian_sources()))
    settings = re.findall(r"^Acquire::https?::.*$", output("apt-config", "dump"), re.MULTILINE)
    for scheme in ("http", "https"):
        proxy = os.environ.get(f"{scheme}_proxy")
        if proxy:
            settings.append(f'Acquire::{scheme}::Proxy "{proxy}";')
    (root / "etc/apt/apt.conf.d/90host").write_text("\n".join(settings) + "\n")


def make_cache(cache):
    """Begins with what the user's own compiler cache has."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    own = output("ccache", "--get-config", "cache_dir").strip() if shutil.which("ccache") else ""
    if own and pathlib.Path(own).is_dir():
        subprocess.run(["cp", "-a", "--reflink=auto", own, cache], check=True)
    else:
        cache.mkdir()
    subprocess.run(["chown", "-R", "1000:1000", cache], check=True)


def make_base(root):
    mirror = next(address for address, suite, _ in debian_sources() if suite == SUITE)
    subprocess.run(["debootstrap", "--variant=minbase", "--include=sudo,ca-certificates", SUITE, root, mirror], check=True,
                   stdout=subprocess.DEVNULL)
    copy_network(root)
    output("chroot", root, "useradd", "--create-home", "--uid", "1000", "--shell", "/bin/bash", "user", env=BARE)
    (root / "etc/sudoers.d/user").write_text("user ALL=(ALL) NOPASSWD: ALL\n")
    (root / "ccache").mkdir()


def clone(root):
    """What git would give a user, with what has changed here and is not committed yet."""
    names = output("git", "-c", f"safe.directory={SOURCE}", "ls-files", "-co", "--exclude-standard", "-z", cwd=SOURCE)
    for name in names.split("\0"):
        if name and (SOURCE / name).exists():
            to = root / HOME[1:] / name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(SOURCE / name, to, follow_symlinks=False)


def write_commands(root, page):
    """The script that types the page, and the programs that its commands name."""
    readme = (SOURCE / "README.md").read_text()
    program, = re.findall(r"```c\n(.*?)```", readme, re.DOTALL)
    for name in ("train.c", "program.c"):
        (root / HOME[1:] / name).write_text(program)
    environment = {"CCACHE_DIR": "/ccache"}
    environment.update({k: v for k, v in os.environ.items() if re.fullmatch(r"PIP_\w+|https?_proxy|no_proxy", k)})
    lines = [f"export {k}={shlex.quote(v)}" for k, v in environment.items()] + [f"cd {HOME}"]
    for command in typed(page):
        lines += [f"echo {shlex.quote('+ ' + command)}", "{", command,
                  "} < /dev/null || { echo 'FAILED: the command above'; exit 1; }"]
    (root / "commands").write_text("\n".join(lines) + "\n")


def run_page(page, base, folder, cache):
    root = folder / page.replace("/", "_")
    subprocess.run(["cp", "-a", "--reflink=auto", base, root], check=True)
    clone(root)
    write_commands(root, page)
    output("chroot", root, "chown", "-R", "user:", "/home/user", env=BARE)
    begin = time.monotonic()
    result = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", root, cache],
                            check=False, env=BARE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, errors="replace", timeout=3 * 3600)
    said = result.stdout
    print(f"== {page}: exit status {result.returncode}, {time.monotonic() - begin:.0f} s", flush=True)
    good = result.returncode == 0 and check_output(page, said)
    print("\n".join(line for line in said.splitlines() if good is False or line.startswith("+ ")), flush=True)
    shutil.rmtree(root)
    return good


def check_output(page, said):
    """What a page shows of a program's output has been printed, with other numbers."""
    number = r"\d+(\.\d+)?"
    for shown in re.findall(r"```output\n(.*?)```", (SOURCE / page).read_text(), re.DOTALL):
        if not re.search(re.sub(number, r"[\\d.]+", re.escape(shown).replace(r"\.", ".")), said):
            print(f"{page}: nothing printed {shown}")
            return False
    return True


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--check"]:
        return check()
    if os.geteuid() != 0:
        os.execvp("sudo", ["sudo", "--preserve-env=http_proxy,https_proxy,no_proxy", sys.executable, __file__, *arguments])
    pages = arguments or list(PAGES)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "inccl-bare-debian"
    if not cache.exists():
        make_cache(cache)
    with tempfile.TemporaryDirectory(prefix="inccl-bare-debian-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        make_base(folder / "base")
        failed = [page for page in pages if not run_page(page, folder / "base", folder, cache)]
    print(f"bare Debian: {len(pages)} pages, failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
