"""What kernels take at least on a machine: the roofline [Williams et al. 2009] of each launch.

    least = max(arithmetic, second cache, last cache, memory)

- *Arithmetic* is that of the algorithm that was chosen: the cycles in which its units are busy, by
  the count of instructions. Sums of products need no more than their operations take at the peak
  in f32: what tiles compute beyond the edges of values is a matter of the schedule.
- *Bytes* are those that a launch touches once. What it reads comes from the cache that holds all
  that was touched since it last was, in the run before if need be; what it writes goes to the cache
  that has room for it. In loops, all is near.

What calls take is no part of it: a call in a loop takes a few cycles, one that wakes threads
thousands. So no schedule of the same kernels takes less, but for what rates and counts are off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rutc.base.record import record
from rutc.driver.parts.outline import Outline, PlanOutline, StepOutline
from rutc.emit.targets import native_target
from rutc.emit.targets.measured import with_measured_rates
from rutc.tensor_ir.cost.estimate import LEVEL_NAMES, Rates
from rutc.tensor_ir.machine import Machine

Facts = Mapping[str, object]
ARITHMETIC = "arithmetic"


@record
class Least:
    """The cycles of one thread that a launch takes at least, all its turns together, and why."""

    cycles: float
    limit: str


def least_times(outline: Outline, kernels: Sequence[Facts], machine: Machine) -> dict[int, Least]:
    """Returns what the kernels of an artifact take at least, by their numbers in the manifest.

    Of a library that tells no bytes, as older ones, there are none.
    """
    told = float(outline.machine.get("fma_per_cycle", 0)) or machine.fma_per_cycle
    found: dict[int, Least] = {}
    for plan in outline.plans:
        for step, levels in _levels(plan, machine):
            assert step.kernel is not None
            kernel = kernels[step.kernel]
            arithmetic = _number(kernel.get("computing")) * told / machine.fma_per_cycle
            if step.kind == "products":
                peak = 2 * machine.fma_per_cycle * machine.width
                arithmetic = min(arithmetic, _number(kernel.get("flops")) / peak)
            rates = Rates.of(machine).level_bytes
            parts = {ARITHMETIC: arithmetic}
            parts |= {
                n: x / rate for n, x, rate in zip(LEVEL_NAMES, levels[1:], rates, strict=True)
            }
            limit = max(parts, key=lambda name: parts[name])
            found[step.kernel] = Least(parts[limit], limit)
    return found


def machine_at_hand(outline: Outline) -> Machine:
    """Returns the machine at hand as an artifact's code uses it, with vectors as long, measured.

    Raises:
        UserError: rutc has no target for it.
    """
    native = native_target().machine
    bits = int(outline.machine.get("vector_bits", native.vector_bits))
    if bits == native.vector_bits:
        return native
    return with_measured_rates(replace(native, vector_bits=bits))


def _levels(plan: PlanOutline, machine: Machine) -> Iterator[tuple[StepOutline, list[float]]]:
    """The kernels of a plan, and of each the bytes that come from each level, and go there.

    Level 0 is the first cache, 3 is memory.
    """
    caches = (machine.l1, machine.l2, machine.l3)
    last: dict[tuple[str, int], float] = {}
    """What was touched last, the latest behind all others, with its bytes."""
    for turn in range(2):
        for s in plan.steps:
            operands = [("value", n) for n in (*s.reads, *s.writes)]
            operands += [("weight", n) for n in s.weights]
            if s.kernel is not None and len(s.touched) == len(operands):
                bytes_ = dict(zip(operands, map(float, s.touched), strict=True))
                if turn:
                    levels = [0.0] * (1 + len(caches))
                    for o in operands:
                        near = s.runs != 1
                        between = bytes_[o] if _writes(s, o) else _since(o, last, machine.l3)
                        level = 0 if near else sum(between > cache for cache in caches)
                        levels[level] += bytes_[o]
                    yield s, levels
            else:
                # A step that moves nothing itself: what it gives has been touched as its parts.
                bytes_ = dict.fromkeys(operands, 0.0)
            for o, size in bytes_.items():
                last.pop(o, None)
                last[o] = size


def _writes(s: StepOutline, operand: tuple[str, int]) -> bool:
    return operand[0] == "value" and operand[1] in s.writes


def _since(operand: tuple[str, int], last: dict[tuple[str, int], float], most: float) -> float:
    """The bytes that were touched since an operand last was, its own among them, up to some."""
    total = 0.0
    for o in reversed(last):
        total += last[o]
        if o == operand or total > most:
            break
    return total


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
