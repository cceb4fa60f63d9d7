"""Sums of products of float32 as sums of 8-bit integers: quantisation after training.

    %y{..} = sum{k..} %x[..] * %w[..]                       %w a constant
    ->
    %x.q = u8(i32(min(max(round(%x[..] * 50.0) + 120.0, 0.0), 255.0)))
    %x.d = f32(i32(%x.q[..]) - 120) * 0.02
    %w.d = f32(%w.q[..]) * %w.s[..]                         %w.q : i8, a scale for each sum
    %y{..} = sum{k..} %x.d[..] * %w.d[..]

The steps 0.02 and 120 come from the range that %x has in calibration runs. What is left is what a
model with QuantizeLinear and DequantizeLinear is imported as, and is rewritten as that is: the
products are summed as integers, exactly (`rules/narrow.py`) [Jacob et al. 2018].

What else is added up of %x may be read as %x.d, too: nothing stores %x then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.decide.names import fresh
from rutc.graph_opt.editor import rename_reads
from rutc.graph_opt.exact_places import places
from rutc.graph_opt.exprs import at_point
from rutc.graph_opt.pipeline import optimize, pipeline_for
from rutc.tensor_ir import (
    Apply,
    Cast,
    DType,
    Expr,
    Graph,
    Index,
    Nest,
    Node,
    Read,
    Value,
    apply,
    cast,
)
from rutc.tensor_ir.expr import Lit, transform
from rutc.tensor_ir.facts.products import LARGEST_PAIR, SMALL, four_sums
from rutc.tensor_ir.graph import Const, Data, Input, outs, used
from rutc.tensor_ir.indices.affine import product, typical
from rutc.tensor_ir.interface import tensor
from rutc.tensor_ir.machine import PAIR, QUAD, Machine
from rutc.tensor_ir.verifier import verify

NORMAL = "solve phases"
"""The step of the pipeline after which sums of products and their weights are what they stay."""
LARGEST = 127
"""The largest weight, in steps of its scale."""
COARSER = 2.0
"""A scale is less than so many times as large so that instructions add up more products at once."""
MOST = 255
"""The largest value of a u8."""
WAYS = "ways of sums"
"""The input that says in which way a run computes each sum: 0, as the model states it, or another.
"""
ROUNDED, QUANTISED = 1, 2
"""The other ways: of factors in bf16, and of 8-bit integers."""
NAMES = {ROUNDED: "rounded", QUANTISED: "quantised"}
"""What the results of these are called."""


@record
class Site:
    """A sum of products of a value and a constant: the nest's first result, and their names.

    `kept` are the dims of the constant that the sum does not reduce: each of their indices gets a
    scale of its own. A sum has so many `terms`.
    """

    nest: str
    value: str
    weights: str
    kept: tuple[str, ...]
    terms: int


@record
class Span:
    """The least and the largest number that a value has, or is taken to have.

    What elements lose by its steps is `lost` of them: of the mean of their squares.
    """

    low: float
    high: float
    lost: float = 0.0

    @property
    def step(self) -> float:
        """How much a step of 8 bits is; 0 is in the range."""
        width = max(self.high, 0.0) - min(self.low, 0.0)
        step = float(np.float32(width / MOST))
        return step if step > np.finfo(np.float32).tiny else 1.0

    @property
    def zero(self) -> int:
        """The number of steps that stands for 0."""
        return int(np.clip(round(-min(self.low, 0.0) / self.step), 0, MOST))


def normal(graph: Graph, machine: Machine) -> Graph:
    """An imported graph in which sums of products and their weights are what they stay."""
    steps = pipeline_for(machine)
    end = next(number for number, step in enumerate(steps, 1) if step.name == NORMAL)
    return optimize(graph, pipeline=steps[:end])


def sites(graph: Graph) -> tuple[Site, ...]:
    """The sums of a graph in normal form that may be of 8-bit integers: none that tell places."""
    exact = places(graph.nodes)
    nests = (n for n in graph.nodes if isinstance(n, Nest) and n.out.name not in exact)
    found = (_site(n, graph) for n in nests)
    return tuple(s for s in found if s is not None)


def _site(n: Nest, graph: Graph) -> Site | None:
    """The site of a nest that is one."""
    if not n.is_sum or len(n.body) != 1:
        return None
    match n.body[0]:
        case Apply(op="mul", args=(Read() as a, Read() as b)):
            pass
        case _:
            return None
    constants = graph.constants
    value, weights = (b, a) if a.value in constants else (a, b)
    const = constants.get(weights.value)
    if const is None or value.value in constants or {a.dtype, b.dtype} != {DType.F32}:
        return None
    if not const.data.is_finite or weights.fill is not None:
        return None
    sizes, symbols = dict(graph.dims), dict(graph.symbols)
    terms = typical(product(sizes[d] for d in n.bound), symbols)
    kept = []
    for dim, coord in weights.coords:
        if not isinstance(coord, Index):
            return None
        if coord.names() <= set(n.out.dims):
            kept.append(dim)
        elif not coord.names() <= set(n.bound):
            return None
    return Site(n.out.name, value.value, weights.value, tuple(kept), terms)


def other_types(graph: Graph) -> tuple[DType, ...]:
    """The types besides float32 of factors of sums of products with constants, each once.

    Such sums stay as they are.
    """
    nests = (n for n in graph.nodes if isinstance(n, Nest) and n.is_sum and len(n.body) == 1)
    factors = [read for n in nests for read in _factors(n.body[0], graph.constants)]
    return tuple(dict.fromkeys(f.dtype for f in factors if f.dtype != DType.F32))


def _factors(term: Expr, constants: Collection[str]) -> tuple[Read, ...]:
    """The two factors of a product of a value and a constant, before they are converted."""
    match term:
        case Apply(op="mul", args=(a, b)):
            reads = [x.arg if isinstance(x, Cast) else x for x in (a, b)]
            found = tuple(r for r in reads if isinstance(r, Read))
            return found if len({r.value in constants for r in found}) == 2 else ()
        case _:
            return ()


def added_values(graph: Graph, chosen: Iterable[Site]) -> tuple[str, ...]:
    """The values that chosen sums multiply and that all else adds to others, as residuals are.

    Those that an output shows stay as they are.
    """
    nests = {s.nest for s in chosen}
    rest = (n for n in graph.nodes if outs(n)[0].name not in nests and not _adds(n))
    others = {v for n in rest for v in used(n)}
    others |= {o.value for o in graph.outputs}
    added = {v for n in graph.nodes if _adds(n) for v in used(n)}
    return tuple(sorted({s.value for s in chosen} & (added - others)))


def _adds(n: Node) -> bool:
    """Whether a node adds two values and does nothing else."""
    match n:
        case Nest(bound=(), reducer=None, body=(Apply("add", (Read(), Read())),)):
            return True
        case _:
            return False


def quantised(
    graph: Graph,
    chosen: Iterable[Site],
    spans: Mapping[str, Span],
    machine: Machine,
    added: Collection[str] = (),
) -> Graph:
    """A graph in normal form some of whose sums are of 8-bit integers.

    Args:
        graph: A graph in normal form.
        chosen: Which of its `sites`.
        spans: The range of each of their values in calibration runs.
        machine: Its instructions decide how many bits weights have.
        added: Which of its `added_values` are added as they are quantised.
    """
    at = {s.nest: s for s in chosen}
    made = _Quantised(graph, machine)
    nodes: list[Node] = []
    for n in graph.nodes:
        site = at.get(outs(n)[0].name)
        if site is not None:
            assert isinstance(n, Nest)
            nodes += made.value(site.value, spans[site.value])
            nodes += made.weights(site)
            n = made.reading(n, site)
        elif added and _adds(n):
            assert isinstance(n, Nest)
            for value in sorted({*used(n)} & {*added}):
                nodes += made.value(value, spans[value])
                n = made.adding(n, value)
        nodes.append(n)
    result = replace(graph, nodes=tuple(nodes))
    verify(result, since=graph)
    return result


def in_ways(
    graph: Graph,
    rounded: Sequence[str],
    chosen: Sequence[Site],
    spans: Mapping[str, Span],
    machine: Machine,
) -> Graph:
    """A graph in normal form, of which a run computes some sums in the ways that `WAYS` says.

    %y{..} = sum{k} ..    ->    %y.usual{..} = sum{k} ..                    as it was
                                %y.rounded{..} = sum{k} ..                  of what bf16 has
                                %y.quantised{..} = sum{k} ..                of 8-bit integers
                                %y{..} = select(%ways[3] == 2, %y.quantised[..],
                                                select(%ways[3] == 1, %y.rounded[..], %y.usual[..]))

    The input has an element for each of `ways_of`: 0, `ROUNDED` for those of `rounded`, or
    `QUANTISED` for those of `chosen`.
    """
    made = _Quantised(graph, machine)
    sites = {s.nest: s for s in chosen}
    numbers = {name: i for i, name in enumerate(ways_of(rounded, chosen))}
    taken = set(graph.values)
    along = fresh("sums", {d for d, _ in graph.dims})
    ways = Value(fresh(WAYS, taken), DType.I64, (along,))

    def other(n: Nest) -> Iterator[tuple[int, list[Node]]]:
        """Each other way of a sum, and the nodes that compute it, the sum itself last."""
        if n.out.name in rounded:
            yield ROUNDED, [replace(n, body=tuple(transform(e, _rounded) for e in n.body))]
        if n.out.name in sites:
            site = sites[n.out.name]
            before = [*made.value(site.value, spans[site.value]), *made.weights(site)]
            yield QUANTISED, [*before, made.reading(n, site)]

    nodes: list[Node] = [Input(ways, WAYS, (along,))]
    for n in graph.nodes:
        number = numbers.get(outs(n)[0].name)
        if number is None:
            nodes.append(n)
            continue
        assert isinstance(n, Nest)
        usual = replace(n.out, name=fresh(f"{n.out.name}.usual", taken))
        nodes.append(replace(n, outs=(usual,)))
        asked = Read(ways.name, ((along, Index.of(number)),), DType.I64)
        found: Expr = at_point(usual)
        for way, (*before, last) in other(n):
            assert isinstance(last, Nest)
            own = replace(n.out, name=fresh(f"{n.out.name}.{NAMES[way]}", taken))
            nodes += [*before, replace(last, outs=(own,))]
            found = apply("select", apply("eq", asked, Lit(way, DType.I64)), at_point(own), found)
        nodes.append(Nest((n.out,), (), None, (found,), n.origin))
    interface = graph.interface
    if interface is not None:
        interface = replace(interface, inputs=(*interface.inputs, (WAYS, tensor(WAYS))))
    dims = (*graph.dims, (along, Index.of(len(numbers))))
    result = replace(graph, dims=dims, nodes=tuple(nodes), interface=interface)
    verify(result, since=graph)
    return result


def ways_of(rounded: Sequence[str], chosen: Sequence[Site]) -> tuple[str, ...]:
    """The sums of which the input `WAYS` says how they are computed, in its order."""
    return tuple(dict.fromkeys([*rounded, *(s.nest for s in chosen)]))


def _rounded(e: Expr) -> Expr:
    """What is read as bf16 has it."""
    wide = isinstance(e, Read) and e.dtype is DType.F32
    return cast(cast(e, DType.BF16), DType.F32) if wide else e


def lost_in_eight_bits(graph: Graph, site: Site, span: Span, machine: Machine) -> float:
    """What a sum loses by factors in 8 bits: the mean square, by that of sums of random signs."""
    (weights,) = (
        n.data.array for n in graph.nodes if isinstance(n, Const) and n.out.name == site.weights
    )
    scale, steps = _Quantised(graph, machine).scaled(site)
    return span.lost + lost_of(weights, scale * steps)


def lost_of(array: np.ndarray, other: np.ndarray) -> float:
    """The mean square of the differences, in that of an array."""
    whole = np.square(array, dtype=np.float64).sum()
    apart = np.square(array - other, dtype=np.float64).sum()
    return float(apart / whole) if whole else 0.0


class _Quantised:
    """Makes the nodes of quantised values, each once."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        # Where products of 8 bits are summed in pairs of 16, no pair of 7-bit weights is too large.
        pairs = machine.products(DType.I8, DType.U8) == PAIR
        self._largest = SMALL if pairs else LARGEST
        self._pairs = pairs
        self._values = graph.values
        self._constants = graph.constants
        self._taken = set(self._values)
        self._made: dict[tuple[str, tuple[str, ...]], str] = {}

    def value(self, name: str, span: Span) -> Iterator[Node]:
        """What quantises a value, and what it is then."""
        if (name, ()) in self._made:
            return
        q, d = self._fresh(f"{name}.q", DType.U8, name), self._fresh(f"{name}.d", DType.F32, name)
        self._made[name, ()] = d.name
        step, zero = Lit(span.step, DType.F32), span.zero
        each = Lit(float(np.float32(1 / span.step)), DType.F32)
        whole = apply("round", apply("mul", at_point(self._values[name]), each))
        if zero:
            whole = apply("add", whole, Lit(float(zero), DType.F32))
        low, high = Lit(0.0, DType.F32), Lit(float(MOST), DType.F32)
        stored = cast(apply("min", apply("max", whole, low), high), DType.I32)
        yield Nest((q,), (), None, (cast(stored, DType.U8),))
        real = cast(at_point(q), DType.I32)
        if zero:
            real = apply("sub", real, Lit(zero, DType.I32))
        yield Nest((d,), (), None, (apply("mul", cast(real, DType.F32), step),))

    def weights(self, site: Site) -> Iterator[Node]:
        """The quantised weights of a site, their scales, and what they are then."""
        if (site.weights, site.kept) in self._made:
            return
        const = self._constants[site.weights]
        axes = const.axes
        scale, steps = self.scaled(site)
        kept = tuple(d for d in axes if d in site.kept)
        base = ".".join((site.weights, *(kept if self._is_taken(site.weights) else ())))
        q = Value(self._name(f"{base}.q"), DType.I8, const.out.dims)
        s = Value(self._name(f"{base}.s"), DType.F32, tuple(sorted(kept)))
        d = Value(self._name(f"{base}.d"), DType.F32, const.out.dims)
        self._made[site.weights, site.kept] = d.name
        yield Const(q, axes, Data(steps), const.origin)
        yield Const(s, kept, Data(scale.reshape([steps.shape[axes.index(x)] for x in kept])))
        real = cast(at_point(q), DType.F32)
        yield Nest((d,), (), None, (apply("mul", real, at_point(s)),), const.origin)

    def scaled(self, site: Site) -> tuple[np.ndarray, np.ndarray]:
        """The scales of the weights of a site, and how many of these each of them is."""
        const = self._constants[site.weights]
        others = tuple(k for k, d in enumerate(const.axes) if d not in site.kept)
        array = const.data.array.astype(np.float64)
        magnitude = np.abs(array).max(axis=others, keepdims=True, initial=0.0)
        scale = (magnitude / self._largest).astype(np.float32)
        scale = np.where(scale > np.finfo(np.float32).tiny, scale, np.float32(1))
        steps = self._steps(array, scale)
        return self._in_fours(array, scale, steps, others) if self._pairs else (scale, steps)

    def _steps(self, array: np.ndarray, scale: np.ndarray) -> np.ndarray:
        steps: np.ndarray = np.clip(np.rint(array / scale), -self._largest, self._largest)
        return steps.astype(np.int8)

    def _in_fours(
        self, array: np.ndarray, scale: np.ndarray, steps: np.ndarray, summed: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scales that are larger for a few sums, and weights of which twice as many fit 16 bits.

        As they are where one would have to be `COARSER` times as large.
        """
        along = max(summed, key=lambda k: array.shape[k], default=0)
        wider, fewer = scale, steps
        while summed and array.shape[along] > QUAD:
            most = four_sums(fewer, along)
            most = most.max(axis=0, keepdims=True, initial=0)
            most = np.moveaxis(most, 0, along).max(axis=summed, keepdims=True, initial=0)
            if most.max(initial=0) <= LARGEST_PAIR:
                return wider, fewer
            wider = wider * np.maximum(most / LARGEST_PAIR, 1).astype(np.float32)
            if (wider >= COARSER * scale).any():
                break
            fewer = self._steps(array, wider)
        return scale, steps

    def reading(self, n: Nest, site: Site) -> Nest:
        """A nest that reads quantised values in the place of its own."""
        instead = {
            site.value: self._made[site.value, ()],
            site.weights: self._made[site.weights, site.kept],
        }
        return replace(n, body=(rename_reads(n.body[0], instead),))

    def adding(self, n: Nest, value: str) -> Nest:
        """A nest that reads a value as it is quantised."""
        return replace(n, body=(rename_reads(n.body[0], {value: self._made[value, ()]}),))

    def _fresh(self, name: str, dtype: DType, like: str) -> Value:
        return Value(self._name(name), dtype, self._values[like].dims)

    def _is_taken(self, weights: str) -> bool:
        return any(name == weights for name, _ in self._made)

    def _name(self, name: str) -> str:
        number, found = 2, name
        while found in self._taken:
            number, found = number + 1, f"{name}{number}"
        self._taken.add(found)
        return found
