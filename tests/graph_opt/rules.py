"""The rules under test, by the names of their folders of golden files."""

from math import inf

from rutc.graph_opt.alternatives.filtering import MinimalFiltering
from rutc.graph_opt.alternatives.remainders import TakeRemainders
from rutc.graph_opt.alternatives.separable import SeparateWindows
from rutc.graph_opt.alternatives.signs import TakeSigns
from rutc.graph_opt.rewrite import Rule, rule_name
from rutc.graph_opt.rules.algebra import simplify_expressions
from rutc.graph_opt.rules.constants import SliceConstant, split_constant
from rutc.graph_opt.rules.contraction import (
    drop_unit_dims,
    drop_unused_dims,
    fuse_product_into_sum,
    fuse_sums,
    reduce_once,
)
from rutc.graph_opt.rules.extremes import find_extremes
from rutc.graph_opt.rules.filter_whole import FilterWhole
from rutc.graph_opt.rules.fold import FoldConstants, choose_branch
from rutc.graph_opt.rules.gathers import sum_gathered
from rutc.graph_opt.rules.nan_rows import LeaveNaNToSum
from rutc.graph_opt.rules.narrow import drop_requantised, gather_narrow, sum_integers, sum_narrow
from rutc.graph_opt.rules.narrow_sums import sum_bytes
from rutc.graph_opt.rules.normalize import (
    MultiplyByReciprocal,
    OnePassMoments,
    OnePassSoftmax,
    divide_later,
)
from rutc.graph_opt.rules.once import compute_once
from rutc.graph_opt.rules.outside import drop_outside
from rutc.graph_opt.rules.overwritten import choose_region
from rutc.graph_opt.rules.padded import pad_quantised
from rutc.graph_opt.rules.pairs import MultiplyPairs
from rutc.graph_opt.rules.phases import solve_phase, solve_place
from rutc.graph_opt.rules.requantise import quantise_by_factors
from rutc.graph_opt.rules.rows import RecomputeRows
from rutc.graph_opt.rules.scale import combine_scales, fold_scale, join_weights
from rutc.graph_opt.rules.scaled_signs import TakeScaledSigns
from rutc.graph_opt.rules.smaller_checks import check_operand
from rutc.graph_opt.rules.split import SplitForReaders, split_bound_dim, split_free_dim
from rutc.graph_opt.rules.tabulate import Tabulate
from rutc.graph_opt.rules.views import compose_views, drop_copy, drop_fill, sum_as_viewed
from rutc.graph_opt.rules.widen import SumPacked, WidenOperands
from rutc.graph_opt.rules.windows_by_order import order_windows
from rutc.graph_opt.rules.windows_narrow import quantise_before_windows
from tests.machines import V3

RULES: tuple[Rule, ...] = (
    FoldConstants(),
    # However little it saves: graphs that show a rule are small.
    SeparateWindows(inf, -inf),
    # Filters however small the gain: graphs that show a rule are small.
    MinimalFiltering(inf, -inf),
    FilterWhole(inf, -inf),
    LeaveNaNToSum(V3),
    MultiplyByReciprocal(),
    MultiplyPairs(V3),
    OnePassMoments(),
    OnePassSoftmax(),
    RecomputeRows(),
    # However little it saves.
    TakeRemainders(inf, -inf, V3),
    TakeScaledSigns(V3),
    TakeSigns(inf, -inf, V3),
    WidenOperands(),
    # However small the constant is.
    SliceConstant(0),
    SplitForReaders(),
    Tabulate(V3),
    check_operand,
    choose_branch,
    combine_scales,
    compute_once,
    compose_views,
    divide_later,
    drop_copy,
    drop_fill,
    drop_outside,
    drop_unit_dims,
    drop_unused_dims,
    drop_requantised,
    find_extremes,
    fold_scale,
    gather_narrow,
    fuse_product_into_sum,
    fuse_sums,
    join_weights,
    reduce_once,
    choose_region,
    simplify_expressions,
    solve_phase,
    solve_place,
    split_bound_dim,
    split_constant,
    split_free_dim,
    sum_as_viewed,
    sum_gathered,
    order_windows,
    pad_quantised,
    quantise_before_windows,
    quantise_by_factors,
    sum_integers,
    sum_bytes,
    sum_narrow,
    # However small the packed operand is.
    SumPacked(0, 1.2),
)
BY_NAME = {rule_name(r).partition("(")[0]: r for r in RULES}
