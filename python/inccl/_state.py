# SPDX-License-Identifier: Apache-2.0
"""State that all ranks shall have: compared by hash, repaired where it differs."""
import array
import bisect
import ctypes
import hashlib
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Sequence, Union

from ._library import InvalidArgument
from ._objects import outside_groups
from ._types import DataType, view

__all__ = ["sync_state"]

_GATHERED = 32 << 20  # bytes of one all-gather
_BLOCK = 64 << 10  # bytes that have a CRC
_HOST_DEVICES = (1, 3)  # of DLPack: plain and pinned memory
# Types whose elements the codec "lossless" shortens.
_FLOATS = (DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64, DataType.BFLOAT16)


def sync_state(comm, tensors: Union[Sequence[Any], Dict[str, Any]], source: Optional[int] = None) -> List[Any]:
    """Makes `tensors` equal on all ranks, bit for bit. Collective.

    tensors: a list, or a dict with names; buffers in host memory, as many and of equal types and
    lengths on all ranks. What most ranks have wins, of equally many those with the lowest rank;
    with `source` what that rank has. Only tensors that differ travel, coded without loss, in parts
    from all ranks that have them right. Returns the names (or indices) of the tensors that this
    rank has got anew. InvalidArgument on all ranks, and nothing has changed, if ranks have other
    tensors.
    """
    outside_groups("sync_state")
    if source is not None and not 0 <= source < comm.size:
        raise InvalidArgument(f"source: {source} is not in [0, {comm.size})")
    names = list(tensors) if isinstance(tensors, dict) else list(range(len(tensors)))
    views = [_host_view(tensors[name], f"tensors[{name!r}]") for name in names]
    mine = [(name, v.type, v.itemsize, v.count, _digest(v)) for name, v in zip(names, views)]
    ranks = comm.allgather(mine)
    _check(ranks)
    changed, groups = [], {}
    for i, name in enumerate(names):
        digests = [rank[i][4] for rank in ranks]
        right = digests[source] if source is not None else max(digests, key=digests.count)
        holders = tuple(r for r, digest in enumerate(digests) if digest == right)
        if len(holders) == comm.size:
            continue
        if comm.rank not in holders:
            changed.append(name)
        groups.setdefault((holders, views[i].type, views[i].itemsize), []).append(views[i])
    for (holders, kind, itemsize), parts in groups.items():
        _give(comm, holders, kind, itemsize, parts)
    return changed


def _host_view(obj, name):
    array = obj[0] if type(obj) is tuple and len(obj) == 2 else obj
    where = getattr(array, "__dlpack_device__", None)
    if getattr(array, "is_cuda", False) or (where is not None and where()[0] not in _HOST_DEVICES):
        raise InvalidArgument(f"{name}: not in host memory")
    return view(obj, name, True)


def _bytes(v):
    return (ctypes.c_char * (v.count * v.itemsize)).from_address(v.address) if v.count else b""


def _digest(v):
    """Of the CRC-32 of each block, which takes a sixth of the time of a digest of all bytes. That of a
    block misses no difference within 32 bits, and any other with a chance of 2^-32."""
    memory = memoryview(_bytes(v)).cast("B")
    crcs = array.array("Q", (zlib.crc32(memory[i:i + _BLOCK]) for i in range(0, len(memory), _BLOCK)))
    return hashlib.blake2b(crcs, digest_size=16).digest()


def _check(ranks):
    for r, theirs in enumerate(ranks):
        if len(theirs) != len(ranks[0]):
            raise InvalidArgument(f"tensors: {len(ranks[0])} on rank 0, {len(theirs)} on rank {r}")
        for (name, *first, _), (other, *second, _) in zip(ranks[0], theirs):
            if name != other or first != second:
                raise InvalidArgument(f"tensors[{name!r}]: {_text(first)} on rank 0; rank {r} has "
                                      f"tensors[{other!r}]: {_text(second)}")


def _text(layout):
    kind, itemsize, count = layout
    return f"{count} of {DataType(kind).name if kind is not None else f'{itemsize} bytes'}"


def _give(comm, holders, kind, itemsize, parts):
    """Each holder gives its share of the concatenation of `parts` in an all-gather of chunks."""
    ends, total = [], 0
    for part in parts:
        total += part.count * itemsize
        ends.append(total)
    take = comm.rank not in holders
    rounds = -(-total // (max(1, _GATHERED // comm.size // itemsize) * itemsize * len(holders)))
    chunk = -(-total // (rounds * len(holders) * itemsize)) * itemsize
    how = {"codec": "lossless"} if kind in _FLOATS else {}
    as_kind = DataType(kind) if kind in _FLOATS else DataType.UINT8
    buffers = [(bytearray(chunk), bytearray(chunk * comm.size)) for _ in range(min(2, rounds))]

    def gather(send, recv):
        comm.Allgather((send, as_kind), (recv, as_kind), **how)

    def finish(call, begin, recv):
        call.result()
        for place, rank in enumerate(holders if take else ()):
            _copy(parts, ends, begin + place * chunk, recv, rank * chunk, chunk, True)

    with ThreadPoolExecutor(1) as calls:  # one round is copied while the next one is gathered
        under_way = []
        for i, begin in enumerate(range(0, total, chunk * len(holders))):
            send, recv = buffers[i % 2]
            if not take:
                _copy(parts, ends, begin + holders.index(comm.rank) * chunk, send, 0, chunk, False)
            under_way.append((calls.submit(gather, send, recv), begin, recv))
            if len(under_way) == 2:
                finish(*under_way.pop(0))
        finish(*under_way.pop())


def _copy(parts, ends, at, buffer, offset, length, into_parts):
    """Between bytes [at, at + length) of the concatenation, as far as it goes, and the buffer."""
    stop = min(at + length, ends[-1])
    memory = memoryview(buffer)
    i = bisect.bisect_right(ends, at)
    while at < stop:
        begin = ends[i - 1] if i else 0
        n = min(stop, ends[i]) - at
        piece = memoryview(_bytes(parts[i])).cast("B")[at - begin:at - begin + n]
        if into_parts:
            piece[:] = memory[offset:offset + n]
        else:
            memory[offset:offset + n] = piece
        at, offset, i = at + n, offset + n, i + 1
