"""The schedule of reductions along contiguous memory: softmax, normalisation, dot products."""

from __future__ import annotations

from collections.abc import Mapping

from rutc.tensor_ir.kernel import Kernel, Kind, Loop, walk_stmts
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Lanes, Mark, Step
from rutc.tuner.access import Shape, Touch, dim_of_loop
from rutc.tuner.choice import Choice, shared_out
from rutc.tuner.pointwise import copies_of_body, vectorised


def rows(kernel: Kernel, shape: Shape, machine: Machine) -> Choice:
    """Reductions by lanes of partial states; the loops beside them by vectors."""
    steps: list[Step] = []
    packing: dict[str, tuple[tuple[str, ...], Mapping[str, int]]] = {}
    steps += shared_out((x.var for x in shape.shared), shape, machine)
    for r in shape.reductions:
        bound = r.bound
        lane = _best_lane([x.var for x in bound], r.reads, shape)
        if lane is not None:
            long = shape.extents[lane] >= 4 * machine.width or lane in shape.symbolic
            width = machine.width * (4 if long else 1)
            steps.append(Lanes(lane, width, bound[0].var))
            if not long:
                steps.append(Mark(f"{lane}.o", Kind.UNROLL))
            for t in r.reads:
                if t.packed:
                    dims = [d for d, _ in kernel.buffer(t.buffer).layout.extents]
                    last = dim_of_loop(kernel, t.buffer).get(lane)
                    if last is not None:
                        packing[t.buffer] = ((*(d for d in dims if d != last), last), {})
    for v in shape.private:
        holds_loops = any(
            isinstance(s, Loop) and s.var == v and any(isinstance(i, Loop) for i in s.body)
            for s in walk_stmts(shape.body)
        )
        own = [t for t in shape.touches if v in t.loops]
        if holds_loops or not any(t.unit(v) for t in own):
            continue
        own_body = tuple(s for s in walk_stmts(shape.body) if isinstance(s, Loop) and s.var == v)
        steps += vectorised(v, shape.sizes[v], machine, copies_of_body(own_body))
    return Choice(tuple(steps), packing)


def _best_lane(bound: list[str], reads: tuple[Touch, ...], shape: Shape) -> str | None:
    best = max(
        bound,
        key=lambda v: (sum(t.unit(v) for t in reads if t.depends(v)), shape.extents[v]),
        default=None,
    )
    return best if best is not None and shape.extents[best] > 1 else None
