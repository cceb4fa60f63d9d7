"""The decisions: from an optimized graph to a plan, by cost."""

from rutc.graph_opt.decide.decide import decide

__all__ = ["decide"]
