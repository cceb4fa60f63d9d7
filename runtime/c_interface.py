"""The C interface of a model's library, as ctypes declarations."""

import ctypes
from collections.abc import Callable
from typing import Any, Final

ABI_VERSION: Final = 1
CPU: Final = 1
"""DLPack's device type of ordinary memory."""
first_byte: Final[Callable[[Any], ctypes.c_char]] = ctypes.c_char.from_buffer
"""The first byte of a dense array that may be written to and is not empty.

Its `ctypes.addressof` takes a third of the time of numpy's array interface.
"""

Pointer = object
"""What is passed to functions as an address."""


def pointer_to(address: int) -> Pointer:
    """Returns the pointer to an address."""
    return ctypes.byref(ctypes.c_char.from_address(address))


class DLTensor(ctypes.Structure):
    """DLPack's tensor descriptor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape; a scalar's may be no address."""
        return tuple(self.shape[: self.ndim]) if self.ndim else ()


class Options(ctypes.Structure):
    """`rutc_options`; zero in a field means its default."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("pin_threads", ctypes.c_int32),
        ("profile", ctypes.c_int32),
        ("parallel_for", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("weights_path", ctypes.c_char_p),
        ("weights", ctypes.c_void_p),
        ("weights_bytes", ctypes.c_int64),
        ("check_weights", ctypes.c_int64),
    )


class ProfileRecord(ctypes.Structure):
    """`rutc_profile_entry`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("origin", ctypes.c_char_p),
        ("calls", ctypes.c_int64),
        ("total_us", ctypes.c_double),
    )


class EntryPoints:
    """The functions `PREFIX_open`, `PREFIX_run`, ... of an opened library.

    Raises:
        AttributeError: the library lacks one of them.
    """

    def __init__(self, library: ctypes.CDLL, prefix: str) -> None:
        self.abi_version = library[f"{prefix}_abi_version"]
        self.abi_version.argtypes = ()
        self.abi_version.restype = ctypes.c_int32
        self.manifest = library[f"{prefix}_manifest"]
        self.manifest.argtypes = ()
        self.manifest.restype = ctypes.c_char_p
        self.open = library[f"{prefix}_open"]
        self.open.argtypes = (ctypes.POINTER(Options),)
        self.open.restype = ctypes.c_void_p
        # Pointers are made once, by `pointer_to`, or are arrays, and are passed as they are: to
        # convert addresses in each call takes longer than the rest of the call.
        self.run = library[f"{prefix}_run"]
        self.run.restype = ctypes.c_int32
        self.output_shapes = library[f"{prefix}_output_shapes"]
        self.output_shapes.restype = ctypes.c_int32
        self.profile = library[f"{prefix}_profile"]
        self.profile.argtypes = (ctypes.c_void_p, ctypes.POINTER(ProfileRecord), ctypes.c_int32)
        self.profile.restype = ctypes.c_int32
        self.last_error = library[f"{prefix}_last_error"]
        self.last_error.argtypes = (ctypes.c_void_p,)
        self.last_error.restype = ctypes.c_char_p
        self.close = library[f"{prefix}_close"]
        self.close.argtypes = (ctypes.c_void_p,)
        self.close.restype = None


class KeepingEntryPoint:
    """The function `PREFIX_keep_output` of an opened library, where a run computes shapes.

    Raises:
        AttributeError: the library lacks it.
    """

    def __init__(self, library: ctypes.CDLL, prefix: str) -> None:
        self.keep_output = library[f"{prefix}_keep_output"]
        self.keep_output.restype = ctypes.c_int32


class StateEntryPoints:
    """The functions `PREFIX_reset`, ... of an opened library whose sessions keep states.

    Raises:
        AttributeError: the library lacks one of them.
    """

    def __init__(self, handle: ctypes.CDLL, prefix: str) -> None:
        self.reset = handle[f"{prefix}_reset"]
        self.reset.argtypes = (ctypes.c_void_p,)
        self.reset.restype = ctypes.c_int32
        self.get_state = handle[f"{prefix}_get_state"]
        self.get_state.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.get_state.restype = ctypes.c_int32
        self.set_state = handle[f"{prefix}_set_state"]
        self.set_state.argtypes = self.get_state.argtypes
        self.set_state.restype = ctypes.c_int32


class TargetEntryPoints:
    """The functions `PREFIX_open_target`, ... of an opened library of several targets.

    Raises:
        AttributeError: the library lacks one of them.
    """

    def __init__(self, handle: ctypes.CDLL, prefix: str) -> None:
        self.open = handle[f"{prefix}_open_target"]
        self.open.argtypes = (ctypes.POINTER(Options), ctypes.c_char_p)
        self.open.restype = ctypes.c_void_p
        self.name = handle[f"{prefix}_target"]
        self.name.argtypes = (ctypes.c_void_p,)
        self.name.restype = ctypes.c_char_p
