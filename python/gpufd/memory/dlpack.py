"""DLPack capsules: structures of dlpack.h that live until who took them calls their deleter.

That may be called from any thread, when the interpreter is ending, and while an exception is
on its way: PyTorch frees the arguments of a call that has failed. ctypes cannot keep such an
exception, so it is printed as one that nobody catches, and what the capsule kept is let go.

A capsule that nobody takes has no destructor, for the same reason: NumPy drops one that it
cannot use with its error set, which would be lost. left looks for them instead, when it
matters, and whenever the garbage collector runs.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import math
import sys
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from typing import Any

KDL_CPU, KDL_CUDA = 1, 2
FLAG_READ_ONLY, FLAG_IS_COPIED = 1, 2
DLPACK_VERSION = (1, 1)


class _Device(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("dl_tensor", _Tensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl_tensor", _Tensor),
    ]


_api = ctypes.PyDLL(None)  # not ctypes.pythonapi, whose prototypes any library may change
_capsule_new = _api.PyCapsule_New
_capsule_new.argtypes, _capsule_new.restype = [c_void_p, c_char_p, c_void_p], py_object
_capsule_pointer = _api.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [py_object, c_char_p], c_void_p
_capsule_name = _api.PyCapsule_GetName
_capsule_name.argtypes, _capsule_name.restype = [py_object], c_char_p
_incref = _api.Py_IncRef
_incref.argtypes, _incref.restype = [py_object], None
_decref = _api.Py_DecRef
_decref.argtypes, _decref.restype = [c_void_p], None
_fetch = _api.PyErr_Fetch  # without argtypes: converting by them looks whether there is an error
_fetch.restype = None

# The capsule keeps the address of its name, so these are never freed.
_NAME, _NAME_VERSIONED = b"dltensor", b"dltensor_versioned"
_out: dict[int, tuple[Any, ...]] = {}  # what lives until its deleter is called, by address
_fresh: dict[int, Any] = {}  # the capsules of those that nobody is known to have taken

# Where an exception goes that is on its way: as many as there may be threads in _delete at once.
_slots = [(x, [ctypes.byref(v) for v in x]) for x in ([c_void_p() for _ in range(3)] for _ in range(64))]
_turn = [0]


def _delete(
    address: int | None,
    out: dict[int, tuple[Any, ...]] = _out,
    fresh: dict[int, Any] = _fresh,
    turn: list[int] = _turn,
    slots: list[Any] = _slots,
    fetch: Any = _fetch,
) -> None:
    """The deleter, which a consumer calls once, when it is done. Until fetch has returned there may be an
    exception, and so nothing else may be called."""
    n = turn[0]
    turn[0] = n + 1 & 63
    slot = slots[n]
    to = slot[1]
    fetch(to[0], to[1], to[2])
    values = slot[0]
    found = (values[0].value, values[1].value, values[2].value)
    fresh.pop(address or 0, None)
    gone = out.pop(address or 0, None)
    if gone:
        gone[0].let_go(gone[1])
    del gone  # the exception has this frame
    if found[0]:
        raise _exception(*found)


def _exception(kind: int, value: int | None, trace: int | None) -> BaseException:
    """The exception of references that are ours."""
    type_, what, tb = (ctypes.cast(c_void_p(p), py_object).value if p else None for p in (kind, value, trace))
    for p in (kind, value, trace):
        if p:
            _decref(p)
    if not isinstance(what, BaseException):
        what = type_(*what) if isinstance(what, tuple) else type_() if what is None else type_(what)
    assert isinstance(what, BaseException)
    return what.with_traceback(tb)


_DELETER = ctypes.CFUNCTYPE(None, c_void_p)(_delete)
for _kept in (_NAME, _NAME_VERSIONED, _DELETER, _delete, _out, _fresh):
    _incref(_kept)
_deleter = ctypes.cast(_DELETER, c_void_p).value  # of what is exported from now on


def export(array: Any, version: tuple[int, ...] | None) -> Any:
    """A capsule of a new structure. version is None for the one before 1.0."""
    left()
    n, lanes, sizes = len(array.shape), array.dtype.lanes, array.shape
    if lanes > 1:
        sizes = (*sizes[:-1], sizes[-1] // lanes)
    shape = (c_int64 * max(1, n))(*sizes)
    strides = (c_int64 * max(1, n))(*(array.strides or (math.prod(sizes[i + 1 :]) for i in range(n))))
    managed = _Managed() if version is None else _ManagedVersioned()
    token = array.memory.hold(f"{array} (DLPack)")
    address = ctypes.addressof(managed)
    _out[address] = (array.memory, token, array, managed, shape, strides)
    try:
        managed.dl_tensor = _Tensor(
            array.ptr if array.size else None, _Device(*array.__dlpack_device__()), n,
            _DataType(array.dtype.code, array.dtype.bits, lanes),
            ctypes.cast(shape, POINTER(c_int64)), ctypes.cast(strides, POINTER(c_int64)), 0,
        )  # fmt: skip
        managed.deleter = _deleter
        if version is not None:
            managed.major, managed.minor = version
            managed.flags = (FLAG_READ_ONLY if array.readonly else 0) | (FLAG_IS_COPIED if array.copied else 0)
        capsule = _capsule_new(address, _NAME if version is None else _NAME_VERSIONED, None)
    except BaseException:
        _delete(address)
        raise
    _fresh[address] = capsule
    return capsule


class Imported:
    """An array of another library, by DLPack. It lives as long as this."""

    def __init__(self, value: Any) -> None:
        kind, ordinal = value.__dlpack_device__()
        how = {"stream": 1} if kind == KDL_CUDA else {}  # the legacy default stream, on which it is copied
        try:
            self._capsule = value.__dlpack__(**how, max_version=DLPACK_VERSION)
        except TypeError:  # older than versions
            self._capsule = value.__dlpack__(**how)
        name = _capsule_name(self._capsule)
        if name not in (_NAME, _NAME_VERSIONED):
            raise TypeError(f"a capsule {name!r}, which is not DLPack's")
        address = _capsule_pointer(self._capsule, name)
        versioned = name == _NAME_VERSIONED
        if versioned and (major := c_uint32.from_address(address).value) != DLPACK_VERSION[0]:
            raise TypeError(f"DLPack of version {major}, and {DLPACK_VERSION[0]} is known here")
        t = (_ManagedVersioned if versioned else _Managed).from_address(address).dl_tensor
        self.device_type, self.ordinal = int(t.device.device_type), int(t.device.device_id)
        self.kind = (int(t.dtype.code), int(t.dtype.bits)) if t.dtype.lanes == 1 else (-1, 0)
        self.shape = tuple(int(n) for n in t.shape[: t.ndim]) if t.ndim else ()
        self.strides = tuple(int(n) for n in t.strides[: t.ndim]) if t.ndim and t.strides else None
        self.ptr = int(t.data or 0) + int(t.byte_offset)


def left() -> None:
    """Let go of capsules that have gone without having been taken."""
    for address in list(_fresh):
        capsule = _fresh.pop(address, None)
        if capsule is None or _capsule_name(capsule) not in (_NAME, _NAME_VERSIONED):
            continue  # its deleter is somebody's
        if sys.getrefcount(capsule) > _MINE:
            _fresh[address] = capsule
        else:
            _delete(address)


def _references() -> int:
    """Return the count that sys.getrefcount gives in left of an object that only left has."""
    capsule = object()
    return sys.getrefcount(capsule)


_MINE = _references()


def _at_collection(phase: str, info: Any) -> None:
    if phase == "stop" and _fresh:
        left()


gc.callbacks.append(_at_collection)


def _at_exit() -> None:
    """From here on a framework may call a deleter when there is no interpreter to run it:
    have it call something that does nothing, and let go of nothing."""
    global _deleter
    _deleter = ctypes.cast(_api.Py_IsInitialized, c_void_p).value
    if _at_collection in gc.callbacks:
        gc.callbacks.remove(_at_collection)
    for kept in list(_out.values()):
        _incref(kept)
        kept[3].deleter = _deleter


atexit.register(_at_exit)
