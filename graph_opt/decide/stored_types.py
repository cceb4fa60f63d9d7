"""Values that are stored in fewer bits than they are computed in.

Nests widen what they read of them, and round what they store, to the nearest, ties to even:

%w : f32{k,n} = const [k, n] ..                       %w : bf16{k,n} = const [k, n] ..
%h : f32{m,k} = exp(%x[m, k])                         %h : bf16{m,k} = bf16(exp(%x[m, k]))
%y : f32{m,n} = sum{k} %h[m, k] * %w[k, n]      ->    %y.wide : f32{m,n} =
                                                          sum{k} f32(%h[m, k]) * f32(%w[k, n])
                                                      %y : bf16{m,n} = bf16(%y.wide[m, n])

What is reduced is reduced in its own type, by a nest before the one that rounds. Constants may be
integers, which count steps, of a size for each index of some dims:

%w : f32{k,n} = const [k, n] ..                       %w : i8{k,n} = const [k, n] ..
                                                      %w.steps : f32{n} = const [n] ..
%y : f32{m,n} = sum{k} %h[m, k] * %w[k, n]      ->    %y.wide : f32{m,n} =
                                                          sum{k} %h[m, k] * f32(%w[k, n])
                                                      %y : f32{m,n} = %y.wide[m, n] * %w.steps[n]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

import ml_dtypes
import numpy as np

from rutc.base.record import record
from rutc.graph_opt.assignment import Stored
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.exprs import at_point
from rutc.graph_opt.plan import Illegal
from rutc.tensor_ir import Cast, Const, DType, Expr, Graph, Lit, Nest, Node, Read, Value
from rutc.tensor_ir.expr import coord_names, index_names, transform
from rutc.tensor_ir.graph import outs, used, walk_nodes, with_bodies
from rutc.tensor_ir.terms import factors, product_of
from rutc.tensor_ir.textual.text import value_name

NARROW = (DType.BF16, DType.F16)
"""The types of floats in which values of f32 may be stored."""
WIDE = ".wide"
"""What the name of a reduction ends in of whose result another nest makes the value."""
STEPS = ".steps"
"""What the name of the steps' sizes of a constant ends in."""
COARSEST = 2.0**-6
"""What integers may be off of a constant (relative L2): it is more where few elements are large."""


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
    found = {r.value for _, r in factors_of_sums(prepared.graph)}
    fixed = fixed_types(prepared, prepared.graph)
    return tuple(
        c for name, c in prepared.graph.constants.items() if name in found and name not in fixed
    )


def step_dims(graph: Graph, n: Const) -> tuple[str, ...]:
    """The dims of a constant over which no sum of products with it is taken."""
    own = [(s, r) for s, r in factors_of_sums(graph) if r.value == n.out.name]

    def is_summed(d: str) -> bool:
        coords = ((s, dict(r.coords)[d]) for s, r in own)
        return any(coord_names(c) & set(s.bound) for s, c in coords)

    return tuple(d for d in n.out.dims if not is_summed(d))


def factors_of_sums(graph: Graph) -> Iterator[tuple[Nest, Read]]:
    """Yields the sums of products of a graph, with each of the values that are factors of it."""
    for n in walk_nodes(graph.nodes):
        if isinstance(n, Nest) and n.is_sum:
            parts = factors(n.body[0])
            if len(parts) > 1:
                yield from ((n, x) for x in parts if isinstance(x, Read))


def holds(stored: Stored, n: Const) -> bool:
    """Whether all finite elements of a constant are finite in a type."""
    if stored.dtype is DType.I8:
        return n.data.is_finite
    return Lit(n.data.largest, stored.dtype).value != inf


def keeps(stored: Stored, n: Const) -> bool:
    """Whether a type has the largest elements at each index of each axis to its own precision.

    Smaller elements beside them lose digits, no more than the largest are rounded by.
    """
    array = n.data.array
    if stored.dtype is DType.I8:
        numbers, steps = n.data.in_steps(_axes(stored, n))
        wide = numbers.array * _spread(stored, n, steps.array)
        off, size = (float(np.linalg.norm(x)) for x in (wide - array, array))
        normal = float(steps.array.min(initial=1)) >= float(np.finfo(np.float32).tiny)
        return normal and off <= COARSEST * size
    least = float(ml_dtypes.finfo(stored.dtype.numpy).smallest_normal)  # type: ignore[no-untyped-call]
    for axis in range(array.ndim):
        others = tuple(i for i in range(array.ndim) if i != axis)
        low, high = array.min(axis=others, initial=0), array.max(axis=others, initial=0)
        largest = np.maximum(high, -low)
        if not ((largest == 0) | (largest >= least)).all():
            return False
    return True


def _axes(stored: Stored, n: Const) -> tuple[int, ...]:
    return tuple(i for i, d in enumerate(n.axes) if d in stored.by)


def _spread(stored: Stored, n: Const, steps: np.ndarray) -> np.ndarray:
    """The steps' sizes with an axis for each of the constant."""
    shape = n.data.array.shape
    return steps.reshape([e if d in stored.by else 1 for d, e in zip(n.axes, shape, strict=True)])


