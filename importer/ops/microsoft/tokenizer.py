"""Tokenizer: the tokens of texts, found by regular expressions of RE2's syntax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.strings import accepted
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, Lit, apply

BEGIN, END = "\x02", "\x03"
"""What stands around the tokens of a text where marks are asked for."""
EACH = "(?s)."
"""Matches every character."""
MOST_SEPARATORS = 256
"""The host runtime's stack has room for so many, each of which splits what the one before left."""


@operator("Tokenizer", DOMAIN)
def tokenizer(
    b: Builder,
    x: Tensor,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] = (),
    tokenexp: str = "",
) -> Tensor:
    """{.., most}: what `tokenexp` matches in each text, or what is between separators, padded."""
    if x.dtype is not DType.STRING or x.rank not in (1, 2):
        raise OperatorError(f"a row or matrix of strings is expected, not {x}")
    if bool(separators) == bool(tokenexp) or mincharnum < 1:
        raise OperatorError("either separators or tokenexp, and mincharnum > 0 must be given")
    each = tuple(separators) == ("",) or tokenexp == "."
    if each and mincharnum > 1:
        raise OperatorError("single characters are asked for, and mincharnum is more than 1")
    patterns = (EACH,) if each else tuple(separators) or (tokenexp,)
    if len(patterns) > MOST_SEPARATORS:
        raise OperatorError(
            f"{len(patterns)} separators; rutc takes at most {MOST_SEPARATORS}: join some, as a|b"
        )
    x, code = b.whole(x), b.whole(b.constant(_programs(patterns), hint="patterns"))
    how = {"least": mincharnum, "between": int(bool(separators) and not each)}
    counts = b.call("string_token_counts", (x, code), [(DType.I64, x.axes)], **how)[0]
    every = b.axes(x.shape)
    most = b.nest((), apply("max", b.spread(counts, every), _number(0)), every, "max")
    # Of no text there is no largest count.
    most = b.map(lambda e: apply("max", e, _number(0)), most)
    axes = (*x.axes, *b.full_axes((b.size(most, "tokens"),)))
    tokens = b.call("string_tokens", (x, code), [(DType.STRING, axes)], **how)[0]
    return _padded(b, tokens, counts, most, Lit(pad_value, DType.STRING), marked=bool(mark))


def _programs(patterns: Sequence[str]) -> np.ndarray:
    """The patterns' programs, each after its length."""
    numbers: list[int] = []
    for pattern in patterns:
        program = accepted(pattern)
        numbers += [len(program), *program]
    return np.array(numbers, np.int64)


def _padded(
    b: Builder, tokens: Tensor, counts: Tensor, most: Tensor, pad: Lit, *, marked: bool
) -> Tensor:
    """The tokens of each text, between marks if asked for, and then `pad`.

    Where no text has a token, marks do not count.
    """
    extent = tokens.shape[-1]
    if marked:
        some = apply("select", apply("gt", b.read(most, []), _number(0)), _number(2), _number(0))
        extent = b.size(b.nest((), apply("add", b.read(most, []), some)), "marked")
    axes = (*b.axes(tokens.shape[:-1]), *b.axes((extent,)))
    *texts, place = (a.index for a in axes)
    at = place - 1 if marked else place
    end = b.read(counts, texts)
    chosen: Expr = b.read(tokens, [*texts, at], Lit("", DType.STRING))
    if marked:
        last = apply("eq", _at(at), end)
        after = apply("select", last, Lit(END, DType.STRING), pad)
        inside = apply("select", apply("lt", _at(at), end), chosen, after)
        first = apply("eq", _at(place), _number(0))
        return b.nest(axes, apply("select", first, Lit(BEGIN, DType.STRING), inside))
    return b.nest(axes, apply("select", apply("lt", _at(at), end), chosen, pad))


def _number(value: int) -> Lit:
    return Lit(value, DType.I64)


def _at(index: Index) -> Expr:
    return IndexValue(index)
