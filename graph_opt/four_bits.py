"""Weights of sums of products in 4 bits, with a scale for each block of what is summed.

    %w : f32{k,n} = const [k, n] ..
    %y{m,n} = sum{k} %x[m, k] * %w[k, n]
    ->
    %w.q : i4{k,n} = const [k, n] ..
    %w.s : f32{n,w.blocks} = const [n, w.blocks] ..
    %w.d{k,n} = f32(%w.q[k, n]) * %w.s[n, w.blocks=k // 32]
    %y{m,n} = sum{k} %x[m, k] * %w.d[k, n]

What else reads the constant, such as a choice of rows by data, still does. What is left is what
models with 4-bit weights are imported as, and is rewritten as that is: sums read the numbers, and
their blocks' sums are scaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.editor import rename_uses
from rutc.graph_opt.exprs import at_point
from rutc.graph_opt.quantise import Site, sites
from rutc.tensor_ir import DType, Graph, Index, Nest, Node, Read, Value, apply, cast
from rutc.tensor_ir.graph import Const, Data, outs, used, walk_nodes
from rutc.tensor_ir.indices.affine import floordiv, typical
from rutc.tensor_ir.verifier import verify

BLOCK = 32
"""The weights of a block, one after another along a dim that is summed, as is usual."""
LEAST, MOST = -8, 7
"""The numbers of 4 bits."""


@record
class Blocks:
    """A constant that may be stored in 4 bits: the dim that blocks part, and their length.

    Each element is in `rows` products, of the `sums`; those alone read it, or others `keep` it.
    """

    value: str
    dim: str
    length: int
    rows: float
    sums: tuple[str, ...]
    keep: bool = False


def candidates(graph: Graph) -> tuple[Blocks, ...]:
    """The weights of a graph in normal form that may be stored in 4 bits, in order."""
    found: dict[str, Blocks | None] = {}
    for s in sites(graph):
        own = _blocks(s, graph.constants[s.weights], graph)
        before = found.get(s.weights, own)
        if before is None or own is None or before.dim != own.dim:
            found[s.weights] = None
        elif before is not own:
            found[s.weights] = replace(
                own, rows=min(own.rows, before.rows), sums=(*before.sums, *own.sums)
            )
        else:
            found[s.weights] = own
    readers = [(outs(n)[0].name, used(n)) for n in walk_nodes(graph.nodes) if outs(n)]
    kept = {o.value for o in graph.outputs}

    def is_kept(b: Blocks) -> bool:
        others = (name for name, read in readers if b.value in read)
        return b.value in kept or any(name not in b.sums for name in others)

    return tuple(replace(b, keep=is_kept(b)) for b in found.values() if b is not None)


def _blocks(s: Site, const: Const, graph: Graph) -> Blocks | None:
    """The blocks of a sum's weights: along the longest dim that is summed."""
    extents = dict(zip(const.axes, const.data.array.shape, strict=True))
    summed = [d for d in const.axes if d not in s.kept]
    if not summed or const.data.array.size == 0:
        return None
    dim = max(summed, key=lambda d: extents[d])
    symbols = dict(graph.symbols)
    nest = next(n for n in graph.nodes if isinstance(n, Nest) and n.out.name == s.nest)
    free = prod(typical(graph.extents[d], symbols) for d in nest.out.dims)
    rows = free * s.terms / const.data.array.size
    return Blocks(s.weights, dim, min(BLOCK, extents[dim]), rows, (s.nest,))


