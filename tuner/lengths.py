"""What is known of how often a loop runs that a schedule divides, and of how many parts it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rutc.tensor_ir.indices.affine import ZERO, Index, Range, Size


def leaves_rest(size: Size, factor: int) -> bool:
    """Whether blocks of `factor` iterations may leave some of a loop over."""
    return Index.of(size) % factor != ZERO


def has_even_blocks(extent: int, factor: int, fewest: int) -> bool:
    """Whether several blocks of a loop have one iteration less than `factor`, and none still less.

    Only where the last one alone would have less than `fewest`: of 16 iterations in blocks of 6,
    where 4 are too few, two blocks have 5.
    """
    blocks, rest = -(-extent // factor), extent % factor
    return 0 < rest < min(fewest, factor - 1) and blocks * factor - extent < blocks


def even_blocks(extent: int, factor: int, fewest: int) -> list[tuple[int, int]]:
    """(number, size) of the blocks of a loop: those of one iteration less last, if there are such.

    even_blocks(16, 6, 5) == [(1, 6), (2, 5)] and even_blocks(16, 6, 4) == [(2, 6), (1, 4)]
    """
    if not has_even_blocks(extent, factor, fewest):
        return whole_blocks(extent, factor)
    blocks = -(-extent // factor)
    short = blocks * factor - extent
    return [(blocks - short, factor), (short, factor - 1)]


def whole_blocks(extent: int, factor: int) -> list[tuple[int, int]]:
    """(number, size) of the blocks of a loop: whole ones, and what is left over.

    whole_blocks(14, 4) == [(3, 4), (1, 2)]
    """
    whole, rest = divmod(extent, factor)
    return [(n, size) for n, size in ((whole, factor), (1, rest)) if n and size]


def affordable(
    edges: Iterable[tuple[str, tuple[int, ...]]], most: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The loops whose parts, which begin at these edges, have code of their own: `most` in all."""
    parts = 1
    for v, points in edges:
        if points and parts * (len(points) + 1) <= most:
            parts *= len(points) + 1
            yield v, points


def never_longer(size: Size, most: int, symbols: Mapping[str, Range]) -> bool:
    """Whether a loop of that size is known never to be longer.

    Bounds are those of the simplified size, which steps see: they know `n - max(0, n - 4)` for 4.
    """
    if isinstance(size, int):
        return size <= most
    bounds = size.simplify(symbols).bounds(symbols)
    return bounds is not None and bounds[1] <= most
