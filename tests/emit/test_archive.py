"""Archives of whole artifacts: complete or not there, of bounded size, safe to share."""

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from rutc.emit import archive, cache

KEYS = [f"{number:064x}" for number in range(4)]
SIZE = 5000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "artifacts"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Two files to keep."""
    made = {"a.so": tmp_path / "a.so", "a.h": tmp_path / "a.h"}
    made["a.so"].write_bytes(os.urandom(SIZE))
    made["a.so"].chmod(0o755)
    made["a.h"].write_text("text")
    return made


def extracted(key: str, folder: Path) -> bool:
    """Whether an archive is there and gave its files."""
    folder.mkdir(exist_ok=True)
    with archive.opened(key) as found:
        return found is not None and found.extract(folder)


def test_files_come_back_with_facts_and_modes(tmp_path: Path, files: dict[str, Path]) -> None:
    archive.store(KEYS[0], files, {"number": 1})
    assert extracted(KEYS[0], tmp_path / "out")
    for name, path in files.items():
        assert (tmp_path / "out" / name).read_bytes() == path.read_bytes()
    assert os.access(tmp_path / "out" / "a.so", os.X_OK)
    assert not os.access(tmp_path / "out" / "a.h", os.X_OK)
    with archive.opened(KEYS[0]) as found:
        assert found is not None
        assert found.facts == {"number": 1}


def test_without_an_archive_there_is_nothing(tmp_path: Path) -> None:
    assert not extracted(KEYS[0], tmp_path / "out")


@pytest.mark.parametrize("place", [0, SIZE - 1, SIZE + 2, -200, -39, -5])
def test_a_changed_byte_is_noticed(
    tmp_path: Path, folder: Path, files: dict[str, Path], place: int
) -> None:
    archive.store(KEYS[0], files, {"padding": "x" * 200})
    data = bytearray((folder / KEYS[0]).read_bytes())
    data[place] ^= 1
    (folder / KEYS[0]).write_bytes(data)
    assert not extracted(KEYS[0], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    archive.store(KEYS[0], files, {})
    assert extracted(KEYS[0], tmp_path / "out")


@pytest.mark.parametrize("kept", [0, 1, 39, 40, 300, SIZE, SIZE + 100])
def test_part_of_an_archive_is_none(
    tmp_path: Path, folder: Path, files: dict[str, Path], kept: int
) -> None:
    archive.store(KEYS[0], files, {"padding": "x" * 200})
    data = (folder / KEYS[0]).read_bytes()
    (folder / KEYS[0]).write_bytes(data[:kept])
    assert not extracted(KEYS[0], tmp_path / "out")
    (folder / KEYS[0]).write_bytes(data[kept:])
    assert extracted(KEYS[0], tmp_path / "out") == (kept == 0)


def test_what_was_not_used_for_longest_goes_first(
    tmp_path: Path, folder: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "limit_bytes", lambda: 2 * 3 * (SIZE + 500))
    for number, key in enumerate(KEYS[:3]):
        archive.store(key, files, {})
        os.utime(folder / key, (1000 + number, 1000 + number))
    assert extracted(KEYS[0], tmp_path / "out")
    archive.store(KEYS[3], files, {})
    assert sorted(os.listdir(folder)) == [KEYS[0], KEYS[2], KEYS[3]]
    assert cache.usage().artifacts == 3
    cache.clear()
    assert cache.usage().artifacts == 0


def test_what_is_too_large_is_not_kept(
    folder: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "limit_bytes", lambda: 4 * SIZE)
    archive.store(KEYS[0], files, {})
    assert not folder.exists()
    archive.store(KEYS[0], {"a.h": files["a.h"]}, {})
    assert os.listdir(folder) == [KEYS[0]]


def test_a_cache_that_cannot_be_written_is_left_alone(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "a.h" / "cache"))
    archive.store(KEYS[0], files, {})
    assert not extracted(KEYS[0], tmp_path / "out")


def test_nothing_remains_of_an_archive_that_could_not_be_finished(
    folder: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "copied", full)
    archive.store(KEYS[0], files, {})
    assert os.listdir(folder) == []


def _hammer(task: tuple[int, dict[str, Path], Path]) -> int:
    """Stores and extracts under the same keys; returns how many files were not what they are."""
    seed, files, out = task
    wrong = 0
    for turn in range(30):
        archive.store(KEYS[(turn + seed) % 3], files, {"seed": seed})
        folder = out / f"{seed}.{turn}"
        if extracted(KEYS[turn % 3], folder):
            wrong += any((folder / n).read_bytes() != p.read_bytes() for n, p in files.items())
    return wrong


def test_processes_share_the_archives(
    tmp_path: Path, folder: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "limit_bytes", lambda: 2 * 2 * (SIZE + 500))
    (tmp_path / "out").mkdir()
    with ProcessPoolExecutor(3) as pool:
        tasks = [(seed, files, tmp_path / "out") for seed in range(3)]
        assert sum(pool.map(_hammer, tasks)) == 0
    assert 1 <= len(os.listdir(folder)) <= 3
