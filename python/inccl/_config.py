# SPDX-License-Identifier: Apache-2.0
"""The options of a communicator, and reductions that belong to one."""
import ctypes
import struct
from ctypes import byref, c_int
from typing import TYPE_CHECKING, Any, Optional

from ._library import Config, InvalidArgument, check, in_range, lib
from ._types import datatype

if TYPE_CHECKING:
    from .communicator import Communicator


def config_of(codec: Optional[str] = None, algorithm: Optional[str] = None, channels: int = 0,
            reproducible: bool = False, preserve_input: bool = False,
            init_timeout: float = 0, op_timeout: float = 0, heartbeat: float = 0,
            dead_timeout: float = 0, socket_ifname: Optional[str] = None,
            name: Optional[str] = None) -> Config:
    """ccl_config_t. Times are in seconds; 0 and None mean the default."""
    def milliseconds(what, seconds):
        if seconds == 0 or (what == "dead_timeout" and seconds == -1):
            return int(seconds)
        if not 0.001 <= seconds <= 2147483:
            raise InvalidArgument(f"{what}: {seconds} is not in 0.001..2147483 seconds")
        return int(seconds * 1000)

    def text(value):
        return None if value is None else value.encode()

    return Config(ctypes.sizeof(Config), 1, text(codec), text(algorithm),
                  in_range("channels", channels),
                  int(reproducible), int(preserve_input),
                  milliseconds("init_timeout", init_timeout),
                  milliseconds("op_timeout", op_timeout), milliseconds("heartbeat", heartbeat),
                  milliseconds("dead_timeout", dead_timeout), text(socket_ifname), text(name))


class PremulSum:
    """A reduction of one communicator: each rank multiplies its input by its scalar, then sums.
    Ranks create these in the same order. See Communicator.premul_sum."""

    def __init__(self, comm: "Communicator", scalar: float, dtype: Any):
        self.type = datatype(dtype)
        self._comm = comm
        code = c_int()
        value = _scalar(scalar, self.type)
        check(lib.ccl_redop_create_premulsum(byref(code), value, self.type, 1, comm._get()))
        self.code = code.value

    def close(self) -> None:
        code, self.code = self.code, None
        if code is not None and self._comm._handle is not None:
            check(lib.ccl_redop_destroy(code, self._comm._handle))

    def __int__(self):
        if self.code is None:
            raise InvalidArgument("op: a closed PremulSum")
        return self.code


def _scalar(value, kind):
    """`value` as bytes of an element."""
    name = kind.name.lower()
    formats = {"int8": "b", "uint8": "B", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
               "float16": "e", "float32": "f", "float64": "d"}
    if name in formats:
        return struct.pack("=" + formats[name],
                           value if name.startswith("float") else int(value))
    if name == "bfloat16":  # to nearest, ties to even
        bits, = struct.unpack("=I", struct.pack("=f", value))
        return struct.pack("=H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    raise InvalidArgument(f"dtype: {name}: no scalars of this type")
