"""The kinds of nodes: rules declare which they may apply to, and are not asked about others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar, cast, get_args

from rutc.graph_opt.exprs import as_view
from rutc.tensor_ir import Nest, Node, Scatter

Kind = Literal["view", "elementwise", "reduction", "scatter", "other"]
"""A nest that only reads, at index expressions; any other one without a reducer; with one; ..."""

KINDS: tuple[Kind, ...] = get_args(Kind)

R = TypeVar("R")
_DECLARED = "kinds"


def matches(*kinds: Kind) -> Callable[[R], R]:
    """Declares that a rule (a function, or a class of rules) applies to no other kinds of nodes."""

    def declare(rule: R) -> R:
        setattr(rule, _DECLARED, kinds)
        return rule

    return declare


def kinds_of(rule: object) -> tuple[Kind, ...]:
    """The kinds of nodes that a rule may apply to: all, unless it declares which."""
    return cast(tuple[Kind, ...], getattr(rule, _DECLARED, KINDS))


def kind_of(n: Node) -> Kind:
    """The kind of a node."""
    if isinstance(n, Nest):
        if n.reducer is not None:
            return "reduction"
        return "elementwise" if as_view(n) is None else "view"
    return "scatter" if isinstance(n, Scatter) else "other"
