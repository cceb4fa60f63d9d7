"""Operators on strings, each a routine of the host runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.builder import Builder, OperatorError
from rutc.importer.regex import RegexError, program_of
from rutc.importer.registry import operator
from rutc.importer.tensor import Tensor
from rutc.tensor_ir import DType
from rutc.tensor_ir.affine import ONE


@operator("StringConcat")
def string_concat(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """The elements of x followed by those of y."""
    axes = b.full_axes(b.broadcast([x.shape, y.shape]))
    operands = [b.nest(axes, b.spread(t, axes)) for t in (x, y)]
    return b.call("string_concat", operands, [(DType.STRING, axes)])[0]


@operator("RegexFullMatch")
def regex_full_match(b: Builder, x: Tensor, *, pattern: str = "") -> Tensor:
    """Whether each element as a whole matches the pattern, which is of RE2's syntax."""
    try:
        program = program_of(pattern)
    except RegexError as e:
        raise OperatorError(f"the pattern {pattern!r} is not accepted: {e}") from e
    x = b.whole(x)
    code = b.whole(b.constant(np.array(program, np.int64), hint="pattern"))
    return b.call("regex_full_match", (x, code), [(DType.BOOL, x.axes)])[0]


@operator("StringNormalizer")
def string_normalizer(
    b: Builder,
    x: Tensor,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Tensor:
    """The elements of [c] or [1, c] but the stop words, in lower or upper case; "" if none is left.

    Cases are those of Unicode, whatever the locale.
    """
    if case_change_action not in ("NONE", "LOWER", "UPPER"):
        raise OperatorError(f"the case change {case_change_action!r} is unknown")
    if x.rank not in (1, 2) or (x.rank == 2 and x.shape[0] != ONE):
        raise OperatorError(f"a row of strings is expected, not {x}")
    if stopwords:
        return _without(b, x, tuple(stopwords), case_change_action, fold=not is_case_sensitive)
    return _in_case(b, x, case_change_action)


def _in_case(b: Builder, x: Tensor, action: str) -> Tensor:
    if action == "NONE":
        return x
    x = b.whole(x)
    kinds = [(DType.STRING, x.axes)]
    return b.call("string_case", (x,), kinds, upper=int(action == "UPPER"))[0]


def _without(
    b: Builder, x: Tensor, stopwords: tuple[str, ...], action: str, *, fold: bool
) -> Tensor:
    """The elements that are no stop words; [""] if none is left."""
    if x.array is None:
        raise OperatorError("the number of words that are left is known at run time only")
    plain = {w.lower() for w in stopwords} if fold else set(stopwords)
    kept = [w for w in x.array.reshape(-1) if (w.lower() if fold else w) not in plain]
    shape = (1,) * (x.rank - 1) + (max(len(kept), 1),)
    return _in_case(b, b.constant(np.array(kept or [""], object).reshape(shape)), action)
