"""Integers and vectors in LLVM's language, as most emitters need them."""

from __future__ import annotations

from functools import lru_cache

from rutc.emit.llvm import ir

I32 = ir.IntType(32)
I64 = ir.IntType(64)
FIRST = ir.Constant(I32, 0)
"""The number of a vector's first lane."""


@lru_cache(maxsize=1 << 12)
def i64(value: int) -> ir.Constant:
    """An i64 constant."""
    return ir.Constant(I64, value)


def splat(builder: ir.IRBuilder, scalar: ir.Value, lanes: int) -> ir.Value:
    """A vector with `scalar` in every lane."""
    vector = ir.VectorType(scalar.type, lanes)
    if isinstance(scalar, ir.Constant) and scalar.constant is not ir.Undefined:
        return ir.Constant.splat(vector, scalar)
    undefined = _undefined(vector)
    one = builder.insert_element(undefined, scalar, FIRST)
    return builder.shuffle_vector(one, undefined, zeros(ir.VectorType(I32, lanes)))


@lru_cache(maxsize=1 << 8)
def zeros(vector: ir.VectorType) -> ir.Constant:
    """Zeros in all lanes."""
    return ir.Constant(vector, None)


@lru_cache(maxsize=1 << 8)
def _undefined(vector: ir.VectorType) -> ir.Constant:
    """Lanes of which nothing is known."""
    return ir.Constant(vector, ir.Undefined)


@lru_cache(maxsize=1 << 10)
def counting(base: int, lanes: int, step: int = 1) -> ir.Constant:
    """base, base + step, ... in as many lanes."""
    return ir.Constant(ir.VectorType(I64, lanes), [base + step * i for i in range(lanes)])


def is_vector(value: ir.Value) -> bool:
    """Whether a value has lanes."""
    return isinstance(value.type, ir.VectorType)


def one_by_one(b: ir.IRBuilder, places: ir.Value, vector: ir.VectorType, least: int) -> ir.Value:
    """The elements at places, aligned to `least` bytes, each loaded by itself.

    It takes less than a gather that takes a cycle or more for each.
    """
    found: ir.Value = ir.Constant(vector, ir.Undefined)
    for i in range(vector.count):
        place = b.extract_element(places, ir.Constant(I32, i))
        element = b.load(place, type_=vector.element, align=least)
        found = b.insert_element(found, element, ir.Constant(I32, i))
    return found
