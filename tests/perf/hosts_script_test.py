#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""perf/hosts.sh: the hosts it makes, what it runs in them, that it leaves nothing and touches nothing else.

usage: hosts_script_test.py SOURCE_DIR BINARY_DIR
Runs in a mount namespace with a /run of its own, so hosts of others on this machine do not matter. Without root, tests the
refusal only.
"""
import csv
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

PRIVATE = "HOSTS_SCRIPT_TEST_PRIVATE"


def long_links(script, binary_dir):
    """A packet is not there before its time, ranks find that out while they join, and no bit depends on it."""
    bench = binary_dir + "/perf/allreduce_bench"
    arguments = [bench, "--init", "id", "-b", "16K", "-n", "1", "-w", "1", "--codec", "hbi:bits=6", "--digest", "--csv"]
    windows = ["-e", "12M", "-f", "768", "--codec", "none", "--reproducible"]
    # The smaller call sends inputs, to save a message; the larger one has several windows.

    def run(*of_script, hosts="2", more=windows, **variables):
        told = subprocess.run([script, "run", "-h", hosts, *of_script, *arguments, *more], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "INCCL_DEBUG": "INFO", **variables})
        assert told.returncode == 0, told
        rows = [line for line in told.stdout.splitlines() if line.startswith(("op,", "allreduce,"))]
        return told.stdout + told.stderr, list(csv.DictReader(rows))

    _, near = run("-r", "none")
    for more in ((), ("-l", "0.01")):
        told, far = run("-r", "200mbit", "-d", "15", *more)
        assert len(near) == len(far) == 8, (near, far)  # sizes, codecs, out of place and in place
        assert [row["digest"] for row in near] == [row["digest"] for row in far], (near, far)
        coded = [(row["bytes"], float(row["bits"])) for row in far if row["codec"] != "none"]
        assert all(bits == 32 if size == "16384" else bits < 7 for size, bits in coded), coded
        round_trips = [float(found) for found in re.findall(r"a round trip of ([0-9.]+) ms", told)]
        assert round_trips and min(round_trips) >= 30, told
    # Four hosts on two sites, host by host in turn: sites are groups of the hierarchical algorithm.
    small = ["-e", "1M", "-f", "64"]
    _, near = run("-r", "none", hosts="4", more=small)
    told, far = run("-r", "200mbit", "-d", "15", "-S", "2:200mbit", hosts="4", more=small, INCCL_ALGO="allreduce:hierarchical")
    assert len(near) == len(far) == 4 and [row["digest"] for row in near] == [row["digest"] for row in far], (near, far)
    assert len(re.findall(r"a round trip of 3[0-9.]+ ms, [0-9]+ bytes under way, 2 sites", told)) == 4, told


def main():
    script = str(pathlib.Path(sys.argv[1]) / "perf/hosts.sh")

    def call(*arguments, status=0, **more):
        done = subprocess.run([script, *arguments], capture_output=True, text=True, timeout=120, **more)
        assert done.returncode == status, (arguments, done)
        return done.stdout + done.stderr

    def namespaces():
        listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
        return sorted(line.split()[0] for line in listed.splitlines())

    assert call("sideways", status=2).startswith("usage:")
    if os.geteuid() != 0:
        assert "needs root" in call("up", "none", status=1)
        print("not root: only the refusal was tested")
        return
    if PRIVATE not in os.environ:
        if not (shutil.which("ip") and shutil.which("tc") and subprocess.run(["unshare", "--mount", "--net", "true"]).returncode == 0):
            print("no iproute2, or no permission to make namespaces: only the usage was tested")
            return
        os.environ[PRIVATE] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--", sys.executable, *sys.argv])
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    as_nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    if os.access(script, os.X_OK) and subprocess.run(["test", "-x", script], **as_nobody).returncode == 0:
        assert "needs root" in call("up", "none", status=1, **as_nobody)
    subprocess.run(["ip", "netns", "add", "inccl-other"], check=True)

    assert "no hosts are up" in call("run", "true", status=1)
    assert "expected 1 to 200 hosts" in call("up", "none", "0", status=1)
    call("up", "1gbit", "3")
    assert namespaces() == ["inccl-0", "inccl-1", "inccl-2", "inccl-other", "inccl-switch"], namespaces()
    assert "are up already" in call("up", "none", status=1)
    assert "no host 3 is up" in call("exec", "3", "true", status=1)
    assert "rate 1Gbit" in call("exec", "2", "tc", "qdisc", "show", "dev", "e0")
    assert "10.77.0.3/24" in call("exec", "2", "ip", "-4", "addr", "show", "dev", "e0")
    sent = subprocess.run([script, "exec", "0", sys.executable, "-c", """
import socket, subprocess, sys
listener = socket.create_server(("10.77.0.1", 0))
peer = subprocess.Popen([sys.argv[1], "exec", "2", sys.executable, "-c",
    "import socket; socket.create_connection(('10.77.0.1', %d)).sendall(b'over')" % listener.getsockname()[1]])
print(listener.accept()[0].recv(4).decode())
peer.wait()""", script], check=True, capture_output=True, text=True, timeout=120).stdout
    assert sent == "over\n", sent
    call("down")
    assert namespaces() == ["inccl-other"], namespaces()
    # A rate that tc refuses: what was made until then goes.
    call("up", "fast", status=1)
    assert namespaces() == ["inccl-other"], namespaces()

    if not shutil.which("mpirun"):
        print("no mpirun: run was not tested")
        return
    told = call("run", "-r", "none", "-h", "2", "-s", "2", "sh", "-c",
                "echo $OMPI_COMM_WORLD_RANK $(hostname) $INCCL_ALGO", env={**os.environ, "INCCL_ALGO": "ring"})
    ranks = sorted(line for line in told.splitlines() if re.match(r"\d ", line))
    assert ranks == ["0 inccl-0 ring", "1 inccl-0 ring", "2 inccl-1 ring", "3 inccl-1 ring"], told
    assert namespaces() == ["inccl-other"], namespaces()
    call("run", "-r", "none", "-h", "2", "false", status=1)
    assert namespaces() == ["inccl-other"], namespaces()

    assert "expected a rate in mbit or gbit" in call("up", "none", "2", "10", status=1)
    assert "expected a delay" in call("up", "1gbit", "2", "soon", status=1)
    assert "sites need a delay" in call("run", "-r", "1gbit", "-S", "2", "true", status=1)
    assert "expected a loss" in call("up", "1gbit", "2", "10", "2", status=1)
    assert namespaces() == ["inccl-other"], namespaces()
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
        missing = "" if shutil.which("c++") else "no compiler"
    except OSError as error:
        missing = str(error)
    if missing:
        print("long links were not tested:", missing)
    else:
        long_links(script, sys.argv[2])
        assert namespaces() == ["inccl-other"], namespaces()

    running = subprocess.Popen([script, "run", "-r", "none", "-h", "2", "sh", "-c", "echo begun; sleep 1000"],
                               stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "begun\n"
    running.send_signal(signal.SIGTERM)
    assert running.wait(120) == 130
    limit = time.monotonic() + 60
    while namespaces() != ["inccl-other"] and time.monotonic() < limit:
        time.sleep(0.1)
    assert namespaces() == ["inccl-other"], namespaces()
    print("hosts.sh: ok")


if __name__ == "__main__":
    main()
