"""What the steps that prefetch have in common: hints in loops, and where memory is that is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Access, Branch, Kernel, Kind, Loop, Stmt
from rutc.tensor_ir.statements import Around, exprs
from rutc.tensor_ir.steps.step import NotApplicable


def with_hints(kernel: Kernel, hints: Callable[[Loop, Around], Sequence[Stmt]], why: str) -> Kernel:
    """The kernel with the `hints(loop, around)` of each loop at the beginning of its body.

    Loops that are unrolled, or vectors, are not asked for theirs.

    Raises:
        NotApplicable: there are none; `why` is the reason.
    """
    count = 0

    def visit(body: tuple[Stmt, ...], around: Around) -> tuple[Stmt, ...]:
        nonlocal count
        result: list[Stmt] = []
        for s in body:
            match s:
                case Loop():
                    serial = s.kind in (Kind.SERIAL, Kind.PARALLEL)
                    first = hints(s, around) if serial else []
                    count += len(first)
                    result.append(replace(s, body=(*first, *visit(s.body, (*around, s)))))
                case Branch():
                    then, orelse = visit(s.then, around), visit(s.orelse, around)
                    result.append(replace(s, then=then, orelse=orelse))
                case _:
                    result.append(s)
        return tuple(result)

    body = visit(kernel.body, ())
    if not count:
        raise NotApplicable(why)
    return replace(kernel, body=body)


def reads_of(
    buffer: str, body: tuple[Stmt, ...], around: Around = ()
) -> Iterator[tuple[Stmt, Read, Around]]:
    """(statement, read, the loops around it) for what reads a buffer, in whole tiles only."""
    for s in body:
        match s:
            case Loop():
                yield from reads_of(buffer, s.body, (*around, s))
            case Branch():
                # Whole tiles, and whole vectors, are computed there.
                yield from reads_of(buffer, s.then, around)
            case _:
                yield from ((s, r, around) for e in exprs(s) for r in reads(e) if r.value == buffer)


def address_of(kernel: Kernel, place: Read | Access, at: Mapping[str, Index]) -> Index | None:
    """Where the place is in memory, in elements, with variables replaced; None if data tell."""
    coords: dict[str, Index] = {}
    for d, c in place.coords:
        if not isinstance(c, Index):
            return None
        coords[d] = c.subs(at)
    name = place.value if isinstance(place, Read) else place.buffer
    return kernel.buffer(name).layout.address(coords, {})
