#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums an array over the processes that torchrun (or mpirun, or srun) has started; needs no Python package.

usage: torchrun --nproc-per-node 4 torchrun.py [LIBRARY]        LIBRARY: libinccl.so.0, found as programs find libraries
"""
import array
import ctypes
import sys

CCL_FLOAT32, CCL_SUM = 7, 0
COUNT = 1000

ccl = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libinccl.so.0")
ccl.ccl_get_last_error.restype = ctypes.c_char_p


def check(result):
    if result != 0:
        sys.exit(ccl.ccl_get_last_error(None).decode())


comm, rank, nranks = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
check(ccl.ccl_comm_init_env(ctypes.byref(comm), None))
check(ccl.ccl_comm_user_rank(comm, ctypes.byref(rank)))
check(ccl.ccl_comm_count(comm, ctypes.byref(nranks)))
data = array.array("f", [rank.value + 1] * COUNT)
address = ctypes.c_void_p(data.buffer_info()[0])
check(ccl.ccl_allreduce(address, address, ctypes.c_size_t(COUNT), CCL_FLOAT32, CCL_SUM, comm, None))
check(ccl.ccl_comm_destroy(comm))
n = nranks.value
assert all(x == n * (n + 1) / 2 for x in data), data[0]
print(f"rank {rank.value}/{n}: sum {data[0]:g}", flush=True)
