"""Elementary functions as LLVM IR, for f32 and f64 scalars and vectors of any width.

The functions are branch-free polynomials of the project (sin, cos, tan, fmod and mod branch once
to a slow path for huge arguments, log for such as are not positive normal numbers), exact at zeros,
infinities and NaN, correct for subnormals, and within `ULP_BOUNDS`. They need a fused multiply-add
to keep those bounds and are otherwise target-independent.
`frem`, used by fmod and mod on huge quotients, calls libm.

Code is emitted at the builder's position. Functions with a slow path end in a new block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rutc.emit.llvm import ir
from rutc.emit.vector_math import exponential, inverse_trig, logarithm, power, trig
from rutc.emit.vector_math.lanes import Lanes, Real

__all__ = ["BINARY_OPS", "ULP_BOUNDS", "UNARY_OPS", "emit_binary", "emit_unary"]


def _intrinsic(name: str) -> Callable[[Real], Real]:
    return lambda x: x.lanes.intrinsic(name, x)


_UNARY: Mapping[str, Callable[[Real], Real]] = {
    "acos": inverse_trig.acos,
    "acosh": logarithm.acosh,
    "asin": inverse_trig.asin,
    "asinh": logarithm.asinh,
    "atan": inverse_trig.atan,
    "atanh": logarithm.atanh,
    "ceil": _intrinsic("ceil"),
    "cos": trig.cos,
    "cosh": exponential.cosh,
    "erf": exponential.erf,
    "exp": exponential.exp,
    "floor": _intrinsic("floor"),
    "log": logarithm.log,
    "round": _intrinsic("roundeven"),
    "sin": trig.sin,
    "sinh": exponential.sinh,
    "sqrt": _intrinsic("sqrt"),
    "tan": trig.tan,
    "tanh": exponential.tanh,
}

_BINARY: Mapping[str, Callable[[Real, Real], Real]] = {
    "atan2": inverse_trig.atan2,
    "fmod": power.fmod,
    "mod": power.mod,
    "pow": power.pow,
}

UNARY_OPS = tuple(_UNARY)
BINARY_OPS = tuple(_BINARY)

_EXACT = 0.5
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "acos": (4, 4),
    "acosh": (4, 4),
    "asin": (4, 4),
    "asinh": (4, 4),
    "atan": (4, 4),
    "atan2": (4, 4),
    "atanh": (4, 4),
    "ceil": (_EXACT, _EXACT),
    "cos": (2, 4),
    "cosh": (4, 4),
    "erf": (2, 4),
    "exp": (1.25, 4),
    "floor": (_EXACT, _EXACT),
    "fmod": (_EXACT, _EXACT),
    "log": (2, 4),
    "mod": (_EXACT, _EXACT),
    "pow": (4, 4),
    "round": (_EXACT, _EXACT),
    "sin": (2, 4),
    "sinh": (4, 4),
    "sqrt": (_EXACT, _EXACT),
    "tan": (4, 4),
    "tanh": (2.5, 4),
}

# Largest error of each op, in units in the last place of the exact result, by (op, bits).
ULP_BOUNDS: Mapping[tuple[str, int], float] = {
    (op, bits): bound
    for op, pair in _BOUNDS.items()
    for bits, bound in zip((32, 64), pair, strict=True)
}


def emit_unary(builder: ir.IRBuilder, op: str, x: ir.Value, features: frozenset[str]) -> ir.Value:
    """Emits a function of one argument.

    Args:
        builder: Where to emit.
        op: One of `UNARY_OPS`.
        x: f32 or f64, scalar or vector.
        features: Target features the code may use; `avx512f` shortens exp, log and pow.

    Raises:
        KeyError: The op is not one of `UNARY_OPS`.
        TypeError: `x` is of another type.
    """
    return _UNARY[op](Real(Lanes.of(builder, x, features), x)).value


def emit_binary(
    builder: ir.IRBuilder,
    op: str,
    x: ir.Value,
    y: ir.Value,
    features: frozenset[str],
) -> ir.Value:
    """Emits a function of two arguments of one type; `atan2` takes `(y, x)` as in C.

    Raises:
        KeyError: The op is not one of `BINARY_OPS`.
        TypeError: The operands are not f32 or f64.
    """
    lanes = Lanes.of(builder, x, features)
    return _BINARY[op](Real(lanes, x), Real(lanes, y)).value
