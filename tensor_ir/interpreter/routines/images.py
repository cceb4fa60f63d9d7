"""Images in the formats PNG (without interlacing), BMP and binary PNM."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from rutc.tensor_ir.interpreter.routines.job import Job

UNKNOWN = "the image is no PNG (without interlacing), BMP or binary PNM"
OTHERS = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (4, b"jP  ", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (8, b"WEBP", "WebP"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"GIF8", "GIF"),
)
"""Formats that are not read: where in a stream which bytes tell them."""
DAMAGED = "the image is damaged"
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""PNG's color types and their samples a pixel."""


def image_size(job: Job) -> Sequence[np.ndarray]:
    """(height, width) of the image in a stream of bytes."""
    height, width, _ = _decoded(job).shape
    return np.array(height), np.array(width)


def image_pixels(job: Job) -> Sequence[np.ndarray]:
    """{height, width, 3}: red, green and blue of the image in a stream of bytes."""
    return (_decoded(job),)


def _decoded(job: Job) -> np.ndarray:
    stream = job.args[0].astype(np.uint8).tobytes()
    try:
        if stream[:8] == b"\x89PNG\r\n\x1a\n":
            found = _png(stream)
        elif stream[:2] == b"BM":
            found = _bmp(stream)
        elif stream[:2] in (b"P5", b"P6"):
            found = _pnm(stream)
        else:
            found = None
    except (IndexError, ValueError, struct.error, zlib.error):
        job.fail(DAMAGED)
    if found is None:
        told = (f", but a {name}" for at, mark, name in OTHERS if stream.startswith(mark, at))
        job.fail(UNKNOWN + next(told, ""))
    return found


def _png(stream: bytes) -> np.ndarray | None:
    width, height, bits, color, _, _, interlaced = struct.unpack(">IIBBBBB", stream[16:29])
    if color not in SAMPLES or interlaced:
        return None
    packed, palette = b"", np.zeros((0, 3), np.uint8)
    at = 8
    while at + 12 <= len(stream):
        (size,) = struct.unpack(">I", stream[at : at + 4])
        name, body = stream[at + 4 : at + 8], stream[at + 8 : at + 8 + size]
        if name == b"PLTE":
            palette = np.frombuffer(body, np.uint8).reshape(-1, 3)
        if name == b"IDAT":
            packed += body
        at += size + 12
    row_bytes = (width * SAMPLES[color] * bits + 7) // 8
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, row_bytes + 1)
    rows = _unfiltered(raw, max(1, SAMPLES[color] * bits // 8))
    if bits == 16:
        samples = rows[:, ::2]
    elif bits == 8:
        samples = rows
    else:
        parts = np.unpackbits(rows, axis=1).reshape(height, -1, bits)
        samples = (parts << np.arange(bits - 1, -1, -1)).sum(axis=2).astype(np.uint8)
        samples = samples if color == 3 else samples * (255 // ((1 << bits) - 1))
    samples = samples[:, : width * SAMPLES[color]].reshape(height, width, SAMPLES[color])
    if color == 3:
        return np.asarray(palette[samples[:, :, 0]])
    return samples[:, :, :3] if color in (2, 6) else np.repeat(samples[:, :, :1], 3, axis=2)


def _unfiltered(raw: np.ndarray, pixel: int) -> np.ndarray:
    """Rows of bytes from rows of differences, each after the number of its filter."""
    height, row_bytes = raw.shape[0], raw.shape[1] - 1
    rows = np.zeros((height + 1, row_bytes + pixel), np.int64)
    for y in range(height):
        kind, before, row = int(raw[y, 0]), rows[y], rows[y + 1]
        if kind > 4:
            raise ValueError("an unknown filter")
        for i in range(pixel, row_bytes + pixel):
            left, above, corner = int(row[i - pixel]), int(before[i]), int(before[i - pixel])
            nearest = min((left, above, corner), key=lambda v: abs(left + above - corner - v))
            guess = (0, left, above, (left + above) // 2, nearest)[kind]
            row[i] = (int(raw[y, i - pixel + 1]) + guess) & 255
    return rows[1:, pixel:].astype(np.uint8)


def _bmp(stream: bytes) -> np.ndarray | None:
    start, header, width, height = struct.unpack("<IIii", stream[10:26])
    bits, packing = struct.unpack("<HI", stream[28:34])
    if bits not in (8, 24, 32) or packing not in ((0, 3) if bits == 32 else (0,)):
        return None
    row_bytes = (width * bits + 31) // 32 * 4
    lines = abs(height)
    data = np.frombuffer(stream[start : start + lines * row_bytes], np.uint8)
    rows = data.reshape(lines, row_bytes)[:: -1 if height > 0 else 1]
    if bits == 8:
        first = 14 + header
        colors = np.frombuffer(stream[first:start], np.uint8)
        return colors[: len(colors) // 4 * 4].reshape(-1, 4)[rows[:, :width], 2::-1]
    pixels = rows[:, : width * bits // 8].reshape(lines, width, bits // 8)
    return pixels[:, :, 2::-1]


def _pnm(stream: bytes) -> np.ndarray | None:
    at = 2
    numbers: list[int] = []
    while len(numbers) < 3:
        if stream[at : at + 1] == b"#":
            at = stream.index(b"\n", at)
        elif stream[at : at + 1].isdigit():
            end = at
            while stream[end : end + 1].isdigit():
                end += 1
            numbers.append(int(stream[at:end]))
            at = end
            continue
        at += 1
        if at > len(stream):
            raise ValueError("no header")
    width, height, most = numbers
    if most != 255:
        return None
    channels = 3 if stream[1:2] == b"6" else 1
    first = at + 1
    data = np.frombuffer(stream[first : first + width * height * channels], np.uint8)
    return np.broadcast_to(data.reshape(height, width, channels), (height, width, 3))
