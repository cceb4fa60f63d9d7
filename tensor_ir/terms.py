"""Products by their factors, and sums by their terms."""

from __future__ import annotations

from rutc.tensor_ir.expr import Apply, Expr, apply


def factors(e: Expr) -> list[Expr]:
    """The factors of a product, in order."""
    if isinstance(e, Apply) and e.op == "mul":
        return [f for a in e.args for f in factors(a)]
    return [e]


def product_of(parts: list[Expr]) -> Expr:
    """The product of at least one factor, from the left."""
    total = parts[0]
    for p in parts[1:]:
        total = apply("mul", total, p)
    return total


def terms(e: Expr) -> list[Expr]:
    """The terms of a sum, in order."""
    if isinstance(e, Apply) and e.op == "add":
        return [t for a in e.args for t in terms(a)]
    return [e]
