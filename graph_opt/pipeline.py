"""The rewriting pipeline: one ordered list, with the reason for each entry's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from rutc.errors import InternalError
from rutc.graph_opt.alternatives import Assigned
from rutc.graph_opt.alternatives.bf16_pairs import adds_pairs, multiplies_bf16
from rutc.graph_opt.alternatives.factor_parts import ROUNDED
from rutc.graph_opt.alternatives.filtering import SAID_IN_BF16, MinimalFiltering
from rutc.graph_opt.alternatives.remainders import TakeRemainders
from rutc.graph_opt.alternatives.separable import SeparateWindows
from rutc.graph_opt.alternatives.signs import TakeSigns
from rutc.graph_opt.alternatives.split_precision import SAID_ROUNDED, MultiplyParts
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway
from rutc.graph_opt.rewrite import DropDims, Pass, Rule, Sweep
from rutc.graph_opt.rounding import rounding_of
from rutc.graph_opt.rules.algebra import simplify_expressions
from rutc.graph_opt.rules.constants import SliceConstant, split_constant
from rutc.graph_opt.rules.contraction import (
    drop_unit_dims,
    drop_unused_dims,
    fuse_product_into_sum,
    fuse_sums,
    reduce_once,
)
from rutc.graph_opt.rules.cse import MergeEqual
from rutc.graph_opt.rules.extremes import find_extremes
from rutc.graph_opt.rules.filter_whole import FilterWhole
from rutc.graph_opt.rules.fold import FoldConstants, choose_branch
from rutc.graph_opt.rules.gathers import sum_gathered
from rutc.graph_opt.rules.joined_narrow import quantise_before_joining
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
from rutc.graph_opt.rules.padded_products import PadProducts
from rutc.graph_opt.rules.pairs import MultiplyPairs
from rutc.graph_opt.rules.phases import solve_phase, solve_place, solve_quantised_phase
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
from rutc.graph_opt.rules.windows_narrow import compare_quantised, quantise_before_windows
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.machine import COMMON, PAIR, Machine
from rutc.tensor_ir.verifier import verify

FILTERING = "filter with fewer products"
"""The name of the step that changes how sums round: once, as errors grow with each window dim."""


def _clean(fold: FoldConstants) -> tuple[Rule, ...]:
    return (
        # Literals and decided comparisons first: they are what lets a branch or a nest be folded.
        simplify_expressions,
        choose_branch,
        fold,
        drop_fill,
        compose_views,
        drop_copy,
        drop_unit_dims,
        drop_unused_dims,
        reduce_once,
    )


CLEAN = _clean(FoldConstants())
"""What every later step may leave to do; each step ends with it, so that the next sees its form."""

EARLY = _clean(FoldConstants(keep_quantised=True))
"""The same, while quantised weights are still to be found."""
INTEGERS: tuple[Rule, ...] = (
    # Before products are summed as integers, which none are that a condition chooses.
    solve_quantised_phase,
    # Before what is quantised twice by one step is dropped, which it may be then.
    compare_quantised,
    quantise_before_windows,
    quantise_before_joining,
    drop_requantised,
    pad_quantised,
    sum_integers,
)
"""What makes sums of quantised numbers sums of integers."""


def pipeline_for(
    machine: Machine, leeway: Leeway = USUAL_LEEWAY, *, assigned: Assigned | None = None
) -> tuple[Pass, ...]:
    """The steps for a machine: what its instructions do best decides which sums are taken.

    The last steps choose algorithms within the leeway, unless these are `assigned`.
    """
    separate = SeparateWindows(machine=machine, assigned=assigned)
    parts = MultiplyParts(machine=machine, assigned=assigned)
    filters = filtering_for(machine, leeway, assigned)
    first = (rounding_before(filters),) if leeway.bf16 or rounds_factors(assigned) else ()
    steps: tuple[Pass, ...] = (
        # Importers leave unused constants and branches behind; every later step is cheaper without.
        Sweep("remove what is unread"),
        # One walk from the inputs down: each node meets producers that are already clean.
        Sweep("clean up", EARLY),
        # Once the places of scatters are index expressions. Before all that looks for the makers of
        # what a reduction reads.
        Sweep("choose what regions hold", (choose_region, *EARLY)),
        # Equal nodes read equal sources only once views are gone. Before the steps that ask whether
        # a value has one reader.
        MergeEqual(),
        # While mean and variance, maximum and sum are still the nests that the importer wrote.
        Sweep(
            "reduce rows in one pass",
            (
                OnePassSoftmax(machine),
                OnePassMoments(machine),
                find_extremes,
                RecomputeRows(machine),
                *EARLY,
            ),
        ),
        # Before factors are widened that need not be, and zero points become sums of their own.
        *_bytes(machine, assigned),
        # Before scales go into weights: those of quantised numbers then stay integers.
        Sweep(
            "work on quantised numbers as integers",
            (
                *INTEGERS,
                sum_bytes,
                # Before zero points become sums of their own.
                *_in_pairs(machine),
                sum_narrow,
                SumPacked(),
                gather_narrow,
                *EARLY,
            ),
        ),
        # Once sums are of integers, which are functions of several numbers; before quotients are
        # products with rounded factors: tables hold what the model says.
        Sweep("look up numbers of 8 bits", (Tabulate(machine), *EARLY)),
        # Once sums are of integers; before their scales are joined, which then round once.
        Sweep("quantise by one factor", (quantise_by_factors, *CLEAN)),
        # After the passes are merged, which asks that all readers of the divisor divide
        # exponentials.
        Sweep("divide sums of probabilities", (divide_later, *CLEAN)),
        # Sums of products must stand in one nest before scales can go into their weights.
        Sweep("gather products into sums", (fuse_product_into_sum, fuse_sums, *CLEAN)),
        # Before scales go into weights, which they do in 32 bits.
        Sweep("widen operands", (WidenOperands(machine), *CLEAN)),
        # Before any of them goes into weights, which round once then.
        Sweep("combine scales", (combine_scales, *CLEAN)),
        # Before dims are split: a constant is then still read at the dims that it has.
        Sweep("fold scales into weights", (fold_scale, combine_scales, join_weights, *CLEAN)),
        # Before dims are split: what is left of the remainders then goes with the split.
        Sweep("solve phases", (solve_phase, solve_place, *CLEAN)),
        # Windows of transposed convolutions have no phases any more; before dims are split, of
        # which constants then have what is left.
        Sweep("leave out what lies outside", (drop_outside, *CLEAN)),
        # After products are gathered and scales folded, which would take the factor into a sum;
        # before dims are split, while the sum is found to be one of exponentials.
        Sweep("multiply by reciprocals", (MultiplyByReciprocal(machine), *CLEAN)),
        # After all that looks for the maximum of a row, and once it is known what the sum divides.
        Sweep("leave NaN to sums", (LeaveNaNToSum(machine), *CLEAN)),
        # After all that looks for what is made of a sum. While its dims are those of its reader.
        Sweep("compute functions of rows once", (compute_once, *CLEAN)),
        # Once nothing looks for what a value is made of.
        Sweep("check what is small", (check_operand, *CLEAN)),
        # Once sums are what they stay: their dims then take the names and splits of their reader.
        Sweep("compute sums as they are viewed", (sum_as_viewed, *CLEAN)),
        # Last of all that looks for patterns: it gives values and dims that the model does not
        # name.
        Sweep(
            "split dims", (split_bound_dim, split_free_dim, SplitForReaders(), *CLEAN), again=True
        ),
        # After the splits, which are what makes a constant's dim a multiple of one loop plus
        # another.
        Sweep("split constants", (SliceConstant(), split_constant), again=True),
        # Once dims are what they stay: a copy that is read at splits of its dims is a gather, too.
        Sweep("gather in sums", (sum_gathered, *CLEAN)),
        # Once dims are what they stay. The first of the steps that choose algorithms; those before
        # it only normalise. Before filters, whose differences need all bits of their inputs.
        *(first if multiplies_bf16(machine) else ()),
        # After windows are left that are of quantised numbers; before rows of them are stored.
        Sweep("compare narrow floats by their order", (order_windows, *CLEAN)),
        # Once dims are what they stay: a window of another dim would be none.
        Sweep("reduce windows dim by dim", (separate, *CLEAN)),
        # After all that looks for sums of products, scales their weights or splits their dims.
        # Several filters may read one transformed input: before equal nodes are merged.
        Sweep(FILTERING, (filters,), once=True),
        # After filters: what they leave are sums of products, too.
        *((parts,) if machine.has_matrices(DType.BF16) else ()),
        # Once factors are of the types that they are multiplied in.
        *_padding(machine),
        # New constants may be equal, and what was different up to its scale may be too.
        MergeEqual("merge equal nodes again"),
        DropDims(),
    )
    return tuple(_exact(steps)) if leeway.exact else steps


def filtering_for(machine: Machine, leeway: Leeway, assigned: Assigned | None) -> MinimalFiltering:
    """The rule that filters windows; factors are rounded if that is allowed or assigned."""
    rounded = (leeway.bf16 or rounds_factors(assigned)) and adds_pairs(machine)
    return MinimalFiltering(
        spread=leeway.spread,
        machine=machine,
        assigned=assigned,
        rounded=rounded,
        looser=leeway.looser,
        only=leeway.only,
    )


def rounding_before(filters: MinimalFiltering) -> MultiplyParts:
    """The step that rounds factors of the sums that are not filtered afterwards."""
    return MultiplyParts(
        parts=ROUNDED,
        filters=filters if filters.rounded else None,
        only=filters.only,
        machine=filters.machine,
        assigned=filters.assigned,
    )


def rounds_factors(assigned: Assigned | None) -> bool:
    """Whether factors of sums are rounded to bf16 by what is assigned."""
    return assigned is not None and any(rounded_by(x) for _, x in assigned.algorithms)


def rounded_by(algorithm: str) -> bool:
    """Whether an algorithm rounds factors of its sum to bf16."""
    return algorithm.endswith((SAID_ROUNDED, SAID_IN_BF16))


def _in_pairs(machine: Machine) -> tuple[Rule, ...]:
    """The rules for factors of 8 bits, where they are multiplied in pairs in 16."""
    kinds = (DType.I8, DType.U8)
    if all(machine.products(a, b) != PAIR for a in kinds for b in kinds):
        return ()
    filters = FilterWhole(machine=machine)
    return MultiplyPairs(machine, filters), filters


def _padding(machine: Machine) -> tuple[Pass, ...]:
    """The step that adds zeros to products, where there are registers for matrices of bytes."""
    able = any(machine.has_matrices(dtype) for dtype in (DType.I8, DType.BF16))
    return (Sweep("pad products", (PadProducts(machine),)),) if able else ()


def _bytes(machine: Machine, assigned: Assigned | None) -> tuple[Pass, ...]:
    """The steps that choose how products of bytes are summed, where factors may be widened."""
    if not _in_pairs(machine):
        return ()
    apart = TakeRemainders(machine=machine, assigned=assigned)
    signs = TakeSigns(machine=machine, assigned=assigned, filters=FilterWhole(machine=machine))
    return (
        # Scales have to be outside of sums of integers.
        Sweep(
            "sum quantised numbers as integers",
            (*INTEGERS, *EARLY),
        ),
        Sweep("take remainders apart", (apart,), once=True),
        # After remainders: constants of which few are left are small then.
        Sweep("take signs apart", (signs, TakeScaledSigns(machine)), once=True),
    )


def _exact(steps: tuple[Pass, ...]) -> Iterator[Pass]:
    for step in steps:
        if rounding_of(step) is not None:
            continue
        rules = step.rules if isinstance(step, Sweep) else ()
        kept = tuple(rule for rule in rules if rounding_of(rule) is None)
        if kept == rules or not isinstance(step, Sweep):
            yield step
        elif kept:
            yield replace(step, rules=kept)


PIPELINE = pipeline_for(COMMON)
"""The pipeline where no machine is named."""

EXACT = pipeline_for(COMMON, Leeway(exact=True))
"""The pipeline without rules that declare to round: but for the order of sums and fused
multiply-adds, it computes what the model states."""

OnStep = Callable[[str, Graph, bool], None]


def optimize(
    graph: Graph,
    *,
    on_step: OnStep | None = None,
    limit: int | None = None,
    pipeline: tuple[Pass, ...] = PIPELINE,
    seconds: dict[str, float] | None = None,
) -> Graph:
    """The graph after all rewrites; it computes the same up to rounding.

    Args:
        graph: A verified graph.
        on_step: Called after every step with its name, the graph and whether the step changed it.
        limit: Stop after this many steps (to find the step that breaks something by bisection).
        pipeline: The steps.
        seconds: Receives the seconds that each step took, verification apart.

    Raises:
        InternalError: A step produced an invalid graph; the message names it.
    """
    editor = Editor(graph)
    for number, step in enumerate(pipeline[:limit], start=1):
        start = perf_counter()
        step.run(editor)
        rewritten = editor.finish()
        changed = rewritten is not graph
        if seconds is not None:
            seconds[f"{number:02} {step.name}"] = perf_counter() - start
        if changed:
            try:
                verify(rewritten, since=graph)
            except InternalError as error:
                raise InternalError(f"after step {number}, {step.name!r}: {error}") from error
        graph = rewritten
        if on_step is not None:
            on_step(step.name, graph, changed)
    return graph


@dataclass
class DumpFolder:
    """Writes the graph after every step to numbered files: give an instance as `on_step`.

    03-merge-equal-nodes.txt holds the text form; a step that changed nothing leaves a file whose
    name ends in `(unchanged)` and that says which file holds the graph.
    """

    folder: Path
    write: Callable[[Path, bytes], object] = Path.write_bytes
    _count: int = field(default=0, init=False)
    _last: str = field(default="", init=False)

    def __call__(self, name: str, graph: Graph, changed: bool) -> None:
        """Write one step's file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._count += 1
        stem = f"{self._count:02}-{name.replace(' ', '-')}"
        if changed or not self._last:
            self._last = f"{stem}.txt"
            self.write(self.folder / self._last, str(graph).encode())
        else:
            text = f"(unchanged) see {self._last}\n"
            self.write(self.folder / f"{stem} (unchanged).txt", text.encode())
