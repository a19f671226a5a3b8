# SPDX-License-Identifier: Apache-2.0
"""The lower-case calls of a communicator: Python objects, which travel pickled.

A rank pads its objects to the length of the longest of all ranks, behind 8 bytes of length. Ranks
have authenticated each other when they unpickle. None of them works in a group: they read what they
have received, such as a length, before they return.
"""
import pickle
import struct
from ctypes import c_uint64
from typing import Any, List, Optional

from ._library import InvalidArgument
from ._objects import outside_groups
from ._types import IN_PLACE, Op, python_op


class ObjectCalls:
    """Base of Communicator."""
    __slots__ = ()

    def allreduce(self, value, op=Op.SUM, **options):
        """op over the ranks' values, in the order of the ranks. NumPy arrays are reduced as
        Allreduce does, with its options; other objects are pickled."""
        outside_groups("allreduce")
        if hasattr(value, "__array_interface__") and getattr(value, "ndim", 0) > 0:
            import numpy
            result = numpy.array(value, order="C")
            self.Allreduce(IN_PLACE, result, op, **options)
            return result
        return self._fold(self.allgather(value), op)

    def reduce(self, value, op=Op.SUM, root: int = 0):
        """op over the ranks' objects on root, None elsewhere."""
        outside_groups("reduce")
        values = self.gather(value, root)
        return self._fold(values, op) if values is not None else None

    def bcast(self, value=None, root: int = 0):
        """The object of root."""
        outside_groups("bcast")
        blocks = self._length_and_bytes(pickle.dumps(value)) if self._root(root) == self._rank \
            else (None, None)
        length = bytearray(blocks[0] or 8)
        self.Bcast(length, root)
        data = bytearray(blocks[1] or bytes(struct.unpack("=Q", length)[0]))
        self.Bcast(data, root)
        return value if root == self._rank else pickle.loads(data)

    def gather(self, value, root: int = 0) -> Optional[List[Any]]:
        """The objects of all ranks on root, None elsewhere."""
        outside_groups("gather")
        mine = pickle.dumps(value)
        block = self._longest(len(mine))
        packed = _pack(mine, block)
        everything = bytearray(block * self.size) if self._root(root) == self._rank else None
        self.Gather(packed, everything, root)
        return _unpack(everything, block) if everything is not None else None

    def allgather(self, value) -> List[Any]:
        """The objects of all ranks, by rank."""
        outside_groups("allgather")
        mine = pickle.dumps(value)
        block = self._longest(len(mine))
        everything = bytearray(block * self.size)
        self.Allgather(_pack(mine, block), everything)
        return _unpack(everything, block)

    def scatter(self, values=None, root: int = 0):
        """The object values[rank] of root."""
        outside_groups("scatter")
        pieces = []
        if self._root(root) == self._rank:
            pieces = self._pickled("values", values)
        block = self._longest(max(map(len, pieces), default=0))
        send = b"".join(_pack(piece, block) for piece in pieces) if pieces else None
        mine = bytearray(block)
        self.Scatter(send, mine, root)
        return _unpack(mine, block)[0]

    def alltoall(self, values) -> List[Any]:
        """Sends values[d] to rank d; returns what each rank has sent to this one."""
        outside_groups("alltoall")
        pieces = self._pickled("values", values)
        block = self._longest(max(map(len, pieces)))
        received = bytearray(block * self.size)
        self.Alltoall(b"".join(_pack(piece, block) for piece in pieces), received)
        return _unpack(received, block)

    def send(self, value, dest: int) -> None:
        """Sends an object to rank `dest`, which calls recv."""
        outside_groups("send")
        length, data = self._length_and_bytes(pickle.dumps(value))
        self.Send(length, dest)
        self.Send(data, dest)

    def recv(self, source: int):
        """The object that rank `source` sends."""
        outside_groups("recv")
        length = bytearray(8)
        self.Recv(length, source)
        data = bytearray(struct.unpack("=Q", length)[0])
        self.Recv(data, source)
        return pickle.loads(data)

    @staticmethod
    def _length_and_bytes(data):
        return struct.pack("=Q", len(data)), data

    def _pickled(self, name, values):
        if values is None or len(values) != self.size:
            raise InvalidArgument(f"{name}: expected {self.size} objects, one per rank, got "
                                  f"{'None' if values is None else len(values)}")
        return [pickle.dumps(value) for value in values]

    def _longest(self, length):
        """Bytes of a block that holds the longest of all ranks' objects."""
        longest = (c_uint64 * 1)(length)
        self.Allreduce(IN_PLACE, longest, Op.MAX)
        return longest[0] + 8

    def _fold(self, values, op):
        combine = python_op(Op(op))
        result = values[0]
        for value in values[1:]:
            result = combine(result, value)
        return result / self.size if op == Op.AVG else result


def _pack(data, block):
    return struct.pack("=Q", len(data)) + data + bytes(block - 8 - len(data))


def _unpack(blocks, block):
    with memoryview(blocks) as everything:
        values = []
        for begin in range(0, len(everything), block):
            length, = struct.unpack_from("=Q", everything, begin)
            values.append(pickle.loads(everything[begin + 8:begin + 8 + length]))
        return values
