"""The text form of kernels, for reading and for golden tests."""

from __future__ import annotations

from typing import assert_never

from rutc.tensor_ir.affine import Index, quoted
from rutc.tensor_ir.expr import Coord, Expr
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Branch,
    Buffer,
    Init,
    Kernel,
    Loop,
    Merge,
    Prefetch,
    Put,
    Stmt,
    Update,
)
from rutc.tensor_ir.ranges import range_text
from rutc.tensor_ir.text import print_expr


def print_kernel(k: Kernel) -> str:
    """The kernel as indented text."""
    args = ", ".join(_buffer(b) for b in k.args)
    lines = [f"kernel {k.name}({args}) {{"]
    lines += [f"  symbol {quoted(n)} = {range_text(r)}" for n, r in k.symbols]
    lines += [f"  local {_buffer(b)}" for b in k.locals]
    for s in k.body:
        _stmt(s, 1, lines)
    return "\n".join([*lines, "}"])


def _buffer(b: Buffer) -> str:
    known = f"{' finite' if b.finite else ''}{' small' if b.small else ''}"
    return f"%{b.name}: {b.dtype} {b.layout} {b.space.value}{known}"


def _stmt(s: Stmt, depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    match s:
        case Loop():
            lines.append(f"{pad}for {s.var} in [{s.lo}, {s.hi}) {s.kind.value} {{")
            for inner in s.body:
                _stmt(inner, depth + 1, lines)
            lines.append(f"{pad}}}")
        case Assign():
            lines.append(f"{pad}{_access(s.target)} = {_expr(s.value)}")
        case Put():
            how = s.reducer.name if s.reducer is not None else "set"
            lines.append(f"{pad}put {_access(s.target)} {how}= {_expr(s.value)}")
        case Init():
            lines.append(f"{pad}{s.reducer.name}.init({', '.join(map(_access, s.states))})")
        case Update():
            parts = [*map(_access, s.states), *map(_expr, s.elements)]
            lanes = f" lanes {s.lanes}" if s.lanes else ""
            lines.append(f"{pad}{s.reducer.name}.update({', '.join(parts)}){lanes}")
        case Merge():
            parts = [*map(_access, s.states), *map(_access, s.sources), s.var]
            lines.append(f"{pad}{s.reducer.name}.merge({', '.join(parts)})")
        case Branch():
            lines.append(f"{pad}if {s.left} < {s.right} {{")
            for inner in s.then:
                _stmt(inner, depth + 1, lines)
            if s.orelse:
                lines.append(f"{pad}}} else {{")
                for inner in s.orelse:
                    _stmt(inner, depth + 1, lines)
            lines.append(f"{pad}}}")
        case Prefetch():
            purpose = " to write" if s.write else ""
            lines.append(f"{pad}prefetch %{s.buffer} @ {s.address} into {s.level}{purpose}")
        case _:
            assert_never(s)


def _access(a: Access) -> str:
    coords = ", ".join(d if c == Index.of(d) else f"{d}={_coord(c)}" for d, c in a.coords)
    return f"%{a.buffer}[{coords}]"


def _coord(c: Coord) -> str:
    return str(c) if isinstance(c, Index) else _expr(c)


def _expr(e: Expr) -> str:
    return print_expr(e)
