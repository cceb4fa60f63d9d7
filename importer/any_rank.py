"""Operators on a tensor whose rank the run decides: what needs none, on its elements in a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rutc.importer.boxes import flattened, reshaped_box
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Boxed, Item, Tensor, TensorType, ints_of, known_ints
from rutc.tensor_ir import DType, Index, Lit
from rutc.tensor_ir.indices.affine import ONE, ZERO, maximum

Apply = Callable[[Sequence[Item | None], Mapping[str, object]], tuple[Item, ...]]
"""The outputs of the operator for operands and attributes."""

_ARITHMETIC = "Add And BitwiseAnd BitwiseOr BitwiseXor Div Max Min Mod Mul Or Pow Sub Sum Where Xor"
_COMPARISON = "Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual"
_ACTIVATION = "Celu Clip Elu Gelu HardSigmoid HardSwish LeakyRelu Mish Relu Selu Sigmoid Softplus"
_ACTIVATION_TOO = "Softsign Swish ThresholdedRelu"
_FUNCTION = "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Cos Cosh Erf Exp Floor Log"
_FUNCTION_TOO = "Neg Not Reciprocal Round Sign Sin Sinh Sqrt Tan Tanh"
ELEMENTWISE = frozenset(
    f"{_ARITHMETIC} {_COMPARISON} {_ACTIVATION} {_ACTIVATION_TOO} {_FUNCTION} "
    f"{_FUNCTION_TOO}".split()
)
"""Operators whose result has the elements of one operand if the others have one."""


class NeedsRank(OperatorError):
    """An operator needs to know a rank that only the run decides."""


def is_any_rank(item: Item | None) -> bool:
    """Whether an item is a tensor of unknown rank."""
    return isinstance(item, Boxed) and isinstance(item.type, TensorType)


def on_any_rank(
    b: Builder,
    op: str,
    inputs: Sequence[Item | None],
    attributes: Mapping[str, object],
    run: Apply,
) -> tuple[Item, ...]:
    """The outputs of an operator of which an operand has an unknown rank.

    Raises:
        NeedsRank: The operator needs to know the rank.
    """
    places = [i for i, t in enumerate(inputs) if is_any_rank(t)]
    found = inputs[places[0]]
    assert isinstance(found, Boxed)
    assert isinstance(found.type, TensorType)
    if op == "CastLike" and places == [1]:
        zero = b.constant(np.zeros((), found.type.dtype.numpy), found.type.dtype)
        return run([inputs[0], zero], attributes)
    if len(places) == 1:
        if op in ("Shape", "Size") and not attributes:
            flat, shape = flattened(b, found)
            if op == "Shape":
                return (shape,)
            return (b.constant(known_ints([flat.size], (), DType.I64), DType.I64),)
        if op == "Reshape":
            return _reshaped(b, found, inputs, run)
        others = [t for t in inputs if t is not None and not is_any_rank(t)]
        if op in ELEMENTWISE and all(map(_is_single, others)):
            flat, shape = flattened(b, found)
            row = [flat if is_any_rank(t) else _scalar(b, t) for t in inputs]
            (made,) = run(row, attributes)
            assert isinstance(made, Tensor)
            rank = max((t.rank for t in others if isinstance(t, Tensor)), default=0)
            return (reshaped_box(b, made, _with_rank(b, shape, rank)),)
    raise NeedsRank(
        f"operand {places[0]} has a rank that only the run decides; such a tensor may be an "
        "output, an element, a loop's state, or an operand of Reshape, Shape, Size and of "
        "elementwise operators whose other operands have one element: Reshape it to a known rank "
        "first"
    )


def _is_single(item: Item) -> bool:
    """Whether an item is a tensor of one element, whatever its rank."""
    return isinstance(item, Tensor) and all(e == ONE for e in item.shape)


def _scalar(b: Builder, item: Item | None) -> Item | None:
    """A tensor of one element without its axes."""
    if not isinstance(item, Tensor) or not item.rank:
        return item
    return b.nest((), b.read(item, [ZERO] * item.rank))


def _with_rank(b: Builder, shape: Tensor, least: int) -> Tensor:
    """A shape with extents of 1 before its own, where it has fewer than the least."""
    rank = shape.shape[0]
    longer = maximum(rank, Index.of(least), b.ranges)
    if longer == rank:
        return shape
    (axis,) = b.axes((longer,))
    one = Lit(1, DType.I64)
    return b.nest((axis,), b.read(shape, [axis.index - (longer - rank)], one))


def _reshaped(b: Builder, x: Boxed, inputs: Sequence[Item | None], run: Apply) -> tuple[Item, ...]:
    shape = inputs[1]
    known = shape.known if isinstance(shape, Tensor) else None
    if known is not None and ZERO in ints_of(known):
        raise NeedsRank("an extent of 0 is that of the operand, whose rank is unknown")
    flat, _ = flattened(b, x)
    return run([flat, *inputs[1:]], {"allowzero": 1})
