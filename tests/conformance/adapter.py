"""One test through the compiler: import, plan, build, link, run, compare."""

import json
import re
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

import rutc
from rutc.driver.parts.build import Builder
from rutc.emit.linking.library import build_library
from rutc.emit.targets import target_named
from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Plan
from rutc.importer import import_model
from rutc.runtime import InferenceSession, ModelError
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.conformance.guarded import guarded, guarded_copy
from tests.conformance.modes import MODES, Variants
from tests.conformance.suite import Case, graph_inputs
from tests.machines import NATIVE

OnStage = Callable[[str], None]
Feed = Mapping[str, object]

NEEDS_VALUE = re.compile(
    "known when compiling|known at run time only|not all of extent 1|a carried value changes"
)
"""What the compiler says of an operand that decides how to compute and is an input."""

SIZES_DIFFER = re.compile("the sizes .* differ")
"""What a run says where the importer took two symbolic sizes for equal and they are not."""

LARGEST = 1 << 20
"""The end of the range of a size that is 0 in a test."""

PLAIN = "plain"
"""The mode that compiles and loads as users do."""

_numbers = count()


@dataclass
class Result:
    """What came of a test.

    `stage` is the last one begun and `reason` what went wrong there. `frozen` are the inputs whose
    elements had to be fixed when compiling, `variant` the mode's variant that ran. `interpreted` is
    what came of running the graph in the interpreter, if it was: "pass" or a reason.
    """

    name: str
    kind: str
    passed: bool = False
    stage: str = ""
    reason: str = ""
    frozen: tuple[str, ...] = ()
    variant: str = ""
    interpreted: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def compile_s(self) -> float:
        """Seconds from the model to the library, with one compiler process."""
        return round(sum(self.seconds.get(s, 0.0) for s in ("plan", "build", "link")), 4)


def run_case(case: Case, mode: str, on_stage: OnStage, *, interpreted: bool = False) -> Result:
    """Compiles a test's model as the mode says, runs it on the test's data and compares."""
    run = _Run(case, Result(case.name, case.kind), on_stage, interpreted)
    try:
        with tempfile.TemporaryDirectory(prefix="rutc-") as folder:
            variants = MODES[mode](case)
            if mode == PLAIN:
                run.plain(variants, Path(folder))
            else:
                run.all(variants, Path(folder))
        run.result.passed = True
    except Exception as error:
        run.result.reason = describe(error)
    return run.result


def describe(error: Exception) -> str:
    """The error on one line, with its place where it is not meant for the user."""
    text = " ".join(str(error).split())[:400]
    where = ""
    if not isinstance(error, AssertionError | UserError):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f" [{Path(frame.filename).name}:{frame.lineno}]"
    return f"{type(error).__name__}: {text}{where}"


@dataclass
class _Run:
    case: Case
    result: Result
    on_stage: OnStage
    interpreted: bool

    def begin(self, name: str) -> None:
        """Notes that the stage begins."""
        self.result.stage = name
        self.on_stage(name)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.begin(name)
        start = perf_counter()
        yield
        self.result.seconds[name] = round(perf_counter() - start, 4)

    def plain(self, variants: Variants, folder: Path) -> None:
        """Compiles and loads by the package's own functions, with nothing given; compares."""
        ((_, model),) = variants
        path, library = folder / "model.onnx", folder / "model.so"
        path.write_bytes(model.SerializeToString())
        with self.stage("build"):
            rutc.compile(path, library, verify=False, jobs=1)
        with self.stage("open"):
            session = rutc.load(library, threads=1)
        feeds = self.feeds()
        self.compare(session, feeds)
        if self.interpreted:
            self.interpret(import_model(path), feeds)

    def all(self, variants: Variants, folder: Path) -> None:
        """Compiles the variants one after the other, until one takes the test's sizes."""
        feeds = self.feeds()
        refused: ModelError | None = None
        for graph, plan in self.plans(variants, folder / "model.onnx", feeds[0]):
            try:
                self.run(graph, plan, feeds, folder)
            except ModelError as error:
                if not SIZES_DIFFER.search(str(error)):
                    raise
                refused = refused or error
            else:
                return
        if refused is not None:
            raise refused

    def run(self, graph: Graph, plan: Plan, feeds: list[Feed], folder: Path) -> None:
        """Builds, runs and compares."""
        with self.stage("build"):
            machine = target_named("native").machine
            name = f"m{next(_numbers)}"
            built = Builder(plan, machine, name, 1, keep_subnormals=True).build()
        with self.stage("link"):
            library = folder / "model.so"
            interface = graph.interface
            facts = (
                {}
                if interface is None
                else {"interface": json.loads(json.dumps(interface.facts()))}
            )
            build_library(built.program, built.objects, library, facts)
        with self.stage("open"):
            session = InferenceSession(library, threads=1)
        self.compare(session, feeds)
        if self.interpreted:
            self.interpret(graph, feeds)

    def feeds(self) -> list[Feed]:
        """The inputs of every data set by name."""
        names = [i.name for i in graph_inputs(self.case.proto())]
        return [dict(zip(names, d.inputs, strict=False)) for d in self.case.data_sets]

    def wanted(self) -> list[str]:
        """The outputs' names."""
        return [o.name for o in self.case.proto().graph.output]

    def compare(self, session: InferenceSession, feeds: list[Feed]) -> None:
        """Runs on all data and compares."""
        wanted = self.wanted()
        with session:
            for feed, data in zip(feeds, self.case.data_sets, strict=True):
                given = {i.name: _value(feed[i.name]) for i in session.get_inputs()}
                with self.stage("run between guard pages"):
                    made = _run_guarded(session, given, wanted, data.outputs)
                with self.stage("compare"):
                    if made is not None:
                        self.case.compare(made, data.outputs)
                with self.stage("run"):
                    made = session.run(wanted, given)
                with self.stage("compare"):
                    self.case.compare(made, data.outputs)

    def plans(self, variants: Variants, path: Path, feed: Feed) -> Iterator[tuple[Graph, Plan]]:
        """Graph and plan of each variant that has them, with few inputs fixed.

        Raises:
            UserError: None has; this is the error of the first variant as it is.
        """
        refusals: list[UserError] = []
        found = False
        for values in _trials(variants[0][1], feed):
            if refusals and not any(NEEDS_VALUE.search(str(e)) for e in refusals):
                break
            for name, model in variants:
                self.begin("plan")
                path.write_bytes(model.SerializeToString())
                start = perf_counter()
                try:
                    plan = partial(_plan, path, feed=feed, free=name == "free")
                    made = self.unfrozen(values, plan(values), plan)
                except UserError as error:
                    refusals.append(error)
                    continue
                self.result.seconds["plan"] = round(perf_counter() - start, 4)
                self.result.variant = name
                found = True
                yield made
        if not found:
            raise refusals[0]

    def unfrozen(
        self,
        values: dict[str, np.ndarray],
        made: tuple[Graph, Plan],
        plan: Callable[[dict[str, np.ndarray]], tuple[Graph, Plan]],
    ) -> tuple[Graph, Plan]:
        """The graph and plan with only those inputs fixed without which there is none."""
        for name in list(values):
            fewer = {n: v for n, v in values.items() if n != name}
            try:
                made = plan(fewer)
            except UserError:
                continue
            values = fewer
        self.result.frozen = tuple(values)
        return made

    def interpret(self, graph: Graph, feeds: list[Feed]) -> None:
        """Notes whether the graph gives the expected outputs when it is interpreted."""
        if graph.interface is not None:
            return
        with self.stage("interpret"):
            self.result.interpreted = "pass"
            try:
                for feed, data in zip(feeds, self.case.data_sets, strict=True):
                    got = interpret(graph, {i.name: _value(feed[i.name]) for i in graph.inputs})
                    self.case.compare([got[n] for n in self.wanted()], data.outputs)
            except Exception as error:
                self.result.interpreted = describe(error)


