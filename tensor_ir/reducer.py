"""Reducers: commutative monoids on tuples, the only meaning that a bound dim has.

A reducer lifts each element to a state, merges states in any order from an identity, and finishes
with the outputs. Everything is given as expressions, so the interpreter, the vectoriser and the
code generator need no knowledge of any reducer by name:

    elements x0..  --lift-->  state s0..   merge(a0.., b0..) -> s0..   finish(s0..) -> outs

| name    | elements     | outputs                       | identity            |
|---------|--------------|-------------------------------|---------------------|
| sum prod max min any all | x | the fold                | 0 1 -inf +inf false true |
| bitand       | x            | the bits that all have        | all bits            |
| maxnum  | x            | max, unless there is a NaN    | -inf                |
| argmax argmin | x, index | extreme value, its index    | (-inf or +inf, the highest) |
| minmax maxmin | x      | both extremes, in this order  | +inf and -inf       |
| logsumexp | x          | max m, sum of exp(x - m)      | (-inf, 0)           |
| moments | x            | mean, mean squared deviation  | (0, 0, 0)           |

`argmax` and `argmin` prefer the lowest index among equals and treat NaN as the extreme, as numpy
does; `argmax_last` and `argmin_last` prefer the highest, and their identity has the index -1: any
index that an element has is preferred to that of an identity. `logsumexp` is the online softmax
[Milakov & Gimelshein 2018]; `moments` the pairwise update of [Chan, Golub & LeVeque 1979]. What
`maxnum` gives of NaN and numbers depends on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from typing import TypeVar

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Apply, Cast, Expr, Lit, Local, apply

T = TypeVar("T")


@record
class Reducer:
    """A monoid with its expressions over locals x0.. (elements), a0.. b0.. and s0.. (states)."""

    name: str
    elements: tuple[DType, ...]
    identity: tuple[Lit, ...]
    lift: tuple[Expr, ...]
    merge: tuple[Expr, ...]
    finish: tuple[Expr, ...]

    @property
    def state(self) -> tuple[DType, ...]:
        """The types of the state's components."""
        return tuple(i.dtype for i in self.identity)

    @property
    def outputs(self) -> tuple[DType, ...]:
        """The types of the outputs."""
        return tuple(f.dtype for f in self.finish)

    @property
    def is_fold(self) -> bool:
        """Whether the state is an element, if in a wider type: results of parts are elements."""
        names = {"x": self.lift, "s": self.finish}
        return all(
            _converted(e) == f"{side}{i}" for side, es in names.items() for i, e in enumerate(es)
        )

    @property
    def of_states(self) -> Reducer:
        """The same monoid with states as its elements."""
        lift = tuple(Local(f"x{k}", t) for k, t in enumerate(self.state))
        return replace(self, elements=self.state, lift=lift)


def _converted(e: Expr) -> str | None:
    """The local that an expression is, in whatever type."""
    inner = e.arg if isinstance(e, Cast) else e
    return inner.name if isinstance(inner, Local) else None


def as_locals(**groups: Iterable[T]) -> dict[str, T]:
    """Values by the names of locals: of `as_locals(a=(u, v), b=(w,))` u is a0, v a1 and w b0."""
    return {f"{group}{i}": x for group, values in groups.items() for i, x in enumerate(values)}


def lowest(dtype: DType) -> Lit:
    """The identity of max."""
    if dtype.is_float:
        return Lit(-inf, dtype)
    if dtype is DType.BOOL:
        return Lit(False, dtype)
    return Lit(-(1 << (dtype.bits - 1)) if dtype.is_signed else 0, dtype)


def highest(dtype: DType) -> Lit:
    """The identity of min."""
    if dtype.is_float:
        return Lit(inf, dtype)
    if dtype is DType.BOOL:
        return Lit(True, dtype)
    return Lit((1 << (dtype.bits - (1 if dtype.is_signed else 0))) - 1, dtype)


def reducer(name: str, *elements: DType) -> Reducer:
    """The reducer `name` over elements of these types. Raises KeyError for an unknown name."""
    return _TABLE[name](name, *elements)


def _plain(op: str, identity: Callable[[DType], Lit]) -> Callable[..., Reducer]:
    def make(name: str, t: DType) -> Reducer:
        merged = apply(op, Local("a0", t), Local("b0", t))
        return Reducer(name, (t,), (identity(t),), (Local("x0", t),), (merged,), (Local("s0", t),))

    return make


def _largest_number(name: str, t: DType) -> Reducer:
    a, b = Local("a0", t), Local("b0", t)
    merged = Apply("select", (apply("lt", a, b), b, a))
    return Reducer(name, (t,), (lowest(t),), (Local("x0", t),), (merged,), (Local("s0", t),))


def _number(value: int) -> Callable[[DType], Lit]:
    return lambda t: Lit(float(value) if t.is_float else value, t)


def _bits(name: str, t: DType) -> Reducer:
    every = Lit(-1 if t.is_signed else (1 << t.bits) - 1, t)
    return _plain("bitand", lambda _: every)(name, t)


