"""Rewrites of the graph, and the decisions that make it a plan."""

from rutc.graph_opt.pipeline import EXACT, PIPELINE, DumpFolder, optimize, pipeline_for

__all__ = ["EXACT", "PIPELINE", "DumpFolder", "optimize", "pipeline_for"]
