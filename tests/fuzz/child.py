"""A process that compiles and runs models for another one, and may crash or hang."""

from __future__ import annotations

import re
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from rutc.driver import compiler
from rutc.driver.compiler import compile_model
from rutc.driver.options import AUTO, CALIBRATED, EIGHT_BITS, FP32, Calibration, Options
from rutc.driver.parts.build import Builder
from rutc.driver.plans.planning import machine_for
from rutc.driver.precision import eight_bits, four_bits
from rutc.errors import UserError
from rutc.graph_opt.plan import Plan
from rutc.importer import import_model
from rutc.runtime import InferenceSession, ModelError
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from rutc.verify.feeding.npz import save_npz
from rutc.verify.judging.budget import budget_of
from tests.conformance.adapter import SIZES_DIFFER
from tests.conformance.guarded import guarded, guarded_copy
from tests.fuzz.cases import Case
from tests.fuzz.own_process import Lost, OwnProcess
from tests.fuzz.rounded import (
    Bounds,
    Filter,
    Rounding,
    bounds,
    filters_of,
    interpretable,
    rounding_of,
)
from tests.machines import eager, rounding

CASES_PER_PROCESS = 200
"""A process ends after so many, to give back the libraries that it loaded."""

THREADS = (1, 2, 3)
INTERPRETED = "interpreter"
_REFUSED_SIZES = re.compile(rf"{SIZES_DIFFER.pattern}|^axis .* the model was compiled for")
"""What a run says of sizes that are beyond what the compiler, with notice, made of their range."""
_numbers = count()

Outputs = Mapping[str, Any]


@dataclass
class Answer:
    """What came of a case.

    `kind` is "ran", "refused" (by the compiler, with a message for the user), "error", "crash" or
    "hang". `results` holds for every data set what each way of running it gave, `bounds` what
    graphs say of it where the artifact may round to fewer bits, or filters. `budget` is how far
    these data may be off by that, the ones that it was compiled for; None where nothing says so.
    """

    kind: str
    stage: str = ""
    reason: str = ""
    results: list[dict[str, Outputs]] = field(default_factory=list)
    bounds: list[dict[str, Bounds]] = field(default_factory=list)
    budget: float | None = None


class Child(OwnProcess[Answer]):
    """Does cases, one after the other, in a process that it starts anew when it is lost.

    Without `build` it only imports and interprets them.
    """

    def __init__(self, timeout_s: float, *, build: bool = True) -> None:
        super().__init__(timeout_s, CASES_PER_PROCESS)
        self.build = build

    def answer(self, case: Case) -> Answer:
        """Compiles and runs a case."""
        try:
            return self.ask(case)
        except Lost as lost:
            return Answer(lost.kind, lost.stage, lost.reason)

    def work(self, case: Case, pipe: Connection) -> Answer:
        """The answer, an error included."""
        work = _Work(case, pipe)
        try:
            with tempfile.TemporaryDirectory(prefix="rutc-") as folder:
                work.all(Path(folder), build=self.build)
        except UserError as error:
            return Answer("refused", work.stage, " ".join(str(error).split()))
        except Exception as error:
            return Answer("error", work.stage, describe(error))
        return work.answer


