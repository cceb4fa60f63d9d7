"""What a compilation computes by other algorithms than the model's own sums, and what they cost.

A listener of `optimize` notes it: before each step that chooses such algorithms, it asks the step
what it will choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from math import prod

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.graph_opt.alternatives import Assigned, Choosing
from rutc.graph_opt.alternatives.choices import choosing
from rutc.graph_opt.alternatives.factor_parts import SMALLEST, WHOLE
from rutc.graph_opt.alternatives.filtering import SAID_IN_BF16, MinimalFiltering
from rutc.graph_opt.alternatives.split_precision import MultiplyParts
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway
from rutc.graph_opt.pipeline import (
    FILTERING,
    OnStep,
    filtering_for,
    pipeline_for,
    rounding_before,
)
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.versions import FEW_ROWS, SEVERAL, step_of
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.graph import Origin
from rutc.tensor_ir.indices.ranges import Range
from rutc.tensor_ir.machine import COMMON, Machine

Symbols = tuple[tuple[str, Range], ...]
TINY = 2.0**-126
"""The least number of bf16, as of f32, that is not subnormal."""
ROUNDING = 2.0**17
"""What a product of two numbers rounded to bf16 may be off, in roundings of f32."""


@record
class Algorithm:
    """One sum, the value `sum` of the graph, that is computed by another algorithm.

    `outputs` and `taps` are those of a filter along each dim. Its rounding errors are at most
    (products + `steps`) * 2^-24 * `growth` * sum|w| * the tile's largest input, and an input that
    is no finite number spoils `reach` neighbours along each dim. Where inputs are of one magnitude,
    errors are `typical` times those of a direct sum, about. Parts err as a direct sum does;
    factors in bf16 are each off by 2^-8 of themselves, at most.
    Sums of inputs up to `largest` do not overflow, nor do those of products of two inputs;
    inputs below `smallest` have fewer bits.
    """

    name: str
    sum: str
    origin: Origin
    typical: float
    growth: float
    steps: int
    smallest: float
    largest: float
    outputs: tuple[int, ...] = ()
    taps: tuple[int, ...] = ()
    reach: tuple[int, ...] = ()
    factors: str = str(DType.F32)
    """The type that factors of products are rounded to."""


@dataclass
class Algorithms:
    """Collects the algorithms of a graph: give an instance as `on_step`; it calls `after`."""

    machine: Machine = COMMON
    leeway: Leeway = USUAL_LEEWAY
    after: OnStep | None = None
    assigned: Assigned | None = None
    """The algorithms that are chosen already."""
    found: dict[str, Algorithm] = field(default_factory=dict, init=False)
    _before: Graph | None = field(default=None, init=False)
    _asked: list[tuple[Choosing, Graph]] = field(default_factory=list, init=False)
    """What chose, and of which graphs."""

    def __call__(self, name: str, graph: Graph, changed: bool) -> None:
        """Note what a step chose."""
        if self._before is not None:
            self._asked += ((rule, self._before) for rule in self._choosing.get(name, ()))
        if changed and self._before is not None:
            rule = filtering_for(self.machine, self.leeway, self.assigned)
            if step_of(name) == FILTERING:
                self._note(_filtered(rule, self._before))
            whole = MultiplyParts(machine=self.machine, assigned=self.assigned)
            for parts in (whole, rounding_before(rule)):
                symbolic = not name.removesuffix(SEVERAL).endswith(FEW_ROWS)
                step = replace(parts, symbolic=symbolic)
                if step_of(name) == step.name:
                    self._note(_in_parts(step, self._before))
        self._before = graph
        if self.after is not None:
            self.after(name, graph, changed)

    @cached_property
    def _choosing(self) -> dict[str, tuple[Choosing, ...]]:
        """What chooses algorithms in each step of the pipeline."""
        steps = pipeline_for(self.machine, self.leeway, assigned=self.assigned)
        return {step.name: tuple(choosing(step)) for step in steps}

    def differ(self, symbols: Symbols) -> bool:
        """Whether a sum would have another algorithm if sizes had these ranges and common values.

        The graph is as it is rewritten for those that it has.
        """
        return any(
            tuple(rule.chosen(Editor(graph)))
            != tuple(rule.chosen(Editor(replace(graph, symbols=symbols))))
            for rule, graph in self._asked
        )

    def also(self, others: Algorithms) -> None:
        """Note those of another plan as well."""
        self._note(others.found.values())

    def _note(self, algorithms: Iterable[Algorithm]) -> None:
        """Note algorithms; of two for one sum the one that loses more bits."""
        for other in algorithms:
            own = self.found.get(other.sum)
            if own is None or own.growth < other.growth:
                self.found[other.sum] = other

    def facts(self) -> list[dict[str, object]]:
        """For the manifest."""
        return [asdict(a) for a in self.found.values()]


def _filtered(rule: MinimalFiltering, graph: Graph) -> Iterator[Algorithm]:
    editor = Editor(graph)
    for n in list(editor.nodes.values()):
        way = rule.choice(n, editor)
        if not isinstance(way, Reason):
            found = way.form
            bounds, filters = found.bounds(), found.filters.values()
            errors = ROUNDING if found.rounded else 1.0
            yield Algorithm(
                "minimal filtering" + SAID_IN_BF16 * found.rounded,
                found.nest.out.name,
                found.nest.origin,
                prod(f.typical for f in filters),
                bounds.growth * errors,
                bounds.steps,
                0.0,
                bounds.largest,
                tuple(f.outputs for f in filters),
                tuple(f.taps for f in filters),
                bounds.reach,
                str(DType.BF16 if found.rounded else DType.F32),
            )


def _in_parts(step: MultiplyParts, graph: Graph) -> Iterator[Algorithm]:
    name, errors, smallest, kind = "parts in bf16", 1.0, SMALLEST, DType.F32
    if step.parts < WHOLE:
        name, errors, smallest, kind = "factors in bf16", ROUNDING, TINY, DType.BF16
    for c in step.sums(Editor(graph)):
        yield Algorithm(
            name,
            c.nest.out.name,
            c.nest.origin,
            errors,
            errors,
            0,
            smallest,
            c.largest,
            factors=str(kind),
        )
