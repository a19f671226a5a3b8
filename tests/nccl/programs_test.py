# SPDX-License-Identifier: Apache-2.0
"""Programs against the real nccl.h, linked with a libnccl.so.2 that is not ours, run on inccl: processes, threads, mpirun.
And inccl-doctor on them, and on NCCL's headers and symbols.

usage: programs_test.py SOURCE_DIR BINARY_DIR
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import wheels  # noqa: E402

SOURCE = pathlib.Path(sys.argv[1]).resolve()
BINARY = pathlib.Path(sys.argv[2]).resolve()
LIBRARY = BINARY / "src/inccl-nccl/libnccl.so.2"
DOCTOR = BINARY / "tools/inccl-doctor"
FAKES = SOURCE / "tests/fakes"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


class ProgramsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wheel = wheels.get("2.30.7", BINARY)
        cls.held = tempfile.TemporaryDirectory()
        cls.work = pathlib.Path(cls.held.name)
        cls.stand_in = wheels.stand_in(cls.wheel, cls.work)
        subprocess.run(["cc", *WARNINGS, "-O1", "-shared", "-fPIC", "-pthread", "-I", FAKES / "cudart",
                        FAKES / "libraries/cudart.c", "-Wl,-soname,libcudart.so", "-o", cls.work / "libcudart.so"],
                       check=True)
        for name in ("allreduce", "data_parallel", "watchdog"):
            subprocess.run(["cc", "-std=gnu11", *WARNINGS, "-O1", "-pthread", "-I", FAKES / "cudart", "-isystem",
                            cls.wheel.include, SOURCE / f"examples/nccl/{name}.c", "-o", cls.work / name, "-L", cls.work,
                            "-l:libnccl.so.2", "-lcudart", f"-Wl,-rpath,{cls.work}"], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.held.cleanup()

    def environment(self, **more):
        return {**os.environ, "INCCL_SOCKET_IFNAME": "lo", "LD_PRELOAD": str(LIBRARY), **more}

    def run_ranks(self, size, program, *arguments, **variables):
        """What the ranks print, sorted; each is a process."""
        with tempfile.TemporaryDirectory() as directory:
            command = [self.work / program, f"{directory}/id", *arguments]
            ranks = [subprocess.Popen(command, text=True, stdout=subprocess.PIPE, env=self.environment(
                RANK=str(rank), WORLD_SIZE=str(size), **variables)) for rank in range(size)]
            outputs = [rank.communicate(timeout=200)[0] for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0] * size, outputs)
        return sorted("".join(outputs).splitlines())

    def test_processes(self):
        for size in (1, 2, 4):  # 4 ranks on 2 devices
            self.assertEqual(self.run_ranks(size, "allreduce"), [f"rank {r} of {size}: 0 wrong" for r in range(size)])

    def test_four_ranks_on_one_device(self):
        self.assertEqual(len(self.run_ranks(4, "allreduce", FAKE_CUDA_DEVICES="1")), 4)

    def test_threads(self):
        for size in (1, 2, 4):
            out = subprocess.run([self.work / "data_parallel", str(size)], check=True, capture_output=True, text=True,
                                 timeout=200, env=self.environment()).stdout
            lines = sorted(out.splitlines())
            self.assertEqual(len(lines), size)
            self.assertEqual(len({line.split(": ")[1] for line in lines}), 1, lines)
            self.assertTrue(all(line.endswith("learned: yes") for line in lines), lines)

    def test_the_watchdog(self):
        for size in (1, 2, 4):
            self.assertEqual(self.run_ranks(size, "watchdog"), [f"rank {r} of {size}: no error" for r in range(size)])
        lines = self.run_ranks(3, "watchdog", "1")
        self.assertEqual([line[:6] for line in lines], ["rank 0", "rank 2"])
        self.assertTrue(any(line.endswith("aborted") for line in lines), lines)
        self.assertFalse(any(line.endswith("no error") for line in lines), lines)

    def test_mpirun(self):
        mpirun = shutil.which("mpirun")
        if mpirun is None:
            self.skipTest("there is no mpirun")
        with tempfile.TemporaryDirectory() as directory:
            out = subprocess.run([mpirun, "-np", "4", "--bind-to", "none", "-x", "LD_PRELOAD", self.work / "allreduce",
                                  f"{directory}/id"], check=True, capture_output=True, text=True, timeout=200,
                                 env=self.environment(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                                      OMPI_MCA_rmaps_base_oversubscribe="1")).stdout
        self.assertEqual(sorted(out.splitlines()), [f"rank {r} of 4: 0 wrong" for r in range(4)])

    def test_without_the_preload_the_stand_in_is_called(self):
        environment = {name: value for name, value in self.environment().items() if name != "LD_PRELOAD"}
        done = subprocess.run([self.work / "data_parallel", "1"], capture_output=True, text=True, env=environment)
        self.assertNotEqual(done.returncode, 0)

    def test_the_report(self):
        with tempfile.TemporaryDirectory() as directory:
            command = [self.work / "allreduce", f"{directory}/id"]
            ranks = [subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                                      env=self.environment(RANK=str(rank), WORLD_SIZE="2", INCCL_NCCL_LOG="1",
                                                           INCCL_NCCL_POLICY="*,*,1G->bf16;allreduce,*,0->hbi:bits=8"))
                     for rank in range(2)]
            texts = [rank.communicate(timeout=200)[0] for rank in ranks]
        for text in texts:
            self.assertIn("rule 1 -> bf16: 0 calls of 0 bytes\n", text)
            self.assertRegex(text, r"rule 2 -> hbi:bits=8: 1 calls of 262144 bytes; sent \d+ bytes, saved \d+, error at "
                             r"most [\d.e+-]+\n")
            line = next(line for line in text.splitlines() if "rule 2 -> hbi:bits=8: 1" in line)
            words = line.replace(",", "").split()
            sent, saved = int(words[words.index("sent") + 1]), int(words[words.index("saved") + 1])
            # Two ranks: each sends half of the elements in each of two phases.
            self.assertAlmostEqual((sent + saved) / 262144, 1, delta=0.02)
            self.assertAlmostEqual(sent / 65536, 1, delta=0.1)


@unittest.skipUnless(DOCTOR.exists(), "inccl-doctor is not built")
class DoctorTest(unittest.TestCase):
    def doctor(self, *arguments, status=0, **variables):
        done = subprocess.run([DOCTOR, *map(str, arguments)], capture_output=True, text=True, timeout=100,
                              env={**os.environ, **variables})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        for at, line in enumerate(lines):  # what is not well has a remedy
            if line[:4] in ("FIX ", "note"):
                self.assertRegex(lines[at + 1], "^ +remedy: .")
        return done.stdout

    def test_the_machine(self):
        text = self.doctor()
        self.assertIn(f"ok   inccl's library: {LIBRARY}", text)
        for word in ("/dev/shm: ", "memlock: ", "network: ", "CUDA: "):
            self.assertIn(word, text)
        self.assertIn("network: 127.0.0.1 (INCCL_SOCKET_IFNAME==lo): ranks of this machine only",
                      self.doctor(INCCL_SOCKET_IFNAME="=lo"))
        self.assertIn("FIX  network: ", self.doctor(INCCL_SOCKET_IFNAME="=nowhere", status=1))

    def test_names_fields_and_numbers_of_every_version(self):
        for version in wheels.VERSIONS:
            wheel = wheels.get(version, BINARY)
            with tempfile.TemporaryDirectory() as directory:
                library = wheels.stand_in(wheel, pathlib.Path(directory))
                text = self.doctor("--header", wheel.include / "nccl.h", "--nccl", library)
            self.assertIn(f"{len(wheel.symbols)} compared, all equal", text)
            self.assertEqual(text.count("compared, all equal"), 2)

    def test_an_interface_that_differs(self):
        with tempfile.TemporaryDirectory() as directory:
            work = pathlib.Path(directory)
            (work / "nccl.h").write_text("#include <cuda_runtime.h>\n#include <stddef.h>\n"
                                         "typedef enum { ncclSuccess = 0, ncclInvalidArgument = 9 } ncclResult_t;\n"
                                         "typedef struct { char internal[64]; } ncclUniqueId;\n"
                                         "typedef struct ncclConfig_v29900 { size_t size; int magic; int version;\n"
                                         "  int more; int blocking; } ncclConfig_t;\n")
            text = self.doctor("--header", work / "nccl.h", status=1)
            for line in ("ncclInvalidArgument is 9, expected 4", "sizeof(ncclUniqueId) is 64, expected 128",
                         "offsetof(ncclConfig_t, blocking) is 20, expected 16", "ncclConfig_t.more is unknown"):
                self.assertIn("FIX  ", text)
                self.assertIn(line, text)
            (work / "new.c").write_text("int ncclAllReduce(void) { return 0; } int ncclTeleport(void) { return 0; }\n")
            subprocess.run(["cc", "-shared", "-fPIC", work / "new.c", "-o", work / "new.so"], check=True)
            self.assertIn("ncclTeleport is missing", self.doctor("--nccl", work / "new.so", status=1))
            (work / "text").write_text("hello\n")
            self.assertIn("is no library", self.doctor("--nccl", work / "text", status=1))
            self.assertIn("is no 64-bit ELF file", self.doctor(work / "text", status=1))
            for length in (10, 64, 200, 4000):  # damaged files
                (work / "cut").write_bytes((work / "new.so").read_bytes()[:length])
                self.doctor("--nccl", work / "cut", status=1)

    def test_what_a_program_would_load(self):
        with tempfile.TemporaryDirectory() as directory:
            work = pathlib.Path(directory)
            (work / "nccl.c").write_text("int ncclAllReduce(void) { return 0; }\n")
            (work / "uses.c").write_text("int ncclAllReduce(void);\nint main(void) { return ncclAllReduce(); }\n")
            library = work / "libnccl.so.2"
            subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", work / "nccl.c", "-o", library], check=True)
            subprocess.run(["cc", work / "uses.c", library, "-o", work / "linked"], check=True)
            subprocess.run(["cc", work / "uses.c", work / "nccl.c", "-o", work / "static"], check=True)
            (work / "opens.c").write_text('#include <dlfcn.h>\nint main(void) { return !dlopen("libnccl.so.2", 1); }\n')
            subprocess.run(["cc", work / "opens.c", "-o", work / "opens"], check=True)
            self.assertIn("needs libnccl.so.2, and the loader finds none", self.doctor(work / "linked", status=1))
            self.assertIn(f"would load {library}, which is not inccl's",
                          self.doctor(work / "linked", LD_LIBRARY_PATH=str(work), status=1))
            ours = f"would load {LIBRARY}, of inccl"
            self.assertIn(ours, self.doctor(work / "linked", LD_LIBRARY_PATH=f"{LIBRARY.parent}:{work}"))
            self.assertIn(ours, self.doctor(work / "linked", LD_LIBRARY_PATH=str(work), LD_PRELOAD=str(LIBRARY)))
            self.assertIn("contains NCCL", self.doctor(work / "static", status=1))
            self.assertIn("may open it by name", self.doctor(work / "opens"))

    def test_what_a_process_has_loaded(self):
        def running(code, **variables):
            process = subprocess.Popen([sys.executable, "-c", code + "\nprint(flush=True)\ninput()"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, env={**os.environ, **variables})
            process.stdout.readline()
            return process

        def asked(process, status=0):
            try:
                return self.doctor("--pid", process.pid, status=status)
            finally:
                process.communicate(b"\n")

        self.assertIn("has loaded no libnccl.so.2", asked(running("")))
        preloaded = asked(running("", LD_PRELOAD=str(LIBRARY)))
        self.assertIn(f"has loaded {LIBRARY}", preloaded)  # its real name: libnccl.so.2 has no link of another name
        self.assertIn("has not called NCCL so far", preloaded)
        active = asked(running("import ctypes\nn = ctypes.CDLL('libnccl.so.2')\n"
                               "n.ncclGetUniqueId(ctypes.create_string_buffer(128))", LD_PRELOAD=str(LIBRARY)))
        self.assertIn("calls run on ", active)
        self.assertIn("no CUDA driver loaded", active)
        with tempfile.TemporaryDirectory() as directory:
            other = pathlib.Path(directory) / "libnccl.so.2"
            subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", other], check=True)
            self.assertIn("which is not inccl's", asked(running(f"import ctypes\nctypes.CDLL('{other}')"), status=1))
        self.assertIn("cannot be read", self.doctor("--pid", "2147483647", status=1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
