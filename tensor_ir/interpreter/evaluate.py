"""The meaning of scalar expressions, computed with numpy over a block of an iteration space.

`evaluate_expr` follows `expr` operator by operator. Narrow types (see `dtype`) are widened for each
operator (to f32 or i32) and its result is rounded (or wrapped) back. Arrays broadcast: an operand
has extent 1 along every dim that it does not depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import assert_never

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.errors import InternalError
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    Apply,
    BitCast,
    Cast,
    Expr,
    IndexValue,
    Lit,
    Local,
    Read,
)
from rutc.tensor_ir.indices.affine import Index, Var

Env = Mapping[str, int | np.ndarray]
"""Dims, symbols and locals, each with its value or its broadcastable array of values."""


@record
class Block:
    """A box of an iteration space; axis i of its arrays is `dims[i]`."""

    dims: tuple[str, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part of the whole space, by axis."""
        return tuple(slice(s, s + n) for s, n in zip(self.starts, self.shape, strict=True))

    @cached_property
    def indices(self) -> dict[str, np.ndarray]:
        """Each dim's index, as an array that broadcasts over the block."""
        rank = len(self.dims)
        return {
            d: np.arange(s, s + n).reshape([-1 if k == axis else 1 for k in range(rank)])
            for axis, (d, s, n) in enumerate(zip(self.dims, self.starts, self.shape, strict=True))
        }


