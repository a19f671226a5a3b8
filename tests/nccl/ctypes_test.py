# SPDX-License-Identifier: Apache-2.0
"""libnccl.so.2 as Python programs use it: ctypes, names one by one, int results.

usage: ctypes_test.py SOURCE_DIR BINARY_DIR
"""
import contextlib
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BINARY_DIR = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "build/release").resolve()
LIBRARY = BINARY_DIR / "src/inccl-nccl/libnccl.so.2"
SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, IN_PROGRESS = 0, 4, 5, 7
INT32, FLOAT32, SUM = 2, 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Config(ctypes.Structure):
    """As a program of NCCL 2.18 has it: shorter than the library's."""
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int), ("cgaClusterSize", ctypes.c_int),
                ("minCTAs", ctypes.c_int), ("maxCTAs", ctypes.c_int),
                ("netName", ctypes.c_char_p), ("splitShare", ctypes.c_int)]

    def __init__(self, **values):
        undefined = -2**31
        super().__init__(ctypes.sizeof(Config), 0xcafebeef, 21800, undefined, undefined, undefined,
                         undefined, None, undefined)
        for name, value in values.items():
            setattr(self, name, value)


def load():
    nccl = ctypes.CDLL(str(LIBRARY))
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    return nccl


P = ctypes.c_void_p
Z = ctypes.c_size_t
I = ctypes.c_int


def run_policy():
    """Prints which of three sums over two ranks of one thread are exact."""
    nccl = load()
    comms = (P * 2)()
    result = nccl.ncclCommInitAll(comms, I(2), None)
    if result != SUCCESS:
        print(result, nccl.ncclGetLastError(None).decode())
        return
    exact = []
    for count, kind, type_number in ((4096, ctypes.c_float, FLOAT32), (512, ctypes.c_float, FLOAT32),
                                     (4096, ctypes.c_int, INT32)):
        value = 1.001 if kind is ctypes.c_float else 1001
        data = [(kind * count)(*[value] * count) for _ in comms]
        nccl.ncclGroupStart()
        for buffer, comm in zip(data, comms):
            assert nccl.ncclAllReduce(buffer, buffer, Z(count), I(type_number), I(SUM), P(comm),
                                      None) == SUCCESS
        assert nccl.ncclGroupEnd() == SUCCESS
        sums = set(data[0]) | set(data[1])
        assert all(abs(s - 2 * value) < 0.02 for s in sums), sums
        exact.append(sums == {2 * kind(value).value})
    print(*exact)
    for comm in comms:
        nccl.ncclCommDestroy(P(comm))


def run_environment():
    """Prints whether the first calls leave the environment alone, down to the addresses."""
    libc = ctypes.CDLL(None)

    def environment():
        entries = ctypes.POINTER(ctypes.c_void_p).in_dll(libc, "environ")
        found = []
        while entries[len(found)]:
            found.append((entries[len(found)], ctypes.string_at(entries[len(found)])))
        return ctypes.addressof(entries.contents), found

    nccl, comm = load(), P()
    before = environment()
    unique = UniqueId()
    assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == SUCCESS
    assert nccl.ncclCommInitRank(ctypes.byref(comm), I(1), unique, I(0)) == SUCCESS
    assert nccl.ncclCommDestroy(comm) == SUCCESS
    print(environment() == before, flush=True)
    subprocess.run(["env"], check=True)


