"""The default schedule: chosen by a model of the machine, without measuring.

Six shapes of kernel, told apart by their accesses alone:

- *tiled*: a reduction with a shared loop along which memory is contiguous. That loop becomes the
  vector, another one or two the rows of a register tile, chosen to balance multiply-adds against
  loads [Goto & van de Geijn 2008];
- *windows*: reductions over small windows (depthwise convolutions, pooling): a vector along
  memory, and rows that share what they read;
- *matrix*: such a reduction of products of 8-bit integers or of bf16 with constants, for any number
  of rows, where the processor has registers for matrices;
- *rows*: reductions along contiguous memory (softmax, normalisation, dot products): lanes of
  partial states per row;
- *pointwise*: no reduction: long vectors in memory order;
- *puts*: a scatter: loops that keep to elements of their own go outside, or become the vector.
"""

from __future__ import annotations

from dataclasses import replace

from rutc.tensor_ir.kernel import Kernel, Loop, Put
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Schedule, apply_schedule
from rutc.tuner.access import analyse
from rutc.tuner.choice import Choice
from rutc.tuner.collapse import collapse, collapse_bound
from rutc.tuner.dot import products_together
from rutc.tuner.matrix import matrix
from rutc.tuner.pointwise import pointwise
from rutc.tuner.puts import puts
from rutc.tuner.repeats import apart
from rutc.tuner.rows import rows
from rutc.tuner.space import TilingSpace
from rutc.tuner.tile_cost import passed_inside
from rutc.tuner.tiled import default_tiling, tiled
from rutc.tuner.tiles import choose_tile
from rutc.tuner.windows import windows


def tiling_space(kernel: Kernel, machine: Machine, constants: frozenset[str]) -> TilingSpace | None:
    """The space of tiled schedules of a freshly lowered kernel; None of one that has none."""
    before: Schedule = ()
    shape = analyse(kernel, constants)
    while fused := collapse(shape, passed_inside(shape)) if shape.reductions else ():
        kernel, before = apply_schedule(kernel, fused), (*before, *fused)
        shape = analyse(kernel, constants)
    if (
        any(e == 0 for e in shape.sizes.values())
        or any(isinstance(s, Put) for s in shape.body)
        or not shape.reductions
        or not all(r.loops for r in shape.reductions)
        or shape.private
    ):
        return None
    return TilingSpace(kernel, shape, machine, before)


def choose(kernel: Kernel, machine: Machine, constants: frozenset[str]) -> Choice:
    """The default schedule of a freshly lowered kernel. `constants` may still be laid out."""
    shape = analyse(kernel, constants)
    if any(e == 0 for e in shape.sizes.values()):
        return Choice(())
    if any(isinstance(s, Put) for s in shape.body):
        return Choice(puts(kernel, shape, machine))
    if not shape.reductions and not any(isinstance(s, Loop) for s in shape.body):
        repeated = apart(kernel, shape, machine)
        if repeated is not None:
            rest = choose(repeated.apply(kernel), machine, constants)
            return replace(rest, schedule=(repeated, *rest.schedule))
        return Choice(pointwise(kernel, shape, machine))
    if all(r.loops for r in shape.reductions) and not shape.private:
        passing = windows(kernel, shape, machine, constants)
        if passing is not None:
            return passing
        fused = collapse(shape, passed_inside(shape))
        if fused:
            rest = choose(apply_schedule(kernel, fused), machine, constants)
            return replace(rest, schedule=(*fused, *rest.schedule))
        blocks = matrix(kernel, shape, machine, constants)
        if blocks is not None:
            return blocks
        tile = choose_tile(shape, machine, tiles_only=products_together(shape, machine) > 1)
        if tile is not None:
            return tiled(kernel, shape, default_tiling(kernel, shape, tile, machine), machine)
    joined = collapse_bound(shape)
    if joined:
        kernel = apply_schedule(kernel, joined)
        shape = analyse(kernel, constants)
    choice = rows(kernel, shape, machine)
    return replace(choice, schedule=(*joined, *choice.schedule))
