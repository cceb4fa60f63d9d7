"""The text form of graphs: `parse(str(g)) == g`.

    graph    := graph "name" line*                      one statement a line; a comment follows `#`
    line     := symbols s = lowest..highest, ...        free sizes and their ranges; `@8` after one:
                                                        a common size of its own
              | dims d = index, ...                     the extents of all dims
              | reducer r(type, ...) identity(literal, ...) lift(expr, ...) merge(expr, ...)
                        finish(expr, ...)                   one that is not in `reducer`'s table
              | def, ... = node origin                      def := %v : type{dim, ...}
              | output "name" [axis, ...] = %v
              | state "input" = "output"                what an input has after a run
              | interface input|output "name" = bundle      (see `interface`)
    node     := input "name" [axis, ...] (fixed data)?
              | const [axis, ...] data                  data: nested [...] or data "digest"
              | expr | r{dim, ...} expr, ...            a nest: for the outputs' dims, r over {..}
              | scan t carry(def = %init -> %next, ...) collect(%v, ...) origin { line* }
              | while carry(def = %init -> %next, ...) if %cond origin { line* }
              | if %cond origin { line* yield %v, ... } else { line* yield %v, ... }
              | scatter{dim, ...} %base[coords] r= expr     set= keeps the last
              | bind symbol = %v
              | call routine(%v[axis, ...], ..., key=literal, ...) (-> [axis, ...], ...)?
                        the axes' order; without ->, results' axes are the sorted dims
    origin   := (@ "onnx node", ...)?
    coords   := dim=coord, ... (else literal)?              `dim` alone is dim=dim
    coord    := index | expr of type i64 (data-dependent)
    index    := integers and names with + - * // % min(,) max(,)
    expr     := %v[coords] | %v | literal | index(index) | type(expr) | $local | op(expr, ...)
              | infix and prefix, loosest first:   or | and | not | == != < <= > >= | | | ^ | &
                << >> | + - | * / % (mod) | -
    literal  := 1 | 1.5 | inf | nan | true | false | "text", with `:type` where neither the operands
                beside it nor its place give its type

A `%` directly before a name or a quote begins a value, else it is the remainder. Names of dims and
symbols that are no plain words stand in 'single quotes', those of values in %"double quotes".
A line may go on after a comma, and inside () and [].
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import assert_never

import numpy as np

from rutc.tensor_ir.data import Data
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    COMPARE,
    LOGIC,
    Apply,
    BitCast,
    Cast,
    Coord,
    Expr,
    IndexValue,
    Lit,
    Local,
    Read,
    walk,
)
from rutc.tensor_ir.indices.affine import Index, quoted
from rutc.tensor_ir.nodes import (
    Bind,
    Call,
    Carry,
    Const,
    If,
    Input,
    Nest,
    Node,
    Origin,
    Scan,
    Scatter,
    Value,
    While,
    outs,
)
from rutc.tensor_ir.reducer import REDUCERS, Reducer, reducer

INLINE = 64
"""Constants of more elements are printed as a digest."""

INFIX: Mapping[str, tuple[str, int]] = {
    "or": ("or", 1),
    "and": ("and", 2),
    "eq": ("==", 4),
    "ne": ("!=", 4),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "bitor": ("|", 5),
    "bitxor": ("^", 6),
    "bitand": ("&", 7),
    "shl": ("<<", 8),
    "shr": (">>", 8),
    "add": ("+", 9),
    "sub": ("-", 9),
    "mul": ("*", 10),
    "div": ("/", 10),
    "mod": ("%", 10),
}
"""Every infix operator's sign and binding strength; all group to the left."""
NOT, NEGATION, ATOM = 3, 11, 12
"""The binding strengths of `not`, of the unary minus and of everything closed."""


def value_name(name: str) -> str:
    """A value's name as it stands in text, `%` included."""
    plain = re.fullmatch(r"[A-Za-z0-9_.]+", name, re.ASCII)
    return f"%{name}" if plain else f"%{string_text(name)}"


def is_custom(r: Reducer) -> bool:
    """Whether a reducer is not the one that the table of `reducer` has under its name."""
    if r.name not in REDUCERS:
        return True
    try:
        return reducer(r.name, *r.elements) != r
    except TypeError:
        return True


