"""Which dim of every value is innermost in memory, and the others' order.

The innermost dim decides whether loads and stores move whole vectors. It is chosen for all values
together by coordinate descent on the sum of the nests' costs (see `nest_cost`): sweep over the
values, give each the dim that is cheapest for its producer and readers as they stand, until
nothing changes. Then values that pass the same dim on to each other try another one together,
which none of them gains from alone: those of a softmax between two products, say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from rutc.base.record import record
from rutc.graph_opt.exprs import index_coords
from rutc.graph_opt.nest_cost import NestCost
from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.facts.products import factor_reads
from rutc.tensor_ir.graph import (
    Call,
    Const,
    If,
    Input,
    Nest,
    Node,
    Output,
    Scan,
    Scatter,
    Value,
    While,
    outs,
    walk_nodes,
)
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.machine import Machine

SWEEPS = 4
LESS = 0.999
"""What another dim has to bring the cost to: sums of equal costs differ in their last bits."""
NONE: Mapping[str, tuple[str, ...]] = {}
NOTHING: Mapping[str, str | None] = {}


def fixed_orders(
    nodes: tuple[Node, ...],
    outputs: tuple[Output, ...],
    copied: Mapping[str, tuple[str, ...]] = NONE,
) -> dict[str, tuple[str, ...]]:
    """The orders that an interface or the host program's copies fix.

    `copied` are those of values that the host program copies, where they are no sorted dims.
    """
    fixed: dict[str, tuple[str, ...]] = {}
    for n in walk_nodes(nodes):
        if isinstance(n, Input):
            fixed[n.out.name] = n.axes
    for o in outputs:
        fixed[o.value] = o.axes
    values = {v.name: v for n in walk_nodes(nodes) for v in outs(n)}
    constants = {n.out.name for n in walk_nodes(nodes) if isinstance(n, Const)}
    for n in walk_nodes(nodes):
        if isinstance(n, Scan | While):
            for c, out in zip(n.carries, n.outs, strict=False):
                axes = copied.get(c.param.name, c.param.dims)
                for name in (c.init, c.next, out.name, c.param.name):
                    fixed.setdefault(name, axes)
        if isinstance(n, Scan):
            for out in n.outs[len(n.carries) :]:
                fixed.setdefault(out.name, copied.get(out.name, after(out.dims, n.dim)))
        elif isinstance(n, Call):
            for out, axes in zip(n.outs, n.out_axes, strict=True):
                fixed.setdefault(out.name, axes)
            for name, axes in zip(n.args, n.arg_axes, strict=True):
                if name not in constants:
                    fixed.setdefault(name, axes)
        elif isinstance(n, If):
            for out, a, b in zip(n.outs, n.then.results, n.orelse.results, strict=True):
                for name in (out.name, a, b):
                    fixed.setdefault(name, values[name].dims)
    return fixed


def after(dims: Sequence[str], *first: str) -> tuple[str, ...]:
    """The order of dims in which some are first: those of a loop in what it collects."""
    return (*first, *(d for d in dims if d not in first))


def last_long(axes: Sequence[str], extents: Mapping[str, int]) -> str | None:
    """The innermost dim of more than one element."""
    return next((d for d in reversed(axes) if extents[d] > 1), None)


def choose_innermost(
    nodes: tuple[Node, ...],
    extents: Mapping[str, int],
    fixed: Mapping[str, tuple[str, ...]],
    homes: Mapping[str, str],
    machine: Machine,
    steps: frozenset[str] = frozenset(),
    varying: AbstractSet[str] = frozenset(),
    usual: Mapping[str, str | None] = NOTHING,
) -> dict[str, str | None]:
    """The innermost dim of every value; None for a value without dims longer than 1.

    Values that share memory (`homes`) have one. Extents of `varying` dims are what is common. What
    has a `usual` one keeps it unless another is better.
    """
    constants = frozenset(n.out.name for n in walk_nodes(nodes) if isinstance(n, Const))
    nests = [n for n in walk_nodes(nodes) if isinstance(n, Nest)]
    costs = [NestCost(n, extents, constants, machine, steps, varying) for n in nests]
    touching: dict[str, list[NestCost]] = {}
    inner: dict[str, str | None] = {}
    values: dict[str, Value] = {}
    for c in costs:
        for v in c.nest.outs:
            values[v.name] = v
        for name in {*(u.read.value for u in c.uses), *(v.name for v in c.nest.outs)}:
            touching.setdefault(homes.get(name, name), []).append(c)
    for name, axes in fixed.items():
        inner[name] = last_long(axes, extents)
    own_homes = (v for v in values.values() if homes.get(v.name, v.name) == v.name)
    free = [v for v in own_homes if v.name not in fixed]
    for name in (*(v.name for v in free), *(m for m in homes if m not in fixed)):
        inner[name] = usual.get(name)
    for c in costs:
        _, vector = c.best(inner)
        for v in c.nest.outs:
            if v.name not in fixed and v.name not in usual:
                longest = max(v.dims, key=lambda d: extents[d], default=None)
                inner[v.name] = vector if vector in v.dims else longest
    members: dict[str, list[str]] = {}
    for name, home in homes.items():
        members.setdefault(home, []).append(name)
    for n in walk_nodes(nodes):
        if isinstance(n, Scatter) and n.out.name not in fixed:
            for name in (home := homes[n.out.name], *members[home]):
                inner[name] = _scattered_whole(n, extents)
    descent = _Descent(free, extents, members, touching, inner)
    descent.one_by_one()
    if descent.together():
        descent.one_by_one()
    return inner


@record
class _Descent:
    """The search for innermost dims of `free` values, which changes `inner`.

    `members` share their home's memory, and with it their dim; `touching` are the costs of the
    nests that read or store a home.
    """

    free: Sequence[Value]
    extents: Mapping[str, int]
    members: Mapping[str, list[str]]
    touching: Mapping[str, list[NestCost]]
    inner: dict[str, str | None]

    def one_by_one(self) -> None:
        """Gives each value the dim that is cheapest as all others stand, until none changes."""
        for _ in range(SWEEPS):
            changed = False
            for v in self.free:
                candidates = self._candidates(v)
                if len(candidates) < 2:
                    self._give([v], candidates[0] if candidates else None)
                    continue
                current = self.inner[v.name]
                scores: dict[str, float] = {}
                for d in candidates:
                    self._give([v], d)
                    scores[d] = self._cost([v])
                best = min(candidates, key=lambda d: (scores[d] * (LESS if d == current else 1), d))
                self._give([v], best)
                changed |= best != current
            if not changed:
                return

    def together(self) -> bool:
        """Gives values that have one dim another one at once where that is cheaper.

        Those of a group are connected by nests. Returns whether any changed.
        """
        changed = False
        tried: set[tuple[str, str | None, str]] = set()
        free = {v.name: v for v in self.free}
        for v in self.free:
            current = self.inner[v.name]
            for d in self._candidates(v):
                if d == current or self.inner[v.name] != current or (v.name, current, d) in tried:
                    continue
                group = self._group(v, d, free)
                tried |= {(x.name, current, d) for x in group}
                if len(group) < 2:
                    continue
                before = self._cost(group)
                self._give(group, d)
                if self._cost(group) < LESS * before:
                    changed = True
                else:
                    self._give(group, current)
        return changed

    def _candidates(self, v: Value) -> list[str]:
        return [d for d in v.dims if self.extents[d] > 1]

    def _group(self, first: Value, dim: str, free: Mapping[str, Value]) -> list[Value]:
        """What has the value's innermost dim, could have the other one and is connected to it."""
        current = self.inner[first.name]
        found, left = {first.name: first}, [first]
        while left:
            for c in self.touching.get(left.pop().name, ()):
                for v in (free[name] for name in c.values if name in free and name not in found):
                    if self.inner[v.name] == current and dim in v.dims:
                        found[v.name] = v
                        left.append(v)
        return list(found.values())

    def _give(self, values: Sequence[Value], dim: str | None) -> None:
        for v in values:
            self.inner.update(dict.fromkeys((v.name, *self.members.get(v.name, ())), dim))

    def _cost(self, values: Sequence[Value]) -> float:
        """The cost of all nests that touch one of the values."""
        nests = {id(c): c for v in values for c in self.touching.get(v.name, ())}
        return sum(c.best(self.inner)[0] for c in nests.values())


