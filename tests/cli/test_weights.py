"""`--weights external`: every command finds the file beside the library, and misses it clearly."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rutc as package
from rutc.emit.targets import target_named
from rutc.errors import UserError
from rutc.runtime import ModelError, load
from rutc.verify import OutputComparison, Verification, verify_model
from tests.cli.conftest import Rutc, build
from tests.machines import lacking


@pytest.fixture(scope="module")
def external(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `rutc compile --weights external` makes of the model."""
    output = tmp_path_factory.mktemp("external") / "net.so"
    package.compile(model, output, weights="external")
    return output


def _values() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}


def _result(library: Path) -> np.ndarray:
    with package.load(library, threads=1) as session:
        return np.asarray(session.run(None, _values())[0])


def test_compile_writes_a_file_of_weights(rutc: Rutc, tmp_path: Path, model: Path) -> None:
    result = rutc("compile", model, "-o", tmp_path / "net.so", "--weights", "external", "--json")
    assert result.status == 0, result.stderr
    assert sorted(os.listdir(tmp_path)) == ["net.h", "net.so", "net.weights"]
    assert result.json["weights"] == str(tmp_path / "net.weights")
    again = rutc("compile", model, "-o", tmp_path / "net.so", "--weights", "external")
    assert "B of weights in net.weights, " in " ".join(again.stdout.split())
    assert "verified" in again.stdout
    inside = rutc("compile", model, "-o", tmp_path / "in.so", "--weights", "embed", "--json")
    assert inside.json["weights"] is None
    assert not (tmp_path / "in.weights").exists()
    assert _result(tmp_path / "net.so").tobytes() == _result(tmp_path / "in.so").tobytes()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "w4"])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_results_are_the_same(tmp_path: Path, precision: str, target: str) -> None:
    """Weights of 4 bits, two to a byte, of bytes and of floats, in odd sizes."""
    rng = np.random.default_rng(1)
    numbers = rng.integers(-8, 8, (7, 13)).astype(ml_dtypes.int4)
    small = helper.make_tensor("w", TensorProto.INT4, (7, 13), numbers.astype(np.int8).ravel())
    scale = helper.make_tensor("s", TensorProto.FLOAT, (), [0.25])
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["h"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"]),
        helper.make_node("MatMul", ["h", "f"], ["g"]),
        helper.make_node("Add", ["g", "b"], ["y"]),
    ]
    made = build(
        nodes,
        {
            "v": rng.standard_normal((8, 7)).astype(np.float32),
            "b": np.array([np.nan, np.inf, *range(11)], np.float32),
        },
    )
    made.graph.initializer.extend([small, scale])
    onnx.save(made, tmp_path / "m.onnx")
    if why := lacking(target_named(target).machine):
        pytest.skip(why)
    results = []
    for placement in ("embed", "external"):
        output = tmp_path / f"{placement}.so"
        options = {"precision": precision, "target": target, "weights": placement}
        package.compile(tmp_path / "m.onnx", output, verify=False, **options)  # type: ignore[arg-type]
        results.append(_result(output))
    assert results[0].shape == (4, 13)
    assert results[0].tobytes() == results[1].tobytes()


