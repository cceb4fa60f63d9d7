"""What a precision does to a graph before it is optimised, or looks for in its values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.options import BF16, W4, Options
from rutc.driver.plans.narrow_weights import StoredAs
from rutc.graph_opt.alternatives.bf16_pairs import adds_pairs
from rutc.tensor_ir import Graph
from rutc.tensor_ir.machine import Machine

if TYPE_CHECKING:
    from rutc.driver.precision.eight_bits import EightBits

# What a precision needs is imported where it is asked for: running a model, mostly.


@record
class InPrecision:
    """An imported graph in its precision: which of its sums are in 8 bits, which weights in 4.

    The `options` are those for what is made of it.
    """

    graph: Graph
    options: Options
    eight_bits: EightBits | None = None
    four_bits: tuple[StoredAs, ...] = ()


def precedes_rewrites(options: Options, machine: Machine) -> bool:
    """Whether a precision changes graphs before they are rewritten, or looks at a case."""
    return options.in_eight_bits or options.precision == W4 or _filters(options, machine)


def _filters(options: Options, machine: Machine) -> bool:
    """Whether a case decides how sums are filtered."""
    rounding = options.precision == BF16 and adds_pairs(machine)
    return rounding and not options.exact_algorithms


def in_precision(
    graph: Graph, machine: Machine, options: Options, tell: Progress = nobody
) -> InPrecision:
    """The graph in the precision of the options; itself in those that types of values make.

    Raises:
        UserError: there are no inputs to calibrate it on.
    """
    # States are inputs and outputs of a run, whatever becomes of them afterwards.
    bare, states = replace(graph, states=()), graph.states
    if options.in_eight_bits:
        from rutc.driver.precision.eight_bits import in_eight_bits

        found = in_eight_bits(
            bare,
            machine,
            options.calibration,
            options.budget,
            tell,
            options.leeway,
        )
        graph = replace(found.graph, states=states)
        return InPrecision(graph, found.choice.options_of(options), found)
    if options.precision == W4:
        from rutc.driver.precision.four_bits import in_four_bits

        four = in_four_bits(bare, machine)
        return InPrecision(replace(four.graph, states=states), options, None, four.stored)
    if _filters(options, machine):
        from rutc.driver.precision.measured_filters import measured_filters

        looser = measured_filters(bare, machine, options.calibration, options.spread)
        return InPrecision(graph, replace(options, looser=looser))
    return InPrecision(graph, options)
