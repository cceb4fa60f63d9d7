"""Products with weights in 2, 4 or 8 bits, with a scale for each block of what is summed."""

from __future__ import annotations

from math import prod

import numpy as np

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import add, mul
from rutc.importer.ops.contraction import matmul_of
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.movement import transpose
from rutc.importer.ops.quantization import rounded_to
from rutc.importer.quantised import rounds_to_bytes
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, apply, cast
from rutc.tensor_ir.indices.affine import floordiv

UNSIGNED = {2: DType.U2, 4: DType.U4, 8: DType.U8}
"""The type of packed numbers of so many bits."""
SIGNED = {2: DType.I2, 4: DType.I4, 8: DType.I8}
"""Their type less half of their range."""
_LOW = (-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0)
_HIGH = (0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0)
_FLOATS = (0.0, 0.005208333, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25)
LEVELS = {0: (*_FLOATS, *(-e for e in _FLOATS)), 1: (*_LOW, *_HIGH)}
"""What numbers of 4 bits stand for in MatMulBnb4: floats of 4 bits, or quantiles of a normal
distribution [Dettmers et al. 2023]."""
LARGEST = 127
"""What the largest magnitude of a block of it becomes."""


def unpacked(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first `count` numbers of each row of packed bytes, the low bits of a byte first.

    Raises OperatorError where they are no bytes.
    """
    if packed.dtype != np.uint8:
        raise OperatorError(f"numbers of {bits} bits are packed in u8, not in {packed.dtype}")
    each = 8 // bits
    shifts = np.arange(each, dtype=np.uint8) * bits
    mask = (1 << bits) - 1
    rows = (packed[..., None] >> shifts) & mask
    return rows.reshape(*packed.shape[:-1], -1)[..., :count].astype(UNSIGNED[bits].numpy)


@record
class Weights:
    """Numbers [n, k] of so many bits, with scales and perhaps zero points [n, blocks].

    Without zero points, half of the range stands for 0.
    """

    numbers: np.ndarray
    scales: Tensor
    zeros: Tensor | None
    bits: int
    block: int


@operator("MatMulNBits", DOMAIN)
def matmul_n_bits(
    b: Builder,
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,  # noqa: N803
    N: int,  # noqa: N803
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Tensor:
    """x @ w' + bias, w{n,k} = (stored - zero point) * scale of the block of `block_size` in k.

    An `accuracy_level` of 4 lets x be rounded to 8 bits, in blocks of their own scales.
    """
    if bits not in UNSIGNED or order is not None or weight_prepacked:
        raise OperatorError("only 2, 4 or 8 bits without g_idx and prepacking are supported")
    _check_sizes(K, N, block_size)
    blocks = -(-K // block_size)
    stored = _elements(packed, "the weights", N, blocks, -(-block_size * bits // 8))
    numbers = unpacked(stored, bits, block_size).reshape(N, blocks * block_size)[:, :K]
    by = b.constant(_elements(scales, "the scales", N, blocks), scales.dtype)
    points: Tensor | None = None
    if zeros is not None:
        if zeros.dtype is DType.U8:
            packed_points = _elements(zeros, "the zero points", N, -(-blocks * bits // 8))
            points = b.constant(unpacked(packed_points, bits, blocks), UNSIGNED[bits])
        else:
            points = b.constant(_elements(zeros, "the zero points", N, blocks), zeros.dtype)
    w = Weights(numbers, by, points, bits, block_size)
    rounds = rounds_to_bytes(accuracy_level, bits, K, block_size)
    total = _of_bytes(b, x, w) if rounds else matmul_of(b, x, transpose(b, _dense(b, w, x.dtype)))
    return total if bias is None else b.map(add, total, bias)


@operator("MatMulBnb4", DOMAIN)
def matmul_bnb4(
    b: Builder,
    x: Tensor,
    packed: Tensor,
    largest: Tensor,
    *,
    K: int,  # noqa: N803
    N: int,  # noqa: N803
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,  # noqa: N803
) -> Tensor:
    """x @ w', or x @ w without `transB`; w{n,k} = LEVELS[stored] * the largest of its block.

    Blocks are `block_size` elements, rows one after the other. The weights become constants of the
    operand's type.
    """
    if quant_type not in LEVELS:
        raise OperatorError(f"quant_type={quant_type} is unknown; 0 and 1 are known")
    _check_sizes(K, N, block_size)
    stored = _elements(packed, "the weights", -(-N * K // 2))
    # The first of two elements is in the upper half of a byte.
    numbers = unpacked(stored[:, None], 4, 2)[:, ::-1].astype(np.uint8).reshape(-1)[: N * K]
    by = _elements(largest, "the largest numbers", -(-N * K // block_size)).astype(np.float32)
    levels = np.array(LEVELS[quant_type], np.float32)
    dense = levels[numbers] * by.repeat(block_size)[: N * K]
    weights = dense.reshape(N, K).T if transB else dense.reshape(N, K)
    array = np.ascontiguousarray(weights.astype(x.dtype.numpy))
    return matmul_of(b, x, b.constant(array, x.dtype, f"{b.base}_weights"))


def _dense(b: Builder, w: Weights, kind: DType) -> Tensor:
    """The weights as real numbers [n, k]."""
    numbers, of = w.numbers, UNSIGNED[w.bits]
    if w.zeros is None:
        # All of them have one zero point, which is taken from the constant itself.
        of, whole = SIGNED[w.bits], numbers.astype(np.int16) - (1 << (w.bits - 1))
        numbers = whole.astype(of.numpy)
    stored = b.constant(np.ascontiguousarray(numbers), of, f"{b.base}_weights")
    n, k = b.axis(numbers.shape[0], "n"), b.axis(numbers.shape[1], "k")
    place = [n.index, floordiv(k.index, Index.of(w.block), b.ranges)]
    number: Expr = cast(b.read(stored, [n.index, k.index]), DType.F32)
    if w.zeros is not None:
        number = apply("sub", number, cast(b.read(w.zeros, place), DType.F32))
    weight = mul(number, cast(b.read(w.scales, place), DType.F32))
    return b.nest((n, k), cast(weight, kind), hint=f"{b.base}_dense")


def _of_bytes(b: Builder, x: Tensor, w: Weights) -> Tensor:
    """The product with rows in 8 bits; what zero points take off is one number for each block.

    sum over l of q[l] * (w[l] - z) = sum over l of (q[l] * w[l] - z * mean of q)
    """
    whole = np.ascontiguousarray(w.numbers.reshape(len(w.numbers), -1, w.block))
    stored = b.constant(whole, UNSIGNED[w.bits], f"{b.base}_weights")
    middle = 1.0 if w.zeros is not None else 1 << (w.bits - 1)
    numbers, steps, totals = _in_bytes(b, x, w.block, -middle)
    rows, n = b.axes(x.shape[:-1]), b.axis(stored.shape[0], "n")
    block, inner = b.axis(stored.shape[1]), b.axis(stored.shape[2])
    by_row = [*(a.index for a in rows), block.index]
    by_column = [n.index, block.index]
    number = cast(b.read(numbers, [*by_row, inner.index]), DType.I32)
    product = mul(number, cast(b.read(stored, [*by_column, inner.index]), DType.I32))
    zero: Expr = mul(b.read(totals, by_row), lit(1 / w.block, DType.F32))
    if w.zeros is not None:
        zero = mul(zero, cast(b.read(w.zeros, by_column), DType.F32))
    scale = mul(b.read(steps, by_row), cast(b.read(w.scales, by_column), DType.F32))
    element = mul(add(cast(product, DType.F32), zero), scale)
    total = b.nest((*rows, n), element, (block, inner))
    return b.map(lambda e: cast(e, x.dtype), total)


def _in_bytes(b: Builder, x: Tensor, block: int, times: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in blocks of signed bytes, of which the largest magnitude is 127.

    Returns the bytes [.., blocks, block], the steps between two, and the sum of each block
    [.., blocks], some times, as a real number.
    """
    kept = (*b.axes(x.shape[:-1]), b.axis(x.shape[-1] // block))
    inner = b.axis(block)
    place = [a.index for a in kept]
    at = [*place[:-1], place[-1] * block + inner.index]
    real = cast(b.read(x, at), DType.F32)
    largest = b.nest(kept, apply("abs", real), (inner,), "max")
    steps = b.map(lambda e: apply("div", e, lit(LARGEST, DType.F32)), largest)
    most, nothing = b.read(largest, place), lit(0, DType.F32)
    inverse = apply("div", lit(LARGEST, DType.F32), most)
    inverse = apply("select", apply("eq", most, nothing), nothing, inverse)
    numbers = b.nest((*kept, inner), rounded_to(mul(real, inverse), None, DType.I8))
    number = cast(b.read(numbers, [*place, inner.index]), DType.I32)
    total = b.nest(kept, number, (inner,))
    return numbers, steps, b.map(lambda e: mul(cast(e, DType.F32), lit(times, DType.F32)), total)


def known(t: Tensor, what: str) -> np.ndarray:
    """The elements of a constant. Raises OperatorError where it is none."""
    if t.array is None:
        raise OperatorError(f"{what} are computed at run time; they must be constants")
    return t.array


def _elements(t: Tensor, what: str, *shape: int) -> np.ndarray:
    """The elements of a constant in a shape. Raises OperatorError where there are not as many."""
    array = known(t, what)
    if array.size != prod(shape):
        sizes = " * ".join(map(str, shape))
        raise OperatorError(f"{what} {t} should be {sizes} elements")
    return array.reshape(shape)


def _check_sizes(k: int, n: int, block: int) -> None:
    """Raises OperatorError where there are no weights of such sizes in such blocks."""
    if block < 1:
        raise OperatorError(f"blocks of {block} elements cannot be")
    if min(k, n) < 0:
        raise OperatorError(f"weights of K={k} and N={n} cannot be")
