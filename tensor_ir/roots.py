"""Powers that are made of square roots: those with one of a few exponents."""

from __future__ import annotations

ROOTS = (0.25, 0.5, 0.75, 1.25, 1.5)
"""Exponents whose powers are products of two at most of the number, its root, and the root's."""


def roots_taken(exponent: float) -> int:
    """How many square roots a power with one of the `ROOTS` takes, one of the other."""
    return 2 if exponent % 0.5 else 1
