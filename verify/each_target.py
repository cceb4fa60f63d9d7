"""Libraries of several targets: the code of each that this machine can run is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rutc.base.record import record
from rutc.emit.targets.select import host_features
from rutc.runtime.artifact import open_artifact, programs_of
from rutc.verify.verification import Verification, together


def lacking(program: Mapping[str, object]) -> list[str]:
    """Returns the features that a program needs and this machine has not."""
    needed = program.get("features")
    return sorted(set(map(str, needed)) - host_features()) if isinstance(needed, list) else []


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


def verify_targets(targets: Targets, compare: Callable[[str | None], Verification]) -> Verification:
    """Returns what comparing the code for each of the targets here finds, until one does not agree.

    It tells of each output where it is worst.
    """
    found: list[Verification] = []
    for target in targets.here:
        own = compare(target)
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
