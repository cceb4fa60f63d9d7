"""The rules under test, by the names of their folders of golden files: all of the pipeline."""

from collections.abc import Iterator
from math import inf

from rutc.graph_opt.alternatives.filtering import MinimalFiltering
from rutc.graph_opt.alternatives.remainders import TakeRemainders
from rutc.graph_opt.alternatives.separable import SeparateWindows
from rutc.graph_opt.alternatives.signs import TakeSigns
from rutc.graph_opt.pipeline import pipeline_for
from rutc.graph_opt.rewrite import Rule, Sweep, rule_name
from rutc.graph_opt.rules.constants import SliceConstant
from rutc.graph_opt.rules.filter_whole import FilterWhole
from rutc.graph_opt.rules.fold import FoldConstants
from rutc.graph_opt.rules.padded_products import PadProducts
from rutc.graph_opt.rules.widen import SumPacked
from tests.machines import TILES, V3

EAGER: tuple[Rule, ...] = (
    # However little they save, and however small constants are: graphs that show a rule are small.
    SeparateWindows(inf, -inf),
    MinimalFiltering(inf, -inf),
    FilterWhole(inf, -inf),
    TakeRemainders(inf, -inf, V3),
    TakeSigns(inf, -inf, V3),
    SliceConstant(0),
    SumPacked(0, 1.2),
    PadProducts(TILES),
    # Quantised weights, too.
    FoldConstants(),
)
"""Rules that take the place of the pipeline's own."""


def _name(rule: Rule) -> str:
    return rule_name(rule).partition("(")[0]


def _of_pipeline() -> Iterator[Rule]:
    for step in pipeline_for(V3):
        yield from step.rules if isinstance(step, Sweep) else ()


BY_NAME = {_name(r): r for r in (*_of_pipeline(), *EAGER)}
RULES: tuple[Rule, ...] = tuple(BY_NAME.values())