def node_lines(n: Node) -> Iterator[str]:
    """The lines of one node, bodies indented by two."""
    head = f"{', '.join(_definition(v) for v in outs(n))} = "
    end = _origin(n.origin)
    match n:
        case Input():
            fixed = "" if n.fixed is None else f" fixed {_data(n.fixed, n.out.dtype)}"
            yield f"{head}input {string_text(n.name)} {axes_text(n.axes)}{fixed}{end}"
        case Const():
            yield f"{head}const {axes_text(n.axes)} {_data(n.data, n.out.dtype)}{end}"
        case Nest():
            r = n.reducer
            name = "" if r is None else f"{quoted(r.name)}{_set(n.bound)} "
            expected = n.out.dtype if r is None else None
            yield f"{head}{name}{', '.join(print_expr(e, expected) for e in n.body)}{end}"
        case Scan():
            collected = ", ".join(value_name(c) for c in n.collected)
            head += f"scan {quoted(n.dim)} carry({_carries(n.carries)})"
            yield f"{head} collect({collected}){end} {{"
            yield from _indented(n.body)
            yield "}"
        case While():
            yield f"{head}while carry({_carries(n.carries)}) if {value_name(n.cond)}{end} {{"
            yield from _indented(n.body)
            yield "}"
        case If():
            yield f"{head}if {value_name(n.cond)}{end} {{"
            yield from _indented(n.then.nodes)
            yield f"  yield {', '.join(map(value_name, n.then.results))}"
            yield "} else {"
            yield from _indented(n.orelse.nodes)
            yield f"  yield {', '.join(map(value_name, n.orelse.results))}"
            yield "}"
        case Scatter():
            target = f"{value_name(n.base)}[{_coords(n.coords)}]"
            how = "set" if n.reducer is None else quoted(n.reducer.name)
            body = print_expr(n.body, n.out.dtype)
            yield f"{head}scatter{_set(n.dims)} {target} {how}= {body}{end}"
        case Bind():
            yield f"{head}bind {quoted(n.symbol)} = {value_name(n.value)}{end}"
        case Call():
            args = [
                value_name(a) + (axes_text(axes) if axes else "")
                for a, axes in zip(n.args, n.arg_axes, strict=True)
            ]
            args += [f"{quoted(k)}={_attribute(x)}" for k, x in n.attributes]
            plain = n.out_axes == tuple(v.dims for v in n.outs)
            shown = "" if plain else f" -> {', '.join(map(axes_text, n.out_axes))}"
            yield f"{head}call {quoted(n.routine)}({', '.join(args)}){shown}{end}"
        case _:
            assert_never(n)


# -- expressions --------------------------------------------------------------------------------
def print_expr(e: Expr, expected: DType | None = None) -> str:
    """The expression as text; literals of the type `expected` at its top stand without a type."""
    return _expr(e, expected)[0]


def _expr(e: Expr, expected: DType | None) -> tuple[str, int]:
    """The text and how tightly its loosest operator binds."""
    match e:
        case Lit():
            text = print_literal(e, expected)
            return text, NEGATION if text.startswith("-") else ATOM
        case IndexValue():
            return f"index({e.index})", ATOM
        case Read():
            fill = "" if e.fill is None else f" else {print_literal(e.fill, e.dtype)}"
            coords = (_coords(e.coords) + fill).strip()
            return value_name(e.value) + (f"[{coords}]" if coords else ""), ATOM
        case Local():
            return f"${e.name}", ATOM
        case Cast():
            return f"{e.dtype}({print_expr(e.arg)})", ATOM
        case BitCast():
            return f"bits_{e.dtype}({print_expr(e.arg)})", ATOM
        case Apply():
            return _apply(e, expected)
        case _:
            assert_never(e)


def _apply(e: Apply, expected: DType | None) -> tuple[str, int]:
    types = operand_types(e, expected)
    if e.op in INFIX:
        sign, strength = INFIX[e.op]
        left, left_strength = _expr(e.args[0], types[0])
        right, right_strength = _expr(e.args[1], types[1])
        left = left if left_strength >= strength else f"({left})"
        right = right if right_strength > strength else f"({right})"
        return f"{left} {sign} {right}", strength
    if e.op == "not":
        inner, strength = _expr(e.args[0], types[0])
        return f"not {inner}" if strength >= NOT else f"not ({inner})", NOT
    if e.op == "neg" and not isinstance(e.args[0], Lit):
        inner, strength = _expr(e.args[0], types[0])
        return f"-{inner}" if strength == ATOM else f"-({inner})", NEGATION
    args = ", ".join(print_expr(a, t) for a, t in zip(e.args, types, strict=True))
    return f"{e.op}({args})", ATOM


def print_literal(x: Lit, expected: DType | None) -> str:
    """A literal, with its type unless that is `expected` or plain from its form."""
    if x.dtype is DType.STRING:
        return string_text(str(x.value))
    if x.dtype is DType.BOOL:
        return "true" if x.value else "false"
    text = number_text(x.value, x.dtype)
    return text if x.dtype is expected else f"{text}:{x.dtype}"


def number_text(x: float | bool | str, dtype: DType) -> str:
    """The shortest digits that give `x` back when rounded to `dtype`."""
    if dtype is DType.F32 and isinstance(x, float):
        short = repr(float(str(np.float32(x))))
        return short if np.float32(float(short)) == x else repr(x)
    return repr(x)