def in_blocks_of_four_bits(graph: Graph, chosen: Iterable[Blocks]) -> Graph:
    """A graph in normal form with constants in 4 bits."""
    made = {b.value: b for b in chosen}
    reading = {name: b.value for b in made.values() for name in b.sums}
    wide: dict[str, str] = {}
    values = set(graph.values)
    dims = dict(graph.dims)
    nodes: list[Node] = []
    for n in graph.nodes:
        name = next((v.name for v in outs(n)), "")
        if name in reading and isinstance(n, Nest):
            n = rename_uses(n, {reading[name]: wide[reading[name]]})
        nodes.append(n)
        if not isinstance(n, Const) or name not in made:
            continue
        b = made[name]
        axis = n.axes.index(b.dim)
        numbers, scales = in_blocks(n.data.array, axis, b.length)
        blocks = _fresh(f"{name}.blocks", dims.keys())
        dims[blocks] = Index.of(scales.shape[axis])
        axes = tuple(blocks if d == b.dim else d for d in n.axes)
        q = Value(_fresh(f"{name}.q", values), DType.I4, n.out.dims)
        s = Value(_fresh(f"{name}.s", values), DType.F32, tuple(sorted(axes)))
        d = replace(n.out, name=_fresh(f"{name}.d", values))
        values |= {q.name, s.name, d.name}
        wide[name] = d.name
        number = at_point(q)
        ranges = {b.dim: (0, n.data.array.shape[axis] - 1)}
        block = floordiv(Index.of(b.dim), Index.of(b.length), ranges)
        at = tuple((x, block if x == blocks else Index.of(x)) for x in s.dims)
        whole = apply("mul", cast(number, DType.F32), Read(s.name, at, s.dtype))
        nodes += [Const(q, n.axes, Data(numbers), n.origin), Const(s, axes, Data(scales))]
        nodes.append(Nest((d,), (), None, (whole,), n.origin))
    result = replace(graph, nodes=tuple(nodes), dims=tuple(dims.items()))
    verify(result, since=graph)
    return result


def in_blocks(array: np.ndarray, axis: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of 4 bits, and the scale of each block along an axis, the last one perhaps shorter.

    Of two ways to a block's numbers the one is taken whose error is less in squares: the largest
    weight is -8 steps, or 7 of either sign. The step is then the one that suits the numbers best.
    """
    moved = np.moveaxis(array, axis, -1)
    extent = moved.shape[-1]
    count = -(-extent // length)
    padded = np.zeros((*moved.shape[:-1], count * length), np.float32)
    padded[..., :extent] = moved
    blocks = padded.reshape(-1, length)
    largest = blocks[np.arange(len(blocks)), np.abs(blocks).argmax(axis=1)]
    best: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    for step in (largest / np.float32(LEAST), np.abs(largest) / np.float32(MOST)):
        numbers, fitted, error = _fitted(blocks, step)
        if best is None:
            best = numbers, fitted, error
            continue
        less = error < best[2]
        best[0][less], best[1][less] = numbers[less], fitted[less]
    assert best is not None
    numbers = best[0].reshape(padded.shape)[..., :extent]
    scales = best[1].reshape(*moved.shape[:-1], count)
    stored = np.ascontiguousarray(np.moveaxis(numbers, -1, axis)).astype(DType.I4.numpy)
    return stored, np.ascontiguousarray(np.moveaxis(scales, -1, axis))


def _fitted(blocks: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of steps, the steps of least squares for them, and the squares of what is left."""
    tiny = np.finfo(np.float32).tiny
    usable = np.abs(step) >= tiny
    inverse = np.where(usable, 1 / np.where(usable, step, np.float32(1)), np.float32(0))
    numbers = np.clip(np.rint(blocks * inverse[:, None]), LEAST, MOST)
    squares = np.einsum("ij,ij->i", numbers, numbers)
    product = np.einsum("ij,ij->i", blocks, numbers)
    fitted = np.where(squares > 0, product / np.maximum(squares, np.float32(1)), np.float32(0))
    left = blocks - numbers * fitted[:, None]
    return numbers.astype(np.int8), fitted, np.einsum("ij,ij->i", left, left)


def _fresh(name: str, taken: Iterable[str]) -> str:
    """The name, with a number where it is taken."""
    known, number, found = set(taken), 2, name
    while found in known:
        number, found = number + 1, f"{name}{number}"
    return found
