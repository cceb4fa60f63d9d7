"""Strings. `intern` and `texts`, which number them, exist in artifacts only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rutc.tensor_ir.interpreter.routines.job import Job, Routine
from rutc.tensor_ir.regex import full_match, tokens


def _mapped(fn: Callable[..., object], *operands: np.ndarray, kind: type = object) -> np.ndarray:
    """`fn` of the operands' elements at each place."""
    out: np.ndarray = np.empty(operands[0].size, kind)
    out[:] = [fn(*row) for row in zip(*(a.reshape(-1).tolist() for a in operands), strict=True)]
    return out.reshape(operands[0].shape)


def string_concat(job: Job) -> Sequence[np.ndarray]:
    """The elements of the first operand followed by those of the second."""
    return (_mapped(lambda a, b: a + b, *job.args),)


def regex_full_match(job: Job) -> Sequence[np.ndarray]:
    """Whether each string matches as a whole; the second operand is the program of `regex`."""
    program = job.args[1].tolist()
    return (_mapped(lambda text: full_match(program, text), job.args[0], kind=bool),)


def string_from_number(job: Job) -> Sequence[np.ndarray]:
    """Numbers as the shortest text that reads back as the same; of bools 0 and 1."""
    x = job.args[0]
    if x.dtype == bool:
        x = x.astype(np.int64)
    return (_mapped(lambda e: _written(x.dtype.type(e)), x),)


def _written(number: np.number) -> str:
    if not isinstance(number, np.floating):
        return str(number)
    if not np.isfinite(number):
        return "NaN" if np.isnan(number) else "INF" if number > 0 else "-INF"
    if number == 0 or 1e-4 <= abs(number) < 1e16:
        return np.format_float_positional(number, trim="0")
    return np.format_float_scientific(number, trim="-", exp_digits=2)


def number_from_string(job: Job) -> Sequence[np.ndarray]:
    """The numbers that texts are; of one with a fraction, its integer part if that is asked for."""
    kind = job.results[0].dtype.numpy

    def read(text: str) -> object:
        try:
            if kind.kind == "f":
                return float(text)
            return int(text) if text.strip().lstrip("+-").isdigit() else int(float(text))
        except (ValueError, OverflowError):
            job.fail(f'"{text[:80]}" is no number')

    return (_mapped(read, job.args[0]).astype(kind),)


def string_case(job: Job) -> Sequence[np.ndarray]:
    """Strings in lower case, or with `upper` in upper case, character by character.

    A character whose other case is several characters stays as it is.
    """
    convert = str.upper if job.integer("upper", 0) else str.lower

    def single(c: str) -> str:
        other = convert(c)
        return other if len(other) == 1 else c

    return (_mapped(lambda text: "".join(map(single, text)), job.args[0]),)


def _pieces(job: Job, text: str) -> list[str]:
    delimiter = job.text("delimiter") or None
    return text.split(delimiter, job.integer("maxsplit", -1))


def string_pieces(job: Job) -> Sequence[np.ndarray]:
    """How many pieces each string has between `delimiter`s, or between runs of white space.

    At most `maxsplit` splits are made, unless that is negative.
    """
    return (_mapped(lambda text: len(_pieces(job, text)), job.args[0], kind=np.int64),)


def string_split(job: Job) -> Sequence[np.ndarray]:
    """The pieces of each string along a new last axis, and then empty strings."""
    room = job.results[0].shape[-1]
    out: np.ndarray = np.full(job.results[0].shape, "", object)
    texts = job.args[0].reshape(-1).tolist()
    for row, text in zip(out.reshape(len(texts), room), texts, strict=True):
        found = _pieces(job, text)
        row[: len(found)] = found
    return (out,)


def _tokens(job: Job, text: str) -> list[str]:
    least, between = job.integer("least", 1), bool(job.integer("between", 0))
    return tokens(job.args[1].tolist(), text, least=least, between=between)


def string_token_counts(job: Job) -> Sequence[np.ndarray]:
    """How many tokens each string has; see `regex.tokens`, whose programs are the other operand."""
    return (_mapped(lambda text: len(_tokens(job, text)), job.args[0], kind=np.int64),)


def string_tokens(job: Job) -> Sequence[np.ndarray]:
    """The tokens of each string along a new last axis, and then empty strings."""
    out: np.ndarray = np.full(job.results[0].shape, "", object)
    texts = job.args[0].reshape(-1).tolist()
    for row, text in zip(out.reshape(len(texts), out.shape[-1]), texts, strict=True):
        found = _tokens(job, text)
        row[: len(found)] = found
    return (out,)


def string_order(job: Job) -> Sequence[np.ndarray]:
    """For each string, how many different strings come before it, by their characters' numbers."""
    x = job.args[0]
    rank = {text: i for i, text in enumerate(sorted(set(x.reshape(-1).tolist())))}
    return (_mapped(lambda text: rank[text], x, kind=np.int64),)


TEXT_ROUTINES: Mapping[str, Routine] = {
    f.__name__: f
    for f in (
        number_from_string,
        regex_full_match,
        string_case,
        string_concat,
        string_from_number,
        string_order,
        string_pieces,
        string_split,
        string_token_counts,
        string_tokens,
    )
}
"""The routines on strings by name."""
