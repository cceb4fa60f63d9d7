"""Modules of LLVM's language, written as text while they are built.

A module has functions; a function has blocks; a block has instructions, the last of which says
where to go on. An `IRBuilder` adds instructions at the end of one block, before its last:

    builder = IRBuilder(function.append_basic_block("entry"))
    builder.ret(builder.add(function.args[0], Constant(I64, 1)))

Nothing is checked here: LLVM reads the text and refuses what does not hold together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rutc.emit.ir_module import (
    POINTER,
    Block,
    Function,
    GlobalVariable,
    Instruction,
    Module,
    Phi,
)
from rutc.emit.ir_types import (
    ArrayType,
    BFloatType,
    Constant,
    DoubleType,
    FloatType,
    Given,
    HalfType,
    IntType,
    LiteralStructType,
    PointerType,
    Type,
    Undefined,
    Value,
    VectorType,
    VoidType,
)

__all__ = [
    "ArrayType",
    "BFloatType",
    "Block",
    "Constant",
    "DoubleType",
    "FloatType",
    "Function",
    "Given",
    "GlobalVariable",
    "HalfType",
    "IRBuilder",
    "Instruction",
    "IntType",
    "LiteralStructType",
    "Module",
    "Phi",
    "PointerType",
    "Type",
    "Undefined",
    "Value",
    "VectorType",
    "VoidType",
]

I1 = IntType(1)
SIGNED = {"==": "eq", "!=": "ne", "<": "slt", "<=": "sle", ">": "sgt", ">=": "sge"}
UNSIGNED = {"==": "eq", "!=": "ne", "<": "ult", "<=": "ule", ">": "ugt", ">=": "uge"}
ORDERED = {"ord": "ord", "==": "oeq", "!=": "one", "<": "olt", "<=": "ole", ">": "ogt", ">=": "oge"}
UNORDERED = {
    "uno": "uno",
    "==": "ueq",
    "!=": "une",
    "<": "ult",
    "<=": "ule",
    ">": "ugt",
    ">=": "uge",
}


class IRBuilder:
    """Adds instructions at the end of a block, before the one that leaves it."""

    def __init__(self, block: Block) -> None:
        """Add to that block."""
        self.block = block

    @property
    def function(self) -> Function:
        """The function of the block."""
        return self.block.function

    @property
    def module(self) -> Module:
        """The module of the function."""
        return self.block.function.module

    def position_at_end(self, block: Block) -> None:
        """Add to that block from here on."""
        self.block = block

    def append_basic_block(self, name: str = "block") -> Block:
        """A new block of the function, behind the others."""
        return self.block.function.append_basic_block(name)

    def _add(self, type_: Type, op: str, text: str, operands: tuple[Value, ...]) -> Instruction:
        block = self.block
        ref = block.function.new_name()
        block.lines.append(f"{ref} = {text}")
        return Instruction(type_, ref, op, operands)

    # -- arithmetic ------------------------------------------------------------------------------
    def _binary(self, op: str, p: Value, q: Value) -> Instruction:
        return self._add(p.type, op, f"{op} {p.type.text} {p.ref}, {q.ref}", (p, q))

    def add(self, p: Value, q: Value, *, nsw: bool = False) -> Instruction:
        """The sum of integers; with `nsw` it is known to have no signed overflow."""
        return self._binary("add nsw" if nsw else "add", p, q)

    def sub(self, p: Value, q: Value) -> Instruction:
        """The difference of integers."""
        return self._binary("sub", p, q)

    def mul(self, p: Value, q: Value, *, nsw: bool = False) -> Instruction:
        """The product of integers; with `nsw` it is known to have no signed overflow."""
        return self._binary("mul nsw" if nsw else "mul", p, q)

    def sdiv(self, p: Value, q: Value) -> Instruction:
        """The quotient of signed integers, rounded to zero."""
        return self._binary("sdiv", p, q)

    def udiv(self, p: Value, q: Value) -> Instruction:
        """The quotient of unsigned integers."""
        return self._binary("udiv", p, q)

    def srem(self, p: Value, q: Value) -> Instruction:
        """The remainder of signed integers, with the sign of `p`."""
        return self._binary("srem", p, q)

    def urem(self, p: Value, q: Value) -> Instruction:
        """The remainder of unsigned integers."""
        return self._binary("urem", p, q)

    def and_(self, p: Value, q: Value) -> Instruction:
        """Bits that both have."""
        return self._binary("and", p, q)

    def or_(self, p: Value, q: Value) -> Instruction:
        """Bits that one has."""
        return self._binary("or", p, q)

    def xor(self, p: Value, q: Value) -> Instruction:
        """Bits that only one has."""
        return self._binary("xor", p, q)

    def shl(self, p: Value, q: Value) -> Instruction:
        """Bits moved up."""
        return self._binary("shl", p, q)

    def lshr(self, p: Value, q: Value) -> Instruction:
        """Bits moved down, zeros from above."""
        return self._binary("lshr", p, q)

    def ashr(self, p: Value, q: Value) -> Instruction:
        """Bits moved down, the sign from above."""
        return self._binary("ashr", p, q)

    def fadd(self, p: Value, q: Value) -> Instruction:
        """The sum of floats."""
        return self._binary("fadd", p, q)

    def fsub(self, p: Value, q: Value) -> Instruction:
        """The difference of floats."""
        return self._binary("fsub", p, q)

    def fmul(self, p: Value, q: Value) -> Instruction:
        """The product of floats."""
        return self._binary("fmul", p, q)

    def fdiv(self, p: Value, q: Value) -> Instruction:
        """The quotient of floats."""
        return self._binary("fdiv", p, q)

    def frem(self, p: Value, q: Value) -> Instruction:
        """The remainder of floats, with the sign of `p`."""
        return self._binary("frem", p, q)

    def fneg(self, x: Value) -> Instruction:
        """The float with the other sign."""
        return self._add(x.type, "fneg", f"fneg {x.type.text} {x.ref}", (x,))

    def neg(self, x: Value) -> Instruction:
        """The integer with the other sign."""
        return self.sub(Constant(x.type, None), x)

    def not_(self, x: Value) -> Instruction:
        """All bits of an integer the other way."""
        ones = [-1] * x.type.count if isinstance(x.type, VectorType) else -1
        return self.xor(x, Constant(x.type, ones))

    # -- comparisons -----------------------------------------------------------------------------
    def _compared(self, op: str, p: Value, q: Value) -> Instruction:
        type_ = VectorType(I1, p.type.count) if isinstance(p.type, VectorType) else I1
        return self._add(type_, op, f"{op} {p.type.text} {p.ref}, {q.ref}", (p, q))

    def icmp_signed(self, relation: str, p: Value, q: Value) -> Instruction:
        """Whether signed integers are so related."""
        return self._compared(f"icmp {SIGNED[relation]}", p, q)

    def icmp_unsigned(self, relation: str, p: Value, q: Value) -> Instruction:
        """Whether unsigned integers are so related."""
        return self._compared(f"icmp {UNSIGNED[relation]}", p, q)

    def fcmp_ordered(self, relation: str, p: Value, q: Value) -> Instruction:
        """Whether floats are so related; false for NaN."""
        return self._compared(f"fcmp {ORDERED[relation]}", p, q)

    def fcmp_unordered(self, relation: str, p: Value, q: Value) -> Instruction:
        """Whether floats are so related; true for NaN."""
        return self._compared(f"fcmp {UNORDERED[relation]}", p, q)

    def select(self, condition: Value, p: Value, q: Value) -> Instruction:
        """`p` where the condition holds, else `q`."""
        return self._add(p.type, "select", f"select {condition}, {p}, {q}", (condition, p, q))

    # -- conversions -----------------------------------------------------------------------------
    def _converted(self, op: str, x: Value, type_: Type) -> Value:
        if x.type is type_:
            return x
        return self._add(type_, op, f"{op} {x} to {type_.text}", (x,))

    def trunc(self, x: Value, type_: Type) -> Value:
        """The low bits of an integer."""
        return self._converted("trunc", x, type_)

    def zext(self, x: Value, type_: Type) -> Value:
        """An unsigned integer in more bits."""
        return self._converted("zext", x, type_)

    def sext(self, x: Value, type_: Type) -> Value:
        """A signed integer in more bits."""
        return self._converted("sext", x, type_)

    def fptrunc(self, x: Value, type_: Type) -> Value:
        """A float in fewer bits."""
        return self._converted("fptrunc", x, type_)

    def fpext(self, x: Value, type_: Type) -> Value:
        """A float in more bits."""
        return self._converted("fpext", x, type_)

    def sitofp(self, x: Value, type_: Type) -> Value:
        """A signed integer as a float."""
        return self._converted("sitofp", x, type_)

    def uitofp(self, x: Value, type_: Type) -> Value:
        """An unsigned integer as a float."""
        return self._converted("uitofp", x, type_)

    def fptosi(self, x: Value, type_: Type) -> Value:
        """A float as a signed integer, rounded to zero."""
        return self._converted("fptosi", x, type_)

    def nearest(self, x: Value, type_: Type) -> Value:
        """A float as the nearest signed integer, of two the even one."""
        name = f"llvm.lrint.{type_.suffix}.{x.type.suffix}"
        return self.call(self.module.declared(name, type_, [x.type]), [x])

    def fptoui(self, x: Value, type_: Type) -> Value:
        """A float as an unsigned integer, rounded to zero."""
        return self._converted("fptoui", x, type_)

    def bitcast(self, x: Value, type_: Type) -> Value:
        """The same bits as another type."""
        return self._converted("bitcast", x, type_)

    def inttoptr(self, x: Value, type_: Type) -> Value:
        """An integer as an address."""
        return self._converted("inttoptr", x, type_)

    # -- vectors and structs ---------------------------------------------------------------------
    def extract_element(self, x: Value, number: Value) -> Instruction:
        """A lane of a vector."""
        assert isinstance(x.type, VectorType)
        return self._add(x.type.element, "extractelement", f"extractelement {x}, {number}", (x,))

    def insert_element(self, x: Value, one: Value, number: Value) -> Instruction:
        """The vector with another value in one lane."""
        text = f"insertelement {x}, {one}, {number}"
        return self._add(x.type, "insertelement", text, (x, one))

    def shuffle_vector(self, p: Value, q: Value, order: Value) -> Instruction:
        """The lanes of both vectors that `order` names."""
        assert isinstance(p.type, VectorType)
        assert isinstance(order.type, VectorType)
        type_ = VectorType(p.type.element, order.type.count)
        return self._add(type_, "shufflevector", f"shufflevector {p}, {q}, {order}", (p, q))

    def extract_value(self, x: Value, number: int) -> Instruction:
        """An element of a struct."""
        assert isinstance(x.type, LiteralStructType)
        type_ = x.type.elements[number]
        return self._add(type_, "extractvalue", f"extractvalue {x}, {number}", (x,))

    def insert_value(self, x: Value, one: Value, number: int) -> Instruction:
        """The struct with another element."""
        return self._add(x.type, "insertvalue", f"insertvalue {x}, {one}, {number}", (x, one))

    # -- memory ----------------------------------------------------------------------------------
    def alloca(self, type_: Type, align: int | None = None) -> Instruction:
        """Memory of the function's own."""
        aligned = "" if align is None else f", align {align}"
        return self._add(POINTER, "alloca", f"alloca {type_.text}{aligned}", ())

    def load(
        self, place: Value, type_: Type, align: int | None = None, *, anew: bool = False
    ) -> Instruction:
        """What is at an address, loaded `anew` even if it was before."""
        aligned = "" if align is None else f", align {align}"
        kind = "load volatile" if anew else "load"
        return self._add(type_, "load", f"{kind} {type_.text}, {place}{aligned}", (place,))

    def store(self, value: Value, place: Value, align: int | None = None) -> None:
        """Put a value at an address."""
        aligned = "" if align is None else f", align {align}"
        self.block.lines.append(f"store {value}, {place}{aligned}")

    def gep(
        self, place: Value, indices: Sequence[Value], type_: Type, *, inbounds: bool = False
    ) -> Instruction:
        """The address so many elements of a type further, or addresses for a vector of them."""
        op = "getelementptr inbounds" if inbounds else "getelementptr"
        text = f"{op} {type_.text}, {place}, {', '.join(map(str, indices))}"
        return self._add(place.type, "getelementptr", text, (place,))

    # -- control ---------------------------------------------------------------------------------
    def phi(self, type_: Type) -> Phi:
        """A value for each block from which this one is reached; to be emitted before all else."""
        found = Phi(type_, self.function.new_name())
        self.block.lines.append(found)
        return found

    def call(
        self,
        function: Function,
        args: Sequence[Value],
        *,
        tail: bool = False,
        fastmath: str = "",
    ) -> Instruction:
        """What a function gives."""
        result = function.result
        flags = f"{fastmath} " if fastmath else ""
        call = f"{'tail call' if tail else 'call'} {flags}{result.text} {function.ref}"
        text = f"{call}({', '.join(map(str, args))})"
        if isinstance(result, VoidType):
            self.block.lines.append(text)
            return Instruction(result, "", "call", ())
        return self._add(result, "call", text, tuple(args))

    def intrinsic(self, name: str, *args: Value, fastmath: str = "") -> Instruction:
        """What LLVM's function of a name gives for operands of one type: a result of that type."""
        type_ = args[0].type
        full = f"llvm.{name}.{type_.suffix}"
        function = self.module.declared(full, type_, [type_] * len(args))
        return self.call(function, args, fastmath=fastmath)

    def asm(
        self,
        type_: Type,
        code: str,
        constraint: str,
        args: Sequence[Value],
        *,
        in_order: bool = False,
        anew: bool = False,
    ) -> Instruction:
        """The result of inline assembly that does nothing else.

        The code generator keeps it `in_order` with loads around it and with other such assembly.
        What is made `anew` is another value each time, as far as the optimizer knows.
        """
        kind, after = ("asm sideeffect", " nounwind") if in_order or anew else ("asm", "")
        after += " memory(none)" if in_order and not anew else ""
        operands = ", ".join(map(str, args))
        text = f'call {type_.text} {kind} "{code}", "{constraint}"({operands}){after}'
        return self._add(type_, "asm", text, tuple(args))

    def branch(self, block: Block) -> None:
        """Go on in another block."""
        self.block.end = f"br label %{block.name}"

    def cbranch(self, condition: Value, then: Block, orelse: Block) -> None:
        """Go on in one block where the condition holds, else in the other."""
        self.block.end = f"br {condition}, label %{then.name}, label %{orelse.name}"

    def ret(self, value: Value) -> None:
        """Leave the function with a value."""
        self.block.end = f"ret {value}"

    def ret_void(self) -> None:
        """Leave the function."""
        self.block.end = "ret void"

    @contextmanager
    def if_then(self, condition: Value) -> Iterator[None]:
        """What is emitted inside runs where the condition holds."""
        then, done = self.append_basic_block("if"), self.append_basic_block("endif")
        self.cbranch(condition, then, done)
        self.position_at_end(then)
        yield
        self.branch(done)
        self.position_at_end(done)
