# SPDX-License-Identifier: Apache-2.0
"""Element types, reductions, and the memory of Python objects.

view() reads address, length and type of anything with __array_interface__ (NumPy),
__cuda_array_interface__, __dlpack__ (PyTorch, JAX, CuPy) or the buffer protocol. It copies nothing.
"""
import ctypes
import enum
import operator
import re
from typing import Any, NamedTuple, Optional

from ._library import InvalidArgument

__all__ = ["DataType", "Op", "IN_PLACE", "SUM", "PROD", "MAX", "MIN", "AVG"]


class DataType(enum.IntEnum):
    """Element types of reductions. Other types can be moved, but not reduced."""
    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10
    FLOAT8E5M2 = 11


class Op(enum.IntEnum):
    """Reductions. AVG divides the sum by the number of ranks."""
    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


SUM, PROD, MAX, MIN, AVG = Op.SUM, Op.PROD, Op.MAX, Op.MIN, Op.AVG


class _InPlace:
    def __repr__(self):
        return "inccl.IN_PLACE"


IN_PLACE = _InPlace()  # as a send or receive buffer: the other buffer holds input and result

_SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)

# By name as NumPy, ml_dtypes and PyTorch have them. bool is reduced as bytes by MAX, MIN and PROD.
_BY_NAME = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e4m3": 10,
    "float8_e5m2": 11,
}
_BY_TYPESTR = {
    "|i1": 0, "|u1": 1, "<i4": 2, "<u4": 3, "<i8": 4, "<u8": 5, "<f2": 6, "<f4": 7, "<f8": 8,
}
_BY_FORMAT = {"b": 0, "B": 1, "c": 1, "i": 2, "I": 3, "q": 4, "Q": 5, "l": 4, "L": 5, "n": 4,
              "N": 5, "e": 6, "f": 7, "d": 8}
# (code, bits) of DLPack: 0 int, 1 unsigned, 2 float, 4 bfloat, 10 float8_e4m3fn, 12 float8_e5m2.
_BY_DLPACK = {(0, 8): 0, (1, 8): 1, (0, 32): 2, (1, 32): 3, (0, 64): 4, (1, 64): 5, (2, 16): 6,
              (2, 32): 7, (2, 64): 8, (4, 16): 9, (10, 8): 10, (12, 8): 11}


def datatype(name: Any) -> DataType:
    """The element type for a DataType, its name, or a NumPy or PyTorch dtype."""
    if isinstance(name, DataType):
        return name
    text = str(getattr(name, "name", name)).removeprefix("torch.").lower()
    for key in (text, text.replace("float8e", "float8_e")):
        if key in _BY_NAME:
            return DataType(_BY_NAME[key])
    raise InvalidArgument(f"dtype: {name!r}: none of {', '.join(sorted(_BY_NAME))}")


class View(NamedTuple):
    """The memory of an object, and `owner`, which keeps it alive."""
    address: int
    count: int  # elements
    type: Optional[int]  # None: the elements can be moved, but not reduced
    itemsize: int
    readonly: bool
    owner: Any
    is_bool: bool = False


def _count(shape, strides, itemsize, name):
    """Elements of a C-contiguous array; strides in bytes, or None."""
    count = 1
    for extent in shape:
        count *= extent
    if strides is not None and count > 0:
        expected = itemsize
        for extent, stride in zip(reversed(shape), reversed(strides)):
            if extent != 1 and stride != expected:
                raise InvalidArgument(f"{name}: not contiguous: shape {tuple(shape)}, strides "
                                      f"{tuple(strides)} bytes; pass a contiguous copy")
            expected *= extent
    return count


def _has_objects(description, obj):
    """Whether a structured type has fields that are Python objects, at any depth."""
    if getattr(getattr(obj, "dtype", None), "hasobject", False):
        return True
    return isinstance(description, list) and any(
        field[1][1:2] == "O" if isinstance(field[1], str) else _has_objects(field[1], None)
        for field in description)


def _of_interface(interface, obj, name):
    typestr, shape = interface["typestr"], interface["shape"]
    itemsize = int(typestr[2:])
    kind = _BY_TYPESTR.get(typestr)
    is_bool = typestr == "|b1"
    if kind is None:
        if is_bool:
            kind = 1
        elif typestr[1] == "O" or _has_objects(interface.get("descr"), obj):
            raise InvalidArgument(f"{name}: holds Python objects; use the lower-case calls")
        elif typestr[0] == ">":
            raise InvalidArgument(f"{name}: dtype {typestr} has the other byte order")
        else:  # ml_dtypes
            kind = _BY_NAME.get(getattr(getattr(obj, "dtype", None), "name", None))
    count = _count(shape, interface.get("strides"), itemsize, name)
    address, readonly = interface["data"]
    return View(address, count, kind, itemsize, readonly, obj, is_bool)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, of DLPack 1."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_READ_ONLY = 1
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes, _capsule_is.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], \
    ctypes.c_void_p
