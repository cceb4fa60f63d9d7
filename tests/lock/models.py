"""The models of the lock: the zoo's, and single operators."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from benchmarks.cases import CASES as KERNELS
from benchmarks.cases import MORE
from benchmarks.layers import MODELS as LAYERS
from benchmarks.operator_cases import CASES as OPERATORS
from rutc.models.dynamic import DynamicModel, dynamic_models
from rutc.models.zoo import Model, zoo

FREE = ", free sizes"
"""What follows the name of a zoo model that is compiled as it is."""


@dataclass(frozen=True)
class Locked:
    """A model of the lock: how its file is got, and the sizes that are told."""

    name: str
    source: object
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dims: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)

    @contextmanager
    def file(self) -> Iterator[Path]:
        """The ONNX file, as long as the context lasts.

        Raises:
            UserError: the zoo's model cannot be obtained here.
        """
        if isinstance(self.source, Model | DynamicModel):
            yield self.source.source.obtain()
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(self.source.build(), path)  # type: ignore[attr-defined]
            yield path


def models(parts: Sequence[str] = ()) -> list[Locked]:
    """All models whose names have one of these parts; all without any."""
    known = [Locked(m.name, m, m.shapes) for m in zoo()]
    known += [Locked(m.name + FREE, m) for m in zoo()]
    known += [Locked(f"{m.name}, ranges", m, dims=m.dims) for m in dynamic_models()]
    single = [(f"kernel {c.name}", c) for c in (*KERNELS, *MORE)]
    single += [(f"operator {c.name}", c) for c in OPERATORS]
    single += [(f"layer {c.name}", c) for c in LAYERS]
    known += [Locked(name, case) for name, case in single]
    return [m for m in known if not parts or any(part in m.name for part in parts)]
