"""The chains that are best from some steps on, found once for all steps that are alike.

Plans of a graph that differ in a few values have most of their steps in common, and what decides
which chain is best: the kernels, and how the values lie that they read and write.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace

from rutc.base.record import record
from rutc.graph_opt.decide.chains import MOST_MEMBERS, Chain
from rutc.graph_opt.plan import FillHalo, PlanStep, Run
from rutc.tensor_ir.indices.affine import Size
from rutc.tensor_ir.lower import Group


@record
class Found:
    """What was found for several plans of a graph for one machine.

    Equal `numbers` stand for what is equal. Nests are told apart by their identity, which stays
    theirs as long as they are `held`.
    """

    numbers: dict[Hashable, int] = field(default_factory=dict)
    held: list[Group] = field(default_factory=list)
    chains: dict[Hashable, tuple[int, Chain | None]] = field(default_factory=dict)
    """Numbers of steps -> the first of them where they were, and the best chain from it on."""

    def number(self, what: Hashable) -> int:
        """What stands for it."""
        return self.numbers.setdefault(what, len(self.numbers))


class Likeness:
    """The steps of one plan as numbers."""

    def __init__(
        self, found: Found, extents: Mapping[str, Size], facts: Callable[[str], Hashable]
    ) -> None:
        """Steps whose dims have these extents; `facts` are all that counts of a value."""
        self.found = found
        self.extents = extents
        self.facts = facts
        self._groups: dict[str, int] = {}
        self._values: dict[str, int] = {}

    def best(
        self, steps: Sequence[PlanStep], start: int, find: Callable[[], Chain | None]
    ) -> Chain | None:
        """The chain that `find` gives for these steps, or gave for others that are alike."""
        key = self._of(steps, start)
        if key not in self.found.chains:
            self.found.chains[key] = start, find()
        first, chain = self.found.chains[key]
        if chain is None:
            return None
        # Groups of this plan: their names are numbers, which another may have for other kernels.
        moved = [m.step - first + start for m in chain.members]
        runs = [steps[number] for number in moved]
        members = [
            replace(m, step=number, group=run.group)
            for m, number, run in zip(chain.members, moved, runs, strict=True)
            if isinstance(run, Run)
        ]
        return replace(chain, members=tuple(members))

    def _of(self, steps: Sequence[PlanStep], start: int) -> Hashable:
        """What tells the chains that begin with a step: the kernels that they may have.

        They go on after fills of halos, which have no number.
        """
        numbers: list[int | None] = []
        kernels = 0
        for at in range(start, len(steps)):
            step = steps[at]
            if isinstance(step, FillHalo):
                numbers.append(None)
            elif isinstance(step, Run) and kernels < MOST_MEMBERS:
                numbers.append(self._group(step.group))
                kernels += 1
            else:
                break
        return tuple(numbers)

    def _group(self, group: Group) -> int:
        known = self._groups.get(group.name)
        if known is None:
            values = sorted({*group.external_reads(), *group.stored})
            sizes = tuple([self.extents[d] for d in group.shared])
            nests = tuple(map(id, group.stages))
            said = nests, group.shared, group.stored, sizes, tuple(map(self._value, values))
            self.found.held.append(group)
            known = self._groups[group.name] = self.found.number(said)
        return known

    def _value(self, v: str) -> int:
        known = self._values.get(v)
        if known is None:
            known = self._values[v] = self.found.number((v, self.facts(v)))
        return known
