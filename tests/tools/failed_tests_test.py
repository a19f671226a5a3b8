#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/failed_tests.py shows, of a log of ctest, what is needed to see why a test failed, and not much more.

usage: failed_tests_test.py SOURCE_DIR BINARY_DIR
"""
import pathlib
import subprocess
import sys
import tempfile

LOG = """\
      Start  1: good_test
 1/6 Test  #1: good_test ........   Passed    0.01 sec
      Start  2: wrong_test
 2/6 Test  #2: wrong_test .......***Failed   25.76 sec
[ RUN      ] Case.Fine
[       OK ] Case.Fine (1 ms)
""" + "a line of the program\n" * 1000 + """\
[ RUN      ] Case.Wrong
a_test.cc:554: Failure
Expected equality of these values:
  ThisMany()
    Which is: 3
[  FAILED  ] Case.Wrong (2 ms)
""" + "another line\n" * 1000 + """\
[ RUN      ] Case.AlsoFine
[       OK ] Case.AlsoFine (1 ms)
[  PASSED  ] 2 tests.

      Start  3: dying_test
 3/6 Test  #3: dying_test .......***Exception: SegFault  0.10 sec
[ RUN      ] Case.Dies
""" + "a third line\n" * 1000 + """\
==8358==ERROR: AddressSanitizer: heap-use-after-free on address 0x60
    #0 0x5555 in Somewhere a.cc:5
""" + "shadow bytes\n" * 1000 + """\
 4/6 Test  #4: skipped_test .....***Skipped   0.01 sec
no CUDA device
 5/6 Test  #5: leaky_test .......***Failed    0.10 sec
[  PASSED  ] 9 tests.
Tracer caught signal 11: addr=0x2a0 pc=0x7f sp=0x7f
==8358==LeakSanitizer has encountered a fatal error.
 6/6 Test  #6: noisy_test .......***Failed    0.10 sec
""" + "x.cc:1: runtime error: " * 1000 + "\n" + "b_test.cc:1: Failure\n" * 1000 + """\
the last line

33% tests passed, 4 tests failed out of 6

The following tests FAILED:
"""


def main():
    script = pathlib.Path(sys.argv[1]) / "scripts" / "failed_tests.py"
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        log.write(LOG)
        log.flush()
        out = subprocess.run([script, log.name], check=True, capture_output=True, text=True).stdout
    tests = {text.split(":", 1)[1].split()[0]: text for text in out.split("== ")[1:] if "/6 Test" in text}
    assert list(tests) == ["wrong_test", "dying_test", "leaky_test", "noisy_test"], out

    wanted = {"wrong_test": ["a_test.cc:554: Failure", "Which is: 3", "[  FAILED  ] Case.Wrong"],
              "dying_test": ["SegFault", "[ RUN      ] Case.Dies", "heap-use-after-free", "a.cc:5", "shadow bytes"],
              "leaky_test": ["Tracer caught signal", "fatal error"],
              "noisy_test": ["b_test.cc:1: Failure", "lines more", "the last line"]}
    for name, texts in wanted.items():
        for text in texts:
            assert text in tests[name], f"{name} lacks {text!r}: {tests[name]}"
        assert len(tests[name].splitlines()) <= 63, tests[name]
        assert len(tests[name]) < 20000, len(tests[name])
    assert "Fine" not in out and "CUDA" not in out and "following" not in out, out
    print("ok")


main()
