"""What of the cache is used: what is whole, and nobody else's to write."""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rutc as package
from rutc.base.bulk import digest_of
from rutc.driver.parts.compile_job import Made
from rutc.emit import archive, cache
from rutc.errors import UserError
from tests.cli.conftest import invoke, write_small

KEY = "00" + 62 * "7"
OTHER = 54321
"""The number of another user."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has all of the small model."""
    folder = tmp_path_factory.mktemp("prepared")
    patch = pytest.MonkeyPatch()
    patch.setenv("RUTC_CACHE", str(folder / "cache"))
    assert not _compiled(write_small(folder / "small.onnx"))
    patch.undo()
    return folder / "cache"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache with an object and an archive beside what it takes to compile the small model."""
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))
    shutil.copytree(prepared, tmp_path / "cache")
    cache.store(KEY, b"made")
    (tmp_path / "file").write_text("text")
    archive.store(KEY, {"file": tmp_path / "file"}, {})
    cache._tell.cache_clear()
    yield tmp_path / "cache"
    cache._tell.cache_clear()


def _found() -> tuple[bool, bool]:
    """Whether the object and the archive are used."""
    with archive.opened(KEY) as opened:
        return cache.lookup(KEY) is not None, opened is not None


def _shared(path: Path) -> None:
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWGRP)


def _public(path: Path) -> None:
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWOTH)


def _given(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only the super-user gives files to others")
    os.chown(path, OTHER, -1)


CHANGES = [_shared, _public, _given]


def test_everything_in_it_is_private(folder: Path) -> None:
    assert _found() == (True, True)
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("name", "found"),
    [
        (".", (False, False)),
        ("objects", (False, True)),
        ("objects/00", (False, True)),
        (f"objects/00/{KEY}", (False, True)),
        ("artifacts", (True, False)),
        (f"artifacts/{KEY}", (True, False)),
    ],
)
def test_what_others_may_write_is_not_used(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    change: Callable[[Path], None],
    name: str,
    found: tuple[bool, bool],
) -> None:
    path = folder / name
    change(path)
    assert _found() == found
    assert _found() == found
    told = capfd.readouterr().err
    if path.is_dir():
        assert told.count("is not used") == told.count("\n") == 1
        assert str(path) in told
        cache.store(KEY, b"other")
        archive.store(KEY, {"file": Path(__file__)}, {})
        assert cache.lookup(KEY) == (b"other" if found[0] else None)
    else:
        cache.store(KEY, b"made again")
        archive.store(KEY, {"file": Path(__file__)}, {})
        assert _found() == (True, True)


@pytest.mark.parametrize("place", [f"objects/00/{KEY}", f"artifacts/{KEY}"])
def test_links_and_pipes_are_no_entries(folder: Path, tmp_path: Path, place: str) -> None:
    path = folder / place
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert not all(_found())
    path.unlink()
    os.mkfifo(path)
    assert not all(_found())
    path.unlink()
    path.mkdir()
    assert not all(_found())


def test_an_entry_under_another_name_is_none(folder: Path) -> None:
    other = f"00{62 * '8'}"
    shutil.copy(folder / "objects" / "00" / KEY, folder / "objects" / "00" / other)
    assert cache.lookup(KEY) == b"made"
    assert cache.lookup(other) is None


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/b", "", ".", "..", "a\0b", "a/"])
def test_names_in_archives_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    archive.store(KEY, {"good": tmp_path / "file", name: tmp_path / "file"}, {})
    before = sorted(tmp_path.rglob("*"))
    with archive.opened(KEY) as found:
        assert found is None
    assert sorted(tmp_path.rglob("*")) == before


JUNK = [
    b"",
    b"[]",
    b"{}",
    b"null",
    b"[" * 100_000,
    b"\xff",
    json.dumps({"files": 1, "facts": {}}).encode(),
    json.dumps({"files": [], "facts": []}).encode(),
    json.dumps({"files": [[]], "facts": {}}).encode(),
    json.dumps({"files": [["a", 1, 0, -5, ""]], "facts": {}}).encode(),
    json.dumps({"files": [["a", 1, 0, "5", ""]], "facts": {}}).encode(),
    json.dumps({"files": [["a", 1, 0.0, 0, ""]], "facts": {}}).encode(),
    json.dumps({"files": [[7, 1, 0, 0, ""]], "facts": {}}).encode(),
    json.dumps({"files": [["a", 1, 0, 0, ""], ["a", 1, 0, 0, ""]], "facts": {}}).encode(),
    json.dumps({"files": [["a", 1, 0, 1 << 80, ""]], "facts": {}}).encode(),
]


@pytest.mark.parametrize("text", JUNK)
def test_junk_with_a_right_digest_is_no_archive(folder: Path, text: bytes) -> None:
    tail = len(text).to_bytes(8, "little") + archive.hashlib.sha256(text).digest()
    (folder / "artifacts" / KEY).write_bytes(text + tail)
    with archive.opened(KEY) as found:
        assert found is None


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_small(tmp_path / "small.onnx")


def _compiled(model: Path) -> bool:
    """Whether an artifact that works was found in the cache."""
    output = model.with_suffix(".so")
    report = package.compile(model, output, verify=False).report
    with package.load(output, threads=1) as session:
        session.run(None, {"x": np.zeros((4, 8), np.float32)})
    return set(report.seconds) == {"cache"}


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.update(report=5),
        lambda facts: facts.update(inputs=5),
        lambda facts: facts.update(inputs={"": 5}),
        lambda facts: facts.update(inputs={**facts["inputs"], "../x": "", "a\0": ""}),
        lambda facts: facts["report"].update(flops="x"),
        lambda facts: facts["report"].update(more=1),
        lambda facts: facts["report"].pop("flops"),
        lambda facts: facts.clear(),
    ],
)
def test_facts_that_are_junk_are_replaced(
    folder: Path, model: Path, change: Callable[[dict[str, object]], object]
) -> None:
    _compiled(model)
    (path,) = [p for p in (folder / "artifacts").iterdir() if p.name != KEY]
    _changed_facts(path, change)
    assert not _compiled(model)
    assert _compiled(model)


def _changed_facts(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Changes the facts of an archive, whose digests stay right."""
    with path.open("rb") as file:
        found = archive._read(file, path)
        assert found is not None
        file.seek(0)
        data = file.read(sum(stored.bytes for stored in found.files))
    facts = dict(found.facts)
    change(facts)
    files = [[s.name, s.executable, s.start, s.bytes, s.digest] for s in found.files]
    text = json.dumps({"files": files, "facts": facts}).encode()
    tail = len(text).to_bytes(8, "little") + archive.hashlib.sha256(text).digest()
    path.write_bytes(data + text + tail)


