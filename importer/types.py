"""The standard's rules for types: what an operand may be, and that a type variable is one type."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from onnx.defs import OpSchema, SchemaError, get_schema

from rutc.importer.builder import OperatorError
from rutc.importer.convert import OPSET
from rutc.importer.proto import ELEMENT_TYPES, onnx_type, type_name
from rutc.importer.tensor import Tensor

Rule = tuple[str, str, bool, frozenset[str]]
"""An operand's name, its type variable, whether repetitions may differ, and the types it may be."""

_SPELLED = {kind: f"tensor({type_name(onnx_type(kind)).lower()})" for kind in ELEMENT_TYPES}


def check_types(op: str, domain: str, inputs: Sequence[Tensor | None]) -> None:
    """Raises OperatorError for an input of a type that it may not be of, or not with the others."""
    rules = _rules(op, domain)
    bound: dict[str, tuple[str, Tensor]] = {}
    for i, t in enumerate(inputs):
        if t is None or not rules:
            continue
        name, variable, free, allowed = rules[min(i, len(rules) - 1)]
        if _SPELLED.get(t.dtype) not in allowed:
            raise OperatorError(f"{name!r} must not be of type {t.dtype}")
        first, other = bound.setdefault(variable, (name, t))
        if other.dtype is not t.dtype and not free:
            raise OperatorError(
                f"the types of {first!r} ({other.dtype}) and {name!r} ({t.dtype}) differ"
            )


@lru_cache
def _rules(op: str, domain: str) -> tuple[Rule, ...]:
    try:
        schema = get_schema(op, domain) if domain else get_schema(op, OPSET)
    except SchemaError:
        return ()
    variadic = OpSchema.FormalParameterOption.Variadic
    return tuple(
        (
            i.name,
            i.type_str,
            i.option == variadic and not i.is_homogeneous,
            frozenset(map(str, i.types)),
        )
        for i in schema.inputs
    )
