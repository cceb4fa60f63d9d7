"""The table of operators: one ONNX operator is one typed function.

The positional parameters of an operator's function are its inputs (`None` for one that is left
out, `*rest` for a variadic one), its keyword parameters are its attributes with their defaults:

    @operator("Gemm")
    def gemm(b: Builder, a: Tensor, w: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, ...)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from onnx import GraphProto

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Item, Tensor

Result = Item | tuple[Item, ...]
Function = Callable[..., Result]
F = TypeVar("F", bound=Function)
Key = tuple[str, str]
"""An operator's domain ("" for ONNX's own) and name."""


@record
class Operator:
    """A registered operator."""

    name: str
    function: Function

    @cached_property
    def _parameters(self) -> tuple[inspect.Parameter, ...]:
        """The inputs and attributes that the function takes."""
        return tuple(inspect.signature(self.function).parameters.values())[1:]

    @cached_property
    def _attributes(self) -> dict[str, inspect.Parameter]:
        return {p.name: p for p in self._parameters if p.kind is p.KEYWORD_ONLY}

    @cached_property
    def _inputs(self) -> tuple[inspect.Parameter, ...]:
        """The inputs without those of `*rest`."""
        return tuple(p for p in self._parameters if p.kind is p.POSITIONAL_OR_KEYWORD)

    @cached_property
    def _wanted(self) -> tuple[int, tuple[int, ...], tuple[object, ...]]:
        """(how many inputs must be given, which of these must not be None, all annotations)."""
        places = self._inputs
        least = sum(p.default is p.empty for p in places)
        needed = tuple(i for i in range(least) if "None" not in str(places[i].annotation))
        return least, needed, tuple(p.annotation for p in places)

    @cached_property
    def _rest(self) -> str | None:
        """The annotation of `*rest`; None: there is no such parameter."""
        return next((p.annotation for p in self._parameters if p.kind is p.VAR_POSITIONAL), None)

    @cached_property
    def takes_lists(self) -> bool:
        """Whether an operand may be something else than a tensor."""
        kinds = ("TensorList", "TensorMap", "Item")
        return any(k in str(p.annotation) for p in self._parameters for k in kinds)

    def __call__(
        self, b: Builder, inputs: Sequence[Item | None], attributes: Mapping[str, object]
    ) -> tuple[Item, ...]:
        """The outputs. Raises OperatorError for inputs or attributes that it cannot take."""
        unknown = sorted(attributes.keys() - self._attributes.keys())
        if unknown:
            raise OperatorError(f"attribute {', '.join(map(repr, unknown))} is not supported")
        self._check_attributes(attributes)
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        most = len(self._inputs)
        if self._rest is None and len(given) > most:
            raise OperatorError(f"{len(given)} inputs are given, at most {most} are supported")
        least, needed, annotations = self._wanted
        if len(given) < least or any(given[i] is None for i in needed):
            raise OperatorError(f"a required input is missing ({least} are required)")
        kinds = [*annotations, *[self._rest] * len(given)]
        for i, (t, kind) in enumerate(zip(given, kinds, strict=False)):
            if kind == "Tensor" and t is None:
                raise OperatorError(f"input {i} is left out, and must not be")
            if self.takes_lists and kind in _TENSOR and not isinstance(t, Tensor | None):
                raise OperatorError(f"input {i} must be a tensor, not {t}")
        plain = all(t is None or isinstance(t, Tensor) for t in given)
        if not self.takes_lists and not plain:
            raise OperatorError("it takes tensors, not sequences")
        made = self.function(b, *given, **attributes)
        return made if isinstance(made, tuple) else (made,)

    def _check_attributes(self, given: Mapping[str, object]) -> None:
        """Raises OperatorError for an attribute of another type, and for one that is missing."""
        for name, value in given.items():
            # None: anything.
            wanted = _INSTANCES.get(_spelling(self._attributes[name].annotation))
            items = value if isinstance(value, tuple) else (value,)
            many = wanted is not None and wanted[0] is tuple
            kinds = wanted[1:] if many and wanted is not None else wanted
            if kinds is None:
                continue
            if isinstance(value, tuple) != many or not all(
                issubclass(kind, kinds) for kind in set(map(type, items))
            ):
                raise OperatorError(f"the attribute {name!r} is of another type than it must be")
        for name, parameter in self._attributes.items():
            if parameter.default is parameter.empty and name not in given:
                raise OperatorError(f"the attribute {name!r} is missing")


_TENSOR = ("Tensor", "Tensor | None")
_INSTANCES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "Sequence[int]": (tuple, int),
    "Sequence[float]": (tuple, float, int),
    "Sequence[str]": (tuple, str),
    "np.ndarray": (np.ndarray,),
    "GraphProto": (GraphProto,),
}
"""What an attribute's value is an instance of, by its annotation; after `tuple`, its elements."""

EARLY = "ai.onnx.early"
"""The domain that an import gives operators which no newer opset defines as a model's own does."""

OPERATORS: dict[Key, Operator] = {}


def operator(name: str, domain: str = "") -> Callable[[F], F]:
    """Registers a function as the operator `name`. Raises ValueError for a second one."""

    def register(function: F) -> F:
        if (domain, name) in OPERATORS:
            raise ValueError(f"{domain}.{name} is registered twice")
        OPERATORS[domain, name] = Operator(name, function)
        return function

    return register


def _spelling(annotation: object) -> str:
    """An annotation's text without `| None`, whether its module postpones annotations or not."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return text.removesuffix(" | None")
