"""Matrix registers (AMX): loops of kind `matrix`, of which one instruction does a whole block.

There are eight registers of up to 16 rows of 64 bytes. A sum has one for itself as long as it
lasts; the others hold blocks of operands, the one that was used longest ago making room. All blocks
of a kernel have one shape, which is configured when it begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from rutc.emit.expression import ExpressionEmitter
from rutc.emit.index import i64
from rutc.errors import InternalError
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.kernel import Access, Assign, Init, Kernel, Kind, Loop, Stmt, Update, walk_stmts
from rutc.tensor_ir.products import narrow_factors

REGISTERS = 8
COLUMNS = 16
"""Sums of 32 bits in a row of a register."""
GROUP = 4
"""Products that go into a sum at a time: neighbours in memory in both operands."""
I8 = ir.IntType(8)


@dataclass(frozen=True)
class Shape:
    """Rows of a block of sums, the length of its products, and how many blocks there are."""

    rows: int
    length: int
    sums: int


def matrix_shape(kernel: Kernel) -> Shape | None:
    """The shape of the kernel's matrix blocks; None where it has none."""
    found: set[tuple[int, int]] = set()
    sums: set[str] = set()
    for s in walk_stmts(kernel.body):
        if isinstance(s, Loop) and s.kind is Kind.MATRIX:
            loops, inner = _nest(s)
            if isinstance(inner, Update) and len(loops) == 3:
                rows, columns, products = (x.hi.value for x in loops)
                if columns != COLUMNS:
                    raise InternalError(f"a matrix block of {columns} columns")
                found.add((rows, products))
                sums.add(inner.states[0].buffer)
    if not found:
        return None
    if len(found) > 1 or len(sums) > 1:
        raise InternalError("matrix blocks of several shapes in one kernel")
    (acc,) = sums
    axes = kernel.buffer(acc).layout.axes
    total = 1
    for a in axes[:-2]:
        total *= Index.of(a.extent).value
    ((rows, length),) = found
    return Shape(rows, length, total)


def _nest(s: Stmt) -> tuple[list[Loop], Stmt]:
    loops: list[Loop] = []
    while isinstance(s, Loop) and s.kind is Kind.MATRIX:
        loops.append(s)
        (s,) = s.body
    return loops, s


