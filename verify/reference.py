"""Runs a model in ONNX Runtime: the reference of verification, and the peer of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rutc.errors import UserError
from rutc.record import record
from rutc.verify.compare import Value
from rutc.verify.inputs import ONNX_DTYPES

if TYPE_CHECKING:
    import onnxruntime as ort


@record
class Port:
    """An input or output as ONNX Runtime tells it: `dtype` as in `tensor(float)`."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


class Reference:
    """A model loaded in ONNX Runtime on the CPU.

    Args:
        model: The ONNX file.
        threads: Threads of a run; None leaves the choice to ONNX Runtime.
        optimise: Whether ONNX Runtime may rewrite the graph. Benchmarks compare with its best;
            verification runs the model as it is written.

    Raises:
        UserError: ONNX Runtime does not load the model.
    """

    def __init__(self, model: Path, threads: int | None = None, *, optimise: bool = False) -> None:
        # Loaded where it is needed: compiling without verification does without it.
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        if threads is not None:
            options.intra_op_num_threads = threads
            options.inter_op_num_threads = 1
        if not optimise:
            # Where a CPU has no dot products of bytes, sums of two products saturate otherwise.
            options.add_session_config_entry("session.x64quantprecision", "1")
        options.graph_optimization_level = (
            ort.GraphOptimizationLevel.ORT_ENABLE_ALL
            if optimise
            else ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        )
        try:
            self._session = ort.InferenceSession(
                str(model), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's errors share no base class but Exception.
            raise UserError(
                f"ONNX Runtime cannot load {model}: {_first_line(error)}. "
                "Without it there is nothing to compare with: compile with --no-verify."
            ) from error
        self.inputs = tuple(_port(port) for port in self._session.get_inputs())
        self.outputs = tuple(_port(port) for port in self._session.get_outputs())

    def run(
        self, inputs: Mapping[str, Value], outputs: Sequence[str] | None = None
    ) -> dict[str, Value]:
        """Returns every output (or the named ones) by name.

        Raises:
            UserError: ONNX Runtime does not run the model on these inputs.
        """
        names = [port.name for port in self.outputs] if outputs is None else list(outputs)
        try:
            values = self._session.run(names, dict(inputs))
        except Exception as error:  # As above.
            raise UserError(
                f"ONNX Runtime does not run the model on these inputs: {_first_line(error)}. "
                "Give real inputs with --input NAME=FILE."
            ) from error
        types = {port.name: port.dtype for port in self.outputs}
        typed = (_typed(value, types.get(n, "")) for n, value in zip(names, values, strict=True))
        return dict(zip(names, map(comparable, typed), strict=True))


def reference_version() -> str:
    """Returns the version of ONNX Runtime."""
    import onnxruntime as ort

    version: str = ort.__version__
    return version


def comparable(value: object) -> Value:
    """Returns a value of an output as tensors, sequences of them, or None.

    A map becomes [its keys, its values], maps of equal keys [the keys, a row of values for each].
    """
    if value is None or isinstance(value, np.ndarray):
        return value
    if isinstance(value, dict):
        return [_keys(value), _narrow(np.array(list(value.values())))]
    if isinstance(value, list):
        maps = [item for item in value if isinstance(item, dict)]
        if maps and len(maps) == len(value) and all(list(m) == list(maps[0]) for m in maps):
            return [_keys(maps[0]), _narrow(np.array([list(m.values()) for m in maps]))]
        return [comparable(item) for item in value]
    return np.asarray(value)


def _typed(value: object, onnx_type: str) -> object:
    """A tensor in its type, which ONNX Runtime gives as integers if numpy has no such type."""
    dtype = ONNX_DTYPES.get(onnx_type.removeprefix("tensor(").rstrip(")"))
    if not isinstance(value, np.ndarray) or dtype is None:
        return value
    wanted = np.dtype(dtype)
    same = value.dtype.itemsize == wanted.itemsize and value.dtype.kind == "u"
    return value.view(wanted) if same and wanted.kind == "V" else value


def _narrow(values: np.ndarray) -> np.ndarray:
    """Numbers of Python as the floats of a map, which are single."""
    return values.astype(np.float32) if values.dtype.kind == "f" else values


def _keys(value: Mapping[object, object]) -> Value:
    keys = list(value)
    return np.array(keys, object if any(isinstance(k, str) for k in keys) else np.int64)


def _port(port: ort.NodeArg) -> Port:
    return Port(port.name, port.type, tuple(port.shape))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:500] if lines else type(error).__name__
