"""Kernels in sizes of their own, which the host program computes of a model's sizes once a shape.

    for y in [0, (h + 7) // 8) {                     h of the kernel = (h + 7) // 8 of the model
        .. %x[y // 2] .. (h + 15) // 16 ..   ->      for y in [0, h) { .. %x[y // 2] .. (h + 1) // 2

So kernels of maps of different sizes, as those of a pyramid are, become equal, and lengths of
slices, which are long formulas, are no work of each call, nor of who makes the code.

A size of which a kernel reads nothing but quotients that tell each other is the one that tells the
others. Lengths that are formulas of several sizes have names of their own: what is known of them
beside these sizes is their range, and what buffers take at most (`Buffer.most`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.indices.affine import (
    Atom,
    Compound,
    FloorDiv,
    Index,
    Range,
    Size,
    Var,
    floordiv,
    plain,
    quoted,
)
from rutc.tensor_ir.indices.polynomial import of_atom
from rutc.tensor_ir.kernel import Buffer, Kernel
from rutc.tensor_ir.layout import Axis, Layout
from rutc.tensor_ir.statements import own_indices, rewrite, walk_loops, walk_stmts, with_symbols

OPEN = 1 << 16
"""Sizes that may be larger are open: code for them serves any size."""
LARGEST = 1 << 31
"""The largest size that inputs have, if nobody says what it is."""


@record
class OwnSizes:
    """A kernel, and what the sizes that it reads are of those that it read before, in order."""

    kernel: Kernel
    sizes: tuple[Index, ...]

    def __str__(self) -> str:
        named = zip(self.kernel.symbols, self.sizes, strict=True)
        return "\n".join([*(f"{quoted(n)} = {x}" for (n, _), x in named), str(self.kernel)])


def own_sizes(
    kernel: Kernel,
    counters: AbstractSet[str] = frozenset(),
    lengths: Iterable[Size] = (),
) -> OwnSizes:
    """The kernel in sizes of its own.

    `counters` are the symbols that loops around it count, `lengths` the formulas that get names.
    """
    known = dict(kernel.symbols)
    if not known:
        return OwnSizes(kernel, ())
    sizes, names = frozenset(known) - counters, _names(kernel)
    atoms = dict.fromkeys(a for x in lengths for mono, _ in Index.of(x).terms for a in mono)
    formulas = {a: next(names) for a in atoms if len(a.names) > 1 and a.names <= sizes}
    seen = _Seen(sizes, formulas)
    for x in _indices(kernel):
        seen.visit(x)
    bases = seen.bases()
    own = {n: Index.of(n) for n in known}
    own |= {n: of_atom(a) for n, a in bases.items()}
    own |= {n: of_atom(a) for a, n in formulas.items()}
    ranges = {n: known[n] if n in counters else _open(x, known) for n, x in own.items()}
    at = _Moved(bases, formulas).index
    moved = replace(
        kernel, locals=tuple([_moved_local(b, at, known, ranges) for b in kernel.locals])
    )
    if bases or formulas:
        moved = replace(
            moved,
            args=tuple([replace(b, layout=_moved_layout(b.layout, at)) for b in kernel.args]),
            body=rewrite(kernel.body, index=at),
        )
    moved = with_symbols(moved, ranges)
    return OwnSizes(moved, tuple([own[n] for n, _ in moved.symbols]))


def _open(size: Index, known: Mapping[str, Range]) -> Range:
    """The range of a size of a kernel's own: that of any size, if it is open.

    What it commonly is decides no code of a kernel that has its schedule.
    """
    bounds = size.bounds(known)
    assert bounds is not None, "all sizes have ranges"
    low, high = bounds
    return (min(low, 1), max(high, LARGEST)) if high > OPEN else (low, high)


def _indices(kernel: Kernel) -> Iterator[Index]:
    """All index expressions of a kernel, those of its layouts included."""
    for b in (*kernel.args, *kernel.locals):
        sizes: list[Size] = [x for a in b.layout.axes for x in (a.extent, a.stride)]
        for x in (*sizes, *dict(b.layout.extents).values()):
            if isinstance(x, Index):
                yield x
    for s in walk_stmts(kernel.body):
        yield from own_indices(s)


def _names(kernel: Kernel) -> Iterator[str]:
    """Names for sizes, which nothing else in the kernel has."""
    taken = {n for n, _ in kernel.symbols} | {x.var for x in walk_loops(kernel.body)}
    number = 0
    while True:
        if f"n{number}" not in taken:
            yield f"n{number}"
        number += 1


def _quotient_of(a: Atom) -> tuple[str, int, int] | None:
    """(n, c, k) of the atom (n + c) // k."""
    if not isinstance(a, FloorDiv) or not a.den.is_const or len(a.names) != 1:
        return None
    (name,) = a.ordered
    rest = a.num - Index.of(name)
    return (name, rest.const, a.den.const) if rest.is_const else None


