"""`python -m tests.verify.perturbed`: does verification find a compiled model that is wrong?

A model's graph is imported, one nest in it is made wrong, the rest of the compiler runs as ever,
and the artifact is verified. What is made wrong, in turn:

| kind | is |
|---|---|
| channel | one index of one dim of a nest, times 1.01 |
| element | one element of a nest, times 1.1 |
| score | one score of an output that holds boxes up to 640 beside it, 0.07 more |
| zeros | zeros in place of the smallest output |

A perturbation is fair if float64 tells it from float32's own roundings: in some slice of an output
it moves an element by more than twice what runs with noise do (`rutc.verify.truth`). An element
behind a rectifier that is off, say, moves nothing; other nests are drawn until one is fair. How
many reached no output, or stayed within noise, is told. As many artifacts without a fault are
verified on other inputs, and must pass.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.compiler import Options, compile_model
from rutc.graph_opt.exprs import at_point
from rutc.importer import import_model
from rutc.models.zoo import find
from rutc.tensor_ir import (
    Apply,
    DType,
    Expr,
    Graph,
    Index,
    IndexValue,
    Lit,
    Nest,
    Node,
    Value,
    apply,
)
from rutc.verify.judging.axis_slices import slices
from rutc.verify.judging.traits import value_traits
from rutc.verify.truth.oracle import RUNS
from rutc.verify.truth.truth import Truth
from rutc.verify.verification import Verification
from rutc.verify.verify import verify_model

Arrays = Mapping[str, np.ndarray]
MODELS = ("digits", "ppocr_cls", "magika", "light_squeezenet", "light_shufflenet", "mobilenet_v2")
"""Models whose artifacts and truth take little time."""

KINDS = ("channel", "element", "score", "zeros")
DRAWS = 200
"""How many nests are drawn before a model is given up."""

FAIR = 2.0
"""How many times as far as noise a fair perturbation moves an output."""


@dataclass(frozen=True)
class Subject:
    """A model to make wrong: its file, its inputs by seed, and its graph and truth."""

    name: str
    path: Path
    inputs: Callable[[int], Arrays]
    reached: Counter[str] = field(default_factory=Counter)

    @cached_property
    def graph(self) -> Graph:
        """The import."""
        return import_model(self.path, shapes=self.shapes)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The inputs' shapes."""
        return {n: x.shape for n, x in self.inputs(0).items()}

    @cached_property
    def truth(self) -> dict[str, np.ndarray]:
        """The outputs in float64."""
        return Truth(self.graph).run(self.inputs(0))

    @cached_property
    def noise(self) -> dict[str, np.ndarray]:
        """By how much runs with noise move each element of the outputs at most."""
        noisy = Truth(self.graph)
        runs = [noisy.run(self.inputs(0), seed) for seed in range(RUNS)]
        return {
            n: np.max([_apart(run[n], t) for run in runs], axis=0) for n, t in self.truth.items()
        }

    def is_fair(self, graph: Graph) -> bool:
        """Whether a perturbed graph moves an output by more than roundings do; counts each."""
        moved = Truth(graph).run(self.inputs(0))
        reach = "of no effect"
        for name, truth in self.truth.items():
            apart = _apart(moved[name], truth)
            if apart.any() and reach == "of no effect":
                reach = "within noise"
            for along in slices(truth.shape):
                if (along.largest(apart) > FAIR * along.largest(self.noise[name])).any():
                    reach = "beyond noise"
        self.reached[reach] += 1
        return reach == "beyond noise"


def _apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.abs(a.astype(np.float64) - b.astype(np.float64)), posinf=0.0)


@dataclass(frozen=True)
class Fault:
    """A perturbed graph, and where its fault is."""

    kind: str
    where: str
    graph: Graph = field(repr=False)


