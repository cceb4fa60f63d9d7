"""LLVM's language as text: LLVM reads what is built, and it means what it should."""

import ctypes
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest

from rutc.emit.llvm import ir
from rutc.emit.llvm.codegen import start

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()
Body = Callable[[ir.IRBuilder, list[ir.Value]], ir.Value]


def ran(body: Body, types: list[ir.Type], result: ir.Type, *arguments: float) -> float:
    """What a function of one block, or more, gives."""
    start()
    module = ir.Module("test")
    function = ir.Function(module, "f", result, types)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    builder.ret(body(builder, function.args))
    parsed = llvm.parse_assembly(str(module), llvm.create_context())
    parsed.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=0)
    with llvm.create_mcjit_compiler(parsed, machine) as engine:
        engine.finalize_object()
        kinds = {I32: ctypes.c_int32, I64: ctypes.c_int64, F32: ctypes.c_float}
        kinds[F64] = ctypes.c_double
        call = ctypes.CFUNCTYPE(kinds[result], *(kinds[t] for t in types))
        return call(engine.get_function_address("f"))(*arguments)


def test_types_are_one_object_each() -> None:
    assert ir.IntType(32) is I32
    assert ir.VectorType(F32, 4) is ir.VectorType(ir.FloatType(), 4)
    assert ir.VectorType(F32, 4) is not ir.ArrayType(F32, 4)
    pair = ir.LiteralStructType(F32, ir.PointerType())
    assert pair is ir.LiteralStructType(F32, ir.PointerType())
    assert [str(t) for t in (ir.VectorType(I1, 8), ir.ArrayType(F64, 2), pair)] == [
        "<8 x i1>",
        "[2 x double]",
        "{float, ptr}",
    ]


@pytest.mark.parametrize("value", [0.1, -0.0, 1e-45, 3.4028234e38, np.inf, -np.inf])
def test_floats_are_written_to_the_last_bit(value: float) -> None:
    for type_, round_ in ((F32, np.float32), (F64, np.float64)):
        given = ran(lambda b, a, t=type_: b.fadd(a[0], ir.Constant(t, value)), [type_], type_, -0.0)
        assert round_(given).tobytes() == round_(value).tobytes()


def test_constants_of_all_forms_are_read() -> None:
    vector = ir.VectorType(I32, 4)

    def body(b: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        p = ir.Constant(vector, [1, -2, 3, 4])
        q = ir.Constant.splat(vector, ir.Constant(I32, 10))
        mask = ir.Constant(ir.VectorType(I1, 4), [True, False, True, False])
        mixed = b.select(mask, b.add(p, q), ir.Constant(vector, None))
        both = b.shuffle_vector(
            mixed, ir.Constant(vector, ir.Undefined), ir.Constant(vector, [2, 2, 0, 0])
        )
        first, last = (b.extract_element(both, ir.Constant(I32, n)) for n in (0, 3))
        return b.add(args[0], b.add(b.mul(first, ir.Constant(I32, 100)), last))

    assert ran(body, [I32], I32, 5) == 13 * 100 + 11 + 5


def test_tables_and_bytes() -> None:
    def body(b: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        data = ir.Constant(ir.ArrayType(ir.IntType(8), 4), bytes([7, 34, 92, 255]))
        table = ir.GlobalVariable(b.module, "table", data, align=64)
        place = b.gep(table, [ir.Constant(I64, 0), args[0]], table.value_type, inbounds=True)
        return b.zext(b.load(place, ir.IntType(8)), I64)

    assert [ran(body, [I64], I64, n) for n in range(4)] == [7, 34, 92, 255]


def test_blocks_calls_and_memory() -> None:
    """The sum of the squares below a number, by a loop and a function of the module's own."""

    def body(b: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        square = b.module.declared("square", I64, [I64])
        square.internal = square.noinline = True
        inside = ir.IRBuilder(square.append_basic_block("entry"))
        inside.ret(inside.mul(square.args[0], square.args[0], nsw=True))
        assert b.module.declared("square", I64, [I64]) is square
        total = b.alloca(I64, align=64)
        b.store(ir.Constant(I64, 0), total)
        before, loop, done = b.block, b.append_basic_block("loop"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", ir.Constant(I64, 0), args[0]), loop, done)
        b.position_at_end(loop)
        counter = b.phi(I64)
        counter.add_incoming(ir.Constant(I64, 0), before)
        odd = b.trunc(counter, I1)
        with b.if_then(b.not_(odd)):
            b.store(b.add(b.load(total, I64), b.call(square, [counter])), total)
        following = b.add(counter, ir.Constant(I64, 1))
        counter.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, args[0]), loop, done)
        b.position_at_end(done)
        return b.load(total, I64)

    assert [ran(body, [I64], I64, n) for n in (-1, 0, 1, 5, 8)] == [0, 0, 0, 20, 56]


def test_instructions_may_follow_where_a_block_ends() -> None:
    def body(b: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        first, second = b.block, b.append_basic_block("second")
        b.branch(second)
        b.position_at_end(first)
        doubled = b.add(args[0], args[0])
        b.position_at_end(second)
        return doubled

    assert ran(body, [I32], I32, 21) == 42


@pytest.mark.parametrize("relation", ["==", "!=", "<", "<=", ">", ">="])
def test_comparisons(relation: str) -> None:
    pairs = [(-1, 1), (1, -1), (2, 2)]
    for p, q in pairs:

        def signed(b: ir.IRBuilder, a: list[ir.Value]) -> ir.Value:
            return b.zext(b.icmp_signed(relation, *a), I32)

        def unsigned(b: ir.IRBuilder, a: list[ir.Value]) -> ir.Value:
            return b.zext(b.icmp_unsigned(relation, *a), I32)

        assert ran(signed, [I32, I32], I32, p, q) == eval(f"{p} {relation} {q}")
        assert ran(unsigned, [I32, I32], I32, p, q) == eval(f"{p % 2**32} {relation} {q % 2**32}")


def test_comparisons_with_nan() -> None:
    for build, expected in ((ir.IRBuilder.fcmp_ordered, 0), (ir.IRBuilder.fcmp_unordered, 1)):
        for relation in ("==", "<", ">="):

            def body(
                b: ir.IRBuilder, a: list[ir.Value], build=build, relation=relation
            ) -> ir.Value:
                return b.zext(build(b, relation, *a), I32)

            assert ran(body, [F32, F32], I32, float("nan"), 1.0) == expected