def run_log():
    """Warnings of this library and of libinccl, more than a pipe holds."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    nccl, comm, unique, one = load(), P(), UniqueId(), I(1)
    assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == SUCCESS
    assert nccl.ncclCommInitRank(ctypes.byref(comm), I(1), unique, I(0)) == SUCCESS
    for _ in range(50):
        assert nccl.ncclGroupEnd() == INVALID_USAGE
        assert nccl.ncclAllReduce(ctypes.byref(one), ctypes.byref(one), Z(1), I(99), I(SUM), comm,
                                  None) == INVALID_ARGUMENT
    nccl.ncclGroupStart()
    nccl.ncclAllReduce(ctypes.byref(one), ctypes.byref(one), Z(1), I(INT32), I(SUM), comm, None)
    assert nccl.ncclGroupSimulateEnd(None) == SUCCESS
    assert nccl.ncclCommDestroy(comm) == SUCCESS


def run_part(rank, size, code):
    """A rank of a communicator that runs `code`, and talks with the test."""
    nccl = load()

    def check(result, expected=SUCCESS):
        assert result == expected, (result, nccl.ncclGetLastError(None))

    def say(text):
        os.write(1, f"{text}\n".encode())

    def hear():
        while os.read(0, 1) not in (b"\n", b""):
            pass

    def state():
        value = I(-1)
        check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(value)))
        return value.value

    unique, comm = UniqueId(), P()
    if rank == 0:
        check(nccl.ncclGetUniqueId(ctypes.byref(unique)))
        os.write(1, bytes(unique))
    else:
        data = b""
        while len(data) < 128:
            data += os.read(0, 128 - len(data))
        ctypes.memmove(ctypes.byref(unique), data, 128)
    check(nccl.ncclCommInitRank(ctypes.byref(comm), I(size), unique, I(rank)))

    def reduce():
        one = I(1)
        return nccl.ncclAllReduce(ctypes.byref(one), ctypes.byref(one), Z(1), I(INT32), I(SUM), comm, None)

    exec(code, globals(), locals())


def run_rank(rank, size):
    """One rank of a process each: every kind of call, with results that this function computes."""
    nccl = load()

    def check(result, expected=SUCCESS):
        assert result == expected, (result, nccl.ncclGetLastError(None))

    unique = UniqueId()
    if rank == 0:
        check(nccl.ncclGetUniqueId(ctypes.byref(unique)))
        os.write(1, bytes(unique))
    else:
        data = b""
        while len(data) < 128:
            data += os.read(0, 128 - len(data))
        ctypes.memmove(ctypes.byref(unique), data, 128)
    comm = P()
    config = Config(blocking=0 if rank % 2 else 1)
    result = nccl.ncclCommInitRankConfig(ctypes.byref(comm), I(size), unique, I(rank),
                                         ctypes.byref(config))
    state = I(IN_PROGRESS)
    assert comm.value
    if rank % 2:
        assert result == IN_PROGRESS, result
        while state.value == IN_PROGRESS:
            check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)))
        result = state.value
    check(result)
    number = I(-1)
    check(nccl.ncclCommCount(comm, ctypes.byref(number)))
    assert number.value == size
    check(nccl.ncclCommUserRank(comm, ctypes.byref(number)))
    assert number.value == rank
    n = 1000
    values = (ctypes.c_float * n)(*[rank + i for i in range(n)])
    total = (ctypes.c_float * n)()
    # A stream of a stand-in for CUDA: without devices the call waits.
    check(nccl.ncclAllReduce(values, total, Z(n), I(FLOAT32), I(SUM), comm, P(0x1000)))
    assert list(total) == [size * i + sum(range(size)) for i in range(n)]
    gathered = (ctypes.c_int * size)()
    check(nccl.ncclAllGather(ctypes.byref(I(rank * 7)), gathered, Z(1), I(INT32), comm, None))
    assert list(gathered) == [r * 7 for r in range(size)]
    one = I(rank * 3 + 1)
    check(nccl.ncclBcast(ctypes.byref(one), Z(1), I(INT32), I(size - 1), comm, None))
    assert one.value == (size - 1) * 3 + 1
    # A ring of sends and receives whose types differ and whose bytes agree.
    sent, received = (ctypes.c_int * 4)(*[rank] * 4), (ctypes.c_byte * 16)()
    check(nccl.ncclGroupStart())
    check(nccl.ncclSend(sent, Z(4), I(INT32), I((rank + 1) % size), comm, None))
    check(nccl.ncclRecv(received, Z(16), I(0), I((rank - 1) % size), comm, None))
    check(nccl.ncclGroupEnd())
    assert bytes(received) == bytes((ctypes.c_int * 4)(*[(rank - 1) % size] * 4))
    # A premultiplied sum.
    op, factor = I(), ctypes.c_float(0.5)
    check(nccl.ncclRedOpCreatePreMulSum(ctypes.byref(op), ctypes.byref(factor), I(FLOAT32), I(1),
                                        comm))
    assert op.value >= 5
    check(nccl.ncclAllReduce(values, total, Z(n), I(FLOAT32), op, comm, None))
    assert list(total) == [(size * i + sum(range(size))) / 2 for i in range(n)]
    check(nccl.ncclRedOpDestroy(op, comm))
    child = P()
    # It inherits `blocking`.
    check(nccl.ncclCommSplit(comm, I(rank % 2), I(-rank), ctypes.byref(child), None),
          IN_PROGRESS if rank % 2 else SUCCESS)
    state.value = IN_PROGRESS
    while state.value == IN_PROGRESS:
        check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)))
    check(nccl.ncclCommUserRank(child, ctypes.byref(number)))
    mates = [r for r in range(size) if r % 2 == rank % 2]
    assert number.value == len(mates) - 1 - mates.index(rank)
    check(nccl.ncclCommDestroy(child))
    memory, handle = P(), P()
    check(nccl.ncclMemAlloc(ctypes.byref(memory), Z(1 << 20)))
    check(nccl.ncclCommRegister(comm, memory, Z(1 << 20), ctypes.byref(handle)))
    check(nccl.ncclCommDeregister(comm, handle))
    check(nccl.ncclMemFree(memory))
    window = P(1)
    check(nccl.ncclCommWindowRegister(comm, values, Z(4 * n), ctypes.byref(window), I(0)))
    assert window.value is None
    check(nccl.ncclCommFinalize(comm), IN_PROGRESS if rank % 2 else SUCCESS)
    state.value = IN_PROGRESS
    while state.value == IN_PROGRESS:
        check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)))
    check(nccl.ncclCommFinalize(comm), INVALID_ARGUMENT)
    check(nccl.ncclCommDestroy(comm))


class CtypesTest(unittest.TestCase):
    def run_ranks(self, size):
        command = [sys.executable, __file__, "--rank"]
        root = subprocess.Popen([*command, "0", str(size), str(BINARY_DIR)], stdout=subprocess.PIPE)
        unique = root.stdout.read(128)
        others = [subprocess.Popen([*command, str(rank), str(size), str(BINARY_DIR)],
                                   stdin=subprocess.PIPE) for rank in range(1, size)]
        for process in others:
            process.stdin.write(unique)
            process.stdin.close()
        self.assertEqual([p.wait(timeout=250) for p in [root, *others]], [0] * size)
        root.stdout.close()

    def policy(self, **variables):
        """What the program prints, and what the library does."""
        out, err = self.run_child("--policy", **variables)
        self.assertEqual(err, "")
        lines = out.splitlines(keepends=True)
        log = [line for line in lines if " NCCL " in line]
        return "".join(line for line in lines if line not in log).strip(), "".join(log)

    def start_parts(self, size, code):
        """Ranks that run `code`."""
        command = [sys.executable, __file__, "--part"]
        ranks = [subprocess.Popen([*command, str(rank), str(size), str(BINARY_DIR), code], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, bufsize=0) for rank in range(size)]
        unique = b""
        while len(unique) < 128:
            unique += ranks[0].stdout.read(128 - len(unique))
        for process in ranks[1:]:
            process.stdin.write(unique)
        for process in ranks:
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.stdin.close)
            self.addCleanup(process.kill)
        return ranks

    def finish_parts(self, ranks, codes=None):
        self.assertEqual([process.wait(timeout=100) for process in ranks], codes or [0] * len(ranks))

    def test_what_a_rank_has_sent_arrives_after_its_exit(self):
        ranks = self.start_parts(3, """
