"""Rewrites of the graph, and the decisions that make it a plan."""

from rutc.graph_opt.pipeline import EXACT, PIPELINE, DumpFolder, optimize, pipeline_for
from rutc.graph_opt.versions import Version, versions

__all__ = [
    "EXACT",
    "PIPELINE",
    "DumpFolder",
    "Version",
    "optimize",
    "pipeline_for",
    "versions",
]
