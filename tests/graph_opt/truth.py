"""What a graph of f32 should compute, and whether a rewritten one is as close to it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from rutc.tensor_ir import (
    Cast,
    Const,
    Data,
    DType,
    Expr,
    Graph,
    Input,
    Lit,
    Nest,
    Node,
    Read,
    Value,
    reducer,
)
from rutc.tensor_ir.expr import transform
from rutc.tensor_ir.interpreter.interpret import interpret

ULP = 4
"""Units in the last place of the largest result that any rewrite may cost."""


def in_f64(graph: Graph) -> Graph:
    """The same graph computed in f64; its nodes are inputs, constants and nests."""
    return replace(graph, nodes=tuple(map(_node, graph.nodes)))


def truth(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the graph computes without rounding to f32."""
    return dict(interpret(in_f64(graph), {k: _array(v) for k, v in inputs.items()}))


def largest(errors: np.ndarray) -> float:
    """The largest error."""
    return float(errors.max())


def root_mean_square(errors: np.ndarray) -> float:
    """The common size of errors; the largest of few sums' is a matter of luck."""
    return float(np.sqrt(np.mean(np.square(errors))))


def assert_as_close(
    got: np.ndarray,
    own: np.ndarray,
    exact: np.ndarray,
    text: str = "",
    size: Callable[[np.ndarray], float] = largest,
    times: float = 2.0,
) -> None:
    """Asserts that `got` errs at most `times` as much as the model's own order of f32 operations.

    That is where that order itself neither overflows nor makes NaN; NaN must be NaN.
    """
    assert np.isnan(got[np.isnan(exact)]).all(), f"no NaN\n{text}"
    most = float(np.finfo(np.float32).max)
    seen = np.isfinite(own) & np.isfinite(exact) & (np.abs(exact) <= most)
    if not seen.any():
        return
    unit = float(np.spacing(np.float32(np.abs(exact[seen]).max())))
    bound = times * size(np.abs(own[seen] - exact[seen])) + ULP * unit
    assert np.isfinite(got[seen]).all(), f"not finite where the model's own order is\n{text}"
    error = size(np.abs(got[seen] - exact[seen]))
    assert error <= bound, f"errs by {error}, not {bound}\n{text}"


def _node(n: Node) -> Node:
    match n:
        case Input():
            return replace(n, out=_value(n.out))
        case Const():
            return replace(n, out=_value(n.out), data=Data(_array(n.data.array)))
        case Nest():
            how = n.reducer
            if how is not None:
                how = reducer(how.name, *map(_type, how.elements))
            body = tuple(transform(e, _expr) for e in n.body)
            return replace(n, outs=tuple(map(_value, n.outs)), body=body, reducer=how)
        case _:
            raise AssertionError(f"a graph of nests alone: {n}")


def _type(t: DType) -> DType:
    return DType.F64 if t is DType.F32 else t


def _value(v: Value) -> Value:
    return replace(v, dtype=_type(v.dtype))


def _array(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) if a.dtype == np.float32 else a


def _expr(e: Expr) -> Expr:
    match e:
        case Lit(value, DType.F32):
            return Lit(value, DType.F64)
        case Read(_, _, DType.F32, fill):
            wide = None if fill is None else Lit(fill.value, DType.F64)
            return replace(e, dtype=DType.F64, fill=wide)
        case Cast(_, DType.F32):
            return replace(e, dtype=DType.F64)
        case _:
            return e