def fault(subject: Subject, kind: str, random: np.random.Generator) -> Fault | None:
    """A fair perturbation of a kind; None if the model has none."""
    if kind in ("score", "zeros"):
        made = _zeros(subject) if kind == "zeros" else _score(subject, random)
        return made if made is not None and subject.is_fair(made.graph) else None
    nests = [n for n in subject.graph.nodes if _is_eligible(n, subject.graph)]
    for _ in range(DRAWS):
        n = nests[int(random.integers(len(nests)))]
        assert isinstance(n, Nest)
        made = _scaled(subject.graph, n, kind, random)
        if subject.is_fair(made.graph):
            return made
    return None


def _is_eligible(n: Node, graph: Graph) -> bool:
    """Whether a nest computes floats of several elements from the inputs."""
    if not isinstance(n, Nest) or n.is_view or n.out.dtype is not DType.F32:
        return False
    return any(graph.extent(d) > 1 for d in n.out.dims) and value_traits(graph)[n.out.name].varies


def _scaled(graph: Graph, n: Nest, kind: str, random: np.random.Generator) -> Fault:
    """A nest with one index of a dim, or one element, off by a factor."""
    dims = [d for d in n.out.dims if graph.extent(d) > 1]
    if kind == "channel":
        dims, factor = [dims[int(random.integers(len(dims)))]], 1.01
    else:
        factor = 1.1
    at = {d: int(random.integers(graph.extent(d))) for d in dims}
    where = _all(apply("eq", IndexValue(Index.of(d)), Lit(k, DType.I64)) for d, k in at.items())
    one, other = Lit(1.0, DType.F32), Lit(factor, DType.F32)
    made = _changed(graph, n, lambda e: apply("mul", e, Apply("select", (where, other, one))))
    place = ", ".join(f"{d}={k}" for d, k in at.items())
    return Fault(kind, f"{n.out.name}[{place}]", made)


def _score(subject: Subject, random: np.random.Generator) -> Fault | None:
    """The scores' nest with one element 0.07 more."""
    found = [n for n in subject.graph.nodes if isinstance(n, Nest) and n.out.name == "score"]
    if not found:
        return None
    n = found[0]
    at = {d: int(random.integers(subject.graph.extent(d))) for d in n.out.dims}
    where = _all(apply("eq", IndexValue(Index.of(d)), Lit(k, DType.I64)) for d, k in at.items())
    more = Apply("select", (where, Lit(0.07, DType.F32), Lit(0.0, DType.F32)))
    made = _changed(subject.graph, n, lambda e: apply("add", e, more))
    return Fault("score", str(at), made)


def _zeros(subject: Subject) -> Fault:
    """Zeros in place of the output of the fewest elements, the least of them."""
    floats = [o for o in subject.graph.outputs if subject.truth[o.name].dtype.kind == "f"]
    chosen = min(
        floats, key=lambda o: (subject.truth[o.name].size, np.abs(subject.truth[o.name]).max())
    )
    v = subject.graph.values[chosen.value]
    zero = Nest((Value(f"{v.name}.zero", v.dtype, v.dims),), (), None, (Lit(0.0, v.dtype),))
    outputs = tuple(
        replace(o, value=zero.out.name) if o == chosen else o for o in subject.graph.outputs
    )
    graph = replace(subject.graph, nodes=(*subject.graph.nodes, zero), outputs=outputs)
    return Fault("zeros", chosen.name, graph)


def _changed(graph: Graph, n: Nest, change: Callable[[Expr], Expr]) -> Graph:
    """The graph with another value in place of a nest's first output, made of it."""
    sound = replace(n.out, name=f"{n.out.name}.sound")
    read = at_point(sound)
    before = replace(n, outs=(sound, *n.outs[1:]))
    after = Nest((n.out,), (), None, (change(read),), n.origin)
    nodes = tuple(m for x in graph.nodes for m in ((before, after) if x is n else (x,)))
    return replace(graph, nodes=nodes)


def _all(conditions: Iterator[Expr]) -> Expr:
    first, *rest = conditions
    for c in rest:
        first = apply("and", first, c)
    return first


