#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ccl_comm_init_env over two hosts (network namespaces), with nothing but what the launcher offers: several communicators of
one job, under Open MPI's mpirun (PMIx) and MPICH's mpiexec.hydra (PMI); a rank that runs on after the others; the
refusal under a launcher without a store.

usage: launchers_test.py SOURCE_DIR BINARY_DIR
Needs root, iproute2 and the launchers; says what it has not tested.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PRIVATE = "LAUNCHERS_TEST_PRIVATE"
RANK = '''
import array, ctypes, os, sys, time
ccl = ctypes.CDLL(sys.argv[1])
ccl.ccl_get_last_error.restype = ctypes.c_char_p
def check(result):
    if result: sys.exit(ccl.ccl_get_last_error(None).decode())
for i in range(3):
    comm, rank = ctypes.c_void_p(), ctypes.c_int()
    check(ccl.ccl_comm_init_env(ctypes.byref(comm), None))
    check(ccl.ccl_comm_user_rank(comm, ctypes.byref(rank)))
    data = array.array("f", [rank.value + i] * 100)
    address = ctypes.c_void_p(data.buffer_info()[0])
    check(ccl.ccl_allreduce(address, address, ctypes.c_size_t(100), 7, 0, comm, None))
    os.write(1, ("got %s %d %d %g\\n" % (os.uname().nodename, rank.value, i, data[99])).encode())
    if i != 1: check(ccl.ccl_comm_destroy(comm))
if rank.value == 3:
    time.sleep(0.5)
    os.write(1, b"still here\\n")
'''
# Ranks 0 and 1 are on the first host, ranks 2 and 3 on the second one.
EXPECTED = sorted([f"got inccl-{rank // 2} {rank} {i} {6 + 4 * i}" for rank in range(4) for i in range(3)] + ["still here"])


def main():
    source, binary = map(pathlib.Path, sys.argv[1:3])
    hosts, library = str(source / "perf/hosts.sh"), str(binary / "src/libinccl.so.0")
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        print("not root, or no iproute2: nothing was tested")
        return
    if PRIVATE not in os.environ:
        if subprocess.run(["unshare", "--mount", "--net", "true"], check=False).returncode != 0:
            print("no permission to make namespaces: nothing was tested")
            return
        os.environ[PRIVATE] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--", sys.executable, *sys.argv])
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("INCCL_", "OMPI_", "PMI"))}
    environment["INCCL_CONF_FILE"] = "/dev/null"

    def run(*command, status=0):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        assert done.returncode == status, done
        # Open MPI warns of a race with its own child on a busy machine.
        return "".join(line for line in (done.stdout + done.stderr).splitlines(True) if "plm:rsh: Warning" not in line)

    tested = []
    with tempfile.TemporaryDirectory(prefix="inccl-launchers-") as folder:
        rank = pathlib.Path(folder) / "rank.py"
        rank.write_text(RANK)
        program = [sys.executable, str(rank), library]
        run(hosts, "up", "none", "2")
        try:
            if shutil.which("mpirun.openmpi"):
                lines = run(hosts, "run", "-s", "2", *program).splitlines()
                assert sorted(lines) == EXPECTED, lines
                tested.append("mpirun")
            if shutil.which("mpiexec.hydra"):
                agent = pathlib.Path(folder) / "agent"
                agent.write_text(f'#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec {hosts} agent "$@"\n')
                agent.chmod(0o755)
                lines = run("ip", "netns", "exec", "inccl-switch", "mpiexec.hydra", "-launcher", "rsh", "-launcher-exec", agent,
                            "-iface", "switch", "-hosts", "10.77.0.1,10.77.0.2", "-ppn", "2", "-n", "4", *program).splitlines()
                assert sorted(lines) == EXPECTED, lines
                tested.append("mpiexec.hydra")
        finally:
            run(hosts, "down")
        environment.update(RANK="0", WORLD_SIZE="4", LOCAL_WORLD_SIZE="2", MASTER_ADDR="node", MASTER_PORT="1",
                           TORCHELASTIC_RUN_ID="x", PMIX_NAMESPACE="n", PMIX_RANK="0")
        said = run(*program, status=1)
        assert "torchrun: 2 of 4 ranks are on this host (LOCAL_WORLD_SIZE), and it offers neither PMIx nor PMI" in said, said
    print("launchers:", ", ".join(tested) or "none is installed")


if __name__ == "__main__":
    main()
