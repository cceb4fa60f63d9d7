"""The cache of compiled objects: found again, never damaged, never too large."""

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from rutc.emit import archive, cache
from rutc.errors import UserError

KEYS = [f"00{number:062x}" for number in range(8)]
"""Keys of one of the cache's folders."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "objects"


def limit_shares(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Lets each folder of the cache hold so many bytes."""
    monkeypatch.setattr(cache, "limit_bytes", lambda: 2 * size * cache.SHARES)


def age(folder: Path, key: str, seconds: int) -> None:
    """Makes an object one that was used at that time."""
    os.utime(folder / key[:2] / key, (seconds, seconds))


def test_what_is_made_of_other_parts_has_another_key() -> None:
    parts = [("kind", ("a", b"b")), ("other", ("a", b"b")), ("kind", ("ab",))]
    keys = [cache.key_of(*each) for each in (*parts, ("kind", ("a", "b", "")))]
    assert len(set(keys)) == len(keys)
    cache.store(keys[0], b"made")
    assert [cache.lookup(key) for key in keys] == [b"made", None, None, None]


@pytest.mark.parametrize("damaged", [b"", b"made", b"made" + bytes(32)])
def test_a_damaged_object_is_made_again(folder: Path, damaged: bytes) -> None:
    cache.store(KEYS[0], b"made")
    (folder / "00" / KEYS[0]).write_bytes(damaged)
    assert cache.lookup(KEYS[0]) is None
    cache.store(KEYS[0], b"made again")
    assert cache.lookup(KEYS[0]) == b"made again"


def test_what_was_not_used_for_longest_goes_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 100 + cache.DIGEST_BYTES
    limit_shares(monkeypatch, 3 * size)
    for number, key in enumerate(KEYS[:3]):
        cache.store(key, bytes(100))
        age(folder, key, 1000 + number)
    assert cache.lookup(KEYS[0]) == bytes(100)
    cache.store(KEYS[3], bytes(100))
    assert [cache.lookup(key) is not None for key in KEYS[:4]] == [True, False, True, True]
    assert cache.usage().bytes == 3 * size


def test_an_object_larger_than_its_share_stays_until_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_shares(monkeypatch, 150)
    cache.store(KEYS[0], bytes(1000))
    assert cache.lookup(KEYS[0]) == bytes(1000)
    age(folder, KEYS[0], 1000)
    cache.store(KEYS[1], bytes(100))
    assert [cache.lookup(key) is not None for key in KEYS[:2]] == [False, True]


def test_remains_of_killed_processes_are_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_shares(monkeypatch, 200)
    (folder / "00").mkdir(parents=True)
    (folder / "00" / f".{KEYS[0]}.1.x").write_bytes(bytes(100))
    os.utime(folder / "00" / f".{KEYS[0]}.1.x", (1000, 1000))
    cache.store(KEYS[0], bytes(100))
    assert os.listdir(folder / "00") == [KEYS[0]]


def test_a_cache_of_no_size_stays_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUTC_CACHE_MIB", "0")
    cache.store(KEYS[0], b"made")
    assert cache.lookup(KEYS[0]) is None
    assert cache.usage().objects == 0


def test_nothing_is_used_of_a_cache_of_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.so"
    file.write_bytes(b"library")
    cache.store(KEYS[0], b"made")
    archive.store(KEYS[1], {"m.so": file}, {})

    def found() -> tuple[bytes | None, bool]:
        with archive.opened(KEYS[1]) as whole:
            return cache.lookup(KEYS[0]), whole is not None

    assert found() == (b"made", True)
    monkeypatch.setenv("RUTC_CACHE_MIB", "0")
    assert found() == (None, False)
    monkeypatch.delenv("RUTC_CACHE_MIB")
    assert found() == (b"made", True)


def test_the_limit_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUTC_CACHE_MIB", "3")
    assert cache.limit_bytes() == 3 << 20
    monkeypatch.setenv("RUTC_CACHE_MIB", "3G")
    with pytest.raises(UserError, match=r"RUTC_CACHE_MIB must be a whole number of MiB.*'3G'"):
        cache.limit_bytes()


def _hammer(seed: int) -> int:
    """Stores and looks up in the one folder; returns how many objects had another's content."""
    wrong = 0
    for turn in range(100):
        key = KEYS[(turn * (seed + 1)) % len(KEYS)]
        cache.store(key, key.encode() * 50)
        wrong += cache.lookup(KEYS[turn % len(KEYS)]) not in (
            None,
            KEYS[turn % len(KEYS)].encode() * 50,
        )
    return wrong


def test_processes_share_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_shares(monkeypatch, 4 * (64 * 50 + cache.DIGEST_BYTES))
    with ProcessPoolExecutor(3) as pool:
        assert sum(pool.map(_hammer, range(3))) == 0
    assert 1 <= cache.usage().objects <= 6


def test_clearing_removes_everything() -> None:
    cache.clear()
    cache.store(KEYS[0], b"made")
    assert cache.usage().objects == 1
    cache.clear()
    assert (cache.usage().objects, cache.lookup(KEYS[0])) == (0, None)
