"""What assignments are about: a graph in which nothing is left to arrange but by choice.

Strings and boxes are numbers, what the caller and the host program fix has copies where it cannot
lie as it has to, and every scatter has a base that it may write into.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.graph_opt.decide.growth import InPlace, grown_in_place
from rutc.graph_opt.decide.inplace import share_bases
from rutc.graph_opt.decide.interface import with_interface_copies
from rutc.graph_opt.decide.layout import fixed_orders
from rutc.graph_opt.decide.loop_orders import loop_orders
from rutc.graph_opt.decide.numbering import numbered
from rutc.graph_opt.editor import Editor
from rutc.tensor_ir.graph import Graph, mentioned, walk_nodes
from rutc.tensor_ir.indices.affine import Index, Range, Size, fewest, plain, typical
from rutc.tensor_ir.verifier import verify


@record
class Prepared:
    """A graph, and what about its memory is not for choice.

    `homes` names, for a value that lies in another one's memory, that one; `fixed` the orders of
    values that an interface or the host program's copies fix; `strings` and `boxes` are those of
    the plan.
    """

    graph: Graph
    homes: Mapping[str, str]
    fixed: Mapping[str, tuple[str, ...]]
    strings: tuple[str, ...] = ()
    boxes: frozenset[str] = frozenset()
    kept: InPlace = InPlace()
    """The values that grow where they lie, and all that are no work from the beginning."""

    @cached_property
    def symbols(self) -> dict[str, Range]:
        """The ranges of sizes."""
        return dict(self.graph.symbols)

    @cached_property
    def sizes(self) -> dict[str, Size]:
        """What the dims are."""
        return {d: plain(e) for d, e in self.graph.dims}

    @cached_property
    def extents(self) -> dict[str, int]:
        """What the dims commonly are: costs are weighed with it, nothing that must hold is."""
        return {d: typical(e, self.symbols) for d, e in self.sizes.items()}

    @cached_property
    def limits(self) -> dict[str, int]:
        """The most that every dim can be."""
        found: dict[str, int] = {}
        for d, size in self.sizes.items():
            bounds = Index.of(size).bounds(self.symbols)
            found[d] = bounds[1] if bounds is not None else 1 << 62
        return found

    @cached_property
    def few(self) -> dict[str, int]:
        """What the dims are in a run that is as small as it may well be."""
        return {d: fewest(e, self.symbols) for d, e in self.sizes.items()}

    @cached_property
    def varying(self) -> frozenset[str]:
        """The dims whose size only a run tells."""
        return frozenset(d for d, e in self.sizes.items() if not isinstance(e, int))

    @cached_property
    def steps(self) -> frozenset[str]:
        """The sizes that are 0 or 1."""
        return frozenset(s for s, bounds in self.graph.symbols if bounds == (0, 1))

    @cached_property
    def checks(self) -> frozenset[str]:
        """The sizes that a run computes to end unless they fit: what follows their bind runs after.

        They have to be one number, or nothing has them.
        """
        had = {n for e in self.sizes.values() for n in Index.of(e).names()}
        had.update(n for node in walk_nodes(self.graph.nodes) for n in mentioned(node))
        return frozenset(s for s, (low, high) in self.graph.symbols if low == high or s not in had)

    @cached_property
    def editor(self) -> Editor:
        """What answers questions about the graph."""
        return Editor(self.graph)

    @cached_property
    def constants(self) -> frozenset[str]:
        """The names of the constants."""
        return frozenset(self.graph.constants)

    @cached_property
    def sharing(self) -> frozenset[str]:
        """The values that lie in another one's memory, or have others in theirs."""
        return frozenset((*self.homes, *self.homes.values()))

    def home(self, value: str) -> str:
        """The value in whose memory one lies."""
        return self.homes.get(value, value)

    def is_finite(self, value: str) -> bool:
        """Whether a value is a constant of finite numbers."""
        const = self.graph.constants.get(value)
        return const is not None and const.data.is_finite


def prepare(graph: Graph) -> Prepared:
    """An optimized graph, prepared for decisions.

    Raises:
        UserError: it has what cannot be planned yet.
    """
    found = numbered(graph)
    kept = grown_in_place(found.graph)
    sized = Prepared(kept.graph, {}, {})
    copied = loop_orders(sized.graph, sized.extents, sized.steps, sized.varying)
    before = with_interface_copies(kept.graph, copied)
    fixed = {**fixed_orders(before.nodes, before.outputs, copied), **kept.orders}
    shared = share_bases(before, fixed)
    if shared.graph is not before:
        verify(shared.graph, since=before)
    homes = {**shared.homes, **kept.in_place.homes}
    in_place = replace(kept.in_place, joined=kept.in_place.joined | shared.views)
    return Prepared(shared.graph, homes, shared.fixed, found.strings, found.boxes, in_place)
