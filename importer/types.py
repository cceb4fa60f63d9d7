"""The standard's rules for types: what an operand may be, and that a type variable is one type."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

from onnx.defs import OpSchema, SchemaError, get_schema

from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor
from rutc.importer.opsets.convert import OPSET
from rutc.importer.reading.proto import ELEMENT_TYPES, onnx_type, type_name

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
    versions = _versions(op, domain)
    if not versions:
        return ()
    variadic = OpSchema.FormalParameterOption.Variadic
    return tuple(
        (
            i.name,
            i.type_str,
            i.option == variadic and not i.is_homogeneous,
            # Models of old opsets keep their types when they are converted.
            frozenset(str(t) for v in versions for own in v.inputs[at : at + 1] for t in own.types),
        )
        for at, i in enumerate(versions[-1].inputs)
    )


def _versions(op: str, domain: str) -> list[OpSchema]:
    """An operator's versions, as old ones as models may have, the one that is read last."""
    if domain:
        with suppress(SchemaError):
            return [get_schema(op, domain)]
        return []
    found: dict[int, OpSchema] = {}
    for opset in range(1, OPSET + 1):
        with suppress(SchemaError):
            schema = get_schema(op, opset)
            found[schema.since_version] = schema
    return list(found.values())
