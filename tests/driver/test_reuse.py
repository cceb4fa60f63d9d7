"""Artifacts used again: only where nothing that decides them has changed."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.driver import reuse
from rutc.driver.options import Options, Report
from rutc.driver.reuse import Entry, entry
from rutc.emit import archive, cache
from rutc.emit.linking.toolchain import Toolchain, find_toolchain
from rutc.emit.targets import native_target
from rutc.errors import UserError
from rutc.runtime import load
from tests.cli.conftest import write_small


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache whose compiled parts all tests share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def folder(parts: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of artifacts, of which there is none yet."""
    monkeypatch.setenv("RUTC_CACHE", str(parts))
    shutil.rmtree(parts / "artifacts", ignore_errors=True)
    return parts / "artifacts"


def write(path: Path, weight: float = 2.0, *, external: bool = False) -> Path:
    """A model y = x * weight[0] + zeros, whose weights may lie beside it."""
    weights = np.zeros(1 << 17, np.float32)
    weights[len(weights) // 2] = weight
    middle = numpy_helper.from_array(np.array([len(weights) // 2]), "middle")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["w", "middle"], ["f"]), helper.make_node("Mul", "xf", "y")],
        "scale",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [middle, numpy_helper.from_array(weights, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, path, save_as_external_data=external, location=f"{path.stem}.data")
    return path


def compiled(model: Path, **options: object) -> tuple[bool, float]:
    """Whether an artifact was used again, and what it makes of 3."""
    output = model.with_suffix(".so")
    report = rutc.compile(model, output, verify=False, **options).report  # type: ignore[arg-type]
    with load(output, threads=1) as session:
        (y,) = session.run(None, {"x": np.array([3], np.float32)})
    assert report.header.exists()
    return set(report.seconds) == {"cache"}, float(y[0])


def test_an_unchanged_model_is_not_compiled_again(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    assert compiled(model) == (False, 6)
    first = (tmp_path / "m.so").read_bytes(), (tmp_path / "m.h").read_bytes()
    report = rutc.compile(model, tmp_path / "m.so", verify=False).report
    assert set(report.seconds) == {"cache"}
    assert ((tmp_path / "m.so").read_bytes(), (tmp_path / "m.h").read_bytes()) == first
    assert os.access(tmp_path / "m.so", os.X_OK)


def test_a_file_of_weights_comes_back(tmp_path: Path) -> None:
    model, file = write_small(tmp_path / "m.onnx"), tmp_path / "m.weights"

    def again(weights: str) -> tuple[bool, Path | None]:
        made = rutc.compile(model, tmp_path / "m.so", verify=False, weights=weights)
        load(made.library, check_integrity=True).close()
        return set(made.report.seconds) == {"cache"}, made.weights

    assert again("external") == (False, file)
    content = file.read_bytes()
    file.unlink()
    assert again("external") == (True, file)
    assert file.read_bytes() == content
    assert again("embed") == (False, None)
    assert again("embed") == (True, None)


def test_the_report_is_that_of_the_first_time(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    first, second = (rutc.compile(model, tmp_path / "m.so").report for _ in range(2))
    assert replace(first, seconds={}) == replace(second, seconds={})
    assert first.seconds != second.seconds


def test_what_is_used_again_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path / "m.onnx")
    assert rutc.compile(model, tmp_path / "m.so").verification is not None
    again = rutc.compile(model, tmp_path / "m.so")
    assert set(again.report.seconds) == {"cache"}
    assert again.verification is not None
    assert again.verification.passed


def test_a_weight_in_the_middle_counts(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    before = model.stat()
    assert compiled(model) == (False, 6)
    write(model, 5.0)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model.stat().st_size == before.st_size
    assert compiled(model) == (False, 15)
    assert compiled(model) == (True, 15)


def test_files_beside_the_model_count(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", external=True)
    assert compiled(model) == (False, 6)
    assert compiled(model) == (True, 6)
    other = write(tmp_path / "other.onnx", 7.0, external=True).with_suffix(".data")
    (tmp_path / "m.data").write_bytes(other.read_bytes())
    assert compiled(model) == (False, 21)
    (tmp_path / "m.data").unlink()
    with pytest.raises(UserError, match="is missing"):
        compiled(model)
    (tmp_path / "m.data").symlink_to(other)
    with pytest.raises(UserError, match="symbolic link"):
        compiled(model)


def test_options_count(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    assert compiled(model) == (False, 6)
    assert compiled(model, dims={"n": 1}) == (False, 6)
    assert compiled(model, dims={"n": (1, 2)}) == (False, 6)
    assert compiled(model, shapes={"x": (1,)}) == (False, 6)
    assert compiled(model, values={"x": np.array([3], np.float32)}) == (False, 6)
    assert compiled(model, jobs=1) == (True, 6)
    assert compiled(model, threads=1) == (True, 6)
    assert compiled(model, dump=tmp_path / "dump") == (False, 6)
    assert (tmp_path / "dump").is_dir()


def test_the_names_of_model_and_artifact_count(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    assert compiled(model) == (False, 6)
    report = rutc.compile(model, tmp_path / "n.so", verify=False).report
    assert set(report.seconds) != {"cache"}
    assert compiled(model.rename(tmp_path / "k.onnx")) == (False, 6)


OPTIONS = Options()
ARRAY = np.arange(2, dtype=np.int32)


@pytest.mark.parametrize(
    "options",
    [
        replace(OPTIONS, target="x86-64-v3"),
        replace(OPTIONS, exact_algorithms=True),
        replace(OPTIONS, keep_subnormals=True),
        replace(OPTIONS, dims={"a": 1}),
        replace(OPTIONS, dims={"a": (1, 1)}),
        replace(OPTIONS, shapes={"a": (1,)}),
        replace(OPTIONS, values={"a": ARRAY}),
        replace(OPTIONS, values={"b": ARRAY}),
        replace(OPTIONS, values={"a": ARRAY[None]}),
        replace(OPTIONS, values={"a": ARRAY.view(np.float32)}),
        replace(OPTIONS, values={"a": ARRAY + 1}),
        replace(OPTIONS, values={"a": np.array(["x"], object)}),
        replace(OPTIONS, values={"a": np.array(["y"], object)}),
    ],
)
def test_every_option_has_a_key_of_its_own(tmp_path: Path, options: Options) -> None:
    model = write(tmp_path / "m.onnx")
    toolchain = find_toolchain()
    key = Entry(model, "m.so", options, toolchain).key
    assert key == Entry(model, "m.so", options, toolchain).key
    assert key != Entry(model, "m.so", OPTIONS, toolchain).key
    others = [replace(options, values={"a": ARRAY * 2}), replace(options, precision="fp16")]
    assert key not in {Entry(model, "m.so", other, toolchain).key for other in others}


def test_the_order_of_options_does_not_count(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    keys = {
        Entry(model, "m.so", replace(OPTIONS, dims=dims, jobs=jobs), find_toolchain()).key
        for dims, jobs in (({"a": 1, "b": 2}, 1), ({"b": 2, "a": 1}, None))
    }
    assert len(keys) == 1


def test_sources_versions_and_compiler_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path / "m.onnx")
    toolchain = find_toolchain()
    keys = [Entry(model, "m.so", OPTIONS, toolchain).key]
    keys.append(Entry(model, "m.so", OPTIONS, Toolchain(toolchain.command, "other")).key)
    monkeypatch.setattr(reuse, "sources_digest", lambda: "other")
    keys.append(Entry(model, "m.so", OPTIONS, toolchain).key)
    monkeypatch.setattr(reuse, "versions", lambda: ("other",))
    keys.append(Entry(model, "m.so", OPTIONS, toolchain).key)
    assert len(set(keys)) == 4


def test_sources_are_those_of_what_is_imported() -> None:
    files = [p for folder in reuse.FOLDERS for p in (reuse.ROOT / folder).rglob("*.py")]
    used = {m for p in files for m in re.findall(r"from rutc\.(\w+)", p.read_text())}
    assert {m for m in used if (reuse.ROOT / m).is_dir()} == set(reuse.FOLDERS)


def test_versions_are_those_of_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {name: version(name) for name in reuse.PACKAGES}
    usual = [f"{name}-{number}.dist-info" for name, number in found.items()]
    assert list(reuse.versions.__wrapped__()) == usual
    # Without folders of the usual name, and with one that comes first.
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "none")])
    (tmp_path / "numpy-0.1.dist-info").mkdir()
    monkeypatch.setattr("importlib.metadata.version", found.__getitem__)
    rest = [f"{name} {number}" for name, number in found.items() if name != "numpy"]
    assert list(reuse.versions.__wrapped__()) == ["numpy-0.1.dist-info", *rest]


def test_a_damaged_artifact_is_made_again(tmp_path: Path, folder: Path) -> None:
    model = write(tmp_path / "m.onnx")
    compiled(model)
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    assert compiled(model) == (False, 6)
    assert compiled(model) == (True, 6)


def test_what_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path / "m.onnx")
    compiled(model)
    before = sorted(path.name for path in tmp_path.iterdir())
    library = (tmp_path / "m.so").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "copied", full)
    with pytest.raises(UserError, match=r"cannot write .*m\.so: No space left"):
        compiled(model)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "m.so").read_bytes() == library


def test_links_are_not_followed(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    assert compiled(model) == (False, 6)
    other = tmp_path / "other"
    other.write_bytes(b"other")
    (tmp_path / "m.so").unlink()
    (tmp_path / "m.so").hardlink_to(other)
    assert compiled(model) == (True, 6)
    assert other.read_bytes() == b"other"
    (tmp_path / "m.so").unlink()
    (tmp_path / "m.so").symlink_to(other)
    with pytest.raises(UserError, match="it is a symbolic link"):
        compiled(model)
    assert other.read_bytes() == b"other"
    assert (tmp_path / "m.so").is_symlink()


def test_a_model_that_changes_meanwhile_is_not_kept(tmp_path: Path, folder: Path) -> None:
    model = write(tmp_path / "m.onnx")
    place = entry(model, "m.so", OPTIONS, find_toolchain())
    assert place is not None
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "m.so").write_bytes(b"library")
    report = Report(tmp_path / "out" / "m.so", tmp_path / "out" / "m.h", {}, 1, 0, 0, 0)
    write(model, 3.0)
    place.store(report, {})
    assert not folder.exists()
    place = entry(model, "m.so", OPTIONS, find_toolchain())
    assert place is not None
    place.store(report, {"m.onnx": (0, 0, 0)})
    assert not folder.exists()
    place.store(report, {})
    assert len(list(folder.iterdir())) == 1


def test_there_is_no_entry_without_a_cache_or_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path / "m.onnx")
    assert entry(tmp_path / "none.onnx", "m.so", OPTIONS, find_toolchain()) is None
    assert entry(model, "m.so", replace(OPTIONS, dump=tmp_path), find_toolchain()) is None
    monkeypatch.setenv("RUTC_CACHE_MIB", "0")
    assert entry(model, "m.so", OPTIONS, find_toolchain()) is None
    assert compiled(model) == (False, 6)
    assert compiled(model) == (False, 6)
    assert cache.usage().artifacts == 0


def test_processes_that_compile_the_same_model_agree(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    # All for the same rates: under load, measurements of two processes may differ.
    target = native_target().name
    script = [sys.executable, "-m", "rutc.cli", "compile", "--no-verify", "--target", target]
    script += [str(model), "-o"]
    outputs = [tmp_path / str(n) / "m.so" for n in range(2)]
    for output in outputs:
        output.parent.mkdir()
    running = [subprocess.Popen([*script, str(o)], stdout=subprocess.DEVNULL) for o in outputs]
    assert [process.wait() for process in running] == [0, 0]
    assert len({output.read_bytes() for output in outputs}) == 1
    assert compiled(model, target=target) == (True, 6)
