"""Rules that give one sum at a time another algorithm: the cheapest way, or the assigned one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from rutc.base.record import record
from rutc.graph_opt.alternatives import Assigned, Choosing, Offer
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import Node
from rutc.tensor_ir.machine import COMMON, Machine

Form = TypeVar("Form")


@record
class Way(Generic[Form]):
    """An algorithm for a sum, and what its nodes are made of."""

    offer: Offer
    form: Form


@record
class ChoosesWays(Choosing, Generic[Form]):
    """A rule for nests: what it chooses costs a `share` of the sum itself, and `saving` less.

    Of a sum in the body of a scan, that is what all of its trips save.
    """

    share: float = 1.0
    saving: float = 0.0
    machine: Machine = COMMON
    assigned: Assigned | None = None
    """The algorithms to use, instead of those that are weighed to be best."""

    def __str__(self) -> str:
        return type(self).__name__

    @abstractmethod
    def ways(self, n: Node, editor: Editor) -> Sequence[Way[Form]] | Reason:
        """All ways to compute a node, at least one, or why there is none."""

    @abstractmethod
    def made(self, form: Form, editor: Editor) -> tuple[Node, ...]:
        """The nodes that compute a sum so."""

    def may_choose(self, way: Way[Form]) -> bool:
        """Whether a sum may be computed so if nobody assigns it."""
        return True

    def weight(self, way: Way[Form]) -> float:
        """What is least for the best of several ways."""
        return way.offer.cost

    def choice(self, n: Node, editor: Editor) -> Way[Form] | Reason:
        """How a node is to be computed, or why as it stands."""
        ways = self.ways(n, editor)
        return ways if isinstance(ways, Reason) else self._best(n, ways, editor)

    def _best(self, n: Node, ways: Sequence[Way[Form]], editor: Editor) -> Way[Form] | Reason:
        """Which of all ways is chosen, or why none."""
        if self.assigned is not None:
            own = (w for w in ways if self.assigned.has(w.offer.value, w.offer.algorithm))
            best = min(own, key=self.weight, default=None)
            return best or Reason("it is assigned another algorithm")
        direct = ways[0].offer.direct
        able = [w for w in ways if self.may_choose(w)]
        most = self._most(direct, n, editor)
        best = min((w for w in able if w.offer.cost <= most), key=self.weight, default=None)
        if best is None:
            least = min((w.offer.cost for w in able), default=direct)
            return Reason(f"it saves too little: about {least:.0f} instead of {direct:.0f}")
        return best

    def _most(self, cost: float, n: Node, editor: Editor) -> float:
        """What another way may take at most for it to replace one that takes `cost`."""
        trips = editor.typical(editor.enclosing_dims(n))
        return min(self.share * cost, cost - self.saving / trips)

    def better(self, editor: Editor, usual: Mapping[str, str]) -> Iterator[tuple[str, float]]:
        """(value, cycles saved) where a way saves as much of the `usual` one as of sums themselves.

        Values of which nothing is usual are computed as they stand.
        """
        for n in list(editor.nodes.values()):
            ways = self.ways(n, editor)
            if isinstance(ways, Reason):
                continue
            way = self._best(n, ways, editor)
            if isinstance(way, Reason) or usual.get(way.offer.value) == way.offer.algorithm:
                continue
            name = usual.get(way.offer.value)
            costs = (w.offer.cost for w in ways if w.offer.algorithm == name)
            cost = next(costs, way.offer.direct)
            if way.offer.cost <= self._most(cost, n, editor):
                trips = editor.typical(editor.enclosing_dims(n))
                yield way.offer.value, (cost - way.offer.cost) * trips

    def offers(self, editor: Editor) -> Iterator[Offer]:
        """All ways to compute nodes of the graph."""
        for n in list(editor.nodes.values()):
            ways = self.ways(n, editor)
            yield from () if isinstance(ways, Reason) else (w.offer for w in ways)

    def chosen(self, editor: Editor) -> Iterator[tuple[str, str]]:
        """(value, algorithm) of the nodes that are not computed as they stand."""
        for n in list(editor.nodes.values()):
            way = self.choice(n, editor)
            if not isinstance(way, Reason):
                yield way.offer.value, way.offer.algorithm

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The nodes that compute it as is chosen, or why it stays."""
        way = self.choice(n, editor)
        return way if isinstance(way, Reason) else self.made(way.form, editor)
