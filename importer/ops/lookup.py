"""Maps from keys to values as nests: LabelEncoder, CategoryMapper, OneHotEncoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.control import unless
from rutc.importer.ops.scores import ML
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, IndexValue, Lit, apply, cast

COMPARED = 64
"""Up to this many keys are all compared; more numbers are searched in by halving."""
SPREAD = 16
"""Integer keys are looked up in a table of all integers between them, of so many for each key."""


def mapped(b: Builder, x: Tensor, keys: np.ndarray, values: np.ndarray, default: object) -> Tensor:
    """values[i] where x is keys[i] (the last of equal keys), else the default; NaN is one key."""
    if keys.size != values.size:
        raise OperatorError(f"{keys.size} keys for {values.size} values")
    kind = DType.of(keys.dtype)
    if kind is not x.dtype:
        raise OperatorError(f"the keys are {kind}, the elements {x.dtype}")
    out = DType.of(values.dtype)
    rest = literal(default, out)
    if not keys.size:
        return b.map(lambda _: rest, x)
    if _are_near(keys):
        found, order = _listed(b, x, keys), np.arange(len(keys))
    elif len(keys) > COMPARED and x.dtype is not DType.STRING:
        found, order = _halving(b, x, keys)
    else:
        found, order = _compared(b, x, keys), np.arange(len(keys))
    named = b.constant(values[order], out)

    def fn(at: Expr) -> Expr:
        inside = apply("max", at, lit(0, DType.I64))
        known = apply("ge", at, lit(0, DType.I64))
        return apply("select", known, b.read(named, [inside]), rest)

    return b.map(fn, found)


def literal(value: object, kind: DType) -> Lit:
    """A value as a literal of a type."""
    item = value.item() if isinstance(value, np.generic) else value
    if kind is DType.STRING:
        return Lit(item.decode() if isinstance(item, bytes) else str(item), kind)
    return lit(float(str(item)) if kind.is_float else int(str(item)), kind)


def _same(p: Expr, q: Expr) -> Expr:
    equal: Expr = apply("eq", p, q)
    if p.dtype.is_float:
        equal = apply("or", equal, apply("and", apply("isnan", p), apply("isnan", q)))
    return equal


def _compared(b: Builder, x: Tensor, keys: np.ndarray) -> Tensor:
    """max{k} of k where x is keys[k]; -1 where it is none."""
    table = b.constant(keys, x.dtype)
    axes, key = b.axes(x.shape), b.axis(len(keys), "key")
    hit = _same(b.spread(x, axes), b.read(table, [key.index]))
    body = apply("select", hit, IndexValue(key.index), lit(-1, DType.I64))
    return b.nest(axes, body, (key,), "max")


def _are_near(keys: np.ndarray) -> bool:
    """Whether keys are integers that lie near each other, and have integers on both sides."""
    if keys.dtype != np.int64:
        return False
    low, high = int(keys.min()), int(keys.max())
    ends = np.iinfo(np.int64)
    return high - low < SPREAD * len(keys) and ends.min < low and high < ends.max


def _listed(b: Builder, x: Tensor, keys: np.ndarray) -> Tensor:
    """The place of x among integer keys, the last of equal ones, or -1.

    place[min(max(x, low - 1), high + 1) - (low - 1)] with -1 at both ends of the table
    """
    first, last = int(keys.min()) - 1, int(keys.max()) + 1
    places = np.full(last - first + 1, -1)
    places[keys - first] = np.arange(len(keys))
    table = b.constant(places)

    def fn(e: Expr) -> Expr:
        inside = apply("min", apply("max", e, lit(first, e.dtype)), lit(last, e.dtype))
        return b.read(table, [apply("sub", inside, lit(first, e.dtype))])

    return b.map(fn, x)


def _halving(b: Builder, x: Tensor, keys: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """The place of x among the sorted keys or -1, and which keys they are.

    place += step where keys[place + step] <= x, for step = .., 4, 2, 1.
    """
    last = {k: i for i, k in enumerate(keys.tolist()) if k == k}
    order = np.array([last[k] for k in sorted(last)], np.int64)
    nans = [i for i, k in enumerate(keys.tolist()) if k != k]
    width = 1 << (len(order) - 1).bit_length()
    padded = np.concatenate((order, np.repeat(order[-1:], width - len(order))))
    ranked = b.constant(keys[padded], x.dtype)
    axes = b.axes(x.shape)
    place = b.nest(axes, lit(0, DType.I64))
    step = width // 2
    while step:
        place = b.map(lambda e, at, s=step: _down(b, ranked, e, at, s), x, place)
        step //= 2

    def finish(e: Expr, at: Expr) -> Expr:
        found: Expr = apply("select", apply("eq", b.read(ranked, [at]), e), at, lit(-1, DType.I64))
        if nans and e.dtype.is_float:
            found = apply("select", apply("isnan", e), lit(width, DType.I64), found)
        return found

    which = np.concatenate((padded, np.array(nans[-1:], np.int64)))
    return b.map(finish, x, place), which


def _down(b: Builder, ranked: Tensor, e: Expr, at: Expr, step: int) -> Expr:
    beyond = apply("add", at, lit(step, DType.I64))
    return apply("select", apply("le", b.read(ranked, [beyond]), e), beyond, at)


def _table(
    tensor: np.ndarray | None,
    floats: Sequence[float],
    ints: Sequence[int],
    strings: Sequence[str],
    what: str,
) -> np.ndarray:
    """The one of these attributes that is given."""
    given: list[np.ndarray] = []
    if tensor is not None:
        given.append(tensor.reshape(-1))
    if floats:
        given.append(np.array(floats, np.float32))
    if ints:
        given.append(np.array(ints, np.int64))
    if strings:
        given.append(np.array(strings, object))
    if len(given) != 1:
        raise OperatorError(f"one of the attributes {what}_* must be given, not {len(given)}")
    return given[0]


@operator("LabelEncoder", ML)
def label_encoder(
    b: Builder,
    x: Tensor,
    *,
    classes_strings: Sequence[str] = (),
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: np.ndarray | None = None,
    keys_floats: Sequence[float] = (),
    keys_int64s: Sequence[int] = (),
    keys_strings: Sequence[str] = (),
    keys_tensor: np.ndarray | None = None,
    values_floats: Sequence[float] = (),
    values_int64s: Sequence[int] = (),
    values_strings: Sequence[str] = (),
    values_tensor: np.ndarray | None = None,
) -> Tensor:
    """The value of the key that each element is, or the default."""
    if classes_strings:
        names, numbers = np.array(classes_strings, object), np.arange(len(classes_strings))
        if x.dtype is DType.STRING:
            return mapped(b, x, names, numbers, default_int64)
        return mapped(b, x, numbers, names, default_string)
    keys = _table(keys_tensor, keys_floats, keys_int64s, keys_strings, "keys")
    values = _table(values_tensor, values_floats, values_int64s, values_strings, "values")
    kind = DType.of(values.dtype)
    if default_tensor is not None:
        default: object = default_tensor.reshape(-1)[0]
    elif kind is DType.STRING:
        default = default_string
    else:
        default = default_float if kind.is_float else default_int64
    return mapped(b, x, keys, values, default)


@operator("CategoryMapper", ML)
def category_mapper(
    b: Builder,
    x: Tensor,
    *,
    cats_int64s: Sequence[int],
    cats_strings: Sequence[str],
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Tensor:
    """The number of each string, or the string of each number."""
    names, numbers = np.array(cats_strings, object), np.array(cats_int64s, np.int64)
    if x.dtype is DType.STRING:
        return mapped(b, x, names, numbers, default_int64)
    return mapped(b, x, numbers, names, default_string)


@operator("OneHotEncoder", ML)
def one_hot_encoder(
    b: Builder,
    x: Tensor,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    zeros: int = 1,
) -> Tensor:
    """{.., categories}: 1 where the element is the category; without `zeros` one must be."""
    keys = _table(None, (), cats_int64s, cats_strings, "cats")
    if x.dtype is not DType.STRING and x.dtype is not DType.I64:
        x = b.map(lambda e: cast(e, DType.I64), x)
    if DType.of(keys.dtype) is not x.dtype:
        raise OperatorError(f"the categories are {DType.of(keys.dtype)}, the elements {x.dtype}")
    axes = b.axes((*x.shape, len(keys)))
    hit = apply("eq", b.spread(x, axes[:-1]), b.read(b.constant(keys), [axes[-1].index]))
    y = b.nest(axes, apply("select", hit, lit(1, DType.F32), lit(0, DType.F32)))
    return y if zeros else _all_found(b, x, keys, y)


def _all_found(b: Builder, x: Tensor, keys: np.ndarray, y: Tensor) -> Tensor:
    """y, or the end of the run where an element is no key."""
    found = _compared(b, x, keys)
    bound = b.axes(x.shape)
    lost = b.nest((), apply("lt", b.spread(found, bound), lit(0, DType.I64)), bound, "any")
    return unless(b, lost, y, "OneHotEncoder: an element is none of the categories")
