"""How a kernel touches memory: what every access costs, per loop variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import index_names
from rutc.tensor_ir.facts.products import narrow_factors, scaled
from rutc.tensor_ir.facts.windows import Window
from rutc.tensor_ir.indices.affine import Index, Size, plain
from rutc.tensor_ir.kernel import Kernel, Loop, Small, Stmt, Update
from rutc.tensor_ir.machine import NEAR_STRIDES, Machine
from rutc.tensor_ir.statements import reads_in, walk_loops


@record
class Touch:
    """One access: the elements it moves per step of each variable.

    `strides[v]` is 0 where v does not matter and None where the place is no affine function of v.
    Strides that are no constants are what they commonly are; `exact` has them as they are.
    A `packed` access is to a constant, whose layout follows the schedule, or to a value that is
    `arranged` so, in columns of pairs: its strides are those of the ideal layout, 1 for every
    variable that it depends on. The place of a `gathered` access
    depends on data. Of a `small` one,
    elements are small factors: any two, or neighbours along the loops of its `pairs`. Of one in
    `nibbles`, two elements share one of its `bytes`.
    """

    buffer: str
    is_store: bool
    strides: Mapping[str, int | None]
    loops: tuple[str, ...]
    packed: bool
    bytes: int
    buffer_bytes: int
    gathered: bool = False
    exact: Mapping[str, Size | None] = field(default_factory=dict)
    small: Small = Small()
    nibbles: bool = False
    arranged: bool = False
    chosen: Mapping[str, int] = field(default_factory=dict)
    """Loop -> the neighbours among which data choose that it moves, and nothing else of the place
    is."""

    @property
    def packable(self) -> bool:
        """Whether it is to a constant, of which the schedule says how it is packed."""
        return self.packed and not self.arranged

    def line(self, machine: Machine) -> int:
        """The elements of a cache line."""
        return machine.line_bytes // self.bytes * (2 if self.nibbles else 1)

    def depends(self, var: str) -> bool:
        """Whether the place differs between iterations of `var`."""
        return self.strides.get(var, 0) != 0

    def unit(self, var: str) -> bool:
        """Whether neighbours along `var` are neighbours in memory."""
        return self.strides.get(var, 0) == 1

    def near(self, var: str) -> bool:
        """Whether one load takes the elements for neighbours along `var`, all or a single one."""
        if self.packed:
            return not self.gathered or self.strides.get(var, 0) is not None
        return self.strides.get(var, 0) in (0, 1)

    def across(self, vector: str, var: str) -> bool:
        """Whether vectors along a loop lie across memory, and `var` goes along it."""
        far = self.strides.get(vector) not in (None, 0, 1, *NEAR_STRIDES)
        return far and self.unit(var) and not self.packed and not self.gathered

    def picks(self, var: str, lanes: int, machine: Machine) -> int:
        """The operations by which lanes along `var` take what data choose from registers."""
        return machine.picks(self.bytes, self.chosen[var], lanes) if var in self.chosen else 0

    def known(self, var: str) -> bool:
        """Whether a step of `var` is so many elements whatever the sizes of a run."""
        return isinstance(self.exact.get(var, 0), int)

    def continues(self, outer: str, inner: str, extent: Size) -> bool:
        """Whether `outer` goes on where `inner`, of that extent, ends.

        Where data choose along both, the accesses to these data tell.
        """
        if outer in self.chosen and inner in self.chosen:
            return True
        o, i = self.exact.get(outer, 0), self.exact.get(inner, 0)
        return o is not None and i is not None and o == plain(i * extent)

    def renamed(self, loop: str, name: str) -> Touch:
        """The access with a loop `name` that moves as `loop` does."""
        strides = {**self.strides, name: self.strides.get(loop, 0)}
        exact = {**self.exact, name: self.exact.get(loop, 0)}
        known = loop in self.chosen
        chosen = {**self.chosen, name: self.chosen[loop]} if known else self.chosen
        return replace(self, strides=strides, exact=exact, chosen=chosen)


@record
class Reduction:
    """One update: the loops around it inside the shared ones, and what it reads.

    Its `windows` reach outside of what they are read from; of those of the bound loops `tested`,
    memory has no halo.
    """

    update: Update
    loops: tuple[Loop, ...]
    reads: tuple[Touch, ...]
    windows: tuple[Window, ...] = ()
    tested: frozenset[str] = frozenset()

    @cached_property
    def narrow(self) -> tuple[DType, DType] | None:
        """The types of the narrow factors whose products are summed; None for any other sum."""
        u = self.update
        found = narrow_factors(u)
        inside = scaled(u.reducer, u.elements) if found is None else None
        if inside is not None and inside.is_summed(self.nearest):
            # Their sums are scaled, not they (`tuner.factors`).
            found = inside.factors
        return None if found is None else (found[0].dtype, found[1].dtype)

    def together(self, machine: Machine) -> int:
        """How many of its products instructions add up at once; 1 where there are none."""
        if self.narrow is None:
            return 1
        small = any(t.small.any_two or self.nearest in t.small.pairs for t in self.reads)
        fours = any(self.nearest in t.small.fours for t in self.reads)
        return machine.products(*self.narrow, small=small, fours=fours)

    def stride(self, var: str) -> int:
        """How many elements of a value that is no constant a step of a loop moves by, at most."""
        return max((abs(t.strides.get(var) or 0) for t in self.reads if not t.packed), default=0)

    @cached_property
    def nearest(self) -> str | None:
        """The loop along which operands are nearest in memory: neighbours are taken along it."""
        names = [x.var for x in reversed(self.loops)]
        return min(names, key=self.stride, default=None)

    def adds_apart(self, machine: Machine) -> bool:
        """Whether other instructions add these sums to the states."""
        narrow = self.narrow
        return narrow is not None and self.together(machine) > 1 and machine.adds_apart(narrow[0])

    def pairs_bf16(self, machine: Machine) -> bool:
        """Whether instructions add up pairs of its products, of bf16."""
        narrow = self.narrow
        return narrow is not None and narrow[0] is DType.BF16 and self.together(machine) > 1

    @property
    def bound(self) -> tuple[Loop, ...]:
        """The loops that the states do not survive."""
        kept: list[Loop] = []
        for x in reversed(self.loops):
            if any(not isinstance(s, Loop) for s in x.body) and x is not self.loops[-1]:
                break
            kept.append(x)
        return tuple(reversed(kept))


@record
class Shape:
    """A freshly lowered kernel taken apart: shared loops, reductions, all accesses to memory.

    `sizes` are the loops' extents; of those in `symbolic`, `extents` holds what they commonly are,
    `SOME` of them at least, and `common_extents` also where they are fewer. `shared_extents` is
    what decides whether threads share the kernel: what the extents would be if nothing said what
    sizes commonly are, as many a run has more. `longest` has the most that those in `symbolic` may
    be, where that is known, and those in `single` may be a single iteration.
    """

    shared: tuple[Loop, ...]
    body: tuple[Stmt, ...]
    reductions: tuple[Reduction, ...]
    touches: tuple[Touch, ...]
    extents: Mapping[str, int]
    sizes: Mapping[str, Size]
    symbolic: frozenset[str] = frozenset()
    common_extents: Mapping[str, int] = field(default_factory=dict)
    shared_extents: Mapping[str, int] = field(default_factory=dict)
    longest: Mapping[str, int] = field(default_factory=dict)
    single: frozenset[str] = frozenset()

    def may_exceed(self, loop: str, iterations: int) -> bool:
        """Whether a run tells how long a loop is, and that may be more than so many iterations."""
        return loop in self.symbolic and self.longest.get(loop, iterations + 1) > iterations

    def varies(self, loop: str, iterations: int) -> bool:
        """Whether a run tells how long a loop is, and that is not mostly, at most, so many.

        Tiles of so many rows are then shorter in many a run, or one of them does some rows again.
        """
        most = self.longest.get(loop)
        usual = most is not None and self.common_extents[loop] == most <= iterations
        return loop in self.symbolic and not usual

    @cached_property
    def tile_costs(self) -> dict[object, object]:
        """What tells the cycles of register tiles (`TileCosts`), where they were asked for."""
        return {}

    @cached_property
    def constants(self) -> frozenset[str]:
        """The buffers that the kernel reads whose layout is still free."""
        return frozenset(t.buffer for t in self.touches if t.packable)

    @property
    def private(self) -> list[str]:
        """Loops inside the shared ones that belong to no reduction."""
        bound = {x.var for r in self.reductions for x in r.bound}
        return [x.var for x in walk_loops(self.body) if x.var not in bound]


def moves_evenly(kernel: Kernel, buffer: str, loop: str, step: int = 1) -> bool:
    """Whether so many iterations of a loop go on as far from where the last ones read a buffer."""
    layout = kernel.buffer(buffer).layout
    steps = {loop: Index.of(loop) * step}
    for coords in (r.coords for r in reads_in(kernel.body) if r.value == buffer):
        plain = {d: c.subs(steps) for d, c in coords if isinstance(c, Index)}
        if any(loop in index_names(c) for d, c in coords if not isinstance(c, Index)):
            return False
        if len(plain) == len(coords):
            if layout.address(plain, {}).coefficient(loop) is None:
                return False
        elif any(c.coefficient(loop) is None for c in plain.values() if loop in c.names()):
            return False
    return True


def memory_order(loops: Iterable[str], shape: Shape) -> list[str]:
    """Loops in the order of the stores' memory, farthest outermost."""
    stores = [t for t in shape.touches if t.is_store]

    def distance(v: str) -> int:
        return max((abs(t.strides.get(v) or 0) for t in stores), default=0)

    return sorted(loops, key=lambda v: -distance(v))