_HOST, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13


def _of_dlpack(obj, name):
    # The capsule is not consumed: its destructor, when the view goes, gives the memory back.
    try:
        capsule = obj.__dlpack__(max_version=(1, 0))
    except TypeError:  # exporters of before DLPack 1
        capsule = obj.__dlpack__()
    readonly = False
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise InvalidArgument(f"{name}: DLPack {managed.major}.{managed.minor}, expected 1")
        tensor, readonly = managed.tensor, bool(managed.flags & _READ_ONLY)
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if tensor.device_type not in (_HOST, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise InvalidArgument(f"{name}: memory of DLPack device type {tensor.device_type}; the "
                              "library takes memory of the host and of CUDA devices")
    itemsize = (tensor.bits * tensor.lanes + 7) // 8
    shape = tensor.shape[:tensor.ndim]
    strides = [s * itemsize for s in tensor.strides[:tensor.ndim]] if tensor.strides else None
    is_bool = tensor.code == 6 and tensor.bits == 8
    kind = 1 if is_bool else _BY_DLPACK.get((tensor.code, tensor.bits))
    count = _count(shape, strides, itemsize, name)
    return View((tensor.data or 0) + tensor.byte_offset, count,
                kind if tensor.lanes == 1 else None, itemsize, readonly, (obj, capsule), is_bool)


class _PyBuffer(ctypes.Structure):
    """Py_buffer; releases the export when it goes."""
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int),
                ("ndim", ctypes.c_int), ("format", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
                ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]

    def __del__(self):
        if self.obj:
            _release_buffer(self)


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer.argtypes, _release_buffer.restype = [ctypes.POINTER(_PyBuffer)], None
_RECORDS_RO = 0x1c  # PyBUF_RECORDS_RO: strides and format, writable or not


def _of_buffer(obj, name):
    buffer = _PyBuffer()
    try:
        _get_buffer(obj, buffer, _RECORDS_RO)
    except (TypeError, BufferError) as error:
        raise TypeError(f"{name}: {type(obj).__name__} has no buffer: none of __array_interface__, "
                        f"__cuda_array_interface__, __dlpack__ and the buffer protocol ({error})"
                        ) from None
    text = (buffer.format or b"B").decode().lstrip("@=<|")
    if "O" in re.sub(":[^:]*:", "", text):  # without the names of fields
        raise InvalidArgument(f"{name}: holds Python objects; use the lower-case calls")
    is_bool = text == "?"
    kind = 1 if is_bool else _BY_FORMAT.get(text)
    if kind is not None and _SIZES[kind] != buffer.itemsize:
        kind = None
    count = _count(buffer.shape[:buffer.ndim] if buffer.ndim else (),
                   buffer.strides[:buffer.ndim] if buffer.strides else None, buffer.itemsize,
                   name)
    return View(buffer.buf or 0, count, kind, buffer.itemsize, bool(buffer.readonly),
                (obj, buffer), is_bool)


def view(obj: Any, name: str, write: bool = False) -> View:
    """The memory of `obj`, an array or (array, dtype), which `name` names in error texts.

    `write`: the library writes there.
    """
    as_type = None
    if type(obj) is tuple and len(obj) == 2:
        obj, as_type = obj[0], datatype(obj[1])
    interface = getattr(obj, "__array_interface__", None)
    if interface is None:
        interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is not None:
        found = _of_interface(interface, obj, name)
    elif hasattr(obj, "__dlpack__"):
        found = _of_dlpack(obj, name)
    else:
        found = _of_buffer(obj, name)
    if found.count > 0 and not found.address:
        raise InvalidArgument(f"{name}: {type(obj).__name__} without memory of its own")
    if write and found.readonly:
        raise InvalidArgument(f"{name}: read-only")
    if as_type is None:
        return found
    size = _SIZES[as_type]
    length = found.count * found.itemsize
    if length % size != 0:
        raise InvalidArgument(f"{name}: {length} bytes are no whole number of {as_type.name}")
    return found._replace(count=length // size, type=int(as_type), itemsize=size, is_bool=False)


def python_op(op: Op):
    """The reduction of two Python objects."""
    return {Op.SUM: operator.add, Op.PROD: operator.mul, Op.MAX: max, Op.MIN: min,
            Op.AVG: operator.add}[op]
