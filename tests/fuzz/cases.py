"""Random valid models with inputs and what their outputs must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st
from onnx import ModelProto, defs, helper

import tests.fuzz.operators
from rutc.driver.options import AUTO, BF16, FP32, INT8, W4
from rutc.importer.registry import OPERATORS
from tests.fuzz.data import FLAVORS
from tests.fuzz.graph import MAKERS, RUNS, Build, Refused, Val, tensor
from tests.fuzz.hostile import hostile
from tests.fuzz.oracles import DOMAINS, NoOracle, captured, evaluate, other_opsets, value_info
from tests.fuzz.rules import CONTRIB, Array, operator_name
from tests.machines import V3, V4, runnable

assert tests.fuzz.operators.FAMILIES

OTHER_DOMAINS = 15
"""The oldest opset with which operators of other domains are put in a model."""
OPSETS = (21, 28, 17, 13, 24, 11, 18, 26, 15, 9, 7, 8, 10, 12, 14, 16, 19, 20, 22, 23, 25, 27)
SIZES = (1, 2, 3, 5, 8, 17, 33)
SYMBOLS = ("n", "m")
"""Names of symbolic sizes."""
PRECISIONS = (*[FP32] * 16, BF16, "fp16", "w8", W4, INT8, AUTO)
TARGETS = ("native", *(m.name for m in (V3, V4) if runnable(m)))
IR_VERSIONS = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8}


@dataclass(frozen=True)
class DataSet:
    """Inputs, and for each output its value in every run of the oracles."""

    feeds: Mapping[str, np.ndarray]
    expected: Mapping[str, tuple[Array, ...]]


@dataclass(frozen=True, repr=False)
class Case:
    """A model, the ranges of its symbolic sizes, and inputs of one or more sizes.

    It is compiled for a `target` in a `precision`, with `exact` algorithms or the fastest ones;
    if it is `eager`, threads share all kernels, however small they are, and all is rounded that the
    precision allows.
    `hostile` are inputs with indices beyond what they index, with sizes that make no sense, or of
    sizes that do not fit together, for which any result or error will do but no crash.
    """

    model: bytes
    dims: Mapping[str, tuple[int, int]]
    sets: tuple[DataSet, ...]
    hostile: tuple[Mapping[str, np.ndarray], ...] = ()
    target: str = "native"
    exact: bool = False
    precision: str = FP32
    eager: bool = False

    def proto(self) -> ModelProto:
        """The model."""
        return ModelProto.FromString(self.model)

    def __repr__(self) -> str:
        operators = ", ".join(operator_name(n) for n in self.proto().graph.node)
        return f"Case({operators})"


def operators(pattern: Sequence[str]) -> list[str]:
    """The operators that the generator knows, of some names or all."""
    return [n for n in MAKERS if n in pattern] if pattern else list(MAKERS)


def missing() -> tuple[list[str], int]:
    """The operators that the compiler imports and the generator never makes; how many it imports.

    These are all of the newest opset of the standard, and those of other domains that have a
    function.
    """
    names = {o.name for o in defs.get_all_schemas() if not o.domain and not o.deprecated}
    names |= {n if d != CONTRIB else f"{d}.{n}" for d, n in OPERATORS if d}
    return sorted(names - set(MAKERS)), len(names)


def _available(name: str, opset: int) -> bool:
    if "." in name:
        return opset >= OTHER_DOMAINS
    try:
        return not defs.get_schema(name, opset).deprecated
    except defs.SchemaError:
        return opset >= OTHER_DOMAINS and any(defs.has(name, d) for d in DOMAINS)


@st.composite
def cases(
    draw: st.DrawFn, names: Sequence[str] = (), precisions: Sequence[str] = PRECISIONS
) -> Case:
    """Models of one to eight nodes over the named operators, or all, in one of some precisions."""
    opset = draw(st.sampled_from(OPSETS))
    known = [n for n in operators(names) if _available(n, opset)]
    if not known:
        reject()
    build = Build(draw, opset, draw(st.sampled_from(FLAVORS)))
    for _ in range(draw(st.integers(1, 8))):
        mark = build.mark()
        name = draw(st.sampled_from(known))
        try:
            MAKERS[name](build, name.rpartition(".")[2])
        except (Refused, NoOracle):
            build.undo(mark)
    outputs = _outputs(build)
    if not outputs:
        reject()
    symbols, ranges, others, misfits = _symbolic(build, outputs)
    feeds = dict(build.inputs)
    sets = [DataSet(feeds, {v.name: v.runs for v in outputs}), *others]
    model = model_of(build, outputs, symbols)
    wild = (*misfits, *hostile(build.nodes, build.inputs))
    how = (build.one(TARGETS), build.chance(20), build.one(precisions), build.chance(50))
    return Case(model.SerializeToString(), ranges, tuple(sets), wild, *how)


def _outputs(build: Build) -> list[Val]:
    made = {o for n in build.nodes for o in n.output}
    used = {i for n in build.nodes for i in (*n.input, *captured(n))}
    found = [v for v in build.values if v.name in made]
    results = [v for v in found if v.name not in used or build.chance(15)]
    # What nothing computes may be given back, an initializer too.
    leaves = [v for v in build.values if v.name not in made and v.name in build.known]
    return results + [v for v in leaves if results and build.chance(3)]


Symbols = Mapping[tuple[str, int], str]
"""The inputs' axes of symbolic size, with the symbol's name."""
Ranges = dict[str, tuple[int, int]]


def _symbolic(
    build: Build, outputs: Sequence[Val]
) -> tuple[Symbols, Ranges, list[DataSet], list[dict[str, np.ndarray]]]:
    """Axes to make symbolic, in one case of four; data of other sizes; inputs that do not fit.

    Equal extents are mostly one symbol; there are one or two of them.
    """
    axes = [(n, k, e) for n, a in build.inputs.items() for k, e in enumerate(a.shape) if e > 0]
    if not axes or not build.chance(25):
        return {}, {}, [], []
    extents: dict[str, int] = {}
    symbols: dict[tuple[str, int], str] = {}
    for symbol in SYMBOLS[: build.number(1, len(SYMBOLS))]:
        others = [e for _, _, e in axes if e not in extents.values()]
        if others:
            extent = extents[symbol] = build.one(others)
            places = [(n, k) for n, k, e in axes if e == extent]
            symbols |= {place: symbol for place in places if build.chance(85)}
    used = [s for s in SYMBOLS if s in symbols.values()]
    found: list[DataSet] = []
    misfits: list[dict[str, np.ndarray]] = []
    ranges = {s: (extents[s], extents[s]) for s in used}
    for _ in range(2 * bool(used)):
        sizes = {s: build.one(SIZES) for s in used}
        feeds: dict[str, np.ndarray] = {}
        for name, array in build.inputs.items():
            names = [symbols.get((name, k), "") for k in range(array.ndim)]
            shape = [sizes.get(s, e) for s, e in zip(names, array.shape, strict=True)]
            feeds[name] = np.resize(array, shape) if shape != list(array.shape) else array
        expected = replay(build, feeds)
        if expected is None:
            misfits.append(feeds)
        elif any(sizes[s] != extents[s] for s in used):
            found.append(DataSet(feeds, {v.name: expected[v.name] for v in outputs}))
        ranges = {s: (min(r[0], sizes[s]), max(r[1], sizes[s])) for s, r in ranges.items()}
    return symbols, ranges, found, misfits


def replay(build: Build, feeds: Mapping[str, np.ndarray]) -> dict[str, tuple[Array, ...]] | None:
    """All values for other inputs; None where no oracle computes them.

    What a loop without a trip stacks has the shape that its body declares, for the first inputs.
    """
    known = {n: (a,) * RUNS for n, a in {**build.weights, **feeds}.items()}
    for node in build.nodes:
        read = dict.fromkeys(n for n in (*node.input, *captured(node)) if n)
        given: list[dict[str, Any]] = [{n: known[n][r] for n in read} for r in range(RUNS)]
        try:
            results = evaluate(node, build.opset, given)
        except NoOracle:
            return None
        if node.op_type == "Loop" and any(not np.size(a) for r in results for a in r):
            return None
        known.update(zip(filter(None, node.output), results, strict=True))
    return known


def model_of(build: Build, outputs: Sequence[Val], symbols: Symbols) -> ModelProto:
    """The model; extents of its outputs are told where they are fixed."""
    infos = [value_info(n, a) for n, a in build.inputs.items()]
    for info in infos:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if (info.name, axis) in symbols:
                dim.dim_param = symbols[info.name, axis]
    results = [value_info(v.name, v.runs[0], shaped=not symbols) for v in outputs]
    weights = [tensor(a, n) for n, a in build.weights.items()]
    if build.opset < 9:
        infos += [value_info(n, a) for n, a in build.weights.items()]
    graph = helper.make_graph(build.nodes, "generated", infos, results, weights)
    opsets = [helper.make_opsetid("", build.opset), *other_opsets(build.nodes)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSIONS.get(build.opset, 10)
    )