def operand_types(e: Apply, expected: DType | None) -> tuple[DType | None, ...]:
    """The type that its place gives to each operand of `e`: a sibling's, or the result's."""
    kin = e.args[1:] if e.op == "select" else e.args
    known = [a.dtype for a in kin if is_typed(a)]
    if known:
        shared: DType | None = known[0]
    elif e.op in COMPARE or e.op in LOGIC or e.op in ("not", "isnan", "isinf"):
        shared = None
    else:
        shared = expected
    return (DType.BOOL, shared, shared) if e.op == "select" else (shared,) * len(e.args)


def is_typed(e: Expr) -> bool:
    """Whether the text of `e` gives its type wherever it stands."""
    if isinstance(e, Lit):
        return e.dtype in (DType.BOOL, DType.STRING)
    if not isinstance(e, Apply) or e.dtype is DType.BOOL:
        return True
    return any(is_typed(a) for a in (e.args[1:] if e.op == "select" else e.args))


def _coords(coords: Iterable[tuple[str, Coord]]) -> str:
    return ", ".join(_coord(d, c) for d, c in coords)


def _coord(dim: str, c: Coord) -> str:
    if isinstance(c, Index):
        return quoted(dim) if c.as_var == dim else f"{quoted(dim)}={c}"
    # Without anything that no index has, the literals' types tell an expression from an index.
    plain = all(isinstance(x, Lit | Apply) for x in walk(c))
    return f"{quoted(dim)}={print_expr(c, None if plain else DType.I64)}"


# -- parts --------------------------------------------------------------------------------------
def string_text(s: str) -> str:
    """A string in double quotes."""
    return json.dumps(s, ensure_ascii=False)


def _definition(v: Value) -> str:
    return f"{value_name(v.name)} : {v.dtype}{_set(v.dims)}"


def _set(dims: Iterable[str]) -> str:
    return "{" + ",".join(map(quoted, dims)) + "}"


def axes_text(axes: Iterable[str]) -> str:
    """Dims in an order."""
    return f"[{', '.join(map(quoted, axes))}]"


def _origin(origin: Origin) -> str:
    return f" @ {', '.join(map(string_text, origin))}" if origin else ""


def _carries(carries: Iterable[Carry]) -> str:
    return ", ".join(
        f"{_definition(c.param)} = {value_name(c.init)} -> {value_name(c.next)}" for c in carries
    )


def _indented(nodes: Iterable[Node]) -> Iterator[str]:
    for n in nodes:
        for line in node_lines(n):
            yield f"  {line}"


def _attribute(x: float | str | tuple[int, ...]) -> str:
    if isinstance(x, tuple):
        return f"[{', '.join(map(str, x))}]"
    return string_text(x) if isinstance(x, str) else repr(x)


def reducer_text(r: Reducer) -> str:
    """The definition of a reducer."""
    parts = [f"reducer {quoted(r.name)}({', '.join(map(str, r.elements))})"]
    parts.append(f"identity({', '.join(print_literal(x, None) for x in r.identity)})")
    for title, exprs in (("lift", r.lift), ("merge", r.merge), ("finish", r.finish)):
        parts.append(f"{title}({', '.join(print_expr(e) for e in exprs)})")
    return " ".join(parts)


def _data(data: Data, dtype: DType) -> str:
    array = data.array
    if array.size <= INLINE:
        wide = array.astype(np.float64) if dtype.is_float else array
        wide = array.astype(np.int8) if dtype.is_int and dtype.bits < 8 else wide
        items = [_item(x, dtype) for x in wide.reshape(-1).tolist()]
        restored = elements([read_item(x) for x in items], dtype, array.shape)
        if restored == data:
            return _nested(items, array.shape)
    return f"data {string_text(data.digest)}"


def _item(x: float | bool | str, dtype: DType) -> str:
    if isinstance(x, bool):
        return "true" if x else "false"
    return string_text(x) if isinstance(x, str) else number_text(x, dtype)


def read_item(text: str) -> int | float | bool | str:
    """One element of an inline constant."""
    if text.startswith('"'):
        return str(json.loads(text))
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def elements(items: list[int | float | bool | str], dtype: DType, shape: tuple[int, ...]) -> Data:
    """Constant data of a type from its elements in row-major order."""
    flat = np.empty(len(items), dtype.numpy)
    for i, x in enumerate(items):
        flat[i] = x
    return Data(flat.reshape(shape))


def _nested(items: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return items[0]
    if not items:
        return "[]"
    step = len(items) // shape[0]
    rows = [items[i : i + step] for i in range(0, len(items), step)]
    return f"[{', '.join(_nested(row, shape[1:]) for row in rows)}]"