COMMANDS = (
    ["run"],
    ["bench", "--seconds", "0.1"],
    ["inspect", "--profile"],
    ["inspect", "--integrity"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_find_it(rutc: Rutc, tmp_path: Path, external: Path, command: list[str]) -> None:
    name, *options = command
    assert rutc(name, external, *options).status == 0
    library = shutil.copy(external, tmp_path)
    alone = rutc(name, library, *options)
    assert alone.status == 2
    assert alone.stderr.count("error:") == 1
    assert f"{tmp_path / 'net.weights'}: No such file or directory" in alone.stderr
    data = bytearray(external.with_suffix(".weights").read_bytes())
    data[0] ^= 1
    (tmp_path / "net.weights").write_bytes(data)
    changed = rutc(name, library, *options)
    assert changed.status == 2
    assert "net.weights has changed since it was compiled" in changed.stderr


def test_verify_finds_it(rutc: Rutc, tmp_path: Path, model: Path, external: Path) -> None:
    assert rutc("verify", model, external).status == 0
    alone = rutc("verify", model, shutil.copy(external, tmp_path))
    assert alone.status == 2
    assert "net.weights: No such file or directory" in alone.stderr


def test_inspect_tells_where_it_is(rutc: Rutc, tmp_path: Path, external: Path) -> None:
    """The library alone can be looked at, too."""
    file = external.with_suffix(".weights")
    shown = rutc("inspect", external)
    assert shown.status == 0
    assert f"weights in {file}" in shown.stdout.replace("\n", "")
    assert rutc("inspect", external, "--json").json["weights"] == {
        "file": str(file),
        "problem": None,
    }
    library = Path(shutil.copy(external, tmp_path))
    shown = rutc("inspect", library)
    assert shown.status == 0
    assert "no weights: cannot load" in shown.stdout
    library.with_suffix(".weights").write_bytes(file.read_bytes()[:-1] + b"?")
    assert "does not belong to" in rutc("inspect", library).stdout


@pytest.mark.parametrize("command", [["inspect"], ["run"]], ids=" ".join)
def test_a_library_that_was_renamed_alone(
    rutc: Rutc, tmp_path: Path, external: Path, command: list[str]
) -> None:
    """What is missing is said, where it was looked for, how it was called, and what to do."""
    shutil.copy(external.with_suffix(".weights"), tmp_path)
    library = shutil.copy(external, tmp_path / "other.so")
    done = rutc(*command, library)
    told = (done.stdout + done.stderr).replace("\n", "")
    assert f"cannot load {tmp_path / 'other.weights'}: No such file or directory" in told
    assert "(net.weights when it was compiled): rename and move both together" in told
    with pytest.raises(ModelError, match=r"other\.weights: No such .* move both together, or say"):
        load(library)
    shutil.move(tmp_path / "net.weights", tmp_path / "other.weights")
    assert rutc(*command, library).status == 0


def test_inspect_of_embedded_weights(rutc: Rutc, artifact: Path) -> None:
    assert rutc("inspect", artifact, "--json").json["weights"] is None


def test_a_bundle_has_it(rutc: Rutc, tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "served"
    done = rutc("compile", model, "--bundle", folder, "--weights", "external")
    assert done.status == 0, done.stderr
    names = ["rutc_runtime.py", "small.h", "small.so", "small.weights"]
    assert sorted(os.listdir(folder)) == names
    moved = shutil.move(folder, tmp_path / "elsewhere")
    script = """
import os, sys, numpy as np, rutc_runtime
x = {"x": np.ones((4, 8), np.float32)}
with rutc_runtime.load("small.so", check_integrity=True) as session:
    expected = session.run(None, x)[0]
os.rename("small.weights", "other")
with rutc_runtime.load("small.so", weights="other", check_integrity=True) as session:
    assert (session.run(None, x)[0] == expected).all()
try:
    rutc_runtime.load("small.so")
except rutc_runtime.ModelError as error:
    print(error)
assert not any(m.partition(".")[0] in ("rutc", "onnx", "llvmlite") for m in sys.modules)
"""
    command = [sys.executable, "-c", script]
    served = subprocess.run(command, cwd=moved, capture_output=True, text=True, check=False)
    assert served.returncode == 0, served.stderr
    assert "small.weights: No such file or directory; a library's weights lie" in served.stdout


def test_who_has_no_weights_has_no_file_of_them(rutc: Rutc, tmp_path: Path) -> None:
    onnx.save(build([helper.make_node("Relu", ["x"], ["y"])], {}), tmp_path / "m.onnx")
    output = tmp_path / "out" / "m.so"
    output.parent.mkdir()
    done = rutc("compile", tmp_path / "m.onnx", "-o", output, "--weights", "external", "--json")
    assert done.status == 0, done.stderr
    assert done.json["weights"] is None
    assert sorted(os.listdir(output.parent)) == ["m.h", "m.so"]


def test_what_does_not_agree_is_kept_with_it(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disagree(model: Path, library: Path, **more: object) -> Verification:
        real = verify_model(model, library)
        wrong = OutputComparison("y", "float32", (4, 16), passed=False, reason="made to differ")
        return replace(real, outputs=(wrong,))

    monkeypatch.setattr("rutc.verify.verify_model", disagree)
    assert rutc("compile", model, "-o", tmp_path / "net.so", "--weights", "external").status == 1
    kept = tmp_path / "net.unverified"
    assert sorted(os.listdir(tmp_path)) == ["net.unverified"]
    assert sorted(os.listdir(kept)) == ["net.h", "net.so", "net.weights"]
    package.load(kept / "net.so", check_integrity=True).close()


@pytest.mark.parametrize("placement", ["", "inside", "EMBED", "external "])
def test_places_that_there_are_not(rutc: Rutc, tmp_path: Path, model: Path, placement: str) -> None:
    told = "weights are placed by one of auto, embed, external"
    done = rutc("compile", model, "-o", tmp_path / "net.so", "--weights", placement)
    assert done.status == 2
    assert told in " ".join(done.stderr.split())
    with pytest.raises(UserError, match=told):
        package.compile(model, tmp_path / "net.so", weights=placement)
    assert os.listdir(tmp_path) == []