def _scattered_whole(n: Scatter, extents: Mapping[str, int]) -> str | None:
    """The longest dim along which the scatter's points lie side by side; else the longest one."""
    own = [d for d, c in n.coords if isinstance(c, Index) and c.as_var in n.dims]
    return max(own or n.out.dims, key=lambda d: extents[d], default=None)


def order_dims(
    nodes: tuple[Node, ...],
    inner: Mapping[str, str | None],
    fixed: Mapping[str, tuple[str, ...]],
    homes: Mapping[str, str],
) -> dict[str, tuple[str, ...]]:
    """All values' dim orders: shared (batch) dims, then as in the operands, innermost last."""
    order: dict[str, tuple[str, ...]] = dict(fixed)
    constants = {n.out.name for n in walk_nodes(nodes) if isinstance(n, Const)}
    summed = _summed_dims(nodes)
    for n in walk_nodes(nodes):
        if isinstance(n, Scan | While):
            for c in n.carries:
                order.setdefault(c.param.name, c.param.dims)
        if not isinstance(n, Nest):
            for v in outs(n):
                order.setdefault(v.name, order.get(homes.get(v.name, ""), v.dims))
            continue
        sequences = [
            _loop_order(r, order.get(r.value, ()))
            for e in n.body
            for r in reads(e)
            if r.value not in constants
        ]
        for v in n.outs:
            if v.name in order:
                continue
            own = set(v.dims)
            wide = [s for s in sequences if len(own & set(s)) > 1] or sequences
            batch = [d for d in (wide[0] if wide else []) if all(d in s for s in wide) and d in own]
            if len(wide) < 2:
                batch = []
            ranked = dict.fromkeys([*batch, *(d for s in wide for d in s if d in own), *v.dims])
            last = inner.get(v.name)
            kept = _rows_together([d for d in ranked if d != last], summed.get(v.name))
            order[v.name] = (*kept, *([last] if last is not None else []))
    return order


