"""How large numbers may be, as far as a graph tells: what is known to be finite is never NaN."""

from __future__ import annotations

from math import inf, isnan

import ml_dtypes

from rutc.graph_opt.editor import Editor
from rutc.tensor_ir import Apply, Cast, DType, Expr, Lit, Nest, Read

MOST_NESTS = 8
"""So many nests are looked into, one behind another."""


def is_finite(e: Expr, editor: Editor) -> bool:
    """Whether an expression of floats is a finite number whatever the inputs are.

    Inputs may be NaN. Known are integers, constants and what nests compute of them:
    `f32(i32(%q[i]) - 3) * 0.1`, and sums of it.
    """
    # Sums round upwards by less than they grow.
    return 2 * _Largest(editor).of(e) < _most_of(e.dtype)


def _most_of(kind: DType) -> float:
    """The largest magnitude that a type holds."""
    if kind.is_float:
        return float(ml_dtypes.finfo(kind.numpy).max)  # type: ignore[no-untyped-call]
    return float(1 << kind.bits) if kind.is_int else float(kind is DType.BOOL)


class _Largest:
    """Bounds of magnitudes, of each value once; infinite where none is known."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        self._known: dict[str, float] = {}
        self._inside = 0

    def of(self, e: Expr) -> float:
        """The largest magnitude that an expression may have."""
        bound = self._bound(e)
        if e.dtype.is_float:
            return bound if bound < _most_of(e.dtype) else inf
        return min(bound, _most_of(e.dtype))

    def _bound(self, e: Expr) -> float:
        match e:
            case Lit(float() | int() as value):
                return inf if isnan(value) else abs(float(value))
            case Read():
                outside = self.of(e.fill) if e.fill is not None else 0.0
                return max(self._value(e.value), outside)
            case Cast(arg):
                return self.of(arg)
            case Apply("add" | "sub", (a, b)):
                return self.of(a) + self.of(b)
            case Apply("mul", (a, b)):
                # Nothing times what may be infinite may be NaN.
                sides = self.of(a), self.of(b)
                return inf if inf in sides else sides[0] * sides[1]
            case Apply("div", (a, Lit(float() as by))) if by:
                return self.of(a) / abs(by)
            case Apply("max" | "min", (a, b)) | Apply("select", (_, a, b)):
                return max(self.of(a), self.of(b))
            case Apply("neg" | "abs", (a,)):
                return self.of(a)
        return inf

    def _value(self, name: str) -> float:
        if name not in self._known:
            self._inside += 1
            self._known[name] = inf if self._inside > MOST_NESTS else self._of_value(name)
            self._inside -= 1
        return self._known[name]

    def _of_value(self, name: str) -> float:
        kind = self._editor.values[name].dtype
        if not kind.is_float:
            return _most_of(kind) if kind.is_int or kind is DType.BOOL else inf
        const, n = self._editor.constant(name), self._editor.nest(name)
        if const is not None:
            return const.data.largest if const.data.is_finite else inf
        return self._of_nest(n) if n is not None and len(n.outs) == 1 else inf

    def _of_nest(self, n: Nest) -> float:
        if n.reducer is None:
            return self.of(n.body[0])
        terms = self._editor.most(n.bound)
        if n.reducer.name != "sum" or terms is None:
            return inf
        each = self.of(n.body[0])
        return each if each == inf else each * terms
