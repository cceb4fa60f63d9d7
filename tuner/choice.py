"""What a default schedule comes with, and when its loops are worth sharing among threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from math import prod

from rutc.base.record import record
from rutc.tensor_ir.kernel import Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Mark, Schedule, Step
from rutc.tuner.access import Shape

LAUNCHES = 10
"""Kernels estimated to take less than so many launches of threads run on one."""


@record
class Choice:
    """A schedule, and the packing that it wants of constants: buffer -> (dim order, blocks)."""

    schedule: Schedule
    packing: Mapping[str, tuple[tuple[str, ...], Mapping[str, int]]] = field(default_factory=dict)


def shared_out(
    loops: Iterable[str], shape: Shape, machine: Machine, accesses: int = 1
) -> list[Step]:
    """Steps that share the loops among threads, none where that does not pay.

    `accesses` weighs an iteration: kernels bound by memory take about that many cycles for it.
    """
    return (
        [Mark(v, Kind.PARALLEL) for v in loops] if worth_sharing(shape, machine, accesses) else []
    )


def worth_sharing(shape: Shape, machine: Machine, accesses: int = 1) -> bool:
    """Whether a kernel's work is worth the start of other threads."""
    return pays(_cycles(shape, machine) * accesses, machine)


def pays(cycles: float, machine: Machine) -> bool:
    """Whether so much work is worth the start of other threads."""
    return machine.cores > 1 and cycles > LAUNCHES * machine.launch_cycles


def _cycles(shape: Shape, machine: Machine) -> float:
    """A rough count of cycles."""
    extents = shape.shared_extents
    points = prod(extents[x.var] for x in shape.shared)
    inner = sum(prod(extents[x.var] for x in r.loops) for r in shape.reductions)
    private = sum(extents[v] for v in shape.private)
    return points * (inner + 4 * private + 4) / machine.width
