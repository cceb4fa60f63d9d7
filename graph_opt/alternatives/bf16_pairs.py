"""Sums of products whose factors vectors of pairs of bf16 may hold.

A vector of states takes in two products in each lane, from a vector of pairs and one pair that all
lanes share. So neighbours of the reduced loop lie side by side, of a constant and of a value.
"""

from __future__ import annotations

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords
from rutc.tensor_ir import DType, Nest, Read
from rutc.tensor_ir.machine import PAIR, Machine


def adds_pairs(machine: Machine) -> bool:
    """Whether a machine's vectors are what multiplies bf16: it has no registers for matrices."""
    pairs = machine.products(DType.BF16, DType.BF16) > 1
    return pairs and not machine.has_matrices(DType.BF16)


def multiplies_bf16(machine: Machine) -> bool:
    """Whether code for a machine may round factors to that."""
    return machine.has_matrices(DType.BF16) or adds_pairs(machine)


def are_neighbours(n: Nest, source: Read, weights: Read, editor: Editor, machine: Machine) -> bool:
    """Whether there are as many columns as lanes, and pairs along the longest summed loop."""
    columns, inner = sides(n, source, weights, editor)
    return columns >= machine.width and inner >= PAIR


def sides(n: Nest, source: Read, weights: Read, editor: Editor) -> tuple[int, int]:
    """The extents of the loops that vectors may go along, and of the one that pairs lie along."""
    moved, shared = _loops(source), _loops(weights)
    beside = (editor.typical((d,)) for d in n.out.dims if d in shared - moved)
    alone = {c.as_var for _, c in index_coords(source)} & shared
    neighbours = (editor.typical((d,)) for d in n.bound if d in alone)
    longest = max((editor.typical((d,)) for d in n.bound), default=0)
    inner = max(neighbours, default=0)
    return max(beside, default=0), inner if inner == longest else 0


def _loops(r: Read) -> frozenset[str]:
    return frozenset(v for _, c in index_coords(r) for v in c.names())