def _both(first: str, second: str) -> Callable[..., Reducer]:
    def make(name: str, t: DType) -> Reducer:
        parts = (_TABLE[first](first, t), _TABLE[second](second, t))
        pairs = ((Local(f"a{i}", t), Local(f"b{i}", t)) for i in range(2))
        merge = tuple(apply(how, a, b) for how, (a, b) in zip((first, second), pairs, strict=True))
        identity = tuple(p.identity[0] for p in parts)
        x, states = Local("x0", t), (Local("s0", t), Local("s1", t))
        return Reducer(name, (t,), identity, (x, x), merge, states)

    return make


def _extreme_index(*, largest: bool, last: bool) -> Callable[..., Reducer]:
    def make(name: str, t: DType, index: DType = DType.I64) -> Reducer:
        (a, i), (b, j) = ((Local(f"{side}0", t), Local(f"{side}1", index)) for side in ("a", "b"))
        better = apply("not", apply("le" if largest else "ge", a, b))
        as_good = apply("ge" if largest else "le", a, b)
        if t.is_float:
            # Nothing is better than NaN; as the comparison fails, a NaN is better than a number.
            better = apply("and", better, apply("not", apply("isnan", b)))
            as_good = apply("or", as_good, apply("isnan", a))
        tie = apply("gt" if last else "lt", i, j)
        first = apply("or", better, apply("and", as_good, tie))
        merge = (Apply("select", (first, a, b)), Apply("select", (first, i, j)))
        none = Lit(-1, index) if last else highest(index)
        identity = (lowest(t) if largest else highest(t), none)
        lift = (Local("x0", t), Local("x1", index))
        return Reducer(
            name, (t, index), identity, lift, merge, (Local("s0", t), Local("s1", index))
        )

    return make


def _logsumexp(name: str, t: DType) -> Reducer:
    m, n = Local("a0", t), Local("b0", t)
    high = apply("max", m, n)
    zero = Lit(0.0, t)
    # A state that saw only -inf has m = -inf; subtracting 0 instead keeps exp(-inf) = 0.
    base = Apply("select", (apply("eq", high, Lit(-inf, t)), zero, high))

    def scaled(side: str) -> Expr:
        shifted = apply("sub", Local(f"{side}0", t), base)
        return apply("mul", Local(f"{side}1", t), apply("exp", shifted))

    merge = (high, apply("add", scaled("a"), scaled("b")))
    # The lifted sum is 1 for every element, -inf included: its weight vanishes in the merge.
    lift = (Local("x0", t), Lit(1.0, t))
    states = (Local("s0", t), Local("s1", t))
    return Reducer(name, (t,), (Lit(-inf, t), zero), lift, merge, states)


def _moments(name: str, t: DType) -> Reducer:
    na, ma, da = (Local(f"a{i}", t) for i in range(3))
    nb, mb, db = (Local(f"b{i}", t) for i in range(3))
    zero, one = Lit(0.0, t), Lit(1.0, t)
    count = apply("add", na, nb)
    divisor = apply("max", count, one)
    share = apply("div", nb, divisor)
    delta = apply("sub", mb, ma)
    mean = apply("add", ma, apply("mul", delta, share))
    spread = apply("mul", apply("mul", delta, delta), apply("mul", na, share))
    merge = (count, mean, apply("add", apply("add", da, db), spread))
    lift = (one, Local("x0", t), zero)
    middle = Local("s1", t)
    variance = apply("div", Local("s2", t), apply("max", Local("s0", t), one))
    # Nothing has a distance from a mean that is infinite, or was and became NaN.
    finish = (middle, apply("add", variance, apply("sub", middle, middle)))
    return Reducer(name, (t,), (zero, zero, zero), lift, merge, finish)


def _in_computing_type(make: Callable[..., Reducer]) -> Callable[..., Reducer]:
    """Extremes of narrow floats: their states have the type that these compute in, exactly."""

    def made(name: str, t: DType, *others: DType) -> Reducer:
        wide = t.computing if t.is_float else t
        found = make(name, wide, *others)
        if wide is t:
            return found
        first = Local("x0", wide)
        lift = tuple(Cast(Local("x0", t), wide) if x == first else x for x in found.lift)
        finish = tuple(Cast(s, t) if s.dtype is wide else s for s in found.finish)
        return replace(found, elements=(t, *found.elements[1:]), lift=lift, finish=finish)

    return made


_TABLE: dict[str, Callable[..., Reducer]] = {
    "sum": _plain("add", _number(0)),
    "prod": _plain("mul", _number(1)),
    "max": _in_computing_type(_plain("max", lowest)),
    "min": _in_computing_type(_plain("min", highest)),
    "maxnum": _in_computing_type(_largest_number),
    "any": _plain("or", lowest),
    "all": _plain("and", highest),
    "bitand": _bits,
    "argmax": _in_computing_type(_extreme_index(largest=True, last=False)),
    "argmin": _in_computing_type(_extreme_index(largest=False, last=False)),
    "argmax_last": _in_computing_type(_extreme_index(largest=True, last=True)),
    "argmin_last": _in_computing_type(_extreme_index(largest=False, last=True)),
    "minmax": _in_computing_type(_both("min", "max")),
    "maxmin": _in_computing_type(_both("max", "min")),
    "logsumexp": _logsumexp,
    "moments": _moments,
}
REDUCERS = tuple(_TABLE)
