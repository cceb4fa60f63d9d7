"""Checks a compiled model against ONNX Runtime on real or generated inputs."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rutc.errors import CheckFailed
from rutc.runtime import InferenceSession, load
from rutc.verify.compare import OutputComparison, Value, compare_outputs
from rutc.verify.inputs import InputSpec, generate, spec
from rutc.verify.reference import VERSION, Reference
from rutc.verify.tolerance import Level

Progress = Callable[[str, int, int], None]
"""Called with a stage, how many of its steps are done, and how many there are."""


@dataclass(frozen=True, slots=True)
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
    reference_version: str = VERSION
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
        inputs: A value per input; None generates them from `seed`.
        threads: Threads of both; None leaves the choice to each.
        dims: Extents of the symbols that the compiled model keeps, for generated inputs.
        seed: Of generated inputs.
        on_progress: Is told each step.

    Raises:
        UserError: ONNX Runtime does not load or run the model.
        rutc.runtime.ModelError: the library does not load or refuses the inputs.
    """
    report = on_progress or _ignore
    report("verify", 0, 3)
    session = load(str(library), threads=threads)
    values = generate(session_inputs(session), seed, dims) if inputs is None else dict(inputs)
    report("verify", 1, 3)
    begin = time.perf_counter()
    reference = Reference(model, threads).run(values)
    reference_s = time.perf_counter() - begin
    report("verify", 2, 3)
    begin = time.perf_counter()
    names = [output.name for output in session.get_outputs()]
    ours = dict(zip(names, session.run(None, values), strict=True))
    rutc_s = time.perf_counter() - begin
    level = session_level(session)
    outputs = compare_outputs(ours, reference, level)
    report("verify", 3, 3)
    source = f"inputs generated from seed {seed}" if inputs is None else "given inputs"
    return Verification(
        model, library, level, source, threads, outputs, rutc_s, reference_s, values=values
    )


def session_inputs(session: InferenceSession) -> tuple[InputSpec, ...]:
    """Returns what a compiled model takes."""
    return tuple(
        spec(port.name, port.type, port.shape, port.value) for port in session.get_inputs()
    )


def session_level(session: InferenceSession) -> Level:
    """Returns how strictly a compiled model is compared: by the precision it was compiled for."""
    return Level.MODEL if session.manifest.get("precision", "fp32") == "fp32" else Level.REDUCED


def _ignore(stage: str, done: int, total: int) -> None:
    """Reports to nobody."""
