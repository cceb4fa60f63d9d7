"""Libraries of several targets: the code of each that this machine can run is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.base.record import record
from rutc.emit.targets.select import host_features
from rutc.runtime.artifact import open_artifact, programs_of
from rutc.verify.oracle import THOROUGH, Effort
from rutc.verify.verification import Verification, together
from rutc.verify.verify import verify_model

if TYPE_CHECKING:
    from rutc.base.progress import Progress
    from rutc.tensor_ir import Graph
    from rutc.verify.compare import Value


def lacking(program: Mapping[str, object]) -> list[str]:
    """Returns the features that a program needs and this machine has not."""
    needed = program.get("features")
    return sorted(set(needed) - host_features()) if isinstance(needed, list) else []


@record
class Targets:
    """The targets of a library: those `here` are compared, others lack features of this machine.

    Where there is nothing to choose, here is None: of one target, or of none that runs.
    """

    here: tuple[str | None, ...] = (None,)
    elsewhere: tuple[str, ...] = ()


def targets_of(programs: Sequence[Mapping[str, object]], only: str | None = None) -> Targets:
    """Returns the targets of a library by the manifests of its programs, the best first.

    Of several `only` one may be compared.
    """
    if len(programs) == 1:
        return Targets()
    lacks = {str(p.get("target")): bool(lacking(p)) for p in programs}
    runs = tuple(name for name, lacks_some in lacks.items() if not lacks_some)
    here = (only,) if only is not None else runs or (None,)
    return Targets(here, tuple(name for name, lacks_some in lacks.items() if lacks_some))


def targets_in(library: Path) -> Targets:
    """Returns the targets of a library.

    Raises:
        rutc.runtime.ModelError: the file is no artifact, or not whole.
    """
    artifact = open_artifact(library)
    with artifact.file:
        return targets_of(programs_of(artifact.manifest()))


def verify_targets(
    model: Path,
    library: Path,
    inputs: Mapping[str, Value] | None = None,
    *,
    targets: Targets,
    threads: int | None = None,
    dims: Mapping[str, int] | None = None,
    data: Path | None = None,
    graph: Graph | None = None,
    effort: Effort = THOROUGH,
    on_progress: Progress | None = None,
) -> Verification:
    """Returns the comparison of the code for each of the targets here, until one does not agree.

    It tells of each output where it is worst. The other arguments are those of `verify_model`.

    Raises:
        UserError: ONNX Runtime does not load or run the model.
        rutc.runtime.ModelError: the library does not load or refuses the inputs.
    """
    found: list[Verification] = []
    for target in targets.here:
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
    if targets.here == (None,):
        return found[0]
    return replace(
        found[-1],
        outputs=together(found).outputs,
        refused=tuple(dict.fromkeys(text for v in found for text in v.refused)),
        targets=tuple(t for v in found for t in v.targets),
        elsewhere=targets.elsewhere,
    )


def _of_target(found: Verification, target: str) -> Verification:
    """A verification whose reasons name the target."""
    outputs = tuple(
        o if o.passed else replace(o, reason=f"code for {target}: {o.reason}")
        for o in found.outputs
    )
    return replace(found, outputs=outputs, targets=(target,))
