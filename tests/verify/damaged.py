"""Files of arrays that are damaged in ways which numpy answers with errors of many kinds."""

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np


def _packed(value: np.ndarray, method: int) -> bytearray:
    """The bytes of an `.npz` with one array `x`."""
    array, archive = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array(array, value)
    with zipfile.ZipFile(archive, "w", method) as entries:
        entries.writestr("x.npy", array.getvalue())
    return bytearray(archive.getvalue())


def encrypted(path: Path) -> None:
    """Writes an archive whose entry needs a password."""
    data = _packed(np.ones(3, np.float32), zipfile.ZIP_STORED)
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)


def packed_wrongly(path: Path) -> None:
    """Writes an archive whose entry cannot be decompressed."""
    data = _packed(np.ones(300, np.float32), zipfile.ZIP_LZMA)
    start = 30 + len("x.npy")
    data[start + 4 : start + 9] = b"\xff" * 5
    path.write_bytes(data)


def of_many_digits(path: Path) -> None:
    """Writes an archive whose array has an extent that is no 64-bit integer."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }\n" % (b"9" * 20)
    with zipfile.ZipFile(path, "w") as entries:
        start = np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little")
        entries.writestr("x.npy", start + header)


ARCHIVES: Mapping[str, Callable[[Path], None]] = {
    "encrypted": encrypted,
    "packed wrongly": packed_wrongly,
    "an extent of 20 digits": of_many_digits,
}
