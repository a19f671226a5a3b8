#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a test whose time limits a machine that stands still would break.

usage: rerun_after_standstill.py PROGRAM [ARGUMENT...]

A virtual machine may get no processor for a second, or wait as long for its disk, and where network
namespaces end, the kernel may hold its lock of all network interfaces for many. Tests of time
limits then see failures that no code causes: peers that are silent because nothing ran. One process for each
processor looks at the clock every 20 ms, one lists the interfaces, and the kernel's pressure figures
tell of the disk; a test that fails is run again only if there was such a standstill while it ran, at
most twice. Everything it printed stays in the output, with the reason. Exit status: that of the last run.
"""
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

PERIOD = 0.02
STANDSTILL = 0.25  # seconds; the limits of time in tests are 1 s and more
RUNS = 3


def io_stall():
    """Seconds for which some thread has waited for a disk since the machine started; 0 if unknown."""
    try:
        with open("/proc/pressure/io", encoding="ascii") as file:
            return int(file.readline().rsplit("total=", 1)[1]) / 1e6
    except (OSError, IndexError, ValueError):
        return 0.0


def longest_gap(processor, pipe):
    """Until told to stop: writes the longest time for which this process did not get `processor`, or None: the list of
    interfaces."""
    if processor is not None:
        try:
            os.sched_setaffinity(0, {processor})
        except OSError:
            pass  # any processor, then
    parent, stopped = os.getppid(), []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    os.write(pipe, b"+")  # the handler is there
    longest, waited_for_disk = 0.0, 0.0
    then, stalls = time.monotonic(), io_stall()
    while not stopped and os.getppid() == parent:
        time.sleep(PERIOD)
        if processor is None:
            with contextlib.suppress(OSError):
                socket.if_nameindex()
        now, stalls_now = time.monotonic(), io_stall()
        longest = max(longest, now - then - PERIOD)
        waited_for_disk = waited_for_disk + stalls_now - stalls if stalls_now > stalls else 0.0
        longest = max(longest, waited_for_disk)
        then, stalls = now, stalls_now
    os.write(pipe, f"{longest}\n".encode())


class Watch:
    """The longest standstill between start and stop()."""

    def __init__(self):
        self.children = []
        for processor in [*sorted(os.sched_getaffinity(0)), None]:
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                longest_gap(processor, writer)
                os._exit(0)
            os.close(writer)
            os.read(reader, 1)
            self.children.append((pid, reader))

    def stop(self):
        longest = 0.0
        for pid, reader in self.children:
            os.kill(pid, signal.SIGTERM)
            with os.fdopen(reader, encoding="ascii") as file:
                longest = max(longest, float(file.read() or 0))
            os.waitpid(pid, 0)
        return longest


def main():
    command = sys.argv[1:]
    if not command:
        sys.exit(__doc__)
    for run in range(1, RUNS + 1):
        watch = Watch()
        status = subprocess.run(command, check=False).returncode
        longest = watch.stop()
        if status == 0 or longest < STANDSTILL or run == RUNS:
            break
        print(f"== the machine stood still for {longest:.2f} s while this ran: once more", flush=True)
    sys.exit(status if status >= 0 else 128 - status)


main()