class MatrixEmitter:
    """Emits the matrix loops of one kernel."""

    def __init__(self, expressions: ExpressionEmitter, shape: Shape) -> None:
        """Emit where `expressions` does."""
        self.expressions = expressions
        self.builder = expressions.builder
        self.index = expressions.index
        self.shape = shape
        self._sums: dict[tuple[int, ...], int] = {}
        # The operands' blocks in the other registers, the one used last at the end.
        self._held: list[tuple[int, object]] = []
        self._block: ir.Block | None = None

    def configure(self) -> None:
        """Give all registers the shape of the kernel's blocks."""
        s = self.shape
        data = bytearray(64)
        data[0] = 1
        for register in range(REGISTERS):
            data[16 + 2 * register] = COLUMNS * 4
            data[48 + register] = s.rows
        kinds = self._operand_registers()
        for register in kinds["left"]:
            data[16 + 2 * register] = s.length
        for register in kinds["right"]:
            data[48 + register] = s.length // GROUP
        type_ = ir.ArrayType(I8, 64)
        table = ir.GlobalVariable(self.builder.module, type_, "matrix_shape")
        table.linkage = "internal"
        table.global_constant = True
        table.initializer = ir.Constant(type_, data)
        table.align = 64
        self._call("ldtilecfg", [self.builder.bitcast(table, ir.PointerType())])

    def release(self) -> None:
        """Say that the registers are no longer in use."""
        self._call("tilerelease", [])

    def _operand_registers(self) -> dict[str, list[int]]:
        free = list(range(self.shape.sums, REGISTERS))
        half = len(free) // 2
        if not half:
            raise InternalError(f"{self.shape.sums} blocks of sums leave no registers")
        return {"left": free[:half], "right": free[half:]}

    def emit(self, loop: Loop) -> None:
        """All iterations of a nest of matrix loops."""
        loops, inner = _nest(loop)
        for x in loops:
            self.index.ranges[x.var] = (0, x.hi.value - 1)
        match inner:
            case Init(states=(state,)):
                self._call("tilezero", [self._number(state, loops)])
            case Update():
                self._product(inner, loops)
            case Assign(target=target, value=Read() as source):
                rows, columns = loops
                place, stride = self._place(target.buffer, target.coords, rows.var)
                del columns
                number = self._number(Access(source.value, source.coords), loops)
                self._call("tilestored64", [number, place, stride])
                self.expressions.forget_loads()
            case _:
                raise InternalError("a matrix loop around something else than a sum")
        for x in loops:
            del self.index.ranges[x.var]

    def _product(self, s: Update, loops: list[Loop]) -> None:
        operands = narrow_factors(s)
        if operands is None or len(loops) != 3:
            raise InternalError("a matrix loop around something else than products")
        rows, columns, products = (x.var for x in loops)
        left, right = operands
        if any(columns in c.names() for _, c in left.coords if isinstance(c, Index)):
            left, right = right, left
        a = self._operand("left", left, rows, 1)
        b = self._operand("right", right, products, GROUP)
        signs = "".join("s" if x.dtype is DType.I8 else "u" for x in (left, right))
        self._call(f"tdpb{signs}d", [self._number(s.states[0], loops), a, b])

    def _operand(self, kind: str, r: Read, rows: str, step: int) -> ir.Constant:
        """The register that holds a block of an operand, whose rows are `step` of a loop apart."""
        if self._block is not self.builder.block:
            self._block, self._held = self.builder.block, []
        coords = tuple((d, self.index.resolve(c)) for d, c in r.coords if isinstance(c, Index))
        key = (r.value, coords)
        own = self._operand_registers()[kind]
        for register, held in self._held:
            if held == key and register in own:
                self._held.remove((register, held))
                self._held.append((register, held))
                return ir.Constant(I8, register)
        used = [register for register, _ in self._held if register in own]
        fresh = [register for register in own if register not in used]
        register = fresh[0] if fresh else used[0]
        self._held = [(n, k) for n, k in self._held if n != register]
        self._held.append((register, key))
        place, stride = self._place(r.value, r.coords, rows, step)
        self._call("tileloadd64", [ir.Constant(I8, register), place, stride])
        return ir.Constant(I8, register)

    def _place(
        self, name: str, coords: tuple[tuple[str, object], ...], rows: str, step: int = 1
    ) -> tuple[ir.Value, ir.Value]:
        """The address of a block's first element, and the bytes from row to row."""
        buffer = self.expressions.buffers[name]
        address = self.expressions.place(Read(name, coords, buffer.dtype))  # type: ignore[arg-type]
        if address is None:
            raise InternalError(f"a matrix block of %{name} may lie outside")
        starts = {v: Index.of(0) for v in address.names() if v in self._matrix_loops(address)}
        first = address.subs(starts).simplify(self.index.ranges)
        second = address.subs({**starts, rows: Index.of(step)}).simplify(self.index.ranges)
        stride = second - first
        if not stride.is_const:
            raise InternalError(f"the rows of a matrix block of %{name} are at no fixed distance")
        place = self.expressions.memory.place(buffer, first)
        return place, i64(stride.value * buffer.dtype.bytes)

    def _matrix_loops(self, address: Index) -> set[str]:
        return {v for v in address.names() if v not in self.index.values}

    def _number(self, a: Access, loops: list[Loop]) -> ir.Constant:
        """The register of a block of sums."""
        own = {x.var for x in loops}
        key: list[int] = []
        for _, c in a.coords:
            if not isinstance(c, Index):
                raise InternalError("a sum at a data-dependent place")
            if not c.names() & own:
                key.append(self.index.resolve(c).value)
        number = self._sums.setdefault(tuple(key), len(self._sums))
        return ir.Constant(I8, number)

    def _call(self, name: str, args: list[ir.Value]) -> None:
        types = [a.type for a in args]
        function = self.expressions.memory.intrinsic(f"llvm.x86.{name}", ir.VoidType(), types)
        self.builder.call(function, args)