def test_an_archive_of_other_files_is_replaced(folder: Path, model: Path) -> None:
    _compiled(model)
    (path,) = [p for p in (folder / "artifacts").iterdir() if p.name != KEY]
    with archive.opened(path.name) as found:
        assert found is not None
        facts = found.facts
    archive.store(path.name, {"small.h": model, "other.so": model}, facts)
    assert not _compiled(model)
    assert sorted(p.name for p in model.parent.glob("*.so")) == ["small.so"]
    assert _compiled(model)


@pytest.mark.parametrize("data", [b"", b"{}\n", b'{"symbol": 1}\n\x7fELF', b"\x7fELF", b"\x00"])
def test_objects_that_are_junk_are_replaced(folder: Path, model: Path, data: bytes) -> None:
    """All of them: the host runtime and the kernels, with right digests."""
    _compiled(model)
    keys = [p.name for p in (folder / "objects").rglob("*") if p.is_file() and p.name != KEY]
    assert len(keys) >= 3
    for key in keys:
        cache.store(key, data)
    shutil.rmtree(folder / "artifacts")
    assert not _compiled(model)
    assert data not in [cache.lookup(key) for key in keys]


def _paths(value: object) -> Iterator[tuple[object, ...]]:
    """Where parts of a JSON value lie, itself among them."""
    yield ()
    parts = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[call-overload]
    for key, part in parts:
        inner = _paths(part) if isinstance(part, dict | list) else [()]
        yield from ((key, *path) for path in inner)


def test_kernels_with_facts_of_other_types_are_none(folder: Path, model: Path) -> None:
    _compiled(model)
    data = [cache.lookup(p.name) for p in (folder / "objects").rglob("*") if p.is_file()]
    (kernel,) = [d for d in data if d is not None and d.startswith(b"{")]
    assert Made.found(kernel) is not None
    head, _, code = kernel.partition(b"\n")
    tried = 0
    for path in _paths(json.loads(head)):
        for junk in (None, 7, "x", -1.5, [[]], {}, True):
            facts = {"": json.loads(head)}
            holder: Any = facts
            for key in ("", *path)[:-1]:
                holder = holder[key]
            last = ("", *path)[-1]
            numbers = {type(junk), type(holder[last])} <= {int, float}
            if type(junk) is not type(holder[last]) and not numbers:
                holder[last] = junk
                found = Made.found(json.dumps(facts[""]).encode() + b"\n" + code)
                assert found is None or found == Made.found(kernel) or junk is None, (path, junk)
                tried += 1
    assert tried > 100
    for cut in (0, 1, 63, 64, len(code) // 2, len(code) - 1):
        assert Made.found(head + b"\n" + code[:cut]) is None


@pytest.mark.parametrize("kind", ["file", "below a file", "missing", "link to nothing", "long"])
def test_caches_that_cannot_be(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = {
        "file": tmp_path / "file",
        "below a file": tmp_path / "file" / "cache",
        "missing": tmp_path / "a" / "b" / "c",
        "link to nothing": tmp_path / "link",
        "long": tmp_path / ("a" * 300),
    }[kind]
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    monkeypatch.delenv("RUTC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    for words in (["cache"], ["cache", "--clear"]):
        done = invoke(*words)
        assert done.status in (0, 2), done.stderr
        assert "bug" not in done.stderr
    done = invoke("doctor", "--json")
    assert done.status == (0 if kind == "missing" else 1), done.stderr
    assert (kind == "missing") != ("(not writable: " in str(done.json["cache"]))
    assert (tmp_path / "file").read_text() == "text"
    if kind in ("file", "missing"):
        assert not _compiled(model)
        assert _compiled(model) == (kind == "missing")


def test_clearing_meets_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process adds meanwhile does not hinder it."""
    real = os.rename

    def busy(source: object, target: object) -> None:
        real(source, target)  # type: ignore[arg-type]
        cache.store(KEY, b"added")

    monkeypatch.setattr(os, "rename", busy)
    cache.clear()
    monkeypatch.undo()
    monkeypatch.setenv("RUTC_CACHE", str(folder))
    assert cache.lookup(KEY) == b"added"
    assert [n for n in os.listdir(folder) if n.startswith(".")] == []


def test_a_limit_that_is_no_size_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUTC_CACHE_MIB", "-1")
    with pytest.raises(UserError, match="RUTC_CACHE_MIB must be a whole number"):
        _compiled(model)
    assert not model.with_suffix(".so").exists()
    assert digest_of(model)