def verified(
    subject: Subject,
    folder: Path,
    seed: int = 0,
    graph: Graph | None = None,
    target: str = "native",
) -> Verification:
    """The verification of a subject's artifact, made from its own or another graph."""
    library = folder / f"{subject.name}.so"
    how = Options(shapes=subject.shapes, target=target)
    if graph is not None:
        library = folder / f"{subject.name}.wrong.so"
        with patch("rutc.driver.plans.planning.import_model", lambda *_, **__: graph):
            compile_model(subject.path, library, how, None)
    elif not library.exists():
        compile_model(subject.path, library, how, None)
    # The shared import is that of the model, not of what was compiled.
    return verify_model(subject.path, library, subject.inputs(seed), graph=subject.graph)


def detector(folder: Path) -> Subject:
    """A small detector: an output {1, boxes, 5} of corners up to 640 and one score."""
    random = np.random.default_rng(5)

    def constant(name: str, *shape: int) -> TensorProto:
        values = random.standard_normal(shape) / np.sqrt(shape[-1])
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["features"]),
        helper.make_node("MatMul", ["features", "corners"], ["raw"]),
        helper.make_node("Sigmoid", ["raw"], ["unit"]),
        helper.make_node("Mul", ["unit", "size"], ["boxes"]),
        helper.make_node("MatMul", ["features", "scores"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["score"]),
        helper.make_node("Concat", ["boxes", "score"], ["found"], axis=2),
    ]
    weights = [constant("first", 32, 64), constant("corners", 64, 4), constant("scores", 64, 1)]
    weights.append(numpy_helper.from_array(np.array(640, np.float32), "size"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 300, 32])
    found = helper.make_tensor_value_info("found", TensorProto.FLOAT, [1, 300, 5])
    graph = helper.make_graph(nodes, "detector", [x], [found], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = folder / "detector.onnx"
    onnx.save(model, path)

    def inputs(seed: int) -> Arrays:
        drawn = np.random.default_rng(seed).standard_normal((1, 300, 32))
        return {"x": drawn.astype(np.float32)}

    return Subject("detector", path, inputs)


def subjects(names: Sequence[str], folder: Path) -> list[Subject]:
    """The detector, and models of the zoo."""
    made = (find(name) for name in names)
    return [detector(folder), *(Subject(m.name, m.obtain(), m.inputs) for m in made)]


def main() -> None:
    """Perturbs as many models as asked for, and verifies as many without a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.perturbed", description=__doc__)
    parser.add_argument("models", nargs="*", help=f"names in the zoo; default: {' '.join(MODELS)}")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="native", help="what to compile for")
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = subjects(options.models or MODELS, folder)
        tried = found = passed = turn = 0
        while tried < options.count:
            kind = KINDS[turn % len(KINDS)]
            subject = chosen[0] if kind == "score" else chosen[turn // len(KINDS) % len(chosen)]
            turn += 1
            made = fault(subject, kind, random)
            if made is None:
                print(f"{subject.name}: no fair perturbation of kind {kind}", file=sys.stderr)
                continue
            verification = verified(subject, folder, 0, made.graph, options.target)
            tried += 1
            found += not verification.passed
            reasons = [o.reason for o in verification.outputs if not o.passed]
            told = reasons[0] if reasons else "NOT FOUND"
            print(f"{tried} {subject.name} {kind} {made.where}: {told}", flush=True)
        for number in range(options.count):
            subject = chosen[number % len(chosen)]
            verification = verified(subject, folder, number // len(chosen), None, options.target)
            passed += verification.passed
            if not verification.passed:
                print(f"{subject.name} seed {number // len(chosen)}: {verification.outputs}")
    reached = sum((subject.reached for subject in chosen), Counter[str]())
    print("drawn:", ", ".join(f"{count} {what}" for what, count in reached.items()))
    print(f"found {found} of {tried} perturbed, passed {passed} of {options.count} unperturbed")
    if found < 0.99 * tried or passed < options.count:
        sys.exit(1)


if __name__ == "__main__":
    main()
