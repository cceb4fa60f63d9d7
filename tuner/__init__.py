"""Schedules: which steps make a kernel fast on a machine."""

from rutc.tuner.heuristic import Choice, choose

__all__ = ["Choice", "choose"]
