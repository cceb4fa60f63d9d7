"""The tests of ONNX's backend suite as plain data, and the suite's own comparison of outputs."""

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto, TypeProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from rutc.base.files import write_atomically
from rutc.emit.linking.toolchain import cache_directory

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "real")

FORMAT = 1
"""Changes with the meaning of the cached tests."""


@dataclass(frozen=True)
class DataSet:
    """Inputs in the order of the model's graph inputs that have no initializer, and outputs.

    Each is an array (a numpy scalar counts as one), a list (a sequence), or None (an empty
    optional).
    """

    inputs: tuple[object, ...]
    outputs: tuple[object, ...]


@dataclass(frozen=True)
class Case:
    """One test: a model, its data, and the tolerances that its author gave."""

    name: str
    kind: str
    model: bytes
    data_sets: tuple[DataSet, ...]
    rtol: float
    atol: float

    def proto(self) -> ModelProto:
        """The model."""
        return onnx.load_model_from_string(self.model)

    def compare(self, outputs: Sequence[object], expected: Sequence[object]) -> None:
        """Compares as the suite does: shapes, dtypes, values within `rtol` and `atol`.

        Raises:
            AssertionError: They differ; says where.
        """
        Runner.assert_similar_outputs(list(expected), list(outputs), self.rtol, self.atol)


def load_cases() -> list[Case]:
    """All tests in the suite's order, from the cache if this version's are there.

    The suite computes expected values with the installed numpy, so it is part of the key.
    """
    packages = ("onnx", "numpy", "ml_dtypes")
    key = repr((FORMAT, [(p, version(p)) for p in packages]))
    path = cache_directory() / "conformance" / hashlib.sha256(key.encode()).hexdigest()
    if path.exists():
        cases: list[Case] = pickle.loads(path.read_bytes())
        return cases
    cases = [_case(test, kind) for kind in KINDS for test in load_model_tests(kind=kind)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, pickle.dumps(cases))
    return cases


def _case(test: TestCase, kind: str) -> Case:
    if kind == "real":
        return _real(test)
    if test.model is not None:
        model = test.model.SerializeToString()
        sets = [DataSet(_values(i), _values(o)) for i, o in test.data_sets or ()]
    else:
        folder = Path(str(test.model_dir))
        model = (folder / "model.onnx").read_bytes()
        proto = onnx.load_model_from_string(model)
        sets = []
        for part in sorted(folder.glob("test_data_set_*")):
            inputs = _files(part, "input", [i.type for i in graph_inputs(proto)])
            outputs = _files(part, "output", [o.type for o in proto.graph.output])
            sets.append(DataSet(inputs, outputs))
    return Case(test.name, kind, model, tuple(sets), test.rtol, test.atol)


def _real(test: TestCase) -> Case:
    """A network whose weights are made up, with the input that the suite's runner makes for it."""
    root = Path(onnx.__file__).parent
    path = root / "backend" / "test" / "data" / "light" / Path(str(test.url)).name
    proto = onnx.load(path)
    inputs = [Runner.generate_dummy_data(i) for i in graph_inputs(proto)]
    files = [path.with_name(f"{path.stem}_output_{i}.pb") for i in range(len(proto.graph.output))]
    outputs = [numpy_helper.to_array(TensorProto.FromString(f.read_bytes())) for f in files]
    data = DataSet(tuple(inputs), tuple(outputs))
    return Case(test.name, "real", path.read_bytes(), (data,), test.rtol, test.atol)


def graph_inputs(model: ModelProto) -> list[onnx.ValueInfoProto]:
    """The graph's inputs that no initializer gives."""
    given = {i.name for i in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in given]


def _values(items: Sequence[object]) -> tuple[object, ...]:
    return tuple(numpy_helper.to_array(x) if isinstance(x, TensorProto) else x for x in items)


def _files(folder: Path, role: str, types: Sequence[TypeProto]) -> tuple[object, ...]:
    return tuple(
        _parsed((folder / f"{role}_{i}.pb").read_bytes(), kind) for i, kind in enumerate(types)
    )


def _parsed(data: bytes, kind: TypeProto) -> object:
    match kind.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        case _:
            return numpy_helper.to_array(TensorProto.FromString(data))
