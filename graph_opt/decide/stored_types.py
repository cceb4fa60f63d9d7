"""Values that are stored in fewer bits than they are computed in.

Nests widen what they read of them, and round what they store, to the nearest, ties to even:

%w : f32{k,n} = const [k, n] ..                       %w : bf16{k,n} = const [k, n] ..
%h : f32{m,k} = exp(%x[m, k])                         %h : bf16{m,k} = bf16(exp(%x[m, k]))
%y : f32{m,n} = sum{k} %h[m, k] * %w[k, n]      ->    %y.wide : f32{m,n} =
                                                          sum{k} f32(%h[m, k]) * f32(%w[k, n])
                                                      %y : bf16{m,n} = bf16(%y.wide[m, n])

What is reduced is reduced in its own type, by a nest before the one that rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

import ml_dtypes
import numpy as np

from rutc.base.record import record
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.exprs import at_point
from rutc.graph_opt.plan import Illegal
from rutc.tensor_ir import Cast, Const, DType, Expr, Graph, Lit, Nest, Node, Read, Value
from rutc.tensor_ir.expr import factors, transform
from rutc.tensor_ir.graph import outs, used, walk_nodes, with_bodies
from rutc.tensor_ir.text import value_name

NARROW = (DType.BF16, DType.F16)
"""The types in which values of f32 may be stored."""
WIDE = ".wide"
"""What the name of a reduction ends in whose result another nest rounds."""


def fixed_types(prepared: Prepared, graph: Graph) -> dict[str, str]:
    """The values of a graph that are stored in the type that they have, and why they are."""
    found: dict[str, str] = {}
    for n in walk_nodes(graph.nodes):
        if isinstance(n, Nest):
            continue
        found.update(dict.fromkeys(used(n), "is read by what is no loop nest"))
        if not isinstance(n, Const):
            found.update(dict.fromkeys((v.name for v in outs(n)), "is stored by no loop nest"))
    shared = (*prepared.fixed, *prepared.homes, *prepared.homes.values())
    found.update(dict.fromkeys(shared, "lies in memory as the interface says"))
    found.update({o.value: "is an output, which has the model's type" for o in graph.outputs})
    for name, v in graph.values.items():
        if v.dtype is not DType.F32:
            found[name] = f"is of {v.dtype}, and not of f32"
    return found


def weights(prepared: Prepared) -> tuple[Const, ...]:
    """The constants that sums of products have for factors, and that may have another type."""
    graph = prepared.graph
    found = {
        x.value
        for n in walk_nodes(graph.nodes)
        if isinstance(n, Nest) and n.reducer is not None and n.reducer.name == "sum"
        if len(parts := factors(n.body[0])) > 1
        for x in parts
        if isinstance(x, Read)
    }
    fixed = fixed_types(prepared, graph)
    return tuple(c for name, c in prepared.data.items() if name in found and name not in fixed)


def holds(dtype: DType, n: Const) -> bool:
    """Whether all finite elements of a constant are finite in a type."""
    return Lit(n.data.largest, dtype).value != inf


def keeps(dtype: DType, n: Const) -> bool:
    """Whether a type has normal numbers for the largest elements at each index of each axis.

    Smaller elements beside them lose digits, no more than the largest are rounded by.
    """
    array = n.data.array
    least = float(ml_dtypes.finfo(dtype.numpy).smallest_normal)  # type: ignore[no-untyped-call]
    for axis in range(array.ndim):
        others = tuple(i for i in range(array.ndim) if i != axis)
        low, high = array.min(axis=others, initial=0), array.max(axis=others, initial=0)
        largest = np.maximum(high, -low)
        if not ((largest == 0) | (largest >= least)).all():
            return False
    return True


def with_types(
    prepared: Prepared, graph: Graph, types: Iterable[tuple[str, DType]]
) -> tuple[Node, ...]:
    """The nodes of a graph, in which values are stored in these types.

    Raises:
        Illegal: Something else says in which type a value is stored, or what is read of it is not
            to be had in that type.
    """
    wanted = dict(types)
    if not wanted:
        return graph.nodes
    fixed = fixed_types(prepared, graph)
    for name, dtype in wanted.items():
        if dtype not in NARROW:
            raise Illegal(f"{value_name(name)} cannot be stored as {dtype}")
        if name not in graph.values:
            raise Illegal(f"no value {value_name(name)} is there to be stored as {dtype}")
        if name in fixed:
            raise Illegal(f"{value_name(name)} {fixed[name]}: it cannot be stored as {dtype}")
    return _Narrower(wanted, graph.values).scope(graph.nodes)


@record
class _Narrower:
    types: Mapping[str, DType]
    values: Mapping[str, Value]

    def scope(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes of a scope."""
        result: list[Node] = []
        for n in nodes:
            match n:
                case Const():
                    result.append(self.constant(n))
                case Nest():
                    result += self.nest(n)
                case _:
                    result.append(with_bodies(n, self.scope))
        return tuple(result)

    def constant(self, n: Const) -> Const:
        """A constant, rounded while compiling."""
        dtype = self.types.get(n.out.name)
        if dtype is None:
            return n
        if not holds(dtype, n):
            raise Illegal(
                f"{value_name(n.out.name)} has elements up to {n.data.largest:.6g}: as {dtype} "
                "they are infinite"
            )
        return replace(n, out=replace(n.out, dtype=dtype), data=n.data.rounded(dtype.numpy))

    def nest(self, n: Nest) -> list[Nest]:
        """A nest that widens what it reads, and what rounds its results."""
        body = [transform(e, self.widened) for e in n.body]
        results, after = list(n.outs), []
        for i, v in enumerate(n.outs):
            dtype = self.types.get(v.name)
            if dtype is None:
                continue
            stored = replace(v, dtype=dtype)
            if n.reducer is None:
                results[i], body[i] = stored, Cast(body[i], dtype)
                continue
            results[i] = replace(v, name=v.name + WIDE)
            if results[i].name in self.values:
                raise Illegal(f"{value_name(results[i].name)} is another value of the graph")
            after.append(Nest((stored,), (), None, (Cast(at_point(results[i]), dtype),), n.origin))
        return [replace(n, outs=tuple(results), body=tuple(body)), *after]

    def widened(self, e: Expr) -> Expr:
        """A read of a value that is stored in fewer bits, as the number that it is."""
        if not isinstance(e, Read) or e.value not in self.types:
            return e
        dtype, fill = self.types[e.value], None
        if e.fill is not None:
            outside = e.fill.value
            fill = Lit(outside, dtype)
            if e.fill != Lit(fill.value, DType.F32):
                raise Illegal(f"outside of {value_name(e.value)} is {outside}, which is no {dtype}")
        return Cast(replace(e, dtype=dtype, fill=fill), DType.F32)
