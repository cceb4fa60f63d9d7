"""Literals that the caller of a function holds: which, where, and which stay."""

import struct

import pytest

from rutc.emit.cast import splat_int, splat_real
from rutc.emit.llvm import ir
from rutc.emit.numbers import F32, I32, Numbers, operand

LANES = ir.VectorType(F32, 8)


def function() -> ir.Function:
    """One with an argument of its own, whose literals its caller may hold."""
    found = ir.Function(ir.Module("m"), "f", ir.VoidType(), [F32])
    found.numbers = Numbers(found, found.append_basic_block("entry"))
    return found


def operand_of(f: ir.Function, literal: ir.Constant) -> ir.Value:
    return operand(ir.IRBuilder(f.blocks[0]), literal)


def held(f: ir.Function) -> bytes:
    assert f.numbers is not None
    return f.numbers.bytes


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan")])
def test_literals_that_code_is_made_of_stay(value: float) -> None:
    f = function()
    for literal in (splat_real(F32, value), splat_real(LANES, value)):
        assert operand_of(f, literal) is literal
    assert not held(f)
    assert len(f.args) == 1


@pytest.mark.parametrize("type_", [ir.DoubleType(), ir.HalfType(), ir.IntType(16), ir.IntType(64)])
def test_literals_of_other_types_stay(type_: ir.Type) -> None:
    f = function()
    number = 7 if isinstance(type_, ir.IntType) else 7.5
    literal = ir.Constant(type_, number)
    assert operand_of(f, literal) is literal
    assert not held(f)


def test_numbers_lie_once_for_each_type_in_the_order_in_which_they_are_met() -> None:
    f = function()
    first = operand_of(f, splat_real(F32, 0.37))
    whole = operand_of(f, splat_int(I32, 5))
    assert operand_of(f, splat_real(F32, 5.0)) is not whole
    assert operand_of(f, splat_int(I32, -5)) is not whole
    assert operand_of(f, splat_real(F32, 0.37)) is first
    assert held(f) == struct.pack("<fifi", 0.37, 5, 5.0, -5)
    assert len(f.args) == 2
    text = f.text()
    assert text.count("load") == 4
    for place in range(4):
        assert f"%numbers, i64 {4 * place}\n" in text


def test_a_number_is_put_into_lanes_once_for_each_count() -> None:
    f = function()
    alone = operand_of(f, splat_real(F32, 0.37))
    wide = operand_of(f, splat_real(LANES, 0.37))
    more = operand_of(f, splat_real(ir.VectorType(F32, 16), 0.37))
    assert (wide.type.count, more.type.count) == (8, 16)
    assert f.numbers is not None
    assert f.numbers.in_lanes(alone, 8) is wide
    assert f.numbers.in_lanes(alone, 16) is more
    assert f.numbers.in_lanes(f.args[0], 8) is None
    assert held(f) == struct.pack("<f", 0.37)
