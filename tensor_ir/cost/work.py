"""What the code of a kernel does, by kinds of instructions: the counts of a summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from rutc.base.record import record
from rutc.tensor_ir.machine import Machine

KINDS: Mapping[str, str] = {
    "multiply_adds": "fused multiply-adds, and sums of products that take as long",
    "arithmetic": "other arithmetic, comparisons and choices",
    "shuffles": "moves of lanes within and between registers",
    "divisions": "divisions and square roots",
    "conversions": "conversions from type to type",
    "dots": "operations of sums of products of narrow neighbours, where one is not enough",
    "matrices": "products of blocks in matrix registers",
    "scalar": "operations on integers outside of vectors, such as places",
    "loads": "loads of whole registers",
    "crossing": "the share of them that takes two lines",
    "broadcasts": "loads of one element, into all lanes or a scalar register",
    "gathered": "lanes that are loaded one by one",
    "masked": "stores with idle lanes",
    "guarded": "reads that are outside of their buffer for some lanes or copies",
    "tested": "reads of which only the run knows whether they are outside",
    "blocks": "loads and stores of matrix registers, row by row",
    "stores": "stores of whole registers, or of one element",
    "scattered": "lanes that are stored one by one",
    "waiting": "lines that are stored, and wait for room in full sets of the first cache",
    "spills": "loads and stores of what registers have no room for",
    "prefetches": "lines that are asked for",
}
"""Every kind that is counted; elementary functions are counted by their names as well.

Operations of a register that is not full count as the part of one that the machine has to move.
"""


LEVELS = 3
"""The second cache, the last one, and memory."""


@record
class Region:
    """Straight-line code: what an iteration of its loop does outside of the loops in it.

    `times` is how often it is done, `entries` how often its loop is entered. Counts are those of
    all times together. `chain` are the cycles of operations that wait for those of the iteration
    before. `moved` are the bytes that come from the second cache, the last one and memory, and that
    go there, if the kernel ran just before; `evicted` lines are loaded, and wait for room or come
    back, as too many others lie in the same sets of the first cache: as many as would wait if there
    were one set. Those that are stored are counted as work.
    """

    name: str
    times: float
    entries: float
    work: Mapping[str, float]
    functions: Mapping[str, float] = field(default_factory=dict)
    chain: float = 0.0
    registers: int = 0
    moved: tuple[tuple[float, float], ...] = ((0.0, 0.0),) * LEVELS
    evicted: float = 0.0


@record
class Operand:
    """What an update reads: its loads, for so many steps of the reduction.

    A step keeps `held` registers of it where the code goes through its copies in order; 0 where
    each is read for one copy alone.
    """

    loads: float
    steps: float
    held: float


class Tally:
    """A region while it is counted."""

    def __init__(self, name: str, times: float, entries: float) -> None:
        """Start with nothing."""
        self.name, self.times, self.entries = name, times, entries
        self.work: dict[str, float] = {}
        self.functions: dict[str, float] = {}
        self.chains: dict[str, float] = {}
        self.seen: set[object] = set()
        self.states: dict[str, float] = {}
        self.operands: list[Operand] = []
        """Those of the updates."""
        self.moved = [[0.0, 0.0] for _ in range(LEVELS)]
        self.evicted = 0.0
        self.kept = 0.0
        """Registers that hold what is loaded before the loop."""
        self.loaded = self.used = 0.0
        """Registers that are loaded, and how often what is in them is an operand."""

    def add(self, kind: str, count: float) -> None:
        """Count so many of a kind."""
        if count:
            self.work[kind] = self.work.get(kind, 0.0) + count

    def call(self, function: str, count: float) -> None:
        """Count so many calls of an elementary function."""
        self.functions[function] = self.functions.get(function, 0.0) + count

    def wait(self, what: str, cycles: float) -> None:
        """Count cycles of a chain of operations."""
        self.chains[what] = self.chains.get(what, 0.0) + cycles

    def _loaded(self) -> float:
        """The registers that operands of updates take.

        One operand's part of a step is held, the others pass by one at a time. Where the code has
        another order, that takes more, the next one is loaded before the last has passed.
        """
        own = [o for o in self.operands if o.steps]
        if len(own) < 2:
            return 1.0
        least = min(o.loads / o.steps for o in own) + 1
        in_order = sum(o.held for o in own) + any(not o.held for o in own)
        return least + 1 if in_order > least else least

    def finished(self, machine: Machine) -> Region:
        """The region, on a machine with so many registers."""
        registers = machine.registers
        pressure = round(sum(self.states.values()) + self._loaded()) if self.states else 0
        if pressure > registers:
            steps = max((o.steps for o in self.operands), default=self.times)
            self.add("spills", 2 * (pressure - registers) * steps)
            for what in self.chains:
                self.wait(what, machine.forward_cycles * steps)
        room = max(registers - pressure, 0)
        if self.kept > room:
            # The others lie on the stack.
            self.add("spills", (self.kept - room) * self.times)
        if not self.states and self.loaded > registers * self.times:
            # Straight-line code that uses more than registers hold loads it again.
            again = self.used - self.loaded
            self.add("spills", again * (1 - registers * self.times / self.loaded))
        return Region(
            self.name,
            self.times,
            self.entries,
            dict(sorted(self.work.items())),
            dict(sorted(self.functions.items())),
            max(self.chains.values(), default=0.0),
            pressure,
            tuple((x, y) for x, y in self.moved),
            self.evicted,
        )


def total(regions: Iterable[Region]) -> dict[str, float]:
    """The counts of all regions together, functions among them by their names."""
    found: dict[str, float] = {}
    for r in regions:
        for name, count in (*r.work.items(), *r.functions.items()):
            found[name] = found.get(name, 0.0) + count
    return found
