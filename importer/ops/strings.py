"""Operators on strings, each a routine of the host runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.selection import positions
from rutc.importer.regex import RegexError, program_of
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, IndexValue, Lit, apply
from rutc.tensor_ir.indices.affine import ONE, ZERO


@operator("StringConcat")
def string_concat(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """The elements of x followed by those of y."""
    axes = b.full_axes(b.broadcast([x.shape, y.shape]))
    operands = [b.whole(b.nest(axes, b.spread(t, axes))) for t in (x, y)]
    return b.call("string_concat", operands, [(DType.STRING, axes)])[0]


@operator("RegexFullMatch")
def regex_full_match(b: Builder, x: Tensor, *, pattern: str = "") -> Tensor:
    """Whether each element as a whole matches the pattern, which is of RE2's syntax."""
    program = accepted(pattern)
    x = b.whole(x)
    code = b.whole(b.constant(np.array(program, np.int64), hint="pattern"))
    return b.call("regex_full_match", (x, code), [(DType.BOOL, x.axes)])[0]


def accepted(pattern: str) -> Sequence[int]:
    """The program of a pattern, which is of RE2's syntax.

    Raises:
        OperatorError: It is not.
    """
    try:
        return program_of(pattern)
    except RegexError as e:
        raise OperatorError(f"the pattern {pattern!r} is not accepted: {e}") from e


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
    """The elements that are no stop words; [""] if none is left.

    A last element "" is kept where no other is.
    """
    lowered = _in_case(b, x, "LOWER") if fold else x
    words = b.constant(np.array([w.lower() if fold else w for w in stopwords], object))
    row, end = x.rank - 1, x.shape[-1]
    place, word = b.axis(end), b.axis(len(stopwords))
    at = [*[ZERO] * row, place.index]
    hit = apply("ne", b.read(lowered, at), b.read(words, [word.index]))
    kept = b.nest((place,), hit, (word,), "all")
    other = b.axis(end)
    none = b.nest((), apply("not", b.read(kept, [other.index])), (other,), "all")
    (every,) = b.axes((end + 1,))
    inside = apply("lt", IndexValue(every.index - end), Lit(0, DType.I64))
    flag = b.read(kept, [every.index], Lit(False, DType.BOOL))
    mask = b.nest((every,), apply("select", inside, flag, b.read(none, [])))
    found = positions(b, mask)
    (k,) = b.axes(found.shape[1:])
    source = [*[ZERO] * row, b.read(found, [ZERO, k.index])]
    y = b.nest((k,), b.read(x, source, Lit("", DType.STRING)))
    return _in_case(b, b.reshaped(y, (*[b.axis(1) for _ in range(row)], *y.axes)), action)


@operator("StringSplit")
def string_split(
    b: Builder, x: Tensor, *, delimiter: str = "", maxsplit: int = -1
) -> tuple[Tensor, Tensor]:
    """(the pieces {.., most} of each element, filled up with "", and how many they are)."""
    x = b.whole(x)
    how: dict[str, str | int] = {"delimiter": delimiter, "maxsplit": maxsplit}
    if x.size.is_const and x.size.const == 0:
        nothing = b.nest((*x.axes, b.axis(0)), Lit("", DType.STRING))
        return nothing, b.nest(x.axes, Lit(0, DType.I64))
    counts = b.call("string_pieces", (x,), [(DType.I64, x.axes)], **how)[0]
    every = b.axes(x.shape)
    most = b.nest((), b.spread(counts, every), every, "max")
    if all(a.dim is None for a in every):
        most = b.reshaped(counts, ())
    size = b.size(most, "pieces")
    axes = (*x.axes, *b.full_axes((size,)))
    return b.call("string_split", (x,), [(DType.STRING, axes)], **how)[0], counts
