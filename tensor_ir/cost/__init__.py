"""The one cost of kernels: a summary of what a scheduled one does, and its estimate in cycles."""

from rutc.tensor_ir.cost.estimate import Estimate, estimate
from rutc.tensor_ir.cost.fitted import Costs, Fitted
from rutc.tensor_ir.cost.summary import Summary, summarise
from rutc.tensor_ir.cost.vector_cycles import vector_cycles
from rutc.tensor_ir.cost.work import Region

__all__ = [
    "Costs",
    "Estimate",
    "Fitted",
    "Region",
    "Summary",
    "estimate",
    "summarise",
    "vector_cycles",
]
