"""Elements in memory and in registers: how each type is stored, and literals."""

from __future__ import annotations

from rutc.emit.llvm import ir
from rutc.emit.scalar import emit_cast, llvm_type
from rutc.errors import InternalError
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Lit

I8 = ir.IntType(8)


def memory_type(dtype: DType) -> ir.Type:
    """The type of one stored element: a bool takes a byte."""
    return I8 if dtype is DType.BOOL else llvm_type(dtype)


def from_memory(builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """A loaded value as it is computed with."""
    if dtype is DType.BOOL:
        return builder.icmp_unsigned("!=", value, ir.Constant(value.type, None))
    return value


def to_memory(builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """A computed value as it is stored."""
    if dtype is DType.BOOL:
        is_vector = isinstance(value.type, ir.VectorType)
        wide = ir.VectorType(I8, value.lanes) if is_vector else I8
        return builder.zext(value, wide)
    return value


def zero(dtype: DType) -> Lit:
    """The zero of a type."""
    return Lit(0, dtype)


def emit_literal(builder: ir.IRBuilder, lit: Lit) -> ir.Value:
    """A literal as a scalar."""
    if isinstance(lit.value, str):
        raise InternalError(f"a string literal {lit.value!r} in a kernel")
    if lit.dtype is DType.BOOL:
        return ir.Constant(ir.IntType(1), int(lit.value))
    if lit.dtype in (DType.F32, DType.F64):
        return ir.Constant(llvm_type(lit.dtype), float(lit.value))
    if lit.dtype.is_float:
        wide = ir.Constant(ir.FloatType(), float(lit.value))
        return emit_cast(builder, wide, DType.F32, lit.dtype)
    return ir.Constant(llvm_type(lit.dtype), int(lit.value))
