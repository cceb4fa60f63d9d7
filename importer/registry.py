"""The table of operators: one ONNX operator is one typed function.

The positional parameters of an operator's function are its inputs (`None` for one that is left
out, `*rest` for a variadic one), its keyword parameters are its attributes with their defaults:

    @operator("Gemm")
    def gemm(b: Builder, a: Tensor, w: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, ...)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from rutc.importer.builder import Builder, OperatorError
from rutc.importer.tensor import Item, Tensor
from rutc.record import record

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
    def attributes(self) -> frozenset[str]:
        """The attributes that the function takes."""
        parameters = inspect.signature(self.function).parameters.values()
        return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    @cached_property
    def arity(self) -> tuple[int, int | None]:
        """The least and the most inputs (None: any number)."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        places = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        least = sum(p.default is p.empty for p in places)
        variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        return least, None if variadic else len(places)

    @cached_property
    def required(self) -> tuple[int, ...]:
        """The places of the inputs that must be there (others are `Tensor | None`)."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        least, _ = self.arity
        return tuple(i for i in range(least) if "None" not in str(parameters[i].annotation))

    @cached_property
    def takes_lists(self) -> bool:
        """Whether an operand may be something else than a tensor."""
        parameters = inspect.signature(self.function).parameters.values()
        kinds = ("TensorList", "TensorMap", "Item")
        return any(k in str(p.annotation) for p in parameters for k in kinds)

    def __call__(
        self, b: Builder, inputs: Sequence[Item | None], attributes: Mapping[str, object]
    ) -> tuple[Item, ...]:
        """The outputs. Raises OperatorError for inputs or attributes that it cannot take."""
        unknown = sorted(set(attributes) - self.attributes)
        if unknown:
            raise OperatorError(f"attribute {', '.join(map(repr, unknown))} is not supported")
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        least, most = self.arity
        if most is not None and len(given) > most:
            raise OperatorError(f"{len(given)} inputs are given, at most {most} are supported")
        if len(given) < least or any(given[i] is None for i in self.required):
            raise OperatorError(f"a required input is missing ({least} are required)")
        plain = all(t is None or isinstance(t, Tensor) for t in given)
        if not self.takes_lists and not plain:
            raise OperatorError("it takes tensors, not sequences")
        made = self.function(b, *given, **attributes)
        return made if isinstance(made, tuple) else (made,)


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
