"""What a default schedule comes with, and when its loops are worth sharing among threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import prod

from rutc.base.record import record
from rutc.tensor_ir.kernel import Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Mark, Schedule, Step
from rutc.tuner.access import Shape


@record
class OnRecord:
    """What is on record of a schedule or a plan: its time by that of the usual one beside it.

    `low` and `high` are the ends of the confidence interval of the median, `ratio`. It is the
    fastest of those that were `tried`, on the processor `cpu`, on a day (ISO's form).
    """

    tried: int
    ratio: float
    low: float
    high: float
    cpu: str
    date: str

    def __str__(self) -> str:
        fast, least, most = (1 / max(x, 1e-9) for x in (self.ratio, self.high, self.low))
        return (
            f"{fast:.2f} times as fast as the usual one ({least:.2f} to {most:.2f}), the best of "
            f"{self.tried} tried on {self.cpu}, {self.date}"
        )


@record
class Choice:
    """A schedule; one that was measured has what is on `record` of it, which tells none apart."""

    schedule: Schedule
    record: OnRecord | None = field(default=None, compare=False, repr=False)


def shared_out(loops: Sequence[str], count: int | None) -> list[Step]:
    """Steps that share the first `count` loops among threads, or all of them."""
    return [Mark(v, Kind.PARALLEL) for v in loops[:count]]


def shared_counts(most: int, machine: Machine) -> tuple[int | None, ...]:
    """How many loops, from the outermost on, may be shared among threads; None is all."""
    return (None, *range(most)) if machine.cores > 1 else (0,)


def shared_text(count: int | None) -> str:
    """What points say of loops that are shared: `all loops shared`, and nothing if none is."""
    if count is None:
        return "all loops shared"
    return f"{count} loop{'s' * (count > 1)} shared" if count else ""


def worth_sharing(shape: Shape, machine: Machine, accesses: int = 1) -> bool:
    """Whether a kernel's work is worth the start of other threads.

    `accesses` weighs an iteration: kernels bound by memory take about that many cycles for it.
    """
    return pays(rough_cycles(shape, machine, accesses), machine)


def rough_cycles(shape: Shape, machine: Machine, accesses: int) -> float:
    """What decides whether a kernel is worth threads: a rough count of cycles of one of them."""
    extents = shape.shared_extents
    points = prod(extents[x.var] for x in shape.shared)
    inner = sum(prod(extents[x.var] for x in r.loops) for r in shape.reductions)
    private = sum(extents[v] for v in shape.private)
    return points * (inner + 4 * private + 4) / machine.width * accesses


def loops_of_long_tasks(extents: Sequence[int], cycles: float, machine: Machine) -> int | None:
    """How many loops, from the outermost on, threads may share; None is all.

    Of those of such extents, in which a kernel takes so many cycles, an iteration is a task while
    it takes longer than to go on to the next one.
    """
    tasks = 1
    for number, extent in enumerate(extents):
        tasks *= extent
        if number and cycles < tasks * machine.turn_cycles:
            return number
    return None


def pays(cycles: float, machine: Machine) -> bool:
    """Whether so much work is worth the start of other threads."""
    return machine.cores > 1 and cycles > worth_threads(machine)


def worth_threads(machine: Machine) -> int:
    """The cycles of work from which on it is worth the start of other threads."""
    return max(1, machine.coefficients.sharing.launches * machine.launch_cycles)
