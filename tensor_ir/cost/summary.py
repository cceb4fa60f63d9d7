"""`summarise`: what a scheduled kernel computes, loads and stores, region by region.

The summary holds no times: an `estimate` makes them of it, and of a machine's rates.

    product 64x64x64      2.1e+05 multiply-adds ...
    region d1.o/d0.o/d2.o   times 1024, entered 64: multiply_adds 10240 ...
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rutc.base.record import record
from rutc.tensor_ir.cost.counting import Counter
from rutc.tensor_ir.cost.footprint import Footprints
from rutc.tensor_ir.cost.frames import Role
from rutc.tensor_ir.cost.work import Region, total
from rutc.tensor_ir.indices.affine import typical
from rutc.tensor_ir.kernel import Kernel, Kind, Loop, Space
from rutc.tensor_ir.machine import Machine

RECENT = 16
"""Kernels whose summaries are kept: choices are made by those of a few kernels of one job."""


@record
class Level:
    """A loop: its iterations, all together, and the bytes that one run of what is in it touches."""

    name: str
    trip: float
    runs: float
    bytes: float


@record
class Summary:
    """What decides how long a kernel takes: its regions, loops, tasks, and the bytes it touches.

    `arguments` are the bytes of each memory buffer that are touched, `stored` those of them that
    are written.
    """

    regions: tuple[Region, ...]
    levels: tuple[Level, ...]
    tasks: float
    arguments: Mapping[str, float]
    stored: Mapping[str, float]

    @property
    def work(self) -> dict[str, float]:
        """The counts of all regions together."""
        return total(self.regions)

    def __str__(self) -> str:
        lines = [f"tasks {self.tasks:g}"]
        for name, size in self.arguments.items():
            lines.append(f"%{name}: {size:g} bytes{' written' if name in self.stored else ''}")
        lines += [
            f"for {x.name}: {x.trip:g} x {x.runs:g}, {x.bytes:g} bytes each" for x in self.levels
        ]
        for r in self.regions:
            counts = {**r.work, **r.functions}
            said = ", ".join(f"{name} {count:g}" for name, count in counts.items())
            moved = ", ".join(f"{x:g} + {y:g}" for x, y in r.moved) + " bytes"
            chain = f", chain {r.chain:g}" if r.chain else ""
            held = f", {r.registers} registers" if r.registers else ""
            lines.append(f"in {r.name or 'all'} ({r.times:g} times, {r.entries:g} entries):")
            lost = f", {r.evicted:g} lines evicted" if r.evicted else ""
            lines.append(f"  {said or 'nothing'}{chain}{held}; {moved}{lost}")
        return "\n".join(lines)


@lru_cache(RECENT)
def summarise(kernel: Kernel, machine: Machine) -> Summary:
    """What a scheduled kernel does on one thread; sizes are what they commonly are."""
    counter = Counter(kernel, machine)
    symbols = dict(kernel.symbols)
    buffers = {b.name: b for b in (*kernel.args, *kernel.locals)}
    sizes = {n: float(typical(b.bytes, symbols)) for n, b in buffers.items()}
    prints = Footprints(counter.touches, sizes, machine)
    arguments: dict[str, float] = {}
    stored: dict[str, float] = {}
    levels: dict[tuple[int, ...], Level] = {}
    for number, t in enumerate(counter.touches):
        tally = counter.tallies[t.home]
        passing = prints.passing(number, (machine.l1, machine.l2, machine.l3))
        waiting = passing.waiting / machine.line_bytes
        tally.evicted += 0.0 if t.is_store else waiting
        tally.add("waiting", waiting if t.is_store else 0.0)
        for level, both in enumerate(zip(passing.read, passing.written, strict=True)):
            for written, bytes_ in enumerate(both):
                tally.moved[level][written] += bytes_
        if buffers[t.buffer].space is Space.MEMORY:
            if t.buffer not in arguments:
                arguments[t.buffer] = prints.bytes_of(t.buffer)
            if t.is_store:
                stored[t.buffer] = arguments[t.buffer]
        runs = 1.0
        open_: list[int] = []
        for f in t.frames:
            runs *= f.times if f.role is Role.ARM else f.trip
            if f.role is Role.LOOP and f.trip > 1:
                open_.append(f.number)
                key = tuple(x for x in open_)
                before = levels.get(key)
                if before is None or before.trip < f.trip:
                    inside = next(
                        (prints.total[k] for k, _ in prints.inner[number] if k[-1:] == key[-1:]),
                        0.0,
                    )
                    levels[key] = Level(f.var, f.trip, runs / f.trip, inside)
    return Summary(
        tuple(t.finished(machine) for t in counter.tallies.values()),
        tuple(levels.values()),
        _tasks(kernel, counter),
        dict(sorted(arguments.items())),
        dict(sorted(stored.items())),
    )


def _tasks(kernel: Kernel, counter: Counter) -> float:
    """The iterations of the outermost parallel loops."""
    tasks, body = 1.0, kernel.body
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].kind is Kind.PARALLEL:
        loop = body[0]
        tasks *= max(counter.space.value(loop.hi - loop.lo), 0)
        body = loop.body
    return tasks
