"""Folding at import: shape arithmetic on symbolic integers, and operators on small constants.

A tensor's known elements are an ordinary array, or an object array of `Index` where an element
depends on a symbolic size. Each function here is one operator on such arrays; it returns None
where the result cannot be told (then the operator is imported as usual).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import SMALL, Tensor, is_symbolic
from rutc.importer.free_sizes.overflow import LONGEST
from rutc.importer.known_moves import (
    Attributes,
    axes_of,
    counted,
    cut,
    expanded,
    gathered,
    joined,
    normalized,
    one_hot,
    places,
    reshaped,
    selected,
    squeezed,
    tiled,
    transposed,
    unsqueezed,
)
from rutc.importer.reading.proto import dtype_of
from rutc.tensor_ir import DType, Index
from rutc.tensor_ir.indices.affine import ZERO, Range, Var, floordiv, maximum, minimum, mod
from rutc.tensor_ir.indices.comparing import compared
from rutc.tensor_ir.interpreter.evaluate import power

Fold = Callable[[Sequence[np.ndarray | None], Attributes, Mapping[str, Range]], np.ndarray | None]

MOST_SYMBOLIC = 512
"""Expressions of sizes in one tensor that are computed with during import."""
_HOLDS_SIZES = (DType.I32, DType.I64)
"""The types in which sizes are taken to be what they are: in others they may wrap."""
LONGEST_SUM, LONGEST_TEXT, DEEPEST = 64, 2000, 64
"""The terms of such an expression, the characters of its text, and its depth."""


def folded(
    op: str,
    inputs: Sequence[Tensor | None],
    attributes: Attributes,
    ranges: Mapping[str, Range],
) -> tuple[np.ndarray, DType] | None:
    """The known result of an operator with known inputs, and its type; None if there is none.

    Raises OperatorError for sizes that are nested too deep.
    """
    given = [t for t in inputs if t is not None]
    if op not in _FOLDS or not given or any(t.known is None for t in given):
        return None
    if len(given) < len(inputs) and op not in _WITH_ABSENT:
        return None
    if any(DType.STRING is t.dtype for t in given):
        return None
    if max(t.known.size for t in given if t.known is not None) > SMALL:
        return None
    arrays = [None if t is None else t.known for t in inputs]
    symbolic = any(is_symbolic(t.known, t.dtype) for t in given if t.known is not None)
    if symbolic:
        if not all(t.dtype.is_int or t.dtype is DType.BOOL for t in given):
            return None
        arrays = [None if a is None else _as_index(a) for a in arrays]
    if symbolic and op not in _SYMBOLIC:
        return None
    if op in ("Max", "Min") and len(arrays) != 2:
        return None
    try:
        with np.errstate(all="ignore"):
            result = _FOLDS[op](arrays, attributes, ranges)
    except (ValueError, IndexError, OverflowError):
        # Shapes or axes that do not fit: the operator's own import says so.
        return None
    if result is None:
        return None
    found = np.asarray(result)
    if found.size > SMALL:
        return None
    if found.dtype == object:
        _check_depth(found)
        if not _is_short(found):
            return None
    data = given[{"Where": 1, "OneHot": 2}.get(op, 0)]
    kind = DType.BOOL if op in _TESTS else DType.I64 if op == "NonZero" else data.dtype
    if op == "Cast":
        kind = dtype_of(int(str(attributes["to"])))
        if symbolic and kind not in _HOLDS_SIZES:
            return None
        if kind is DType.STRING:
            return None
    return normalized(found, kind), kind


def _is_short(found: np.ndarray) -> bool:
    """Whether expressions are such as to compute with; longer ones are left to the run."""
    items = [e for e in found.reshape(-1).tolist() if isinstance(e, Index)]
    numbers = [n for e in items for n in (e.const, *(c for _, c in e.terms))]
    return (
        len(items) <= MOST_SYMBOLIC
        and all(abs(n) <= LONGEST for n in numbers)
        and all(len(e.terms) <= LONGEST_SUM and len(str(e)) <= LONGEST_TEXT for e in items)
    )


def _check_depth(found: np.ndarray) -> None:
    """Raises OperatorError where expressions are nested deeper than Python's recursion reaches."""
    if not all(_is_flat(e, DEEPEST) for e in found.reshape(-1).tolist() if isinstance(e, Index)):
        raise OperatorError(
            f"sizes follow from each other in more than {DEEPEST} steps; fix them with --dim"
        )


