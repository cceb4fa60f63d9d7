"""Columns of pairs of products, as registers for matrices take them."""

from __future__ import annotations

from rutc.tensor_ir.facts.matrix_blocks import COLUMNS
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.machine import PAIR


def in_columns(layout: Layout) -> bool:
    """Whether columns of pairs lie side by side: %b[n/16, k/2, n % 16, k % 2]."""
    inside = tuple((a.extent, a.stride) for a in layout.axes[-2:])
    return inside == ((COLUMNS, PAIR), (PAIR, 1)) and not layout.axes[-1].whole