def describe(error: Exception) -> str:
    """The error on one line, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    text = " ".join(str(error).split())[:600]
    return f"{type(error).__name__}: {text} [{place}]"


@contextmanager
def all_in_few_bits() -> Iterator[None]:
    """Sums of bytes, and weights of 4 bits, wherever there may be, whatever they are to take."""
    with ExitStack() as stack:
        for module in (eight_bits, four_bits):
            stack.enter_context(patch.object(module, "_choices", _first_of(module._choices)))
        yield


def _first_of(choices: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    return lambda *found, **how: islice(choices(*found, **how), 1)


def strided(value: Any) -> Any:
    """An array of the same elements, its last two axes backward in twice as much memory."""
    if not isinstance(value, np.ndarray) or not value.ndim:
        return value
    near = min(value.ndim, 2)
    shape = (*value.shape[: value.ndim - near], *(2 * e for e in value.shape[-near:]))
    made = np.zeros(shape, value.dtype)[(..., *[slice(None, None, -2)] * near)]
    made[...] = value
    return made


class _Work:
    def __init__(self, case: Case, pipe: Connection) -> None:
        self.case = case
        self.pipe = pipe
        self.stage = ""
        self.answer = Answer("ran")
        self.graph: Graph | None = None
        self.plan: Plan | None = None
        self.calibrated = False

    def begin(self, stage: str) -> None:
        self.stage = stage
        self.pipe.send(stage)

    def all(self, folder: Path, *, build: bool) -> None:
        model = folder / "model.onnx"
        model.write_bytes(self.case.model)
        self.answer.results = [{} for _ in self.case.sets]
        self.answer.bounds = [{} for _ in self.case.sets]
        self.begin("import")
        if not build:
            self.interpret(import_model(model, dims=self.case.dims))
            return
        library = folder / f"f{next(_numbers)}.so"
        options = Options(
            self.case.target,
            self.case.precision,
            self.calibration(folder),
            dims=self.case.dims,
            jobs=1,
            exact_algorithms=self.case.exact,
            keep_subnormals=self.case.precision == FP32,
        )
        with (
            patch.object(compiler, "machine_for", self.machine),
            patch.object(compiler, "Builder", self.builder),
            all_in_few_bits() if self.case.eager else nullcontext(),
        ):
            compile_model(model, library, options, self.progress, on_import=self.interpret)
        for threads in THREADS:
            self.begin(f"open with {threads} threads")
            with InferenceSession(library, threads=threads) as session:
                self.run(session, threads)
                manifest = session.manifest
                if threads == 1 and (self.case.precision != FP32 or filters_of(manifest)):
                    self.begin("bounds")
                    self.bound(manifest)

    def machine(self, options: Options) -> Machine:
        """The machine that the case is compiled for."""
        machine = machine_for(options)
        return rounding(eager(machine)) if self.case.eager else machine

    def calibration(self, folder: Path) -> Calibration:
        """The case's own data, with ranges of all that values are on them; else generated ones."""
        precision = self.case.precision
        feeds = [data.feeds for data in self.case.sets]
        plain = all(isinstance(a, np.ndarray) for given in feeds for a in given.values())
        if precision not in CALIBRATED or not plain:
            return Calibration()
        self.calibrated = True
        cases = folder / "cases"
        cases.mkdir()
        for number, given in enumerate(feeds):
            save_npz(cases / f"{number}.npz", given)
        method = "minmax" if precision in EIGHT_BITS else None
        return Calibration.of(precision, cases, method)

    def builder(self, plan: Plan, *parts: Any, **named: Any) -> Builder:
        """The builder of an artifact, whose plan is noted; none where sizes tell which one runs."""
        self.plan = None if named.get("earlier") else plan
        return Builder(plan, *parts, **named)

    def bound(self, manifest: Mapping[str, Any]) -> None:
        """Notes what the importer's graph and the plan's say of the results."""
        if self.case.precision == AUTO and self.calibrated:
            self.answer.budget = budget_of(manifest)
        graphs: list[tuple[str, Graph, Rounding, Sequence[Filter]]] = []
        if self.graph is not None and self.graph.interface is None:
            graphs.append(("model", self.graph, rounding_of(manifest), filters_of(manifest)))
            if self.plan is not None and not self.plan.strings and interpretable(self.plan.graph):
                graphs.append(("plan", self.plan.graph, Rounding(), ()))
        feeds = [data.feeds for data in self.case.sets]
        for what, graph, own, filters in graphs:
            names = [i.name for i in graph.inputs]
            given = [{n: data[n] for n in names} for data in feeds]
            found = bounds(graph, given, own, filters)
            if found is not None:
                for told, made in zip(found, self.answer.bounds, strict=True):
                    made[what] = told

    def progress(self, stage: str, done: int, total: int) -> None:
        """Tells the stages of the compiler."""
        if done == 0:
            self.begin(stage)

    def interpret(self, graph: Graph) -> None:
        """What the imported graph means; nothing where a tensor's structure is not its own."""
        self.graph = graph
        if graph.interface is not None:
            return
        self.begin("interpret")
        for data, results in zip(self.case.sets, self.answer.results, strict=True):
            feeds = {i.name: data.feeds[i.name] for i in graph.inputs}
            results[INTERPRETED] = interpret(graph, feeds)

    def run(self, session: InferenceSession, threads: int) -> None:
        names = [o.name for o in session.get_outputs()]
        for data, results in zip(self.case.sets, self.answer.results, strict=True):
            given = {i.name: data.feeds[i.name] for i in session.get_inputs()}
            self.begin(f"run with {threads} threads")
            try:
                made = session.run(None, given)
            except ModelError as error:
                if self.case.dims and _REFUSED_SIZES.search(str(error)):
                    raise UserError(str(error)) from error
                raise
            results[f"{threads} threads"] = dict(zip(names, made, strict=True))
            if "interface" not in session.manifest and threads == 1:
                self.begin("run between guard pages")
                outputs = {
                    n: guarded(a.shape, a.dtype)
                    for n, a in zip(names, made, strict=True)
                    if not a.dtype.hasobject
                }
                session.run_into({n: guarded_copy(a) for n, a in given.items()}, outputs)
                results["guarded"] = {n: np.array(a) for n, a in outputs.items()}
        for feeds in self.case.hostile:
            self.begin(f"run on hostile inputs with {threads} threads")
            given = {i.name: guarded_copy(feeds[i.name]) for i in session.get_inputs()}
            with suppress(ModelError):
                session.run(None, given)
        self.run_again(session, threads)

    def run_again(self, session: InferenceSession, threads: int) -> None:
        """Runs all data sets after what may have failed, the last one first, on strided arrays."""
        names = [o.name for o in session.get_outputs()]
        for data, results in list(zip(self.case.sets, self.answer.results, strict=True))[::-1]:
            given = {i.name: strided(data.feeds[i.name]) for i in session.get_inputs()}
            made = results[f"{threads} threads"]
            outputs = {
                n: strided(np.zeros(np.shape(made[n]), made[n].dtype))
                for n in names
                if isinstance(made[n], np.ndarray) and not made[n].dtype.hasobject
            }
            self.begin(f"run again with {threads} threads")
            if "interface" in session.manifest or len(outputs) < len(names):
                again = dict(zip(names, session.run(None, given), strict=True))
            else:
                session.run_into(given, outputs)
                again = outputs
            results[f"again, {threads} threads"] = again
