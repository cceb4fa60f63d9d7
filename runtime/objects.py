"""Python's strings and maps as a library's tensors, and back, by the library's own code.

A library that takes or gives such has functions that read and make many objects in one call
(`host/python.h`). It is linked with no Python, so they are passed what they need of its interface.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from rutc.runtime.c_interface import first_byte
from rutc.runtime.tensors import Array

Map = dict[object, object]

_NEEDED: Final = (
    "PyUnicode_AsUTF8AndSize",
    "PyUnicode_DecodeUTF8",
    "PyFloat_FromDouble",
    "PyLong_FromLongLong",
    "PyList_New",
    "PyList_SetItem",
    "PyDict_Copy",
    "PyDict_SetItem",
    "Py_IncRef",
    "Py_DecRef",
)
"""The members of `rutc_python`, in order."""
_VALUES: Final = {"f": 0, "d": 1, np.dtype(np.int64).char: 2}
"""The kinds of values of maps, as `rutc_values` numbers them."""


class Objects:
    """The functions of an opened library that read and make Python's objects.

    They are called with the interpreter's lock.

    Raises:
        AttributeError: the library, or this Python, lacks one.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        own = ctypes.PyDLL(library._name, handle=library._handle)
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self._read = own.rutc_python_read
        self._read.argtypes = (pointer, pointer, count, pointer)
        self._write = own.rutc_python_write
        self._write.argtypes = (pointer, pointer, count, pointer)
        self._maps = own.rutc_python_maps
        self._maps.argtypes = (
            *(pointer, pointer, ctypes.c_int32, count),
            *(pointer, count, ctypes.py_object),
        )
        self._maps.restype = ctypes.py_object
        api = ctypes.pythonapi
        addresses = [ctypes.cast(getattr(api, n), ctypes.c_void_p).value for n in _NEEDED]
        self._table = (ctypes.c_void_p * len(_NEEDED))(*addresses)
        self._python = ctypes.addressof(self._table)

    def read(self, objects: int, count: int, records: int) -> None:
        """Describes the strings that so many objects from an address on are, at another address.

        That is, by pairs (address, bytes), which are valid as long as the objects are.

        Raises:
            TypeError: an object is no `str`.
            UnicodeError: one has characters that UTF-8 has not.
        """
        if self._read(self._python, objects, count, records) != 0:
            raise TypeError("there is no object")

    def write(self, records: int, count: int, objects: int) -> None:
        """Puts the strings that pairs (address, bytes) describe into the places of objects."""
        self._write(self._python, records, count, objects)

    def maps_of(
        self, keys: Sequence[object], dtype: np.dtype[np.generic]
    ) -> Callable[[Array], list[Map]] | None:
        """Returns what makes a map from these keys to the values of each row of a dense matrix.

        None for values of types that it does not know.
        """
        kind = _VALUES.get(dtype.char)
        if kind is None:
            return None
        held: Array = np.array(list(keys), object)
        count, first, empty = len(held), address_of(held), dict.fromkeys(keys)
        make, python = self._maps, self._python

        def made(values: Array, _held: Array = held) -> list[Map]:
            place, rows = address_of(values), len(values)
            maps: list[Map] = make(python, place, kind, rows, first, count, empty)
            return maps

        return made


def address_of(array: Array) -> int:
    """Returns the address of a dense array that may be written to; 0 where it is empty."""
    return ctypes.addressof(first_byte(array)) if array.size else 0
