"""Schedules: which steps make a kernel fast on a machine."""

from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import choose

__all__ = ["Choice", "choose"]
