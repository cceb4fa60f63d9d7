"""Folding at import: operators that move elements which are known, numbers or index expressions.

Each function is one operator; it returns None where the result cannot be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, isfinite

import numpy as np

from rutc.importer.building.tensor import SMALL
from rutc.tensor_ir import DType, Index
from rutc.tensor_ir.indices.affine import Range

Attributes = Mapping[str, object]


def gathered(
    xs: Sequence[np.ndarray | None], attributes: Attributes, _: Mapping[str, Range]
) -> np.ndarray | None:
    """The elements at places along an axis."""
    x, at = xs
    assert x is not None
    assert at is not None
    if at.dtype == object:
        if not all(i.is_const for i in at.reshape(-1).tolist()):
            return None
        at = normalized(at, DType.I64)
    axis = int(str(attributes.get("axis", 0)))
    n = x.shape[axis]
    if ((at < -n) | (at >= n)).any():
        return None
    return np.take(x, at, axis)


def joined(
    xs: Sequence[np.ndarray | None], attributes: Attributes, _: Mapping[str, Range]
) -> np.ndarray | None:
    """Tensors one behind the other."""
    return np.concatenate([x for x in xs if x is not None], int(str(attributes["axis"])))


def squeezed(
    xs: Sequence[np.ndarray | None], _: Attributes, __: Mapping[str, Range]
) -> np.ndarray | None:
    """Without axes of one element."""
    assert xs[0] is not None
    return np.squeeze(xs[0], axes_of(xs, 1))


def unsqueezed(
    xs: Sequence[np.ndarray | None], _: Attributes, __: Mapping[str, Range]
) -> np.ndarray | None:
    """With more axes of one element."""
    assert xs[0] is not None
    return np.expand_dims(xs[0], axes_of(xs, 1) or ())


def cut(
    xs: Sequence[np.ndarray | None], _: Attributes, __: Mapping[str, Range]
) -> np.ndarray | None:
    """A part along some axes."""
    x = xs[0]
    assert x is not None
    if any(
        isinstance(i, Index) and not i.is_const
        for a in xs[1:]
        if a is not None
        for i in a.reshape(-1).tolist()
    ):
        return None
    starts, ends = axes_of(xs, 1) or (), axes_of(xs, 2) or ()
    axes = axes_of(xs, 3) or tuple(range(len(starts)))
    steps = axes_of(xs, 4) or (1,) * len(starts)
    cut = [slice(None)] * x.ndim
    for a, lo, hi, s in zip(axes, starts, ends, steps, strict=True):
        n = x.shape[a]
        first, last = (i + n if i < 0 else i for i in (lo, hi))
        if s > 0:
            cut[a] = slice(min(max(first, 0), n), min(max(last, 0), n), s)
        elif n:
            last = min(max(last, -1), n - 1)
            # In Python -1 would name the last element.
            cut[a] = slice(min(max(first, 0), n - 1), None if last < 0 else last, s)
    return x[tuple(cut)]


def selected(
    xs: Sequence[np.ndarray | None], _: Attributes, __: Mapping[str, Range]
) -> np.ndarray | None:
    """Elements of one tensor or the other."""
    c, x, y = xs
    assert c is not None
    if c.dtype == object:
        c = np.array([bool(i.const) for i in c.reshape(-1).tolist()]).reshape(c.shape)
    assert x is not None
    assert y is not None
    return np.where(c, x, y)


def expanded(
    xs: Sequence[np.ndarray | None], _: Attributes, __: Mapping[str, Range]
) -> np.ndarray | None:
    """Repeated along axes of one element."""
    x = xs[0]
    assert x is not None
    shape = np.broadcast_shapes(x.shape, axes_of(xs, 1) or ())
    return np.broadcast_to(x, shape) if np.prod(shape) <= SMALL else None


def counted(
    xs: Sequence[np.ndarray | None], _: Attributes, __: Mapping[str, Range]
) -> np.ndarray | None:
    """Equal steps from a number to another."""
    arrays = [x.reshape(-1)[:1] for x in xs if x is not None]
    real = DType.of(arrays[0].dtype).is_float
    start, limit, delta = (float(x[0]) if real else int(x[0]) for x in arrays)
    if delta == 0 or not all(map(isfinite, (start, limit, delta, (limit - start) / delta))):
        return None
    count = max(0, ceil((limit - start) / delta) if real else int(-((start - limit) // delta)))
    if count > SMALL:
        return None
    return np.array([start + i * delta for i in range(count)], np.float64 if real else np.int64)


def reshaped(
    xs: Sequence[np.ndarray | None], attributes: Attributes, _: Mapping[str, Range]
) -> np.ndarray | None:
    """With another shape."""
    x = xs[0]
    assert x is not None
    shape = list(axes_of(xs, 1) or ())
    if not attributes.get("allowzero"):
        shape = [x.shape[i] if e == 0 and i < x.ndim else e for i, e in enumerate(shape)]
    if int(np.prod([e for e in shape if e != -1])) == 0 and -1 in shape:
        return None
    if -1 not in shape and int(np.prod(shape)) != x.size:
        return None
    return x.reshape(shape)


def transposed(
    xs: Sequence[np.ndarray | None], attributes: Attributes, _: Mapping[str, Range]
) -> np.ndarray | None:
    """With the axes in another order."""
    perm = attributes.get("perm")
    assert xs[0] is not None
    return np.transpose(xs[0], None if perm is None else tuple(perm))  # type: ignore[arg-type]


def tiled(
    xs: Sequence[np.ndarray | None], _: Attributes, __: Mapping[str, Range]
) -> np.ndarray | None:
    """Repeated along its axes."""
    assert xs[0] is not None
    times = axes_of(xs, 1) or ()
    if xs[0].size * int(np.prod(times)) > SMALL:
        return None
    return np.tile(xs[0], times)


def places(
    xs: Sequence[np.ndarray | None], _: Attributes, __: Mapping[str, Range]
) -> np.ndarray | None:
    """Where elements are not zero."""
    assert xs[0] is not None
    return np.stack(np.nonzero(xs[0])).astype(np.int64)


def one_hot(
    xs: Sequence[np.ndarray | None], attributes: Attributes, _: Mapping[str, Range]
) -> np.ndarray | None:
    """The second value where a new axis meets the index, else the first one."""
    at, values = xs[0], xs[2]
    assert at is not None
    assert values is not None
    where, depth = axes_of((at,), 0) or (), (axes_of(xs, 1) or (0,))[0]
    if not all(_is_number(e) for x in xs[:2] if x is not None for e in x.reshape(-1).tolist()):
        return None
    if len(where) * depth > SMALL:
        return None
    axis = int(str(attributes.get("axis", -1)))
    hit = np.array([[(i + depth if i < 0 else i) == k for k in range(depth)] for i in where])
    hit = np.moveaxis(hit.reshape((*at.shape, depth)), -1, axis)
    return np.asarray(np.where(hit, values[1], values[0]))


def axes_of(xs: Sequence[np.ndarray | None], place: int) -> tuple[int, ...] | None:
    """The numbers of an operand; None where it is left out."""
    if len(xs) <= place or xs[place] is None:
        return None
    found = xs[place]
    assert found is not None
    return tuple(i.const if isinstance(i, Index) else int(i) for i in found.reshape(-1).tolist())


def _is_number(e: object) -> bool:
    return not isinstance(e, Index) or e.is_const


def normalized(a: np.ndarray, kind: DType) -> np.ndarray:
    """An ordinary array if no element is symbolic."""
    if a.dtype != object:
        return a.astype(kind.numpy)
    items = a.reshape(-1).tolist()
    if all(not isinstance(x, Index) or x.is_const for x in items):
        plain = [x.const if isinstance(x, Index) else x for x in items]
        return np.array(plain, kind.numpy).reshape(a.shape)
    return a
