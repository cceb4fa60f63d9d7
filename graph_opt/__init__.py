"""Rewrites of the graph, and the decisions that make it a plan."""

from rutc.graph_opt.pipeline import DumpFolder, optimize, pipeline_for

__all__ = ["DumpFolder", "optimize", "pipeline_for"]