def blocks(dims: Sequence[str], shape: Sequence[int], points: int) -> Iterator[Block]:
    """Boxes of at most `points` points that tile a non-empty space, in row-major order.

    The leading dims are split first.
    """
    size = list(shape)
    for axis in range(len(size)):
        pieces = -(-prod(size) // points)
        if pieces > 1:
            size[axis] = max(1, size[axis] // pieces)
    counts = [-(-n // s) for n, s in zip(shape, size, strict=True)]
    for position in np.ndindex(*counts):
        starts = tuple(p * s for p, s in zip(position, size, strict=True))
        extents = (min(s, n - start) for s, n, start in zip(size, shape, starts, strict=True))
        yield Block(tuple(dims), starts, tuple(extents))


def evaluate_expr(
    e: Expr, env: Env, values: Mapping[str, np.ndarray], block: Block | None = None
) -> np.ndarray:
    """The values of `e`, an array of `e`'s dtype that broadcasts over the arrays of `env`.

    Args:
        e: The expression.
        env: What every dim, symbol and local in `e` stands for.
        values: The arrays that `e` reads, axes in the order of the values' sorted dims.
        block: When `env` holds the dims of a block, that block (its affine reads are faster).

    Raises:
        InternalError: A read without a fill leaves its value's extents.
    """
    match e:
        case Lit():
            return literal(e)
        case IndexValue():
            return np.asarray(e.index.evaluate(env), np.int64)
        case Local():
            return np.asarray(env[e.name])
        case Read():
            return _read(e, env, values, block)
        case Apply():
            args = [evaluate_expr(a, env, values, block) for a in e.args]
            with np.errstate(all="ignore"):
                return operate(e.op, args)
        case Cast():
            with np.errstate(all="ignore"):
                return convert(evaluate_expr(e.arg, env, values, block), e.dtype)
        case BitCast():
            return reinterpret(evaluate_expr(e.arg, env, values, block), e.dtype)
        case _:
            assert_never(e)


def literal(x: Lit) -> np.ndarray:
    """The scalar array of a literal; the element of a box that holds nothing is None."""
    return np.asarray(None if x.dtype is DType.TENSOR else x.value, x.dtype.numpy)


# -- reads --------------------------------------------------------------------------------------
def _read(r: Read, env: Env, values: Mapping[str, np.ndarray], block: Block | None) -> np.ndarray:
    array = values[r.value]
    view = _strided_view(r, array, env, block) if block is not None else None
    if view is not None:
        return view
    inside = np.asarray(True)
    positions = []
    for (dim, coord), extent in zip(r.coords, array.shape, strict=True):
        if isinstance(coord, Index):
            at = np.asarray(coord.evaluate(env), np.int64)
        else:
            at = evaluate_expr(coord, env, values, block)
        fits = (at >= 0) & (at < extent)
        if r.fill is None and isinstance(coord, Index) and not fits.all():
            raise InternalError(
                f"reading %{r.value}[{dim}={coord}] leaves the extent {extent} of {dim}: "
                f"the coordinate reaches {int(at.min())}..{int(at.max())} and there is no fill"
            )
        inside = inside & fits
        positions.append(np.clip(at, 0, max(extent - 1, 0)))
    shape = np.broadcast_shapes(*(p.shape for p in positions))
    fill = literal(r.fill) if r.fill else np.zeros((), array.dtype)
    if array.size == 0:
        return np.full(shape, fill)
    found = np.asarray(array[tuple(positions)])
    return found if r.fill is None else np.where(inside, found, fill)


def _strided_view(r: Read, array: np.ndarray, env: Env, block: Block | None) -> np.ndarray | None:
    """The read as a view of the (padded) value: for linear coordinates that stay near the value."""
    if block is None or array.size == 0:
        return None
    starts: list[int] = []
    spans: list[tuple[int, int]] = []
    steps: list[list[int]] = []
    for _, coord in r.coords:
        linear = _linear(coord, env, block) if isinstance(coord, Index) else None
        if linear is None:
            return None
        start, step = linear
        ends = [c * (n - 1) for c, n in zip(step, block.shape, strict=True)]
        spans.append(
            (start + sum(min(0, x) for x in ends), start + sum(max(0, x) for x in ends) + 1)
        )
        starts.append(start)
        steps.append(step)
    outside = any(lo < 0 or hi > n for (lo, hi), n in zip(spans, array.shape, strict=True))
    if outside:
        small = prod(hi - lo for lo, hi in spans) <= 4 * prod(block.shape) + 4096
        if r.fill is None or not small:
            return None
        array = _window(array, spans, literal(r.fill))
        starts = [start - lo for start, (lo, _) in zip(starts, spans, strict=True)]
    strides = [
        sum(step[axis] * s for step, s in zip(steps, array.strides, strict=True))
        for axis in range(len(block.dims))
    ]
    used = [any(step[axis] for step in steps) for axis in range(len(block.dims))]
    shape = [n if u else 1 for n, u in zip(block.shape, used, strict=True)]
    # Of a scalar of strings, numpy gives the string itself.
    origin = np.asarray(array[tuple(slice(s, s + 1) for s in starts)], array.dtype)
    # numpy cannot describe the 8-bit floats as what their memory holds.
    plain = origin.view(np.uint8) if origin.dtype.itemsize == 1 else origin
    return as_strided(plain, shape, strides, writeable=False).view(array.dtype)


def _linear(x: Index, env: Env, block: Block) -> tuple[int, list[int]] | None:
    """(value at the block's first point, step along every axis), or None if not linear."""
    start, step = x.const, [0] * len(block.dims)
    for mono, c in x.terms:
        if len(mono) != 1 or not isinstance(mono[0], Var):
            return None
        name = mono[0].name
        if name in block.dims:
            axis = block.dims.index(name)
            start += c * block.starts[axis]
            step[axis] += c
        else:
            value = env[name]
            if not isinstance(value, int):
                return None
            start += c * value
    return start, step


def _window(array: np.ndarray, spans: Sequence[tuple[int, int]], fill: np.ndarray) -> np.ndarray:
    """The box `spans` of an array, `fill` where it lies outside."""
    window = np.full([hi - lo for lo, hi in spans], fill, array.dtype)
    source, target = [], []
    for (lo, hi), n in zip(spans, array.shape, strict=True):
        first, last = min(max(lo, 0), n), max(min(hi, n), 0)
        source.append(slice(first, max(first, last)))
        target.append(slice(first - lo, max(first, last) - lo))
    window[tuple(target)] = array[tuple(source)]
    return window


# -- operators ----------------------------------------------------------------------------------
def operate(op: str, args: list[np.ndarray]) -> np.ndarray:
    """The operator `op` applied to arrays of one dtype (the first of `select` holds bools)."""
    if op == "select":
        return np.where(args[0], args[1], args[2])
    dtype = DType.of(args[0].dtype)
    wide = dtype.computing
    if wide is not dtype:
        args = [a.astype(wide.numpy) for a in args]
    result = np.asarray(_OPERATORS[op](*args))
    if result.dtype == np.bool_ or wide is dtype:
        return result
    return convert(result, dtype)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    quotient, rest = np.floor_divide(a, b), np.remainder(a, b)
    below = (rest != 0) & ((a < 0) != (b < 0))
    return np.where(b == 0, 0, quotient + below).astype(a.dtype)


def power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`a` to the power `b`; of integers with a negative exponent the whole part."""
    if a.dtype.kind != "i":
        # Where all exponents are one number in memory, numpy takes roots for powers of 0.5, which
        # are others of -0 and of -inf.
        shape = np.broadcast_shapes(a.shape, b.shape)
        each = (np.broadcast_to(x, shape).flatten() for x in (a, b))
        return np.asarray(np.power(*each)).reshape(shape)
    whole = np.power(a, np.maximum(b, np.zeros_like(b)))
    odd = (b & 1).astype(np.bool_)
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0))
    return np.where(b >= 0, whole, inverse).astype(a.dtype)


def _shift_left(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    width = a.dtype.itemsize * 8
    fits = (b >= 0) & (b < width)
    return np.where(fits, np.left_shift(a, np.where(fits, b, 0)), 0).astype(a.dtype)


def _shift_right(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    width = a.dtype.itemsize * 8
    fits = (b >= 0) & (b < width)
    sign = np.where(a < 0, -1, 0).astype(a.dtype) if a.dtype.kind == "i" else np.zeros_like(a)
    return np.where(fits, np.right_shift(a, np.where(fits, b, 0)), sign).astype(a.dtype)


def _erf(x: np.ndarray) -> np.ndarray:
    # scipy takes longer to load than small models to compile.
    from scipy import special

    found: np.ndarray = special.erf(x)
    return found


_OPERATORS: Mapping[str, Callable[..., np.ndarray]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _erf,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "not": np.logical_not,
    "bitnot": np.invert,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "mod": np.mod,
    "fmod": np.fmod,
    "pow": power,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "shl": _shift_left,
    "shr": _shift_right,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def convert(x: np.ndarray, dtype: DType) -> np.ndarray:
    """`x` cast to `dtype`: float to integer saturates, integer to integer wraps."""
    source = DType.of(x.dtype)
    if source is dtype:
        return x
    if source.is_opaque or dtype.is_opaque:
        raise InternalError(f"no cast from {source} to {dtype}: a call does it")
    wide = x.astype(source.computing.numpy)
    if dtype is DType.BOOL:
        return np.asarray(wide != 0)
    if dtype.is_float:
        return wide.astype(dtype.numpy)
    if source.is_float:
        return _saturate(wide.astype(np.float64), dtype)
    return _wrap(wide, dtype)


def reinterpret(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The bits of `x` as `dtype`, which is of the same width."""
    bits = np.array(x).view(f"u{x.dtype.itemsize}")
    if dtype is DType.BOOL:
        return np.asarray(bits != 0)
    return (bits & ((1 << dtype.bits) - 1)).astype(bits.dtype).view(dtype.numpy)


def _saturate(x: np.ndarray, dtype: DType) -> np.ndarray:
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    end = 1 << (dtype.bits - (1 if dtype.is_signed else 0))
    above, below = x >= float(end), x < float(low)
    middle = np.where(above | below | np.isnan(x), 0.0, x)
    whole = middle.astype(np.int64 if dtype.is_signed else np.uint64)
    whole = np.where(above, whole.dtype.type(end - 1), whole)
    return np.where(below, whole.dtype.type(low), whole).astype(dtype.numpy)


def _wrap(x: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype.bits >= 8:
        return x.astype(dtype.numpy)
    kept = x.astype(np.int32) & ((1 << dtype.bits) - 1)
    sign = 1 << (dtype.bits - 1) if dtype.is_signed else 0
    return np.asarray((kept ^ sign) - sign).astype(dtype.numpy)
