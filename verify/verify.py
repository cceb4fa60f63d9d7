"""Checks a compiled model against ONNX Runtime on real or generated inputs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from rutc.errors import CheckFailed, UserError
from rutc.importer.quantised import is_quantised
from rutc.record import record
from rutc.runtime import InferenceSession, load
from rutc.verify.compare import OutputComparison, Value, compare_outputs
from rutc.verify.inputs import InputSpec, gather, generate, spec
from rutc.verify.reference import Reference, comparable, reference_version
from rutc.verify.sizes import common_sizes, extents_at, sample_sizes, session_symbols, sizes_text
from rutc.verify.tolerance import Level

Progress = Callable[[str, int, int], None]
"""Called with a stage, how many of its steps are done, and how many there are."""


@record
class Verification:
    """The outputs of a compiled model beside those of ONNX Runtime.

    `inputs` says where the inputs came from, `values` are they. `rutc_s` and `reference_s` are the
    seconds of the one run of each, which is no benchmark.
    """

    model: Path
    library: Path
    level: Level
    inputs: str
    threads: int | None
    outputs: tuple[OutputComparison, ...]
    rutc_s: float
    reference_s: float
    reference_version: str = field(default_factory=reference_version)
    values: Mapping[str, Value] = field(default_factory=dict, repr=False, compare=False)

    @property
    def passed(self) -> bool:
        """Whether every output is within its tolerance."""
        return all(output.passed for output in self.outputs)

    def summary(self) -> str:
        """Returns one line: how many outputs agree, and the largest difference."""
        agreeing = sum(output.passed for output in self.outputs)
        worst = max(
            (output.max_abs / (output.largest or 1.0) for output in self.outputs), default=0
        )
        return (
            f"{agreeing} of {len(self.outputs)} outputs agree with ONNX Runtime "
            f"{self.reference_version} ({self.inputs}); "
            f"largest difference {worst:.2g} of the output's largest magnitude"
        )


class VerificationFailed(CheckFailed):
    """A compiled model does not agree with ONNX Runtime; `verification` holds the details."""

    def __init__(self, message: str, verification: Verification) -> None:
        super().__init__(message)
        self.verification = verification


def verify_model(
    model: Path,
    library: Path,
    inputs: Mapping[str, Value] | None = None,
    *,
    threads: int | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Verification:
    """Returns the comparison of a compiled model with its ONNX file in ONNX Runtime.

    Args:
        model: The ONNX file that was compiled.
        library: What `rutc compile` wrote.
        inputs: A value per input; None generates them from `seed`, at several sizes where sizes
            are symbolic.
        threads: Threads of both; None leaves the choice to each.
        dims: Extents of the symbols that the compiled model keeps, for generated inputs.
        seed: Of generated inputs.
        on_progress: Is told each step.

    Raises:
        UserError: ONNX Runtime does not load or run the model.
        rutc.runtime.ModelError: the library does not load or refuses the inputs.
    """
    report = on_progress or _ignore
    session = load(str(library), threads=threads)
    rounds: list[tuple[str, dict[str, Value]]] = []
    if inputs is not None:
        rounds.append(("given inputs", dict(inputs)))
    else:
        symbols = session_symbols(session)
        sampled = sample_sizes(symbols) if dims is None else (dict(dims),)
        for sizes in sampled:
            at = f" at {sizes_text(sizes)}" if sizes else ""
            generated = generate(session_inputs(session), seed, extents_at(session, sizes))
            rounds.append((f"inputs generated from seed {seed}{at}", session.bundled(generated)))
    reference = Reference(model, threads)
    found: list[Verification] = []
    refused: UserError | None = None
    for number, (source, values) in enumerate(rounds):
        report("verify", number, len(rounds))
        begin = time.perf_counter()
        try:
            expected = reference.run(values)
        except UserError as error:
            # Some sizes of a range may be none of the model's.
            refused = error
            continue
        reference_s = time.perf_counter() - begin
        begin = time.perf_counter()
        names = [output.name for output in session.get_outputs()]
        made = session.run(None, values)
        ours = {n: comparable(v) for n, v in zip(names, made, strict=True)}
        rutc_s = time.perf_counter() - begin
        level = session_level(session, model)
        outputs = compare_outputs(ours, expected, level)
        found.append(
            Verification(
                model, library, level, source, threads, outputs, rutc_s, reference_s, values=values
            )
        )
        if not found[-1].passed:
            break
    if refused is not None and not found:
        raise refused
    report("verify", len(rounds), len(rounds))
    return _together(found)


def _together(found: Sequence[Verification]) -> Verification:
    """Returns the last of several verifications, which alone may have failed, telling of all."""
    last = found[-1]
    if len(found) == 1 or not last.passed:
        return last
    first, *others = (v.inputs for v in found)
    sizes = "; ".join([first, *(text.partition(" at ")[2] for text in others)])
    return replace(last, inputs=sizes)


def session_values(
    session: InferenceSession, sources: Sequence[str], seed: int = 0
) -> dict[str, Value]:
    """Returns all inputs of a compiled model from `NAME=SOURCE` items, as `inputs.gather` does.

    What is generated has the sizes of what is given, or else common ones.
    """
    specs = session_inputs(session)
    common = common_sizes(session_symbols(session))
    given = gather(specs, sources, seed, extents_at(session, common))
    return session.bundled(given)


def session_inputs(session: InferenceSession) -> tuple[InputSpec, ...]:
    """Returns what a compiled model takes."""
    return tuple(spec(port.name, port.type, port.shape, port.value) for port in session.get_ports())


def session_level(session: InferenceSession, model: Path) -> Level:
    """Returns how strictly a compiled model is compared: by its precision and what it quantises."""
    if session.manifest.get("precision", "fp32") != "fp32":
        return Level.REDUCED
    return Level.QUANTISED if is_quantised(model) else Level.MODEL


def _ignore(stage: str, done: int, total: int) -> None:
    """Reports to nobody."""
