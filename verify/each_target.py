"""Libraries of several targets: the code of each that this machine can run is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.emit.targets.select import host_features
from rutc.runtime.artifact import open_artifact, programs_of
from rutc.verify.oracle import THOROUGH, Effort
from rutc.verify.verification import Verification, together
from rutc.verify.verify import verify_model

if TYPE_CHECKING:
    from rutc.base.progress import Progress
    from rutc.tensor_ir import Graph
    from rutc.verify.compare import Value


def programs_in(library: Path) -> list[Mapping[str, object]]:
    """Returns a manifest for each target of a library, the best first.

    Raises:
        rutc.runtime.ModelError: the file is no artifact, or not whole.
    """
    artifact = open_artifact(library)
    with artifact.file:
        return programs_of(artifact.manifest())


def lacking(program: Mapping[str, object]) -> list[str]:
    """Returns the features that a program needs and this machine has not."""
    needed = program.get("features")
    return sorted(set(needed) - host_features()) if isinstance(needed, list) else []


def targets_here(library: Path) -> tuple[str | None, ...]:
    """Returns the targets of a library whose code this machine can run, the best first.

    Where there is nothing to choose it is None: of one target, or of none that runs.

    Raises:
        rutc.runtime.ModelError: the file is no artifact, or not whole.
    """
    programs = programs_in(library)
    if len(programs) == 1:
        return (None,)
    found = tuple(str(p.get("target")) for p in programs if not lacking(p))
    return found or (None,)


def verify_targets(
    model: Path,
    library: Path,
    inputs: Mapping[str, Value] | None = None,
    *,
    targets: Sequence[str | None],
    threads: int | None = None,
    dims: Mapping[str, int] | None = None,
    data: Path | None = None,
    graph: Graph | None = None,
    effort: Effort = THOROUGH,
    on_progress: Progress | None = None,
) -> Verification:
    """Returns the comparison of the code for each of the targets, until one does not agree.

    It tells of each output where it is worst. The other arguments are those of `verify_model`.

    Raises:
        UserError: ONNX Runtime does not load or run the model.
        rutc.runtime.ModelError: the library does not load or refuses the inputs.
    """
    found: list[Verification] = []
    for target in targets:
        own = verify_model(
            model,
            library,
            inputs=inputs,
            threads=threads,
            dims=dims,
            data=data,
            graph=graph,
            effort=effort,
            on_progress=on_progress,
            target=target,
        )
        found.append(own if target is None else _of_target(own, target))
        if not own.passed:
            break
    if targets == (None,):
        return found[0]
    outputs = together(found).outputs
    seen = found[-1]
    missing = [str(p.get("target")) for p in programs_in(library) if lacking(p)]
    return replace(
        seen,
        outputs=outputs,
        refused=tuple(dict.fromkeys(text for v in found for text in v.refused)),
        targets=tuple(t for v in found for t in v.targets),
        elsewhere=tuple(missing),
    )


def _of_target(found: Verification, target: str) -> Verification:
    """A verification whose reasons name the target."""
    outputs = tuple(
        o if o.passed else replace(o, reason=f"code for {target}: {o.reason}")
        for o in found.outputs
    )
    return replace(found, outputs=outputs, targets=(target,))
