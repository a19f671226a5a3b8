# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory of ccl_mem_alloc, which ranks of this host access in place.

Mapping new memory into the other ranks takes time, so memory whose tensor has gone is kept for the
next tensor of the same size.
"""
import collections
import ctypes
import threading
import weakref
from ctypes import byref, c_void_p

import torch

from inccl._library import check, lib

_lock = threading.Lock()
_free = collections.defaultdict(list)  # addresses by bytes


def empty(size, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor with undefined contents; `size`: an int or a shape."""
    shape = (size,) if isinstance(size, int) else tuple(size)
    count = 1
    for extent in shape:
        count *= extent
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    memory = _take(count * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


def _take(length: int):
    length = -(-length // 4096) * 4096
    with _lock:
        address = _free[length].pop() if _free[length] else None
    if address is None:
        pointer = c_void_p()
        check(lib.ccl_mem_alloc(byref(pointer), length))
        address = pointer.value
    memory = (ctypes.c_ubyte * length).from_address(address)
    weakref.finalize(memory, _give_back, length, address).atexit = False
    return memory


def _give_back(length: int, address: int) -> None:
    # Also called by the garbage collector, perhaps while this thread holds the lock: list.append
    # needs none.
    _free[length].append(address)


def release() -> None:
    """Frees the memory that is kept."""
    with _lock:
        kept = [address for addresses in _free.values() for address in addresses]
        _free.clear()
    for address in kept:
        check(lib.ccl_mem_free(address))
