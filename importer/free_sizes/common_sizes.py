"""What the free sizes of a model commonly are, which plans are made for.

What a user says holds. Of the others, a batch is 1: most runs have one picture or one text. Where
one example is little work, as a row of a small classifier is, a batch is as many as take as long as
it takes to start threads; one alone may have a plan of its own (`driver/plans/plans_by_size.py`).
A batch is what is called so, or else a size that every input which has it has as its outermost dim
and nowhere else, as exports make it; an input of one dim alone, a text or a sound, tells nothing.
The sides of a picture are longer than other sizes: what two free sizes beside known ones are, of an
input of several dims, unless another input has one of them that is none.
A size of which the model divides blocks, as the samples of a sound, is as large as leaves some of
the largest blocks.
A size that a run computes from others, as one to which two extents must be equal, is what they
make it, and sizes that must be equal are what is known of one of them. One that data tell is what
most are: an axis is as long after it is resized or padded as before, and the parts of one are
equal.

    x{n, 3, h, w}                                   n is a batch, h and w are sides of a picture
    ids{n, seq}, mask{n, seq}, state{2, n, 128}     none by its place; `batch` in the place of n is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from rutc.tensor_ir import Graph, Index
from rutc.tensor_ir.graph import Const, Input, Nest
from rutc.tensor_ir.indices.affine import FloorDiv, Var, typical
from rutc.tensor_ir.indices.ranges import COMMON_SIZE, Range, with_common
from rutc.tensor_ir.machine import COMMON

BATCH = 1
"""Examples that a run commonly has, if they are no little work."""
SIDE = 320
"""Pixels of a side of a picture: detectors take 320 to 640, classifiers 224 or so."""
HELD = 1 << 28
"""Elements of the largest value of a run: 1 GiB of f32."""
BLOCKS = 8
"""What is left at least of a size of which blocks of blocks are taken."""
LARGEST = 1 << 18
"""No size is taken as more for that."""


def with_common_sizes(
    g: Graph,
    told: Mapping[str, int],
    usual: Mapping[str, int],
    params: Mapping[str, str],
    computed: Mapping[str, Index],
    equal: Sequence[tuple[Index, Index]] = (),
) -> Graph:
    """The graph whose symbols have common sizes.

    Args:
        g: The graph, in which symbols come after those that they are computed from.
        told: The common sizes of symbols that the user tells.
        usual: What symbols are that nothing else tells of.
        params: The names that the model has for symbols.
        computed: What symbols are that a run computes from others.
        equal: Sizes that a run ends unless they are equal: what is known of one holds of both.
    """
    batches = _batches(g, params)
    told = _with_equal(told, equal)
    known = _with_equal({**usual, **dict.fromkeys(batches, BATCH), **told}, equal)
    sides = {s: n for s, n in _sides(g, frozenset(batches)).items() if s not in told}
    made = _taken(g, {**known, **sides}, computed)
    while _largest(made) > HELD and any(n > 1 for n in sides.values()):
        sides = {s: max(n // 2, 1) for s, n in sides.items()}
        made = _taken(g, {**known, **sides}, computed)
    examples = examples_of(made)
    if examples == BATCH:
        return made
    return _taken(g, {**known, **sides, **dict.fromkeys(batches, examples), **told}, computed)


def _with_equal(known: Mapping[str, int], equal: Sequence[tuple[Index, Index]]) -> dict[str, int]:
    """Known sizes, and those of symbols that must be equal to one of them."""
    found = dict(known)
    partners: dict[str, list[str]] = {}
    for a, b in ((x.as_var, y.as_var) for x, y in equal):
        if a is not None and b is not None:
            partners.setdefault(a, []).append(b)
            partners.setdefault(b, []).append(a)
    waiting = [s for s in found if s in partners]
    while waiting:
        one = waiting.pop()
        others = [s for s in partners[one] if s not in found]
        found |= dict.fromkeys(others, found[one])
        waiting += others
    return found


def _taken(g: Graph, common: Mapping[str, int], computed: Mapping[str, Index]) -> Graph:
    """The graph whose symbols have these common sizes, and others that follow from them."""
    common = dict(common)
    symbols: dict[str, Range] = {}
    quotients = _quotients(g)
    for s, limits in g.symbols:
        if s not in common:
            common |= _of_blocks(quotients.get(s, ()), s, limits)
        size = computed.get(s)
        if size is not None and size.names() <= symbols.keys():
            common.setdefault(s, typical(size, symbols))
        symbols[s] = with_common(limits, common.get(s))
    return replace(g, symbols=tuple(symbols.items()))


def _largest(g: Graph) -> int:
    """The elements that the largest value commonly has, of those that nests compute."""
    symbols = dict(g.symbols)
    extents = {d: typical(Index.of(e), symbols) for d, e in g.extents.items()}
    made = (v for n in g.nodes if isinstance(n, Nest) for v in n.outs)
    return max((prod(extents[d] for d in v.dims) for v in made), default=0)


def examples_of(g: Graph) -> int:
    """As many examples as a run takes to compute about as long as threads take to start.

    1 where one takes as long. The common sizes of `g` are those of a run with one example. What
    routines and loops do is not known, nor how much an example is that has free sizes of its own.
    """
    if len(g.symbols) > 1 or not all(isinstance(n, Input | Const | Nest) for n in g.nodes):
        return BATCH
    symbols = dict(g.symbols)
    extents = {d: typical(Index.of(e), symbols) for d, e in g.extents.items()}
    points = sum(prod(extents[d] for d in n.dims) for n in g.nodes if isinstance(n, Nest))
    few = COMMON.launch_cycles * COMMON.width // max(points, 1)
    return min(max(few, BATCH), COMMON_SIZE)


def _quotients(g: Graph) -> dict[str, list[Index]]:
    """The extents that are quotients of one size, by that size."""
    found: dict[str, list[Index]] = {}
    for e in dict.fromkeys(map(Index.of, g.extents.values())):
        names = e.ordered_names()
        if len(names) == 1 and _divides(e):
            found.setdefault(names[0], []).append(e)
    return found


def _of_blocks(quotients: Sequence[Index], s: str, limits: Range) -> dict[str, int]:
    """A size that leaves some blocks wherever dims are quotients of it; none if any size does."""
    size = usual = typical(Index.of(s), {s: limits})
    quotients = [e for e in quotients if e.evaluate({s: LARGEST}) >= BLOCKS]
    most = min(LARGEST, limits[1])
    while size < most and any(e.evaluate({s: size}) < BLOCKS for e in quotients):
        size = min(2 * size, most)
    return {s: size} if size > usual > 0 else {}


def _divides(e: Index) -> bool:
    """Whether a quotient is part of an expression, which may be the larger one of it and 0."""
    compounds = [a for mono, _ in e.terms for a in mono if not isinstance(a, Var)]
    return any(isinstance(a, FloorDiv) or any(map(_divides, a.operands)) for a in compounds)


def _batches(g: Graph, params: Mapping[str, str]) -> list[str]:
    """The sizes of inputs that are numbers of examples."""
    outermost: dict[str, bool] = {}
    matrices: set[str] = set()
    for port in g.inputs:
        for place, axis in enumerate(port.axes):
            for s in g.extents[axis].names():
                outermost[s] = outermost.get(s, True) and place == 0
                if len(port.axes) > 1:
                    matrices.add(s)
    called = [s for s in outermost if "batch" in params.get(s, s).lower()]
    return called or [s for s, always in outermost.items() if always and s in matrices]


def _sides(g: Graph, batches: frozenset[str]) -> dict[str, int]:
    """What the sizes are that tell how long the sides of pictures are."""
    pictures: list[list[Index]] = []
    others: set[str] = set()
    for port in g.inputs:
        extents = [Index.of(g.extents[axis]) for axis in port.axes]
        free = [x for x in extents if not x.names() <= batches]
        if len(free) == 2 and any(x.is_const for x in extents):
            pictures.append(free)
        else:
            others.update(*(x.names() for x in free))
    found: dict[str, int] = {}
    for sides in pictures:
        if not all(others.isdisjoint(x.names()) for x in sides):
            continue
        for x in sides:
            name, *more = x.ordered_names()
            times = x.coefficient(name)
            if not more and times:
                found[name] = max((SIDE - x.const) // times, 1)
    return found