def _is_flat(e: Index, depth: int) -> bool:
    """Whether so many operations on sums, or fewer, are around each size."""
    return all(
        isinstance(atom, Var) or (depth > 0 and all(_is_flat(x, depth - 1) for x in atom.operands))
        for mono, _ in e.terms
        for atom in mono
    )


def _as_index(a: np.ndarray) -> np.ndarray:
    out = np.empty(a.size, object)
    out[:] = [x if isinstance(x, Index) else Index.of(int(x)) for x in a.reshape(-1).tolist()]
    return out.reshape(a.shape)


def _plain(fn: Callable[..., np.ndarray | None]) -> Fold:
    return lambda xs, _, __: fn(*xs)


def _indexwise(
    fn: Callable[[Index, Index, Mapping[str, Range]], Index | bool | None],
    plain: Callable[..., np.ndarray],
) -> Fold:
    """`plain` on ordinary arrays, `fn` element by element on symbolic ones."""

    def fold(
        xs: Sequence[np.ndarray | None], _: Attributes, ranges: Mapping[str, Range]
    ) -> np.ndarray | None:
        x, y = xs
        assert x is not None
        assert y is not None
        if x.dtype != object and y.dtype != object:
            return plain(x, y)
        x, y = np.broadcast_arrays(x, y)
        items = [
            fn(p, q, ranges)
            for p, q in zip(x.reshape(-1).tolist(), y.reshape(-1).tolist(), strict=True)
        ]
        if any(i is None for i in items):
            return None
        out = np.empty(len(items), object)
        out[:] = items
        return out.reshape(x.shape)

    return fold


def _compared(op: str) -> Callable[[Index, Index, Mapping[str, Range]], bool | None]:
    """A comparison from the bounds of the difference; None where they do not decide it."""

    def fn(p: Index, q: Index, ranges: Mapping[str, Range]) -> bool | None:
        bounds = (p - q).bounds(ranges)
        return None if bounds is None else compared(op, bounds, 0)

    return fn


def _quotient(p: Index, q: Index, ranges: Mapping[str, Range]) -> Index | None:
    low, divisor = p.bounds(ranges), q.bounds(ranges)
    if low is None or divisor is None or low[0] < 0 or divisor[0] < 0:
        return None
    if divisor[0] > 0:
        return floordiv(p, q, ranges)
    # Divided by 0 there is no number, so that of a multiple any will do.
    p, q = p.simplify(ranges), q.simplify(ranges)
    if q == ZERO:
        return None
    whole = floordiv(p, q, ranges)
    return whole if whole * q == p else None


def _remainder(p: Index, q: Index, ranges: Mapping[str, Range]) -> Index | None:
    divisor = q.bounds(ranges)
    if divisor is None or divisor[0] < 0:
        return None
    # Of a division by 0 any remainder will do.
    return mod(p, maximum(q, 1, ranges), ranges)


def _clip(
    xs: Sequence[np.ndarray | None], attributes: Attributes, ranges: Mapping[str, Range]
) -> np.ndarray | None:
    found = xs[0]
    for op, limit in zip(("Max", "Min"), xs[1:], strict=False):
        if found is not None and limit is not None:
            found = _FOLDS[op]((found, limit.reshape(())), attributes, ranges)
    return found


def _modulo(
    xs: Sequence[np.ndarray | None], attributes: Attributes, ranges: Mapping[str, Range]
) -> np.ndarray | None:
    x, y = xs
    assert x is not None
    assert y is not None
    if not attributes.get("fmod", 0):
        return _indexwise(_remainder, np.mod)(xs, attributes, ranges)
    return None if object in (x.dtype, y.dtype) else np.asarray(np.fmod(x, y))


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    if DType.of(x.dtype).is_float or not DType.of(y.dtype).is_float:
        return power(x, y)
    found = power(x.astype(np.float64), y)
    return found if _exact(found) else None


