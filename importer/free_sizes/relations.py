"""Sizes of a model that the user tells to be formulas of others: `total = past + seq`.

A difference is turned round, so that no size is negative: of `new = total - past`, the size `total`
is the formula.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rutc.errors import UserError
from rutc.tensor_ir.indices.affine import ZERO, Index, Var
from rutc.tensor_ir.textual.parse import parse_index

Dims = Mapping[str, int | tuple[int, ...] | str]
"""Sizes; ranges: their ends, perhaps a step, and after it perhaps the common size; or formulas."""


def relations(dims: Dims, known: Collection[str]) -> dict[str, Index]:
    """The sizes that are formulas of others, by the model's names for them.

    Args:
        dims: What is told of sizes.
        known: The sizes that the model's inputs have.

    Raises:
        UserError: A formula is none, is of sizes that no input has or of itself, may be negative,
            or says what another one or a number says already.
    """
    found: dict[str, Index] = {}
    for name, text in dims.items():
        if not isinstance(text, str):
            continue
        told = f"the size {name!r} is told to be {text}"
        target, formula = _turned(name, _parsed(text, told), told)
        unknown = sorted({target, name, *formula.names()} - set(known))
        if unknown:
            raise UserError(
                f"{told}: no input has a size {unknown[0]!r}; "
                f"the symbolic sizes are {', '.join(sorted(known)) or 'none'}"
            )
        if target in found or (target != name and target in dims):
            raise UserError(f"{told}: what {target!r} is has been told already")
        found[target] = formula
    for name in found:
        _check_round(name, found, ())
    return found


def _parsed(text: str, told: str) -> Index:
    try:
        return parse_index(text)
    except (UserError, ValueError) as error:
        raise UserError(
            f"{told}: write a sum of sizes and numbers, past+seq or 2*seq-1 ({error})"
        ) from error


def _turned(name: str, formula: Index, told: str) -> tuple[str, Index]:
    """The size that a relation tells by what is never negative, and its formula."""
    less = [(m, c) for m, c in formula.terms if c < 0]
    if not less and formula.const >= 0:
        return name, formula
    more = [(m, c) for m, c in formula.terms if c > 0]
    if len(more) == 1 and more[0][1] == 1 and len(more[0][0]) == 1 and formula.const <= 0:
        ((atom,), _) = more[0]
        if isinstance(atom, Var) and Index.of(atom.name).names().isdisjoint(
            n for m, c in less for n in Index(((m, c),)).names()
        ):
            rest = formula - Index.of(atom.name)
            return atom.name, Index.of(name) - rest
    raise UserError(f"{told}, which may be negative: tell the larger size as a sum of the others")


def _check_round(name: str, found: Mapping[str, Index], seen: tuple[str, ...]) -> None:
    """Raises UserError where a formula leads back to its own size."""
    if name in seen:
        round_ = " -> ".join((*seen[seen.index(name) :], name))
        raise UserError(f"sizes are told in a circle: {round_}")
    for other in found.get(name, ZERO).names():
        _check_round(other, found, (*seen, name))
