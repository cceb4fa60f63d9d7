"""What is known of how often a loop runs that a schedule divides, and of how many parts it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rutc.tensor_ir.affine import ZERO, Index, Range, Size


def leaves_rest(size: Size, factor: int) -> bool:
    """Whether blocks of `factor` iterations may leave some of a loop over."""
    return Index.of(size) % factor != ZERO


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