def _summed_dims(nodes: tuple[Node, ...]) -> dict[str, frozenset[str]]:
    """The dims of factors in parts along which only sums go."""
    found: dict[str, frozenset[str]] = {}
    for n in walk_nodes(nodes):
        if isinstance(n, Nest) and n.bound:
            for r in factor_reads(n.reducer, n.body):
                coords = index_coords(r)
                bound = {d for d, c in coords if c.names() <= {*n.bound}}
                found[r.value] = frozenset(bound)
    return found


def _rows_together(order: list[str], summed: frozenset[str] | None) -> list[str]:
    """The order with rows of a sum at even distances: no dim that is summed between theirs."""
    if not summed:
        return order
    rows = [d for d in order if d not in summed]
    last = order.index(rows[-1]) if rows else 0
    between = [d for d in order[:last] if d in summed]
    return [*between, *rows, *(d for d in order[last:] if d in summed)]


def _loop_order(r: Read, order: tuple[str, ...]) -> list[str]:
    """The loops of a read in the order in which its memory lies."""
    coords = dict(r.coords)
    found: list[str] = []
    for d in order:
        c = coords.get(d)
        if isinstance(c, Index):
            terms = sorted(c.terms, key=lambda t: -abs(t[1])) if len(c.terms) > 1 else c.terms
            for mono, _ in terms:
                names = frozenset().union(*[a.names for a in mono])
                found += [name for name in sorted(names) if name not in found]
    return found