class _Seen:
    """What of sizes is read: by themselves, and in quotients of one. Formulas are not looked at."""

    def __init__(self, sizes: AbstractSet[str], formulas: Mapping[Atom, str]) -> None:
        self._sizes = sizes
        self._visited: set[Atom] = set(formulas)
        self.alone: set[str] = set()
        self.quotients: dict[str, list[FloorDiv[Index]]] = {}

    def visit(self, x: Index) -> None:
        """Look at an expression."""
        for mono, _ in x.terms:
            for a in mono:
                if a not in self._visited:
                    self._visited.add(a)
                    self._visit_atom(a)

    def _visit_atom(self, a: Atom) -> None:
        if isinstance(a, Var):
            self.alone.add(a.name)
            return
        quotient = _quotient_of(a)
        if quotient is not None and quotient[0] in self._sizes and isinstance(a, FloorDiv):
            self.quotients.setdefault(quotient[0], []).append(a)
            return
        self.visit(a.a)
        self.visit(a.b)

    def bases(self) -> dict[str, FloorDiv[Index]]:
        """Of sizes that are read in quotients alone, the one that tells all others."""
        found: dict[str, FloorDiv[Index]] = {}
        for name, quotients in self.quotients.items():
            if name in self.alone:
                continue
            base = min(quotients, key=lambda a: a.den.const)
            if all(_told(a, base) is not None for a in quotients):
                found[name] = base
        return found


def _told(a: Atom, base: FloorDiv[Index]) -> tuple[int, int] | None:
    """(c, k) with a = (base + c) // k; None where there are none.

    (n + 15) // 16 = (n + 7 + 8) // (8*2)  ->  ((n + 7) // 8 + 1) // 2
    """
    quotient = _quotient_of(a)
    if quotient is None:
        return None
    _, c, k = quotient
    times, more = k // base.den.const, c - (base.num - Index.of(quotient[0])).const
    if k % base.den.const or more % base.den.const:
        return None
    return more // base.den.const, times


class _Moved:
    """Expressions of a kernel in its own sizes."""

    def __init__(self, bases: Mapping[str, FloorDiv[Index]], formulas: Mapping[Atom, str]) -> None:
        self._bases = bases
        self._formulas = formulas
        self._names = frozenset(bases).union(*[a.names for a in formulas])
        self._known: dict[Atom, Index] = {}

    def index(self, x: Index) -> Index:
        """An expression in the kernel's own sizes."""
        if not x.terms or self._names.isdisjoint(x.names()):
            return x
        return x.with_atoms(self._atom)

    def _atom(self, a: Atom) -> Index:
        if isinstance(a, Var):
            return Index.of(a.name)
        if a not in self._known:
            self._known[a] = self._moved(a)
        return self._known[a]

    def _moved(self, a: Compound) -> Index:
        if a in self._formulas:
            return Index.of(self._formulas[a])
        quotient = _quotient_of(a)
        base = None if quotient is None else self._bases.get(quotient[0])
        if quotient is not None and base is not None:
            told = _told(a, base)
            assert told is not None, "all quotients of the size are told by this one"
            return floordiv(Index.of(quotient[0]) + told[0], Index.of(told[1]), {})
        x, y = self.index(a.a), self.index(a.b)
        same = x == a.a and y == a.b
        return of_atom(a) if same else Index.rules.rebuilt(a, x, y, {})


def _moved_local(
    b: Buffer,
    at: Callable[[Index], Index],
    before: Mapping[str, Range],
    after: Mapping[str, Range],
) -> Buffer:
    """A buffer in the kernel's own sizes, which says how large it is where these do not tell."""
    found = replace(b, layout=_moved_layout(b.layout, at))
    known, own = (Index.of(x.layout.size).bounds(r) for x, r in ((b, before), (found, after)))
    if known is None or known[1] > LARGEST or (own is not None and own[1] <= known[1]):
        return found
    return replace(found, most=known[1])


def _moved_layout(layout: Layout, at: Callable[[Index], Index]) -> Layout:
    def size(x: Size) -> Size:
        return plain(at(x)) if isinstance(x, Index) else x

    if not layout.names():
        return layout
    axes = tuple([Axis(a.dim, size(a.extent), size(a.stride), a.div, a.whole) for a in layout.axes])
    return replace(layout, axes=axes, extents=tuple([(d, size(e)) for d, e in layout.extents]))