value = I(7)
if rank == 0:
    for peer in (1, 2):
        check(nccl.ncclSend(ctypes.byref(value), Z(1), I(INT32), I(peer), comm, None))
    check(nccl.ncclCommFinalize(comm))
    say("done")
else:
    value.value = 0
    hear()
    check(nccl.ncclRecv(ctypes.byref(value), Z(1), I(INT32), I(0), comm, None))
    assert value.value == 7
    check(nccl.ncclCommFinalize(comm))
    assert state() == SUCCESS
""")
        self.assertEqual(ranks[0].stdout.readline(), b"done\n")
        # It exits, or waits for the others.
        with contextlib.suppress(subprocess.TimeoutExpired):
            ranks[0].wait(timeout=1)
        for process in ranks[1:]:
            process.stdin.write(b"\n")
        self.finish_parts(ranks)

    def test_a_rank_that_exits_after_its_last_call_harms_nobody(self):
        for last in ("", "check(nccl.ncclCommFinalize(comm))"):
            ranks = self.start_parts(3, f"""
check(reduce())
if rank == 0:
    {last or "pass"}
else:
    hear()
    assert state() == SUCCESS, nccl.ncclGetLastError(None)
    check(nccl.ncclCommFinalize(comm))
    assert state() == SUCCESS, nccl.ncclGetLastError(None)
    check(nccl.ncclCommDestroy(comm))