Dims = dict[str, int | tuple[int, ...]]


def _structure(
    model: ModelProto, feed: Feed, *, free: bool
) -> tuple[Dims, dict[str, tuple[int, ...]]]:
    """The lengths of sequences and the shapes of their elements, and which optionals are empty.

    If these are free, the run decides. A size that is 0 in the test may be so: by default a size
    is at least 1.
    """
    dims: Dims = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for info in graph_inputs(model):
        if not info.type.HasField("tensor_type"):
            continue
        declared = info.type.tensor_type.shape.dim
        for dim, extent in zip(declared, np.shape(_value(feed[info.name])), strict=False):
            if dim.dim_param and extent == 0:
                dims[dim.dim_param] = (0, LARGEST)
    if free:
        kinds = {i.name: i.type.WhichOneof("value") for i in graph_inputs(model)}
        dims |= {f"{n}?": (0, 1) for n, kind in kinds.items() if kind == "optional_type"}
        return dims, shapes
    for name, value in feed.items():
        if value is None:
            dims[f"{name}?"] = 0
        elif isinstance(value, list):
            dims[name] = len(value)
            shapes |= {f"{name}[{i}]": np.shape(v) for i, v in enumerate(value)}
    return dims, shapes


def _plan(
    path: Path, values: Mapping[str, np.ndarray], feed: Feed, *, free: bool
) -> tuple[Graph, Plan]:
    dims, shapes = _structure(onnx.load(path), feed, free=free)
    graph = import_model(path, values=values, dims=dims, shapes=shapes)
    return graph, decide(optimize(graph), NATIVE)


def _trials(model: ModelProto, feed: Feed) -> list[dict[str, np.ndarray]]:
    """Values to fix when compiling: none, then those of all inputs that may say how to compute.

    Those are scalars and lists; the first input, which most operators are about, only if it holds
    no list of floats.
    """
    found: dict[str, np.ndarray] = {}
    for number, info in enumerate(graph_inputs(model)):
        value = feed[info.name]
        if isinstance(value, np.ndarray | np.generic) and value.ndim <= 1:
            array = np.asarray(value)
            if number > 0 or array.ndim == 0 or array.dtype.kind in "iub":
                found[info.name] = array
    return [{}, found] if found else [{}]


def _run_guarded(
    session: InferenceSession,
    given: Mapping[str, np.ndarray],
    names: Sequence[str],
    expected: Sequence[object],
) -> list[np.ndarray] | None:
    """The outputs, no byte beyond inputs and outputs accessible; None where not all are tensors."""
    if "interface" in session.manifest:
        return None
    arrays = [e for e in expected if isinstance(e, np.ndarray | np.generic)]
    if len(arrays) < len(expected) or any(a.dtype.hasobject for a in arrays):
        return None
    outputs = {n: guarded(a.shape, a.dtype) for n, a in zip(names, arrays, strict=True)}
    session.run_into({n: guarded_copy(a) for n, a in given.items()}, outputs)
    return list(outputs.values())


def _value(value: object) -> Any:
    return value if value is None or isinstance(value, list) else np.asarray(value)
