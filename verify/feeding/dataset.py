"""Inputs from a folder, with the outputs that are expected of them where it holds such.

| in the folder | is one case |
|---|---|
| `*.npz` | arrays by the names of inputs, and perhaps of outputs |
| `test_data_set_*` | `input_0.pb`, ... in the model's order, and perhaps `output_0.pb`, ... |

A folder that is itself such a `test_data_set_0` is one case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rutc.base.record import record
from rutc.errors import UserError
from rutc.runtime import InferenceSession, NodeArg
from rutc.runtime.ports import Ports
from rutc.verify.feeding.input_files import conform, restored
from rutc.verify.feeding.input_spec import spec
from rutc.verify.feeding.npz import open_npz
from rutc.verify.judging.compare import Array, Value
from rutc.verify.reference import comparable


@record
class Sample:
    """One case: its name, a value per input, and those expected of some outputs."""

    name: str
    inputs: Mapping[str, Value]
    expected: Mapping[str, Value]


def sample_paths(folder: Path) -> tuple[Path, ...]:
    """Returns the files or folders of all cases, in the order of their names and numbers.

    Raises:
        UserError: there is no such folder, or no case in it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    if (folder / "input_0.pb").exists():
        return (folder,)
    found = [p for p in folder.glob("test_data_set_*") if p.is_dir()]
    found += folder.glob("*.npz")
    if not found:
        raise UserError(
            f"{folder} holds no case; rutc reads .npz files with the inputs by name, "
            "and folders test_data_set_0, ... with input_0.pb, ..."
        )
    return tuple(sorted(found, key=_order))


def check_samples(folder: Path, model: Ports) -> None:
    """Checks that some case of a folder can be read.

    Raises:
        UserError: there is no such folder, or none can.
    """
    told = []
    for path in sample_paths(folder):
        try:
            read_sample(path, model)
        except UserError as error:
            told.append(str(error))
        else:
            return
    raise UserError("\n".join(told))


def read_sample(path: Path, model: Ports | InferenceSession) -> Sample:
    """Returns the case of one of `sample_paths`.

    Raises:
        UserError: a file cannot be read, or an input is missing or does not fit the model.
    """
    takes, gives = model.get_inputs(), model.get_outputs()
    if path.is_dir():
        inputs, expected = _numbered(path, takes, "input"), _numbered(path, gives, "output")
    else:
        stored = open_npz(path)
        inputs = {p.name: stored[p.name] for p in takes if p.name in stored}
        expected = {p.name: _restored(p, stored) for p in gives if p.name in stored}
    missing = [p.name for p in takes if p.name not in inputs and p.value is None]
    if missing:
        raise UserError(f"{path} has no value for input {missing[0]!r}")
    held = {p.name: p.value for p in takes if p.value is not None}
    fitting = {p.name: _fitting(p, inputs[p.name], path) for p in takes if p.name in inputs}
    return Sample(path.name, {**held, **fitting}, expected)


def _order(path: Path) -> list[tuple[int, str]]:
    """Numbers in names count as numbers: test_data_set_2 is before test_data_set_10."""
    parts = re.findall(r"\d+|\D+", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _numbered(folder: Path, ports: Sequence[NodeArg], role: str) -> dict[str, Value]:
    """The values of the files `input_0.pb`, ..., or `output_0.pb`, ..., by the ports' names."""
    # onnx is imported only where a .pb file is read.
    from rutc.importer.reading.tensor_file import read_value

    paths = ((p, folder / f"{role}_{number}.pb") for number, p in enumerate(ports))
    found = {p.name: read_value(path, p.type) for p, path in paths if path.exists()}
    return {name: comparable(value) for name, value in found.items()}


def _restored(port: NodeArg, stored: Mapping[str, Array]) -> Array:
    """What is stored of an output, in its own type."""
    value = stored[port.name]
    if not port.type.startswith("tensor("):
        return value
    return restored(value, spec(port.name, port.type, port.shape).dtype)


def _fitting(port: NodeArg, value: Value, source: Path) -> Value:
    """A value of an input, if it fits; what is no tensor is left to the session to check."""
    if isinstance(value, np.ndarray) and port.type.startswith("tensor("):
        return conform(spec(port.name, port.type, port.shape), value, str(source))
    return value