def with_types(prepared: Prepared, graph: Graph, types: Iterable[Stored]) -> tuple[Node, ...]:
    """The nodes of a graph, in which values are stored in these types.

    Raises:
        Illegal: Something else says in which type a value is stored, or what is read of it is not
            to be had in that type.
    """
    wanted = {s.value: s for s in types}
    if not wanted:
        return graph.nodes
    fixed = fixed_types(prepared, graph)
    for name, s in wanted.items():
        if s.dtype not in (*NARROW, DType.I8):
            raise Illegal(f"{value_name(name)} cannot be stored as {s.dtype}")
        if name not in graph.values:
            raise Illegal(f"no value {value_name(name)} is there to be stored as {s.dtype}")
        if name in fixed:
            raise Illegal(f"{value_name(name)} {fixed[name]}: it cannot be stored as {s.dtype}")
        if s.dtype is DType.I8 and name not in prepared.graph.constants:
            raise Illegal(f"{value_name(name)} is no constant: `{s}` is not possible")
        strange = set(s.by) - set(graph.values[name].dims)
        if strange:
            raise Illegal(f"`{s}`: {value_name(name)} has no dim {min(strange)}")
    return _Narrower(wanted, graph.values).scope(graph.nodes)


def made_apart(graph: Graph, types: Mapping[str, Stored]) -> set[str]:
    """The results of reductions that other nests make of these, with such types."""
    found: set[str] = set()
    for n in walk_nodes(graph.nodes):
        if not isinstance(n, Nest) or n.reducer is None:
            continue
        found |= {v.name for v in n.outs if v.name in types}
        if n.reducer.name == "sum" and any(_leaves(n, x, types) for x in factors(n.body[0])):
            found.add(n.out.name)
    return found


def _leaves(n: Nest, e: Expr, types: Mapping[str, Stored]) -> bool:
    """Whether a factor of a sum's products is read in steps that are the same for all of them."""
    stored = types.get(e.value) if isinstance(e, Read) else None
    if stored is None or stored.dtype is not DType.I8 or not isinstance(e, Read):
        return False
    return all(coord_names(c).isdisjoint(n.bound) for d, c in e.coords if d in stored.by)


@record
class _Narrower:
    types: Mapping[str, Stored]
    values: Mapping[str, Value]

    def scope(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes of a scope."""
        result: list[Node] = []
        for n in nodes:
            match n:
                case Const():
                    result += self.constant(n)
                case Nest():
                    result += self.nest(n)
                case _:
                    result.append(with_bodies(n, self.scope))
        return tuple(result)

    def fresh(self, name: str) -> str:
        """A name that ends as no value's of the graph does."""
        if name in self.values:
            raise Illegal(f"{value_name(name)} is another value of the graph")
        return name

    def constant(self, n: Const) -> list[Const]:
        """A constant, rounded while compiling; of integers the steps' sizes, too."""
        stored = self.types.get(n.out.name)
        if stored is None:
            return [n]
        if not holds(stored, n):
            raise Illegal(
                f"{value_name(n.out.name)} has elements up to {n.data.largest:.6g}, not all finite "
                f"as {stored.dtype}"
            )
        out = replace(n.out, dtype=stored.dtype)
        if stored.dtype is not DType.I8:
            return [replace(n, out=out, data=n.data.rounded(stored.dtype.numpy))]
        numbers, steps = n.data.in_steps(_axes(stored, n))
        axes = tuple(d for d in n.axes if d in stored.by)
        sizes = Value(self.fresh(n.out.name + STEPS), DType.F32, tuple(sorted(axes)))
        return [replace(n, out=out, data=numbers), Const(sizes, axes, steps, n.origin)]

    def nest(self, n: Nest) -> list[Nest]:
        """A nest that widens what it reads, and what makes its results of that."""
        body = [transform(e, self.widened) for e in n.body]
        results, after = list(n.outs), []
        sizes: list[Expr] = []
        if n.is_sum:
            body[0], sizes = self.out_of_sum(n, body[0])
        for i, v in enumerate(n.outs):
            stored = self.types.get(v.name)
            out = v if stored is None else replace(v, dtype=stored.dtype)
            if n.reducer is None:
                results[i], body[i] = out, body[i] if stored is None else Cast(body[i], out.dtype)
            elif sizes or stored is not None:
                results[i] = replace(v, name=self.fresh(v.name + WIDE))
                made = product_of([at_point(results[i]), *sizes])
                made = made if stored is None else Cast(made, out.dtype)
                after.append(Nest((out,), (), None, (made,), n.origin))
        return [replace(n, outs=tuple(results), body=tuple(body)), *after]

    def out_of_sum(self, n: Nest, e: Expr) -> tuple[Expr, list[Expr]]:
        """The summand, and sizes of steps that are factors of it and the same for all summands."""
        parts = factors(e)
        sizes = [x for x in parts if self.is_size(x) and index_names(x).isdisjoint(n.bound)]
        rest = [x for x in parts if x not in sizes]
        return (product_of(rest), sizes) if sizes and rest else (e, [])

    def is_size(self, e: Expr) -> bool:
        """Whether an expression is the size of a constant's steps."""
        return isinstance(e, Read) and e.value.removesuffix(STEPS) in self.types.keys() - {e.value}

    def widened(self, e: Expr) -> Expr:
        """A read of a value that is stored in fewer bits, as the number that it is."""
        if not isinstance(e, Read) or e.value not in self.types:
            return e
        stored, fill = self.types[e.value], None
        if e.fill is not None:
            outside = e.fill.value
            if stored.dtype is DType.I8 and outside != 0:
                raise Illegal(f"outside of {value_name(e.value)} is {outside}, and not 0")
            fill = Lit(outside if stored.dtype.is_float else 0, stored.dtype)
            if stored.dtype.is_float and e.fill != Lit(fill.value, DType.F32):
                raise Illegal(
                    f"outside of {value_name(e.value)} is {outside}, which is no {stored.dtype}"
                )
        wide = Cast(replace(e, dtype=stored.dtype, fill=fill), DType.F32)
        if stored.dtype is not DType.I8:
            return wide
        coords = tuple((d, c) for d, c in e.coords if d in stored.by)
        one = None if fill is None else Lit(1.0, DType.F32)
        return product_of([wide, Read(e.value + STEPS, coords, DType.F32, one)])
