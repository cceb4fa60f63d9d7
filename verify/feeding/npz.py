"""Files of named arrays (`.npz`), which are read without pickle, and so are most that are written.

    s: [a, b]       ->  s[0], s[1]
    m: {k: v, ...}  ->  m.keys, m.values

Strings get a fixed width. From strings of such a width numpy takes the NULs at their end, and they
all take as much as the longest: where that would lose or waste too much, they stay pickled objects,
which `numpy.load(path, allow_pickle=True)` reads.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError

import numpy as np

from rutc.base.files import write_file
from rutc.errors import UserError
from rutc.verify.judging.compare import Array, Value

MOST_BYTES = 1 << 28
"""Strings that take more at a fixed width stay objects."""

NUMPY_ERRORS: tuple[type[Exception], ...] = (
    *(OSError, ValueError, EOFError, MemoryError, SyntaxError, TokenError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, AttributeError, TypeError, OverflowError),
)
"""What numpy raises where a file is no array, only a part of one, or encrypted."""

with suppress(ImportError):  # Python can be built without it.
    from lzma import LZMAError

    NUMPY_ERRORS += (LZMAError,)


def numpy_says(error: BaseException) -> str:
    """What numpy says, but for its advice to run what a file of another kind may hold."""
    text = str(error)
    if "allow_pickle" not in text:
        return text
    return "it is of another format, or holds pickled objects (save strings as .astype(str))"


def open_npz(path: Path) -> dict[str, Array]:
    """Returns all arrays of an `.npz` file by name.

    Raises:
        UserError: the file cannot be read, or is no such file.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: np.asarray(stored[name]) for name in stored.files}
    except NUMPY_ERRORS as error:
        raise UserError(f"{path} is no numpy file of named arrays: {numpy_says(error)}") from error


def save_npz(path: Path, values: Mapping[str, Value]) -> None:
    """Writes named values as one `.npz`, complete or not at all.

    A sequence of no element, or an optional without one, has nothing in it.

    Raises:
        UserError: it cannot be written.
    """
    arrays = dict(part for name, value in values.items() for part in _parts(name, value))
    buffer = io.BytesIO()
    # The keyword arguments of savez cannot hold names such as "file".
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, _fixed_width(value), allow_pickle=True)
    write_file(path, buffer.getvalue())


def _parts(name: str, value: Value) -> Iterator[tuple[str, Array]]:
    match value:
        case None:
            return
        case list():
            for k, element in enumerate(value):
                yield from _parts(f"{name}[{k}]", element)
        case dict():
            yield f"{name}.keys", _array(value.keys())
            yield f"{name}.values", _array(value.values())
        case _:
            yield name, np.asarray(value)


def _array(items: Iterable[object]) -> Array:
    """A row of numbers, or of strings as objects."""
    row = list(items)
    return np.array(row, object if any(isinstance(item, str) for item in row) else None)


def _fixed_width(array: Array) -> Array:
    """The strings of an array as such of a fixed width, if all that they hold fits there."""
    texts = array.reshape(-1).tolist()
    if array.dtype != object or not all(isinstance(t, str) for t in texts):
        return array
    widest = max(map(len, texts), default=1)
    if widest * len(texts) * np.dtype("U1").itemsize > MOST_BYTES:
        return array
    fixed = array.astype(f"U{max(widest, 1)}")
    return fixed if fixed.reshape(-1).tolist() == texts else array
