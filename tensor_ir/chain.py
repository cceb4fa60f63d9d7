"""Scheduled kernels, each of which computes a part of its output, as one kernel: part after part.

kernel a for symbol t: %u[y % 2] = ..        for t in [0, trips) parallel {
kernel b for symbol t: .. = %u[y % 2]   ->     a;  b        with %u private to the iteration
                                             }

Parts that have several symbols run for all values of the first one, of the second one, ..
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rutc.tensor_ir.canonical import renamed
from rutc.tensor_ir.indices.affine import ZERO, Index, Size
from rutc.tensor_ir.kernel import Kernel, Kind, Loop, Space, Stmt
from rutc.tensor_ir.statements import walk_loops


def chain(
    name: str,
    parts: Sequence[Kernel],
    counters: Sequence[tuple[str, Size]],
    private: frozenset[str],
    own: Sequence[Iterable[str]] = (),
) -> Kernel:
    """One kernel that runs all parts for each value of the counters.

    Args:
        name: The kernel's name.
        parts: Kernels; arguments of one name are the same memory.
        counters: Symbols of the parts, and how many values each has, the outermost first.
        private: The arguments that pass from part to part within an iteration.
        own: For every part those of its arguments that no other has, even one of the same name:
            `a` of the second part becomes `a.1`.
    """
    counting = dict(counters)
    renamed_parts: list[Kernel] = []
    symbols: dict[str, tuple[int, int]] = {}
    for number, k in enumerate(parts):
        loops = {x.var: f"{x.var}.{number}" for x in walk_loops(k.body)}
        apart = (*(own[number] if own else ()), *(b.name for b in k.locals))
        renamed_parts.append(renamed(k, loops, {n: f"{n}.{number}" for n in apart}))
        symbols |= {n: r for n, r in k.symbols if n not in counting}
    args = {b.name: b for k in renamed_parts for b in k.args}
    locals_ = [replace(args.pop(n), space=Space.STACK) for n in sorted(private)]
    locals_ += [b for k in renamed_parts for b in k.locals]
    body: list[Stmt] = [s for k in renamed_parts for s in k.body]
    for symbol, trips in reversed(counters):
        body = [Loop(symbol, ZERO, Index.of(trips), Kind.PARALLEL, tuple(body))]
    origin = tuple(dict.fromkeys(o for k in parts for o in k.origin))
    return Kernel(
        name, tuple(args.values()), tuple(locals_), tuple(body), origin, tuple(symbols.items())
    )
