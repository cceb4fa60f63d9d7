"""Matrix registers (AMX): loops of kind `matrix`, of which one instruction does a whole block.

There are eight registers of up to 16 rows of 64 bytes: sums of 32 bits in up to 16 columns. A sum
has one for itself as long as it lasts; the others hold blocks of operands, the one that was used
longest ago making room. Registers are configured for the shapes of their blocks: when the kernel
begins, or where there are several shapes, before the sums of each. A number of rows that is known
in the run chooses among tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod

from rutc.base.record import record
from rutc.emit.expression import ExpressionEmitter
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import i64
from rutc.errors import InternalError
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.facts.matrix_blocks import (
    COLUMNS,
    GROUP_BYTES,
    REGISTERS,
    ROWS,
    operand_registers,
)
from rutc.tensor_ir.facts.products import terms_of
from rutc.tensor_ir.indices.affine import ONE, Index, maximum
from rutc.tensor_ir.kernel import Access, Assign, Init, Kernel, Kind, Loop, Stmt, Update
from rutc.tensor_ir.statements import walk_stmts

TABLE_BYTES = 64
"""Of the shapes of all registers."""
MOST_TRIED = 1 << 14
FIRST = "ldtilecfg"
"""The instruction that all code begins with that uses registers."""
INTRINSICS = "llvm.x86."
I8 = ir.IntType(8)


@record
class Shape:
    """Rows and columns of a block of sums, the bytes of a row of factors, and how many blocks."""

    rows: Index
    columns: int
    bytes: int
    sums: int

    @property
    def registers(self) -> dict[str, list[int]]:
        """The registers that are left for blocks of the two operands."""
        half, _ = operand_registers(self.sums)
        if not half:
            raise InternalError(f"{self.sums} blocks of sums leave no registers")
        free = list(range(self.sums, REGISTERS))
        return {"left": free[:half], "right": free[half:]}


def matrix_shapes(kernel: Kernel) -> dict[str, Shape]:
    """The shape of the blocks of every buffer of sums in matrix registers."""
    found: dict[str, Shape] = {}
    for s in walk_stmts(kernel.body):
        if not isinstance(s, Loop) or s.kind is not Kind.MATRIX:
            continue
        loops, inner = _nest(s)
        if not isinstance(inner, Update) or len(loops) != 3:
            continue
        columns, products = (x.hi.value for x in loops[1:])
        if columns > COLUMNS:
            raise InternalError(f"a matrix block of {columns} columns")
        name = inner.states[0].buffer
        axes = kernel.buffer(name).layout.axes
        ((left, _),) = _factors(inner)
        sums = prod(Index.of(a.extent).value for a in axes[:-2])
        shape = Shape(loops[0].hi, columns, products * left.dtype.bytes, sums)
        if found.setdefault(name, shape) != shape:
            raise InternalError(f"the matrix blocks of %{name} have several shapes")
    return found


def matrix_types(kernel: Kernel) -> set[DType]:
    """The element types of the left factors of what matrix registers multiply."""
    loops = [s for s in walk_stmts(kernel.body) if isinstance(s, Loop) and s.kind is Kind.MATRIX]
    inner = [s for _, s in map(_nest, loops) if isinstance(s, Update)]
    return {left.dtype for s in inner for left, _ in _factors(s)}


def uses_registers(text: str) -> bool:
    """Whether a module of LLVM's code uses matrix registers."""
    return f"{INTRINSICS}{FIRST}" in text


def _configuration(shape: Shape, rows: int) -> bytes:
    """The table that gives registers the shape of blocks of so many rows."""
    data = bytearray(TABLE_BYTES)
    data[0] = 1
    for register in range(REGISTERS):
        data[16 + 2 * register] = shape.columns * GROUP_BYTES
        data[48 + register] = rows
    for register in shape.registers["left"]:
        data[16 + 2 * register] = shape.bytes
    for register in shape.registers["right"]:
        data[48 + register] = shape.bytes // GROUP_BYTES
    return bytes(data)


def _factors(s: Update) -> tuple[tuple[Read, Read], ...]:
    found = terms_of(s.reducer, s.elements)
    if found is None or len(found) != 1:
        raise InternalError("a matrix loop around something else than a product")
    return found


def _nest(s: Stmt) -> tuple[list[Loop], Stmt]:
    loops: list[Loop] = []
    while isinstance(s, Loop) and s.kind is Kind.MATRIX:
        loops.append(s)
        (s,) = s.body
    return loops, s


