"""Schedule steps: small, checked rewrites of kernels. A schedule is a tuple of steps, as data."""

from rutc.tensor_ir.steps.ends import Balance, Even, Overlap, Peel
from rutc.tensor_ir.steps.inside import Inside
from rutc.tensor_ir.steps.loops import Cut, Fuse, Mark, Part, Reorder, Split
from rutc.tensor_ir.steps.matrix import MatrixTile
from rutc.tensor_ir.steps.pack import Pack
from rutc.tensor_ir.steps.partial import Apart, FactorOut, PartialSums
from rutc.tensor_ir.steps.prefetch import PrefetchBlock, PrefetchLater, PrefetchResult
from rutc.tensor_ir.steps.prefetch_reads import PrefetchReads
from rutc.tensor_ir.steps.preload import Preload
from rutc.tensor_ir.steps.prepare import Prepare
from rutc.tensor_ir.steps.reduction import BlockReduction, Lanes
from rutc.tensor_ir.steps.running import Running
from rutc.tensor_ir.steps.singly import Singly
from rutc.tensor_ir.steps.step import NotApplicable, Schedule, Step, apply_schedule
from rutc.tensor_ir.steps.text import parse_schedule, print_schedule
from rutc.tensor_ir.steps.tile import Tile

__all__ = [
    "Apart",
    "Balance",
    "BlockReduction",
    "Cut",
    "Even",
    "FactorOut",
    "Fuse",
    "Inside",
    "Lanes",
    "Mark",
    "MatrixTile",
    "NotApplicable",
    "Overlap",
    "Pack",
    "Part",
    "PartialSums",
    "Peel",
    "PrefetchBlock",
    "PrefetchLater",
    "PrefetchReads",
    "PrefetchResult",
    "Preload",
    "Prepare",
    "Reorder",
    "Running",
    "Schedule",
    "Singly",
    "Split",
    "Step",
    "Tile",
    "apply_schedule",
    "parse_schedule",
    "print_schedule",
]