""")
            self.assertEqual(ranks[0].wait(timeout=100), 0)
            time.sleep(0.3)
            for process in ranks[1:]:
                process.stdin.write(b"\n")
            self.finish_parts(ranks)

    def test_a_rank_that_exits_during_a_call_fails_the_others(self):
        ranks = self.start_parts(3, """
import threading, time
if rank == 0:
    threading.Thread(target=reduce, daemon=True).start()
    time.sleep(0.2)
    sys.exit(3)
result = reduce() if rank == 1 else (hear(), reduce())[1]
check(result, 6)
assert b"peer 0" in nccl.ncclGetLastError(comm), nccl.ncclGetLastError(comm)
""")
        self.assertEqual(ranks[0].wait(timeout=20), 3)
        ranks[2].stdin.write(b"\n")
        self.finish_parts(ranks, [3, 0, 0])

    def test_the_log_is_where_nccl_has_it(self):
        with tempfile.TemporaryDirectory() as directory:
            def log(where, level="WARN"):
                return self.run_child("--log", NCCL_DEBUG=level, NCCL_DEBUG_FILE=where)

            def check_lines(text):
                lines = text.splitlines()
                self.assertEqual(sum("NCCL WARN ncclGroupEnd: not in a group call." in line for line in lines), 50)
                self.assertEqual(sum("NCCL WARN invalid argument: rank 0/1" in line for line in lines), 50, text)
                return lines

            # Nothing of the group that is only simulated.
            self.assertEqual(len(check_lines(log("/dev/stdout")[0])), 101)
            self.assertEqual(len(check_lines(log("")[0])), 101)
            out, err = log("/dev/stderr")
            check_lines(err)
            self.assertEqual(out, "")
            self.assertEqual(log("/dev/null"), ("", ""))
            self.assertEqual(log(f"{directory}/%h.%p.%%.log"), ("", ""))
            file, = pathlib.Path(directory).iterdir()
            self.assertRegex(file.name, r"^.+\.\d+\.%\.log$")
            check_lines(file.read_text())
            out, err = log(f"{directory}/missing/log")
            self.assertIn("missing/log cannot be opened: No such file or directory", out)
            check_lines(out)
            self.assertIn("cannot be opened: File name too long", log(f"{directory}/{'x' * 5000}")[0])
            fifo = pathlib.Path(directory) / "fifo"
            os.mkfifo(fifo)
            self.assertEqual(log(str(fifo)), ("", ""))  # without a reader
            reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
            self.assertEqual(log(str(fifo)), ("", ""))
            check_lines(os.read(reader, 1 << 20).decode())
            os.close(reader)
            for where in (f"{directory}/missing/log", "/dev/null", str(fifo)):
                self.assertEqual(log(where, ""), ("", ""))

    def test_the_version(self):
        out, err = self.run_child("--log", NCCL_DEBUG="VERSION")
        self.assertRegex(out, r"^INCCL version \d+\.\d+\.\d+ \(NCCL 2\.30\.7 API\)\n$")
        self.assertEqual(err, "")

    def test_a_log_that_nobody_reads_stops_nothing(self):
        for closed in (False, True):
            reader, writer = os.pipe()
            if closed:
                os.close(reader)
            else:
                os.set_blocking(writer, False)
                with self.assertRaises(BlockingIOError):
                    while True:
                        os.write(writer, b"x" * 4096)
                os.set_blocking(writer, True)
            for file in ("", "/dev/stderr"):
                done = subprocess.run([sys.executable, __file__, "--log", str(BINARY_DIR)], stdout=writer, stderr=writer,
                                      timeout=100, env={**os.environ, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": file})
                self.assertEqual(done.returncode, 0, (closed, file))
            os.close(writer)
            if not closed:
                os.close(reader)

    def test_integers_and_files_as_nccl_reads_them(self):
        out, _ = self.run_child("--log", NCCL_DEBUG="INFO", NCCL_IB_TC="0x6a", NCCL_IB_TIMEOUT="abc", NCCL_IB_GID_INDEX="010")
        self.assertIn('INCCL_IB_TC is "106" (NCCL_IB_TC)', out)
        self.assertIn('INCCL_IB_GID_INDEX is "8" (NCCL_IB_GID_INDEX)', out)
        self.assertIn("NCCL WARN NCCL_IB_TIMEOUT=abc is not a whole number from 1 to 31; the default is used", out)
        self.assertNotIn("INCCL_IB_TIMEOUT is", out)
        with tempfile.TemporaryDirectory() as directory:
            home = pathlib.Path(directory)
            (home / ".nccl.conf").write_text("#NCCL_HOSTID=comment\r\nNCCL_DEBUG=INFO\nNCCL_HOSTID=of the user\nNCCL_IB_TC=3")
            (home / "other").write_text("NCCL_DEBUG=INFO\n\nNCCL_HOSTID=of a file\n")
            out, _ = self.run_child("--log", HOME=directory)
            self.assertIn('INCCL_HOSTID is "of the user" (NCCL_HOSTID)', out)
            self.assertIn('INCCL_IB_TC is "3" (NCCL_IB_TC)', out)
            out, _ = self.run_child("--log", HOME=directory, NCCL_IB_TC="4")
            self.assertIn('INCCL_IB_TC is "4" (NCCL_IB_TC)', out)
            out, _ = self.run_child("--log", HOME=directory, NCCL_CONF_FILE=str(home / "other"))
            self.assertIn('INCCL_HOSTID is "of a file" (NCCL_HOSTID)', out)
            self.assertNotIn("INCCL_IB_TC", out)

    def test_teams(self):
        class Team(ctypes.Structure):
            _fields_ = [("nRanks", I), ("rank", I), ("stride", I)]

        nccl = load()
        nccl.ncclTeamWorld.restype = nccl.ncclTeamLsa.restype = Team
        comms = (P * 3)()
        self.assertEqual(nccl.ncclCommInitAll(comms, I(3), None), SUCCESS)
        for rank, comm in enumerate(comms):
            world, own = nccl.ncclTeamWorld(P(comm)), nccl.ncclTeamLsa(P(comm))
            self.assertEqual((world.nRanks, world.rank, world.stride), (3, rank, 1))
            self.assertEqual((own.nRanks, own.rank, own.stride), (1, 0, 1))
            self.assertEqual([nccl.ncclTeamRankToWorld(P(comm), world, I(r)) for r in range(3)], [0, 1, 2])
            self.assertEqual(nccl.ncclTeamRankToWorld(P(comm), own, I(0)), rank)
            self.assertEqual(nccl.ncclTeamRankToLsa(P(comm), world, I(rank)), 0)
        for comm in comms:
            self.assertEqual(nccl.ncclCommAbort(P(comm)), SUCCESS)

    def run_child(self, mode, **variables):
        done = subprocess.run([sys.executable, __file__, mode, str(BINARY_DIR)], capture_output=True,
                              text=True, timeout=250, env={**os.environ, **variables})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def test_the_environment_stays_as_it_is(self):
        out, err = self.run_child("--environment", NCCL_DEBUG="INFO", NCCL_HOSTID="here")
        self.assertIn("True\n", out)
        added = {line.split("=")[0] for line in out.splitlines() if re.match(r"INCCL_\w+=", line)}
        self.assertEqual(added, {name for name in os.environ if name.startswith("INCCL_")})
        # And yet the library has got the values.
        self.assertIn('INCCL_HOSTID is "here" (NCCL_HOSTID)', out + err)
        imported = subprocess.run(["nm", "-D", "--undefined-only", str(LIBRARY)], capture_output=True,
                                  text=True, check=True).stdout
        self.assertNotRegex(imported, "setenv|putenv|clearenv")

    def test_without_a_policy_nothing_is_compressed(self):
        self.assertEqual(self.policy(INCCL_CODEC="bf16"), ("True True True", ""))

    def test_the_first_rule_that_matches_decides(self):
        out, err = self.policy(INCCL_NCCL_POLICY="allreduce,float32,4K -> bf16",
                               INCCL_NCCL_LOG="1")
        self.assertEqual(out, "False True True")
        self.assertIn("allreduce of float32 from 4096 bytes on -> bf16", err)
        self.assertIn("rule 1 -> bf16: 2 calls of 32768 bytes", err)
        self.assertEqual(self.policy(INCCL_NCCL_POLICY="*,*,1k->none; *,*,0->bf16")[0],
                         "True True True")
        # The communicator has no name.
        self.assertEqual(self.policy(INCCL_NCCL_POLICY="*,*,0,dp* -> bf16")[0], "True True True")

    def test_a_policy_in_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "policy")
            with open(path, "w") as file:
                file.write("# rules; ask before a change\n  # -> gzip\nallreduce,float32,4K -> bf16; *,*,0 -> none\n")
            self.assertEqual(self.policy(INCCL_NCCL_POLICY_FILE=path)[0], "False True True")
            with open(path, "a") as file:  # as long as may be
                file.write("#" * (16383 - os.path.getsize(path)))
            self.assertEqual(self.policy(INCCL_NCCL_POLICY_FILE=path)[0], "False True True")
            out, _ = self.policy(INCCL_NCCL_POLICY_FILE=path + "2")
            self.assertIn("No such file", out)
            fifo = os.path.join(folder, "fifo")
            os.mkfifo(fifo)  # nobody writes into it
            self.assertEqual(self.policy(INCCL_NCCL_POLICY_FILE=fifo, NCCL_CONF_FILE=fifo)[0], "True True True")

    def test_a_wrong_rule_is_an_error_of_the_first_communicator(self):
        for wrong in ("allreduce", "sum,*,0->bf16", "*,int32,0->bf16", "*,*,1X->bf16", "*,*,0->gzip"):
            out, err = self.policy(INCCL_NCCL_POLICY=wrong)
            self.assertTrue(out.startswith("4 INCCL_NCCL_POLICY: the rule"), out)
            self.assertEqual(err, "")

    def test_preloaded_it_opens_nothing_and_is_silent(self):
        plain = subprocess.run(["/bin/true"], capture_output=True, text=True, check=True,
                               env={"LD_PRELOAD": str(LIBRARY), "LD_DEBUG": "files"})
        self.assertIn("libnccl.so.2", plain.stderr)
        self.assertNotIn("libinccl", plain.stderr)
        self.assertNotIn("libstdc++", plain.stderr)
        silent = subprocess.run(["/bin/true"], capture_output=True, text=True, check=True,
                                env={"LD_PRELOAD": str(LIBRARY), "NCCL_DEBUG": "INFO"})
        self.assertEqual((silent.stdout, silent.stderr), ("", ""))

    def test_preloaded_it_makes_no_thread_and_no_descriptor(self):
        def look(**variables):
            out = subprocess.run(["/bin/sh", "-c", "ls /proc/self/fd | wc -l; grep Threads /proc/self/status"],
                                 capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"], **variables})
            return out.stdout, out.stderr
        self.assertEqual(look(LD_PRELOAD=str(LIBRARY)), look())

    def test_every_name_is_a_weak_and_a_strong_symbol(self):
        lines = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True,
                               text=True, check=True).stdout.split("\n")
        symbols = {tuple(line.split()[1:]) for line in lines if line}
        weak = {name for kind, name in symbols if kind == "W"}
        strong = {name for kind, name in symbols if kind == "T"}
        self.assertEqual(len(weak), 96)  # NCCL 2.32.3
        self.assertEqual(strong, {"p" + name for name in weak} | {"ncclResetDebugInitInternal"})

    def test_one_process(self):
        self.run_ranks(1)

    def test_two_processes(self):
        self.run_ranks(2)

    def test_four_processes(self):
        self.run_ranks(4)

    def test_several_ranks_in_one_thread(self):
        nccl = load()
        comms = (P * 3)()
        self.assertEqual(nccl.ncclCommInitAll(comms, I(3), (I * 3)(0, 1, 2)), SUCCESS)
        data = [(ctypes.c_int * 5)(*[rank + 1] * 5) for rank in range(3)]
        self.assertEqual(nccl.ncclGroupStart(), SUCCESS)
        for buffer, comm in zip(data, comms):
            self.assertEqual(nccl.ncclAllReduce(buffer, buffer, Z(5), I(INT32), I(SUM), P(comm),
                                                None), SUCCESS)
        self.assertEqual(nccl.ncclGroupEnd(), SUCCESS)
        self.assertEqual([list(buffer) for buffer in data], [[6] * 5] * 3)
        # The simulation runs nothing.
        self.assertEqual(nccl.ncclGroupStart(), SUCCESS)
        for buffer, comm in zip(data, comms):
            nccl.ncclAllReduce(buffer, buffer, Z(5), I(INT32), I(SUM), P(comm), None)
        self.assertEqual(nccl.ncclGroupSimulateEnd(None), SUCCESS)
        self.assertEqual([list(buffer) for buffer in data], [[6] * 5] * 3)
        # A call that fails spoils its group, and only that.
        self.assertEqual(nccl.ncclGroupStart(), SUCCESS)
        self.assertEqual(nccl.ncclPutSignal(), INVALID_USAGE)
        self.assertEqual(nccl.ncclAllReduce(data[0], data[0], Z(5), I(INT32), I(SUM), P(comms[0]),
                                            None), SUCCESS)
        self.assertEqual(nccl.ncclGroupEnd(), INVALID_USAGE)
        self.assertEqual(list(data[0]), [6] * 5)
        for comm in comms:
            self.assertEqual(nccl.ncclCommAbort(P(comm)), SUCCESS)

    def test_revoked_communicator(self):
        nccl = load()
        comms = (P * 1)()
        self.assertEqual(nccl.ncclCommInitAll(comms, I(1), None), SUCCESS)
        comm, one = P(comms[0]), I(1)
        self.assertEqual(nccl.ncclCommRevoke(comm, I(1)), INVALID_ARGUMENT)
        self.assertEqual(nccl.ncclCommRevoke(comm, I(0)), SUCCESS)
        self.assertEqual(nccl.ncclAllReduce(ctypes.byref(one), ctypes.byref(one), Z(1), I(INT32),
                                            I(SUM), comm, None), INVALID_USAGE)
        self.assertEqual(nccl.ncclCommFinalize(comm), INVALID_USAGE)
        self.assertEqual(nccl.ncclCommDestroy(comm), SUCCESS)

    def test_calls_without_a_communicator(self):
        nccl = load()
        version = I()
        self.assertEqual(nccl.ncclGetVersion(ctypes.byref(version)), SUCCESS)
        self.assertEqual(version.value, 23007)
        self.assertEqual(nccl.ncclCommDestroy(None), SUCCESS)
        self.assertEqual(nccl.ncclCommAbort(None), SUCCESS)
        self.assertEqual(nccl.ncclGroupEnd(), INVALID_USAGE)
        self.assertEqual(nccl.ncclGetErrorString(I(6)),
                         b"remote process exited or there was a network error")
        self.assertEqual(nccl.ncclGetErrorString(I(99)), b"unknown result code")
        self.assertEqual(nccl.ncclWinGetUserPtr(), INVALID_USAGE)
        self.assertEqual(nccl.ncclGetLastError(None),
                         b"ncclWinGetUserPtr: not supported by inccl")

    def test_bad_configurations(self):
        nccl = load()
        unique, comm = UniqueId(), P()
        self.assertEqual(nccl.ncclGetUniqueId(ctypes.byref(unique)), SUCCESS)
        for bad in ({"magic": 1}, {"blocking": 2}, {"minCTAs": 4, "maxCTAs": 2}, {"maxCTAs": 0},
                    {"cgaClusterSize": -1}, {"size": 4}):
            config = Config(**bad)
            self.assertEqual(nccl.ncclCommInitRankConfig(ctypes.byref(comm), I(1), unique, I(0),
                                                         ctypes.byref(config)),
                             INVALID_ARGUMENT, bad)
            self.assertIsNone(comm.value)
        # A field that the caller's version does not have is not read.
        config = Config(version=21600, minCTAs=-5)
        self.assertEqual(nccl.ncclCommInitRankConfig(ctypes.byref(comm), I(1), unique, I(0),
                                                     ctypes.byref(config)), SUCCESS)
        self.assertEqual(nccl.ncclCommDestroy(comm), SUCCESS)


if __name__ == "__main__":
    if "--rank" in sys.argv:
        BINARY_DIR = pathlib.Path(sys.argv[4])
        LIBRARY = BINARY_DIR / "src/inccl-nccl/libnccl.so.2"
        run_rank(int(sys.argv[2]), int(sys.argv[3]))
    elif "--part" in sys.argv:
        BINARY_DIR = pathlib.Path(sys.argv[4])
        LIBRARY = BINARY_DIR / "src/inccl-nccl/libnccl.so.2"
        run_part(int(sys.argv[2]), int(sys.argv[3]), sys.argv[5])
    elif "--log" in sys.argv:
        run_log()
    elif "--policy" in sys.argv:
        run_policy()
    elif "--environment" in sys.argv:
        run_environment()
    else:
        unittest.main(argv=sys.argv[:1])
