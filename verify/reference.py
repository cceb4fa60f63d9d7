"""Runs a model in ONNX Runtime: the reference of verification, and the peer of benchmarks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rutc.base.record import record
from rutc.emit.targets.select import host_features
from rutc.errors import UserError
from rutc.importer.quantised import multiplies_bytes
from rutc.importer.restated import restated
from rutc.verify.feeding.input_spec import ONNX_DTYPES
from rutc.verify.judging.compare import Array, Value

if TYPE_CHECKING:
    import onnxruntime as ort


FOREIGN: Mapping[str, int] = {
    "bfloat16": 16,
    "float8e4m3fn": 17,
    "float8e4m3fnuz": 18,
    "float8e5m2": 19,
    "float8e5m2fnuz": 20,
    "uint4": 21,
    "int4": 22,
}
"""Types that numpy alone has not, with their numbers in ONNX: arrays of them go as bytes."""


_EXTERNAL = "session.model_external_initializers_file_folder_path"
"""What tells ONNX Runtime where the external weights of a model lie that is no file."""


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
            verification runs the model as it is written, as accurate as its types are.
        exact: Whether no sum of products of bytes may saturate; None: where it is not optimised.

    Raises:
        UserError: ONNX Runtime does not load the model.
    """

    def __init__(
        self,
        model: Path,
        threads: int | None = None,
        *,
        optimise: bool = False,
        exact: bool | None = None,
    ) -> None:
        # Loaded where it is needed: compiling without verification does without it.
        import onnxruntime as ort

        if not _is_text(model):
            raise UserError(
                f"ONNX Runtime cannot load {model}: its path is no UTF-8 text; rename it. {_ADVICE}"
            )
        options = ort.SessionOptions()
        options.log_severity_level = 4
        if threads is not None:
            options.intra_op_num_threads = threads
            options.inter_op_num_threads = 1
        if exact or (exact is None and not optimise):
            # Where a CPU has no dot products of bytes, sums of two products saturate otherwise.
            options.add_session_config_entry("session.x64quantprecision", "1")
        content = restated(model, exact=not optimise)
        if content is not None:
            options.add_session_config_entry(_EXTERNAL, str(model.absolute().parent))
        levels = ort.GraphOptimizationLevel
        tried = [levels.ORT_ENABLE_ALL if optimise else levels.ORT_ENABLE_BASIC]
        if not optimise and saturates(model):
            # The exact mode is a rewrite of this level, and may ask for operators that it lacks.
            tried.insert(0, levels.ORT_ENABLE_EXTENDED)
        for number, level in enumerate(tried, start=1):
            options.graph_optimization_level = level
            try:
                self._session = ort.InferenceSession(
                    content or str(model), options, providers=["CPUExecutionProvider"]
                )
                break
            except Exception as error:  # ONNX Runtime's errors share no base class but Exception.
                if number == len(tried):
                    raise UserError(
                        f"ONNX Runtime cannot load {model}: {_first_line(error)}. {_ADVICE}"
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
        feed = {n: np.asarray(v) if isinstance(v, np.generic) else v for n, v in inputs.items()}
        try:
            values = self._foreign(feed, names) if self._has_foreign() else self._plain(feed, names)
        except Exception as error:  # As above.
            raise UserError(
                f"ONNX Runtime does not run the model on these inputs: {_first_line(error)}"
            ) from error
        return dict(zip(names, map(comparable, values), strict=True))

    def _has_foreign(self) -> bool:
        """Whether all ports are tensors, some of which have no type that numpy has."""
        types = [port.dtype for port in (*self.inputs, *self.outputs)]
        tensors = all(t.startswith("tensor(") for t in types)
        return tensors and any(_element(t) in FOREIGN for t in types)

    def _plain(self, inputs: Mapping[str, Value], names: Sequence[str]) -> list[object]:
        values: list[object] = self._session.run(names, dict(inputs))
        return values

    def _foreign(self, inputs: Mapping[str, Value], names: Sequence[str]) -> list[object]:
        """What a run gives, in which arrays go in and out as their bytes."""
        import onnxruntime as ort

        feed = {}
        for port in self.inputs:
            x = np.asarray(inputs[port.name], order="C")
            number = FOREIGN.get(_element(port.dtype))
            feed[port.name] = (
                ort.OrtValue.ortvalue_from_numpy(x)
                if number is None
                else ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
                    x.view(f"u{x.itemsize}"), number
                )
            )
        return [_array(v) for v in self._session.run_with_ort_values(names, feed)]

    def unbound(self, inputs: Mapping[str, Value]) -> Callable[[], object]:
        """Returns a run that gives what ONNX Runtime's own gives, unchanged."""
        return partial(self._session.run, None, dict(inputs))

    def bound(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> Callable[[], object]:
        """Returns a run that reads these arrays and writes those, with no copy.

        Where an output has another shape than the model declares, ONNX Runtime allocates them: it
        computes such an output all the same, but writes into no array of that shape.
        """
        import onnxruntime as ort

        binding = self._session.io_binding()
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        if any(_contradict(p.shape, outputs[p.name].shape) for p in self.outputs):
            return partial(self._session.run_with_ort_values, list(outputs), values)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

        def run() -> object:
            # Values that are not held give their memory back.
            held = values, outputs
            self._session.run_with_iobinding(binding)
            return held[1]

        return run


def _contradict(declared: Sequence[object], shape: Sequence[int]) -> bool:
    """Whether a tensor of a declared rank has other sizes than are declared."""
    pairs = zip(declared, shape, strict=False)
    return any(isinstance(extent, int) and extent != size for extent, size in pairs)


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


def _element(onnx_type: str) -> str:
    """`float` of `tensor(float)`."""
    return onnx_type.removeprefix("tensor(").rstrip(")")


def _array(value: ort.OrtValue) -> Array:
    """A tensor of ONNX Runtime, in its own type."""
    element = _element(value.data_type())
    if element not in FOREIGN:
        return np.asarray(value.numpy())
    count = value.tensor_size_in_bytes()
    stored = np.frombuffer(ctypes.string_at(value.data_ptr(), count), np.uint8)
    shape, dtype = tuple(value.shape()), np.dtype(ONNX_DTYPES[element])
    if not element.endswith("int4"):
        return stored.view(dtype).reshape(shape)
    # Two in a byte, the first one in the lower half; int4 keeps the lower half of a byte.
    halves = np.stack([stored & 15, stored >> 4], axis=-1).reshape(-1)[: prod(shape)]
    return halves.astype(np.int8).astype(dtype).reshape(shape)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Numbers of Python as the floats of a map, which are single."""
    return values.astype(np.float32) if values.dtype.kind == "f" else values


def _keys(value: Mapping[object, object]) -> Value:
    keys = list(value)
    return np.array(keys, object if any(isinstance(k, str) for k in keys) else np.int64)


def _port(port: ort.NodeArg) -> Port:
    return Port(port.name, port.type, tuple(port.shape))


_ADVICE = (
    "Without it there is nothing to compare with; `rutc compile --no-verify` compiles unchecked."
)


def saturates(model: Path) -> bool:
    """Whether ONNX Runtime's sums of a model's products of bytes may saturate on this processor.

    They do where it lacks dot products of bytes, so that others stand in, but in the exact mode.

    Raises:
        UserError: The file is no model.
    """
    features = host_features()
    lacking = "avx2" in features and features.isdisjoint(("avxvnni", "avx512vnni"))
    return lacking and multiplies_bytes(model)


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:500] if lines else type(error).__name__


def listed(names: Sequence[str]) -> str:
    """Returns names of inputs or outputs as messages have them."""
    return ", ".join(map(repr, names)) or "none"
