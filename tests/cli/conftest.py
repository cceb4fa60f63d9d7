"""Small ONNX models, one compiled artifact, and the command line called in this process."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from rutc.cli import app


@dataclass(frozen=True)
class Outcome:
    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Mapping[str, object]:
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        return value


Rutc = Callable[..., Outcome]


def invoke(*arguments: object) -> Outcome:
    """The command line, in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def rutc() -> Rutc:
    """The command line: `rutc("compile", path)`."""
    return invoke


def build(nodes: list[onnx.NodeProto], weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A model from float32 `x` {4, 8} to `y`."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def weight() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


def write_small(path: Path) -> Path:
    """Writes y{4, 16} = relu(x @ w)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["y"], name="positive"),
    ]
    onnx.save(build(nodes, {"w": weight()}), path)
    return path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="session")
def artifact(model: Path) -> Path:
    """What `rutc compile` makes of the model."""
    output = model.with_name("small.so")
    result = CliRunner().invoke(app, ["compile", str(model), "-o", str(output)])
    assert result.exit_code == 0, result.stderr
    return output


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where records go if nobody says it."""
    monkeypatch.setenv("RUTC_DB", str(tmp_path / "records.sqlite"))
    return tmp_path / "records.sqlite"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose kernels take some microseconds."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 512)).astype(np.float32),
        "v": rng.standard_normal((512, 256)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Tanh", ["h"], ["t"], name="curve"),
        helper.make_node("MatMul", ["t", "v"], ["y"], name="second"),
    ]
    path = tmp_path_factory.mktemp("wide") / "wide.onnx"
    onnx.save(build(nodes, weights), path)
    return path
