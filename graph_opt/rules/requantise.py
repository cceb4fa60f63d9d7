"""What is quantised is scaled by one factor, the step of the result included.

Layers of quantised models are `round((total * s + b) / step) + zero`, with a `total` of integers:
the quotient of a sum that has rounded already, and which the model's runtimes therefore take for
`round(total * m + b / step) + zero` with one `m = s / step` [Jacob et al. 2018, §2.2].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import at_point, index_coords, is_gathered, is_plain
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rounding import elements, in_f64, is_representable, rounds
from rutc.graph_opt.rules.fold import FoldConstants
from rutc.graph_opt.rules.narrow import quantised
from rutc.tensor_ir import (
    Apply,
    Cast,
    DType,
    Expr,
    Lit,
    Nest,
    Node,
    Read,
    Value,
    apply,
    cast,
)
from rutc.tensor_ir.expr import index_names, reads, substitute, transform, walk
from rutc.tensor_ir.terms import factors

EXACT = 1 << 24
"""Whole numbers up to this size are exact in f32."""
MOST_STEPS = EXACT >> 8
"""A shift of so many steps is rounded to a 256th of a step at worst."""
MOST_NESTS = 8
"""So many nests are looked into for what is quantised."""

ONE: Expr = Lit(1.0, DType.F64)


@record
class Term:
    """`x` times a constant that is computed in f64; with `whole`, `x + whole` is multiplied.

    That is a constant of whole numbers, as `x` is then: f32(..) of i32.
    """

    x: Expr
    by: Expr
    whole: Expr | None = None


@record
class Linear:
    """A sum of terms and of a constant in f64; `made` are nests that it is read through."""

    terms: tuple[Term, ...] = ()
    shift: Expr | None = None
    made: tuple[Nest, ...] = ()

    def scaled(self, by: Expr) -> Linear:
        """All of it times a constant."""
        terms = tuple(replace(t, by=apply("mul", t.by, by)) for t in self.terms)
        shift = None if self.shift is None else apply("mul", self.shift, by)
        return replace(self, terms=terms, shift=shift)

    def shifted_whole(self, by: Expr) -> Linear:
        """The sum with a constant of whole numbers, which a term of whole numbers takes."""
        match self:
            case Linear((Term(Cast(arg, DType.F32), factor, whole),), None) if factor == ONE:
                if by.dtype is arg.dtype is DType.I32:
                    whole = by if whole is None else apply("add", whole, by)
                    return replace(self, terms=(replace(self.terms[0], whole=whole),))
        return self.plus(Linear(shift=in_f64(by)))

    def of_floats(self) -> Linear:
        """The same without constants of whole numbers, which the shift has instead."""
        bare = Linear(tuple(replace(t, whole=None) for t in self.terms), self.shift, self.made)
        for t in self.terms:
            if t.whole is not None:
                bare = bare.plus(Linear(shift=apply("mul", in_f64(t.whole), t.by)))
        return bare

    def plus(self, other: Linear) -> Linear:
        """The sum of both."""
        shifts = [s for s in (self.shift, other.shift) if s is not None]
        shift = apply("add", *shifts) if len(shifts) > 1 else next(iter(shifts), None)
        return Linear(self.terms + other.terms, shift, self.made + other.made)


@record
class Quantising:
    """`kind(min(max(round(x / step) + zero, low), high))`."""

    x: Expr
    step: Expr
    zero: float
    low: float
    high: float


@rounds(
    changes="What is quantised is scaled by one factor, which the step of the result is divided "
    "into: numbers next to the middle between two steps may become the other one. A bias of floats "
    "and other sums are added to what is scaled; whole numbers are added to a single sum before, "
    "exactly.",
    refused="Neither sums of integers nor quantised numbers are scaled; nothing is divided by a "
    "step, as in `QLinearConv`; a factor is no normal number; biases, or zero points beside them, "
    "are so many steps of the result that these would round them.",
)
@matches("elementwise")
def quantise_by_factors(n: Node, editor: Editor) -> Result:
    """Scales of integers and the step that they are quantised by are one factor.

    %x{m,n} = f32(%t[m, n] - 3) * 0.5 + %b[n]
    %y{m,n} = u8(i32(min(max(round(max(%x[m, n], 0.0) / 0.25) + 7.0, 0.0), 255.0)))
    ->
    %y.shift{n} = f32((-1.5 + f64(%b[n])) * (1.0 / 0.25))
    %y{m,n} = u8(i32(min(max(round(f32(%t[m, n]) * 2.0 + %y.shift[n]) + 7.0, 7.0), 255.0)))

    Bounds of what is quantised become those of the result. Quantised numbers that are added up are
    read as they are stored.
    """
    if not isinstance(n, Nest) or n.reducer is not None:
        return Reason("not elementwise")
    found = _quantising(n.body[0])
    if found is None:
        return Reason("it divides by no step")
    step = _known(found.step, editor)
    if step is None:
        return Reason("only the run knows the step")
    reader = _Reader(editor)
    found, at, made = reader.within(found, n)
    form = reader.linear(found.x, at).scaled(apply("div", ONE, step))
    form = replace(form, made=(*form.made, *made))
    if not any(_is_of_integers(t.x) for t in form.terms):
        return Reason("it quantises nothing that is made of integers")
    new: list[Node] = []

    def outlined(e: Expr, kind: str) -> Expr | None:
        most = MOST_STEPS if kind == "shift" else inf
        return _outlined(e, f"{n.out.name}.{kind}", most, n, new, editor)

    total = _total(form, outlined)
    if total is None:
        return Reason("a factor is no normal number, or the shift many steps")
    whole: Expr = apply("round", total)
    if found.zero:
        whole = apply("add", whole, Lit(found.zero, DType.F32))
    low, high = (Lit(v, DType.F32) for v in (found.low, found.high))
    body = cast(cast(apply("min", apply("max", whole, low), high), DType.I32), n.out.dtype)
    if body == n.body[0]:
        return Reason("it is scaled by one factor already")
    origin = merge_origins(*form.made, n)
    return (*new, replace(n, body=(body,), origin=origin))


def _total(form: Linear, outlined: Callable[[Expr, str], Expr | None]) -> Expr | None:
    """The terms and the shift, added up so that each product goes with a sum.

    What is shifted by whole numbers alone stays exact up to its one factor: numbers in the middle
    between two steps are no others.
    """
    total: Expr | None = None
    if len(form.terms) > 1 or form.shift is not None:
        form = form.of_floats()
    for t in form.terms:
        by = outlined(t.by, "scale")
        if by is None:
            return None
        x = t.x
        if t.whole is not None:
            assert isinstance(x, Cast)
            whole = outlined(t.whole, "whole")
            if whole is None:
                return None
            x = cast(apply("add", x.arg, whole), DType.F32)
        scaled = apply("mul", x, by)
        if total is not None:
            total = apply("add", total, scaled)
            continue
        shift = outlined(form.shift, "shift") if form.shift is not None else None
        if shift is None and form.shift is not None:
            return None
        total = scaled if shift in (None, Lit(0.0, DType.F32)) else apply("add", scaled, shift)
    return total


def _is_of_integers(e: Expr) -> bool:
    return any(isinstance(x, Cast) and x.arg.dtype.is_int for x in walk(e))


def _outlined(
    e: Expr, name: str, most: float, n: Nest, new: list[Node], editor: Editor
) -> Expr | None:
    """A constant of f64 in f32, or of i32 as it is, as a literal or as one read.

    None if it is no normal number or of a larger magnitude than `most`.
    """
    whole = e.dtype is DType.I32
    if whole and isinstance(e, Read):
        return e
    dims = tuple(sorted(index_names(e)))
    found = elements(e, dims, editor) if set(dims) <= set(n.out.dims) else None
    if found is None or not (whole or is_representable(found, DType.F32)):
        return None
    if np.abs(found).max(initial=0) > most:
        return None
    kept = e if whole else cast(e, DType.F32)
    if not dims:
        value = found.astype(kept.dtype.numpy)
        return Lit(value.item(), kept.dtype)
    made = Value(editor.fresh_value(name, new), kept.dtype, dims)
    new.append(Nest((made,), (), None, (kept,), n.origin))
    return at_point(made)


# -- recognition --------------------------------------------------------------------------------
def _quantising(e: Expr) -> Quantising | None:
    """What an expression quantises, and how."""
    match e:
        case Cast(
            Cast(
                Apply(
                    "min",
                    (Apply("max", (x, Lit(float() as low))), Lit(float() as high)),
                ),
                DType.I32,
            ),
            DType.U8 | DType.I8,
        ) if x.dtype is DType.F32:
            zero = 0.0
        case _:
            return None
    match x:
        case Apply("add", (Apply("round") as rounded, Lit(float() as zero))):
            x = rounded
    match x:
        case Apply("round", (Apply("div", (x, step)),)):
            return _bounded(Quantising(x, step, zero, low, high))
        case Apply("round", (Apply("mul", (x, Lit(float() as factor))),)) if factor:
            return _bounded(Quantising(x, Lit(1 / factor, DType.F64), zero, low, high))
        case _:
            return None


def _bounded(q: Quantising) -> Quantising:
    """The same with the bounds of `x` among those of the result."""
    match q:
        case Quantising(Apply("max" | "min" as op, (x, Lit(float() as bound))), Lit(float() as s)):
            pass
        case Quantising(Apply("max" | "min" as op, (Lit(float() as bound), x)), Lit(float() as s)):
            pass
        case _:
            return q
    if s <= 0:
        return q
    at = float(np.round(np.float32(bound) / np.float32(s))) + q.zero
    at = min(max(at, q.low), q.high)
    low, high = (max(q.low, at), q.high) if op == "max" else (q.low, min(q.high, at))
    return _bounded(replace(q, x=x, low=low, high=high)) if low <= high else q


def _known(e: Expr, editor: Editor) -> Expr | None:
    """An expression of constants in f64, exactly; None of others."""
    match e:
        case Lit(float() | int() as value) if not isinstance(value, bool):
            return Lit(float(value), DType.F64)
        case Read() if is_plain(e) and editor.constant(e.value) is not None:
            return cast(e, DType.F64)
        case Cast(arg, dtype) if dtype is DType.F32 or (dtype is DType.I32 and arg.dtype.is_int):
            return _known(arg, editor)
        case Apply("add" | "sub" | "mul" | "neg" as op, args):
            pass
        case Apply("div" as op, args) if e.dtype.is_float:
            pass
        case _:
            return None
    found = [k for k in (_known(a, editor) for a in args) if k is not None]
    return apply(op, *found) if len(found) == len(args) else None


class _Reader:
    """Reads an expression as a sum of scaled terms, through the nests that compute them."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        self._nests = 0

    def within(self, q: Quantising, n: Nest) -> tuple[Quantising, Nest, tuple[Nest, ...]]:
        """What is quantised, within bounds that nests before `n` keep it in; the first of them."""
        made: tuple[Nest, ...] = ()
        while isinstance(q.x, Read) and (opened := self._opened(q.x, n)) is not None:
            p, body = opened
            bounded = _bounded(replace(q, x=body))
            if bounded.x is body:
                break
            q, n, made = bounded, p, (p, *made)
        return q, n, made

    def linear(self, e: Expr, n: Nest) -> Linear:
        """An expression of the nest `n` as terms; at worst one, itself."""
        known = _known(e, self._editor)
        if known is not None and self._may_store(known):
            return Linear(shift=known)
        match e:
            case Apply("add", (a, b)) if e.dtype is DType.F32:
                return self.linear(a, n).plus(self.linear(b, n))
            case Apply("sub", (a, b)) if e.dtype is DType.F32:
                return self.linear(a, n).plus(self.linear(b, n).scaled(Lit(-1.0, DType.F64)))
            case Apply("mul", (a, b)) if e.dtype is DType.F32:
                for x, factor in ((a, b), (b, a)):
                    by = _known(factor, self._editor)
                    if by is not None:
                        return self.linear(x, n).scaled(by)
                return self._product(a, b, n)
            case Cast(Read() as r, DType.F32) if r.dtype is DType.I32:
                opened = self._opened(r, n)
                if opened is not None:
                    p, body = opened
                    found = self.linear(Cast(body, DType.F32), p)
                    return replace(found, made=(*found.made, p))
            case Cast(Apply("add" | "sub" as op, (a, b)), DType.F32):
                if _known(b, self._editor) is not None and self._most(a) < EXACT:
                    whole = apply("neg", b) if op == "sub" else b
                    return self.linear(Cast(a, DType.F32), n).shifted_whole(whole)
            case Read() if e.dtype is DType.F32:
                opened = self._opened(e, n)
                if opened is not None:
                    p, body = opened
                    found = self.linear(body, p)
                    return replace(found, made=(*found.made, p))
        return self._read_through(e, n)

    def _may_store(self, e: Expr) -> bool:
        """Whether an expression of constants would be one in f32: many bytes stay bytes."""
        elements = self._editor.size(tuple(sorted(index_names(e))))
        sources = {r.value: self._editor.constant(r.value) for r in reads(e)}
        consts = [c for c in sources.values() if c is not None]
        return elements is not None and FoldConstants().may_store(
            elements * DType.F32.bytes, consts
        )

    def _product(self, a: Expr, b: Expr, n: Nest) -> Linear:
        """A product of two expressions of the nest `n`, with their factors as one."""
        whole = self._read_through(apply("mul", a, b), n)
        product, by, parts = whole.terms[0].x, ONE, list[Expr]()
        assert isinstance(product, Apply)
        for x in product.args:
            match x:
                case Apply("mul", (inner, c)) if (known := _known(c, self._editor)) is not None:
                    by = apply("mul", by, known)
                    parts.append(inner)
                case _:
                    parts.append(x)
        return replace(whole, terms=(Term(apply("mul", *parts), by),))

    def _read_through(self, e: Expr, n: Nest) -> Linear:
        """An expression as one term; bytes that nests widen for it are read as they are stored."""
        made: list[Nest] = []

        def opened(x: Expr) -> Expr:
            if not isinstance(x, Read) or x.dtype is not DType.F32:
                return x
            p = self._editor.nest(x.value)
            if p is None or p.reducer is not None or quantised(p.body[0]) is None:
                return x
            found = self._opened(x, n)
            if found is None:
                return x
            made.append(found[0])
            return found[1]

        return Linear((Term(transform(e, opened), ONE),), made=tuple(made))

    def _opened(self, r: Read, n: Nest) -> tuple[Nest, Expr] | None:
        """The elementwise nest that `r` alone reads, or that widens bytes, and what it gives."""
        p = self._editor.nest(r.value)
        if p is None or p.reducer is not None or r.fill is not None:
            return None
        if is_gathered(r) or self._nests == MOST_NESTS:
            return None
        form = quantised(p.body[0])
        is_cheap = form is not None and is_plain(form.q)
        if not is_cheap and not self._editor.is_read_once(r.value, n):
            return None
        self._nests += 1
        return p, substitute(p.body[0], dict(index_coords(r)))

    def _most(self, e: Expr) -> float:
        """The largest magnitude that integers may have, as far as that is known."""
        known = _known(e, self._editor)
        if known is not None:
            found = elements(known, sorted(index_names(known)), self._editor)
            return inf if found is None else float(np.abs(found).max(initial=0))
        match e:
            case Cast(Read() as r, DType.I32) if r.dtype in (DType.I8, DType.U8):
                return 255.0
            case Read():
                p = self._editor.nest(e.value)
                if p is not None and p.is_sum:
                    return self._most_of_sum(p)
                if p is not None and p.reducer is None:
                    return self._most(p.body[0])
            case Apply("add" | "sub", (a, b)):
                return self._most(a) + self._most(b)
        return inf

    def _most_of_sum(self, p: Nest) -> float:
        """The largest magnitude of a sum of products of bytes with constants."""
        parts = factors(p.body[0])
        for part, other in (parts, reversed(parts)) if len(parts) == 2 else ():
            r = next(iter(reads(other)), None)
            c = self._editor.constant(r.value) if r is not None else None
            if r is None or c is None or not is_plain(r) or self._most(part) > EXACT:
                continue
            if not isinstance(other, Cast) or other.arg != r:
                continue
            at = {d: i.as_var for d, i in index_coords(r)}
            along = tuple(k for k, d in enumerate(c.axes) if at[d] in p.bound)
            others: Sequence[str] = [d for d in p.bound if d not in at.values()]
            times = self._editor.size(others)
            if times is not None:
                sizes = np.abs(c.data.array.astype(np.int64)).sum(axis=along)
                return self._most(part) * times * float(sizes.max(initial=0))
        return inf
