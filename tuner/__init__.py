"""Schedules: which steps make a kernel fast on a machine."""

from rutc.tuner.choice import Choice
from rutc.tuner.factors import factors_out
from rutc.tuner.heuristic import choose
from rutc.tuner.sums import partial_sums

__all__ = ["Choice", "choose", "factors_out", "partial_sums"]
