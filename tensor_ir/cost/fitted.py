"""The constants of an estimate: fitted to measured kernels, and kept with where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rutc.base.record import record

FITTED = Path(__file__).with_name("fitted.json")


@record
class Costs:
    """What a machine's rates do not tell. Cycles, unless it says otherwise.

    Operations are in multiply-adds: so many of them take as long. `ports` and `levels` say how
    sharply the longest of several times that hide each other prevails: 1 adds them up, and from
    about 8 on only the longest counts. What comes from the next level of memory is weighed by how
    much of its time shows.
    """

    vectors: float = 0.5
    """Any operation on vectors: there are units for them beside those that multiply."""
    shuffles: float = 1.0
    conversions: float = 1.5
    dots: float = 1.0
    functions: float = 0.8
    """What each operation of an elementary function counts for."""
    matrices: float = 16.0
    """A product of blocks in matrix registers: as processors are specified, not fitted."""
    blocks: float = 0.5
    """A row of a matrix register that is loaded or stored: not fitted."""
    crossing: float = 0.5
    gathered: float = 1.0
    masked: float = 0.5
    guarded: float = 1.0
    tested: float = 5.0
    spills: float = 0.7
    prefetches: float = 0.5
    stores: float = 1.5
    scattered: float = 1.5
    issue: float = 5.0
    """Instructions a cycle."""
    scalar: float = 1.0
    """What an operation on integers counts for among instructions."""
    ports: float = 4.0
    l2_in: float = 0.8
    l2_out: float = 0.8
    l3_in: float = 0.8
    l3_out: float = 0.8
    memory_in: float = 0.8
    memory_out: float = 0.8
    evicted: float = 10.0
    waiting: float = 10.0
    levels: float = 2.0
    loop: float = 1.0
    """An iteration of a loop."""
    entry: float = 10.0
    """The way into a loop and out of it."""
    call: float = 30.0


FREE = tuple(n for n in Costs.__dataclass_fields__ if n not in ("matrices", "blocks"))
"""The constants that are fitted."""


@record
class Fitted:
    """The constants, and what they were fitted to.

    `functions` are the multiply-adds that an elementary function takes as long as, by the bits of
    registers: code for wider ones may have instructions of its own.
    """

    costs: Costs
    functions: Mapping[int, Mapping[str, float]]
    provenance: Mapping[str, object]

    def functions_of(self, bits: int) -> Mapping[str, float]:
        """Those of registers of so many bits, or of the next ones that are known."""
        wide = [n for n in self.functions if n <= bits]
        return self.functions[max(wide, default=min(self.functions))]


def load(path: Path = FITTED) -> Fitted:
    """The fitted constants of a file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    functions = {int(bits): each for bits, each in found["functions"].items()}
    return Fitted(Costs(**found["costs"]), functions, found["provenance"])
