"""Modules of LLVM's language, written as text while they are built.

A module has functions; a function has blocks; a block has instructions, the last of which says
where to go on. An `IRBuilder` adds instructions at the end of one block, before its last:

    builder = IRBuilder(function.append_basic_block("entry"))
    builder.ret(builder.add(function.args[0], Constant(I64, 1)))

Nothing is checked here: LLVM reads the text and refuses what does not hold together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from rutc.emit.llvm.ir_module import (
    POINTER,
    Block,
    Function,
    GlobalVariable,
    Instruction,
    Module,
    Phi,
)
from rutc.emit.llvm.ir_types import (
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

I1, I32 = IntType(1), IntType(32)
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


def _binary(builder: IRBuilder, op: str, p: Value, q: Value) -> Instruction:
    return builder._add(p.type, op, f"{op} {p.type.text} {p.ref}, {q.ref}", (p, q))


def _of_two(op: str) -> Callable[[IRBuilder, Value, Value], Instruction]:
    """The method for an instruction on two values of one type."""
    return lambda builder, p, q: _binary(builder, op, p, q)


def _conversion(op: str) -> Callable[[IRBuilder, Value, Type], Value]:
    """The method for an instruction that makes a value of another type; none if it is of that."""

    def converted(builder: IRBuilder, x: Value, type_: Type) -> Value:
        if x.type is type_:
            return x
        return builder._add(type_, op, f"{op} {x} to {type_.text}", (x,))

    return converted


@lru_cache(maxsize=1 << 10)
def _order(picks: tuple[int, ...]) -> Constant:
    """The numbers of lanes as a constant."""
    return Constant(VectorType(I32, len(picks)), [*picks])


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
    def add(self, p: Value, q: Value, *, nsw: bool = False) -> Instruction:
        """The sum of integers; with `nsw` it is known to have no signed overflow."""
        return _binary(self, "add nsw" if nsw else "add", p, q)

    def mul(self, p: Value, q: Value, *, nsw: bool = False) -> Instruction:
        """The product of integers; with `nsw` it is known to have no signed overflow."""
        return _binary(self, "mul nsw" if nsw else "mul", p, q)

    sub = _of_two("sub")
    """The difference of integers."""
    sdiv = _of_two("sdiv")
    """The quotient of signed integers, rounded to zero."""
    udiv = _of_two("udiv")
    """The quotient of unsigned integers."""
    srem = _of_two("srem")
    """The remainder of signed integers, with the sign of `p`."""
    urem = _of_two("urem")
    """The remainder of unsigned integers."""
    and_ = _of_two("and")
    """Bits that both have."""
    or_ = _of_two("or")
    """Bits that one has."""
    xor = _of_two("xor")
    """Bits that only one has."""
    shl = _of_two("shl")
    """Bits moved up."""
    lshr = _of_two("lshr")
    """Bits moved down, zeros from above."""
    ashr = _of_two("ashr")
    """Bits moved down, the sign from above."""
    fadd = _of_two("fadd")
    """The sum of floats."""
    fsub = _of_two("fsub")
    """The difference of floats."""
    fmul = _of_two("fmul")
    """The product of floats."""
    fdiv = _of_two("fdiv")
    """The quotient of floats."""
    frem = _of_two("frem")
    """The remainder of floats, with the sign of `p`."""

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
    trunc = _conversion("trunc")
    """The low bits of an integer."""
    zext = _conversion("zext")
    """An unsigned integer in more bits."""
    sext = _conversion("sext")
    """A signed integer in more bits."""
    fptrunc = _conversion("fptrunc")
    """A float in fewer bits."""
    fpext = _conversion("fpext")
    """A float in more bits."""
    sitofp = _conversion("sitofp")
    """A signed integer as a float."""
    uitofp = _conversion("uitofp")
    """An unsigned integer as a float."""
    fptosi = _conversion("fptosi")
    """A float as a signed integer, rounded to zero."""
    fptoui = _conversion("fptoui")
    """A float as an unsigned integer, rounded to zero."""
    bitcast = _conversion("bitcast")
    """The same bits as another type."""
    inttoptr = _conversion("inttoptr")
    """An integer as an address."""

    def nearest(self, x: Value, type_: Type) -> Value:
        """A float as the nearest signed integer, of two the even one."""
        name = f"llvm.lrint.{type_.suffix}.{x.type.suffix}"
        return self.call_named(name, type_, [x])

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

    def shuffled(self, p: Value, picks: Sequence[int], q: Value | None = None) -> Instruction:
        """The lanes of a vector that `picks` number; further on are those of a second one."""
        other = Constant(p.type, Undefined) if q is None else q
        return self.shuffle_vector(p, other, _order(tuple(picks)))

    def part(self, x: Value, first: int, count: int) -> Instruction:
        """So many lanes of a vector from one on; a single one is a scalar."""
        if count == 1:
            return self.extract_element(x, Constant(I32, first))
        return self.shuffled(x, range(first, first + count))

    def parts(self, x: Value, count: int) -> list[Value]:
        """A vector in parts of so many lanes."""
        if x.lanes == count:
            return [x]
        return [self.part(x, first, count) for first in range(0, x.lanes, count)]

    def joined(self, parts: Sequence[Value]) -> Value:
        """Vectors of one type side by side: as many as a power of two."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.shuffled(a, range(2 * a.lanes), b) for a, b in pairs]
        return parts[0]

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

    def merged(self, *incoming: tuple[Value, Block]) -> Phi:
        """The value of the block by which this one is reached; to be emitted before all else."""
        found = self.phi(incoming[0][0].type)
        for value, block in incoming:
            found.add_incoming(value, block)
        return found

    def either(
        self, is_slow: Value, name: str, quick: Callable[[], Value], slow: Callable[[], Value]
    ) -> Phi:
        """What `quick` emits, or `slow` where a condition holds; `name` is that of the blocks.

        The builder ends in a new block.
        """
        blocks = [self.append_basic_block(f"{name}.{end}") for end in ("quick", "slow", "done")]
        self.cbranch(is_slow, blocks[1], blocks[0])
        incoming = []
        for block, emit in zip(blocks, (quick, slow), strict=False):
            self.position_at_end(block)
            incoming.append((emit(), self.block))
            self.branch(blocks[2])
        self.position_at_end(blocks[2])
        return self.merged(*incoming)

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

    def call_named(
        self, name: str, result: Type, args: Sequence[Value], *, fastmath: str = ""
    ) -> Instruction:
        """What the function of a name gives, which LLVM knows or the module has."""
        function = self.module.declared(name, result, [x.type for x in args])
        return self.call(function, args, fastmath=fastmath)

    def intrinsic(self, name: str, *args: Value, fastmath: str = "") -> Instruction:
        """What LLVM's function of a name gives for operands of one type: a result of that type."""
        type_ = args[0].type
        return self.call_named(f"llvm.{name}.{type_.suffix}", type_, args, fastmath=fastmath)

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
