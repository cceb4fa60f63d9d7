"""Finds the first node of a model whose result differs from ONNX Runtime's.

First every value of the model becomes an output: one run of each side shows in which node a
difference begins. Observing a value keeps it from being fused away, so a fault of a fusion can
vanish; then the model is cut after one node at a time, by bisection. At last the faulty node is
taken out alone, on the values that ONNX Runtime feeds it, and nodes before it are added until the
difference shows: the smallest model that still differs.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rutc.base.files import Workplace, write_file
from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.compiler import Options, Report, compile_model
from rutc.errors import RutcError, UserError
from rutc.importer.extract import ModelParts, NodeInfo
from rutc.runtime import ModelError, load
from rutc.verify.feeding.npz import save_npz
from rutc.verify.judging.compare import Array, OutputComparison, Value, compare_outputs
from rutc.verify.judging.judge import judged_by_reference
from rutc.verify.judging.tolerance import Level
from rutc.verify.reference import Reference
from rutc.verify.truth.oracle import leaves

MAX_GROWTH = 6
"""How many generations of producers are added to the faulty node at most."""

MAX_OPERAND = 64
"""Elements of a list that may decide how to compute a part."""


@record
class Divergence:
    """Where a model diverges first.

    `fused`: the difference shows only while the values before it are not observed. `minimal` is
    the smallest model found that differs, with its inputs beside it; None if no part of the model
    differs alone.
    """

    node: NodeInfo
    output: OutputComparison
    fused: bool
    minimal: Path | None
    minimal_inputs: Path | None
    minimal_nodes: int

    def __str__(self) -> str:
        seen = "" if not self.fused else " (only while what it reads is fused into it)"
        text = f"the first node that differs is {self.node}{seen}\n{self.output.name}: "
        text += self.output.reason
        if self.minimal is None:
            return f"{text}\nno part of the model differs alone"
        nodes = f"{self.minimal_nodes} node{'s' if self.minimal_nodes > 1 else ''}"
        return (
            f"{text}\nsmallest model that differs ({nodes}): {self.minimal}, "
            f"its inputs: {self.minimal_inputs}"
        )


class Bisector:
    """A model, its inputs, and ONNX Runtime's value of everything it computes."""

    def __init__(
        self, model: Path, inputs: Mapping[str, Value], threads: int | None, level: Level
    ) -> None:
        self._model = model
        self._inputs = {
            n: np.asarray(v) if isinstance(v, np.generic) else v for n, v in inputs.items()
        }
        self._threads = threads
        self._level = level
        self._parts = ModelParts(model)
        self._folder = Workplace().open()
        self._count = 0
        try:
            self._values = self._reference_values()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Removes the temporary files."""
        self._folder.close()

    def find(self, folder: Path, on_progress: Progress) -> Divergence | None:
        """Returns where the model diverges first; None if none of its values differ.

        The smallest model that differs is written to `folder`.
        """
        on_progress("bisect", 0, 3)
        found = self._observe_all()
        fused = found is None
        if found is None:
            found = self._cut()
        if found is None:
            return None
        on_progress("bisect", 1, 3)
        node, output = found
        minimal = self._minimize(node)
        on_progress("bisect", 2, 3)
        if minimal is None:
            return Divergence(node, output, fused, None, None, 0)
        path, inputs, count = minimal
        stem = self._model.stem
        kept, kept_inputs = folder / f"{stem}.diverging.onnx", folder / f"{stem}.diverging.npz"
        write_file(kept, path.read_bytes())
        save_npz(kept_inputs, inputs)
        on_progress("bisect", 3, 3)
        return Divergence(node, output, fused, kept, kept_inputs, count)

    def _path(self) -> Path:
        self._count += 1
        return self._folder.path / f"part{self._count}.onnx"

    def _reference_values(self) -> dict[str, Array]:
        path = self._path()
        names = [name for node in self._parts.nodes for name in node.outputs]
        self._parts.write_with_outputs(path, names)
        values = Reference(path, self._threads).run(self._inputs)
        return _tensors({**self._inputs, **values})

    def _observe_all(self) -> tuple[NodeInfo, OutputComparison] | None:
        path = self._path()
        names = [n for node in self._parts.nodes for n in node.outputs if n in self._values]
        self._parts.write_with_outputs(path, names, self._values)
        differing = {output.name: output for output in self._differing(path, self._inputs, names)}
        for node in self._parts.nodes:
            for name in node.outputs:
                if name in differing:
                    return node, differing[name]
        return None

    def _cut(self) -> tuple[NodeInfo, OutputComparison] | None:
        """Returns the first node after which the model differs, by bisection over the nodes."""
        nodes = [node for node in self._parts.nodes if node.outputs[0] in self._values]
        low, high = 0, len(nodes) - 1
        found: tuple[NodeInfo, OutputComparison] | None = None
        while low <= high:
            middle = (low + high) // 2
            names = [name for name in nodes[middle].outputs if name in self._values]
            path = self._path()
            self._parts.write_with_outputs(path, names, self._values)
            differing = self._differing(path, self._inputs, names)
            if differing:
                found, high = (nodes[middle], differing[0]), middle - 1
            else:
                low = middle + 1
        return found

    def _minimize(self, node: NodeInfo) -> tuple[Path, dict[str, Value], int] | None:
        chosen = {node.index}
        outputs = [name for name in node.outputs if name in self._values]
        known: Mapping[str, Value] = {**self._inputs, **self._values}
        for _ in range(MAX_GROWTH):
            path = self._path()
            names = self._parts.write_between(path, chosen, outputs, self._values)
            if all(name in known for name in names):
                inputs = {name: known[name] for name in names}
                if self._differing(path, inputs, outputs):
                    return path, inputs, len(chosen)
            grown = chosen | {maker for i in chosen for maker in self._parts.producers(i)}
            if grown == chosen:
                return None
            chosen = grown
        return None

    def _differing(
        self, path: Path, inputs: Mapping[str, Value], names: list[str]
    ) -> list[OutputComparison]:
        """Returns the outputs of a part that differ; one that cannot run alone cannot be judged."""
        try:
            report = self._compiled(path, inputs)
            with load(report.library, threads=self._threads) as session:
                wanted = {port.name for port in session.get_inputs()}
                given = {name: value for name, value in inputs.items() if name in wanted}
                ours = dict(zip(names, session.run(names, given), strict=True))
        except (RutcError, ModelError):
            return []
        expected = {name: self._values[name] for name in names}
        mine, theirs = leaves(ours), leaves(expected)
        compared = compare_outputs(ours, expected, self._level)
        found = (
            judged_by_reference(o, mine[o.name], theirs[o.name])
            if o.passed and o.name in mine
            else o
            for o in compared
        )
        return [o for o in found if not o.passed]

    def _compiled(self, path: Path, inputs: Mapping[str, Value]) -> Report:
        """Compiles a part; what decides how to compute in it (axes, a count) is fixed if needed."""
        library = path.with_suffix(".so")
        tensors = _tensors(inputs)
        options = Options(shapes={name: value.shape for name, value in tensors.items()})
        try:
            return compile_model(path, library, options, None)
        except UserError:
            small = {n: v for n, v in tensors.items() if v.ndim <= 1 and v.size <= MAX_OPERAND}
            if not small:
                raise
            return compile_model(path, library, replace(options, values=small), None)


def _tensors(values: Mapping[str, Value]) -> dict[str, Array]:
    """The values that are tensors."""
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def bisect(
    model: Path,
    inputs: Mapping[str, Value],
    folder: Path,
    threads: int | None = None,
    level: Level = Level.MODEL,
    on_progress: Progress | None = None,
) -> Divergence | None:
    """Returns where a model diverges first from ONNX Runtime on these inputs; None if nowhere.

    Args:
        model: The ONNX file.
        inputs: A value per input.
        folder: Where the smallest model that differs is written, with its inputs.
        threads: Threads of both sides.
        level: How strictly values are compared.
        on_progress: Is told the stages.

    Raises:
        UserError: ONNX Runtime does not run the model.
    """
    bisector = Bisector(model, inputs, threads, level)
    try:
        return bisector.find(folder, on_progress or nobody)
    finally:
        bisector.close()