class MatrixEmitter:
    """Emits the matrix loops of one kernel."""

    def __init__(self, expressions: ExpressionEmitter, shapes: Mapping[str, Shape]) -> None:
        """Emit where `expressions` does; `shapes` are those of the buffers of sums."""
        self.expressions = expressions
        self.builder = expressions.builder
        self.index = expressions.index
        self.shapes = shapes
        self._tables: dict[Shape, ir.GlobalVariable] = {}
        self._sums: dict[str, dict[tuple[int, ...], int]] = {name: {} for name in shapes}
        # The operands' blocks in the other registers, the one used last at the end.
        self._held: list[tuple[int, object]] = []
        self._block: ir.Block | None = None

    def begin(self) -> None:
        """Configure the registers, if all blocks of the kernel have one shape."""
        kinds = set(self.shapes.values())
        if len(kinds) == 1:
            self._configure(*kinds)

    def end(self) -> None:
        """Say that the registers are no longer in use."""
        self._call("tilerelease", [])

    def _configure(self, shape: Shape) -> None:
        if shape not in self._tables:
            self._tables[shape] = self._table(shape)
        table = self.builder.bitcast(self._tables[shape], ir.PointerType())
        if not shape.rows.is_const:
            # Where there are no rows, no block is ever used.
            rows = maximum(shape.rows, ONE, self.index.ranges)
            place = self.index.emit((rows - 1) * TABLE_BYTES)
            table = self.builder.gep(table, [place], type_=I8)
        self._call(FIRST, [table])

    def _table(self, shape: Shape) -> ir.GlobalVariable:
        """What gives all registers the shape of their blocks, for each number of rows."""
        numbers = [shape.rows.value] if shape.rows.is_const else range(1, ROWS + 1)
        data = b"".join(_configuration(shape, rows) for rows in numbers)
        type_ = ir.ArrayType(I8, len(data))
        name = f"matrix_shape.{len(self._tables)}"
        return ir.GlobalVariable(
            self.builder.module, name, ir.Constant(type_, data), align=TABLE_BYTES
        )

    def emit(self, loop: Loop) -> None:
        """All iterations of a nest of matrix loops."""
        loops, inner = _nest(loop)
        for x in loops:
            bounds = x.hi.bounds(self.index.ranges)
            if bounds is None or not (x.hi.is_const or bounds[1] <= ROWS):
                raise InternalError(f"a matrix loop of {x.hi} iterations")
            self.index.ranges[x.var] = (0, max(bounds[1] - 1, 0))
        match inner:
            case Init(states=(state,)):
                number = self._number(state, loops)
                if len(set(self.shapes.values())) > 1 and number.constant == 0:
                    self._configure(self.shapes[state.buffer])
                self._call("tilezero", [number])
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
        rows, columns, products = (x.var for x in loops)
        ((left, right),) = _factors(s)
        if any(columns in c.names() for _, c in left.coords if isinstance(c, Index)):
            left, right = right, left
        registers = self.shapes[s.states[0].buffer].registers
        a = self._operand(registers["left"], left, rows, 1)
        b = self._operand(registers["right"], right, products, GROUP_BYTES // right.dtype.bytes)
        self._call(_product_of(left.dtype, right.dtype), [self._number(s.states[0], loops), a, b])

    def _operand(self, own: list[int], r: Read, rows: str, step: int) -> ir.Constant:
        """The register of `own` that holds a block of an operand, its rows `step` apart."""
        if self._block is not self.builder.block:
            self._block, self._held = self.builder.block, []
        coords = tuple((d, self.index.resolve(c)) for d, c in r.coords if isinstance(c, Index))
        key = (r.value, coords)
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

        def row(number: int) -> Index:
            found = address.subs({**starts, rows: Index.of(number)})
            return found.simplify(self.index.ranges)

        first, stride = row(0), row(step) - row(0)
        place = self.expressions.memory.place(buffer, first)
        constant = stride.value if stride.is_const else self._always(stride)
        if constant is not None:
            return place, i64(constant * buffer.dtype.bytes)
        if any(row((k + 1) * step) - row(k * step) != stride for k in range(1, ROWS - 1)):
            raise InternalError(f"the rows of a matrix block of %{name} are at no fixed distance")
        return place, self.index.emit(stride * buffer.dtype.bytes)

    def _always(self, x: Index) -> int | None:
        """The value that an index has in all iterations of the loops around, tried one by one.

        Quotients and remainders of loops that became one may cancel without being simplified.
        """
        names = sorted(x.names())
        ranges = [range(low, high + 1) for low, high in (self.index.ranges[v] for v in names)]
        if prod(map(len, ranges)) > MOST_TRIED:
            return None
        found = {x.evaluate(dict(zip(names, at, strict=True))) for at in product(*ranges)}
        return int(found.pop()) if len(found) == 1 else None

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
        numbers = self._sums[a.buffer]
        return ir.Constant(I8, numbers.setdefault(tuple(key), len(numbers)))

    def _call(self, name: str, args: list[ir.Value]) -> None:
        self.builder.call_named(f"{INTRINSICS}{name}", ir.VoidType(), args)


def _product_of(left: DType, right: DType) -> str:
    """The instruction's name."""
    if left is DType.BF16:
        return "tdpbf16ps"
    return f"tdpb{''.join('s' if x is DType.I8 else 'u' for x in (left, right))}d"