def _divided(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if DType.of(x.dtype).is_float:
        return np.asarray(x / y)
    down = np.floor_divide(x, y)
    inexact = (np.mod(x, y) != 0) & ((x < 0) != (y < 0))
    return np.asarray(np.where(y == 0, 0, down + inexact), x.dtype)


def _reduce(how: str) -> Fold:
    def fold(
        xs: Sequence[np.ndarray | None], attributes: Attributes, ranges: Mapping[str, Range]
    ) -> np.ndarray | None:
        x = xs[0]
        assert x is not None
        axes = axes_of(xs, 1)
        if not axes:
            if attributes.get("noop_with_empty_axes"):
                return x
            axes = tuple(range(x.ndim))
        keep = bool(attributes.get("keepdims", 1))
        if x.dtype == object and how in ("min", "max"):
            if x.ndim != 1 or not x.size:
                return None
            pick = minimum if how == "min" else maximum
            best = x[0]
            for e in x[1:]:
                best = pick(best, e, ranges)
            out = np.empty(1, object)
            out[0] = best
            return out if keep else out.reshape(())
        if how in ("min", "max") and not x.size:
            return None
        if how in ("sum", "prod") and DType.of(x.dtype).is_float:
            x = x.astype(np.float64)
        return np.asarray(getattr(np, how)(x, axis=axes, keepdims=keep))

    return fold


def _cast(
    xs: Sequence[np.ndarray | None], attributes: Attributes, _: Mapping[str, Range]
) -> np.ndarray | None:
    x = xs[0]
    assert x is not None
    kind = dtype_of(int(str(attributes["to"])))
    if x.dtype == object:
        return x
    narrow = 0 < kind.bits < 8 or (kind.is_float and kind.bits == 8)
    inexact = DType.of(x.dtype).is_float and kind.is_int and not _exact(x)
    if kind is DType.STRING or narrow or inexact:
        return None
    return x.astype(kind.numpy)


def _exact(x: np.ndarray) -> bool:
    """Whether all elements are finite and well inside the range of integers."""
    return bool(np.isfinite(x).all() and (np.abs(x) < 1 << 31).all())


_FOLDS: dict[str, Fold] = {
    "Abs": _plain(np.abs),
    "Add": _plain(np.add),
    "And": _plain(np.logical_and),
    "Cast": _cast,
    "Ceil": _plain(np.ceil),
    "Clip": _clip,
    "Concat": joined,
    "Div": _indexwise(_quotient, _divided),
    "Equal": _indexwise(_compared("eq"), np.equal),
    "Expand": expanded,
    "Floor": _plain(np.floor),
    "Gather": gathered,
    "Greater": _indexwise(_compared("gt"), np.greater),
    "GreaterOrEqual": _indexwise(_compared("ge"), np.greater_equal),
    "Identity": _plain(lambda x: x),
    "Less": _indexwise(_compared("lt"), np.less),
    "LessOrEqual": _indexwise(_compared("le"), np.less_equal),
    "Max": _indexwise(maximum, np.maximum),
    "Min": _indexwise(minimum, np.minimum),
    "Mod": _modulo,
    "Mul": _plain(np.multiply),
    "Neg": _plain(np.negative),
    "NonZero": places,
    "Not": _plain(np.logical_not),
    "OneHot": one_hot,
    "Or": _plain(np.logical_or),
    "Pow": _plain(_power),
    "Range": counted,
    "ReduceMax": _reduce("max"),
    "ReduceMin": _reduce("min"),
    "ReduceProd": _reduce("prod"),
    "ReduceSum": _reduce("sum"),
    "Reshape": reshaped,
    "Round": _plain(np.rint),
    "Slice": cut,
    "Sqrt": _plain(np.sqrt),
    "Squeeze": squeezed,
    "Sub": _plain(np.subtract),
    "Tile": tiled,
    "Transpose": transposed,
    "Unsqueeze": unsqueezed,
    "Where": selected,
}
_SYMBOLIC = frozenset(_FOLDS) - {
    "Abs",
    "And",
    "Ceil",
    "Expand",
    "Floor",
    "NonZero",
    "Not",
    "Or",
    "Pow",
    "Range",
    "Round",
    "Sqrt",
    "Tile",
}
_WITH_ABSENT = frozenset(
    {"Clip", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Slice", "Squeeze"}
)
"""Operators that are folded where an operand is left out, too."""
_TESTS = frozenset(
    {"And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or"}
)
