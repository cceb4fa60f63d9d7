"""The model cache: complete or absent, made once, and clear about what stands in its way."""

import multiprocessing
from pathlib import Path

import pytest

from rutc.errors import UserError
from rutc.models.model_cache import cache_folder, cached


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))


def _visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_is_made_once() -> None:
    calls: list[Path] = []

    def make(path: Path) -> None:
        calls.append(path)
        path.write_text("made")

    first, second = cached("set/file.onnx", make), cached("set/file.onnx", make)
    assert first == second == cache_folder() / "set" / "file.onnx"
    assert first.read_text() == "made"
    assert len(calls) == 1


def test_a_folder_appears_complete() -> None:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "a.onnx").write_text("a")

    assert (cached("set", make) / "a.onnx").read_text() == "a"


def test_a_failure_leaves_nothing_and_can_be_repeated() -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise UserError("interrupted")

    with pytest.raises(UserError, match="interrupted"):
        cached("set/file.onnx", fail)
    assert _visible(cache_folder() / "set") == []
    assert cached("set/file.onnx", lambda path: path.touch()).is_file()


def test_a_cache_that_cannot_be_written_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot put file\.onnx .* \$RUTC_CACHE"):
        cached("file.onnx", lambda path: path.touch())


def _make_and_record(record: Path) -> None:
    def make(path: Path) -> None:
        with record.open("a") as file:
            file.write("made\n")
        path.write_bytes(b"x" * 1_000_000)

    assert cached("set/file.onnx", make).stat().st_size == 1_000_000


def test_processes_that_ask_at_once_share_one(tmp_path: Path) -> None:
    record = tmp_path / "record"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_make_and_record, args=(record,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert record.read_text() == "made\n"
    assert _visible(cache_folder() / "set") == ["file.onnx"]
