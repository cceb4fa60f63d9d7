"""Digests and copies of files in pieces: the same however many threads there are."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from rutc.base import bulk
from rutc.base.bulk import Span, copied, digest_of


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces and blocks small enough for several of each."""
    monkeypatch.setattr(bulk, "PIECE_BYTES", 1000)
    monkeypatch.setattr(bulk, "BLOCK_BYTES", 300)


def content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def expected(data: bytes) -> bytes:
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    return hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in pieces)).digest()


@pytest.mark.parametrize("size", [0, 1, 299, 300, 1000, 1001, 7919])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_digest_is_that_of_the_pieces(tmp_path: Path, size: int, threads: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(content(size))
    assert digest_of(path, threads) == expected(content(size))


@pytest.mark.parametrize("size", [0, 1, 1000, 7919])
def test_a_copy_is_what_was_copied(tmp_path: Path, size: int) -> None:
    data = content(size + 20)
    (tmp_path / "source").write_bytes(data)
    (tmp_path / "target").write_bytes(b"before")
    with (tmp_path / "source").open("rb") as source, (tmp_path / "target").open("r+b") as target:
        digest = copied(Span(source.fileno(), 13, size), (target.fileno(), 6))
    assert (tmp_path / "target").read_bytes() == b"before" + data[13 : 13 + size]
    assert digest == expected(data[13 : 13 + size])


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1500))
    with path.open("rb") as file, pytest.raises(OSError, match="ends before"):
        copied(Span(file.fileno(), 0, 1501))


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1500))
    with path.open("rb") as file:
        reading = os.open(path, os.O_RDONLY)
        try:
            with pytest.raises(OSError, match="Bad file descriptor"):
                copied(Span(file.fileno(), 0, 1500), (reading, 0))
        finally:
            os.close(reading)
