"""The standard's type rule: operands that share a type variable have one type."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from onnx.defs import OpSchema, SchemaError, get_schema

from rutc.importer.builder import OperatorError
from rutc.importer.convert import OPSET
from rutc.importer.tensor import Tensor

Rule = tuple[str, str, bool]
"""An operand's name, its type variable, and whether repetitions may differ in type."""


def check_types(op: str, inputs: Sequence[Tensor | None]) -> None:
    """Raises OperatorError where inputs that must be of one type are not."""
    rules = _rules(op)
    bound: dict[str, tuple[str, Tensor]] = {}
    for i, t in enumerate(inputs):
        if t is None or not rules:
            continue
        name, variable, free = rules[min(i, len(rules) - 1)]
        first, other = bound.setdefault(variable, (name, t))
        if other.dtype is not t.dtype and not free:
            raise OperatorError(
                f"the types of {first!r} ({other.dtype}) and {name!r} ({t.dtype}) differ"
            )


@lru_cache
def _rules(op: str) -> tuple[Rule, ...]:
    try:
        schema = get_schema(op, OPSET)
    except SchemaError:
        return ()
    variadic = OpSchema.FormalParameterOption.Variadic
    return tuple(
        (i.name, i.type_str, i.option == variadic and not i.is_homogeneous) for i in schema.inputs
    )
