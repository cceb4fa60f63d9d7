"""Which sums of a graph are of 8-bit integers, and whose factors are rounded to bf16."""

from __future__ import annotations

from dataclasses import replace

from rutc.base.record import record
from rutc.driver.options import FP16, FP32, Options
from rutc.graph_opt.leeway import Leeway, Looser
from rutc.graph_opt.quantise import Site


@record
class ChosenSums:
    """The sums of a graph in normal form that are of 8-bit integers, and what else is rounded.

    Factors of others may be rounded to bf16: those of `only` so many, None: of all; filters of some
    are `looser` then. If not all are, weights are stored as the precision `rest` has them. Values
    that are `added` to others are so as they are quantised for the sums.
    """

    sums: tuple[Site, ...]
    looser: Looser = ()
    only: tuple[str, ...] | None = None
    rest: str = FP16
    added: tuple[str, ...] = ()

    def leeway_of(self, given: Leeway, *, rounds: bool = True) -> Leeway:
        """The leeway for what is made of the graph then, if the processor `rounds` at all."""
        bf16 = rounds and self.only != ()
        return replace(given, bf16=bf16, looser=self.looser, only=self.only)

    def precision_of(self, asked: str) -> str:
        """The precision of what is made of the graph then, whose own one was asked for."""
        return asked if self.only is None else self.rest

    def options_of(self, options: Options) -> Options:
        """The options for what is made of the graph then."""
        precision = self.precision_of(options.precision)
        return replace(options, precision=precision, looser=self.looser, only=self.only)


NOT_ROUNDED = ChosenSums((), only=(), rest=FP32)
"""All in float32."""
