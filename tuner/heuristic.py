"""Which schedules a kernel may have, and the default: chosen by a model, without measuring.

Seven templates, told apart by a kernel's accesses alone, each a file of `tuner/templates/`:

- *windows*: reductions over small windows (depthwise convolutions, pooling): a vector along
  memory, and rows that share what they read;
- *matrix*: a reduction of products of 8-bit integers or of bf16 with constants, for any number of
  rows, where the processor has registers for matrices;
- *tiled*: a reduction with a shared loop along which memory is contiguous. That loop becomes the
  vector, another one or two the rows of a register tile, chosen to balance multiply-adds against
  loads [Goto & van de Geijn 2008];
- *rows*: reductions along contiguous memory (softmax, normalisation, dot products): lanes of
  partial states per row;
- *pointwise*: no reduction: long vectors in memory order;
- *running*: reductions of which each goes on where the one before ended (cumulative sums): states
  that stay in registers, those of several rows or vectors together;
- *scatter*: loops that keep to elements of their own go outside, or become the vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rutc.tensor_ir.kernel import Kernel, Loop, Put
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, Schedule, apply_schedule
from rutc.tuner.analysis import analyse
from rutc.tuner.choice import Choice
from rutc.tuner.collapse import collapse, collapse_bound
from rutc.tuner.repeats import apart
from rutc.tuner.space import Space
from rutc.tuner.templates.matrix import MATRIX
from rutc.tuner.templates.pointwise_points import POINTWISE
from rutc.tuner.templates.rows import ROWS
from rutc.tuner.templates.running import RUNNING
from rutc.tuner.templates.scatter import SCATTER
from rutc.tuner.templates.tilings import TILED
from rutc.tuner.templates.windows import WINDOWS
from rutc.tuner.tiles.tile_cost import passed_inside

TEMPLATES = (WINDOWS, MATRIX, TILED, ROWS, POINTWISE, RUNNING, SCATTER)
"""All templates."""


def spaces(
    kernel: Kernel, machine: Machine, constants: frozenset[str], fixed: tuple[str, ...] = ()
) -> tuple[Space[Any], ...]:
    """The spaces of a freshly lowered kernel: one for each template that fits.

    Windows may have two, of the loops as they are and of fused ones. `constants` may still be laid
    out. The order is that in which `choose` asks them. Parameters that are `fixed` keep the
    default's value.
    """
    found = (replace(s, fixed=fixed) for s in _spaces(kernel, machine, constants))
    return tuple(s for s in found if len(s) > 0)


def choose(kernel: Kernel, machine: Machine, constants: frozenset[str]) -> Choice:
    """The default schedule of a freshly lowered kernel: that of the `usual` point."""
    found = usual(_spaces(kernel, machine, constants))
    return Choice(()) if found is None else found[0].unchecked(found[1])


def usual(own: Iterable[Space[Any]]) -> tuple[Space[Any], Any] | None:
    """The default point of a kernel's spaces, and the space that it is of; None without any.

    It is the first that its template likes, or what is estimated to take clearly less: a rival of
    it, or the default of another template, as far as templates leave that to estimates.
    """
    first: tuple[Space[Any], Any] | None = None
    rivals: list[tuple[Space[Any], Any]] = []
    for space in own:
        found = space.default
        if found is None:
            continue
        if found.liked and first is None:
            first = space, found.point
            rivals += ((space, point) for point in found.rivals)
        elif found.liked or found.weighed:
            rivals += ((space, point) for point in (found.point, *found.rivals))
        if found.liked and not found.weighed:
            break
    return None if first is None else _fastest(first, rivals)


def _fastest(
    first: tuple[Space[Any], Any], rivals: Sequence[tuple[Space[Any], Any]]
) -> tuple[Space[Any], Any]:
    """The first of some points, or the one of them that is estimated to take clearly less."""
    if not rivals:
        return first
    best, space = first, first[0]
    least = (1 - space.machine.coefficients.plans.least_gain) * space.cycles(first[1])
    for rival in rivals:
        with suppress(NotApplicable):
            cycles = rival[0].cycles(rival[1])
            if cycles < least:
                best, least = rival, cycles
    return best


def _spaces(kernel: Kernel, machine: Machine, constants: frozenset[str]) -> Iterator[Space[Any]]:
    """The spaces that a kernel may have; some are empty. None of one that does nothing."""
    shape = analyse(kernel, constants)
    before: Schedule = ()
    if any(e == 0 for e in shape.sizes.values()):
        return
    if any(isinstance(s, Put) for s in shape.body):
        yield Space(SCATTER, kernel, shape, machine)
        return
    if not shape.reductions and not any(isinstance(s, Loop) for s in shape.body):
        while (repeated := apart(kernel, shape, machine)) is not None:
            kernel, before = repeated.apply(kernel), (*before, repeated)
            shape = analyse(kernel, constants)
        yield Space(POINTWISE, kernel, shape, machine, before)
        return
    onward = Space(RUNNING, kernel, shape, machine)
    yield onward
    if onward.default is not None and onward.default.liked:
        return
    if all(r.loops for r in shape.reductions) and not shape.private:
        yield Space(WINDOWS, kernel, shape, machine)
        while fused := collapse(shape, passed_inside(shape, machine)):
            kernel, before = apply_schedule(kernel, fused), (*before, *fused)
            shape = analyse(kernel, constants)
            yield Space(WINDOWS, kernel, shape, machine, before)
        yield Space(MATRIX, kernel, shape, machine, before)
        yield Space(TILED, kernel, shape, machine, before)
    if joined := collapse_bound(shape):
        kernel, before = apply_schedule(kernel, joined), (*before, *joined)
        shape = analyse(kernel, constants)
    yield Space(ROWS, kernel, shape, machine, before)
