"""What was compiled before, compared with its model: at which sizes, and for which targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.base.files import shown
from rutc.driver.check_inputs import Given
from rutc.driver.options import Options
from rutc.errors import UserError
from rutc.runtime.artifact import open_artifact, programs_of
from rutc.verify import Refusal, Verification, refusals, targets_of, verify_model, verify_targets

if TYPE_CHECKING:
    from rutc.base.progress import Progress
    from rutc.verify.judging.compare import Value


def compared(
    source: Path,
    library: Path,
    given: Given,
    threads: int | None,
    on_progress: Progress | None,
    beside: Options | None = None,
    target: str | None = None,
) -> Verification:
    """Returns the comparison of a library; generated inputs have common sizes.

    Of a library that was compiled before, options `beside` it may say other sizes, and one of
    several targets may be compared alone. Else it is the code for all that this machine can run.

    Raises:
        UserError: the options say what a compiled library cannot change.
        rutc.runtime.ModelError: the file is no artifact, not whole, or has changed.
    """
    artifact = open_artifact(library)
    with artifact.file:
        programs = programs_of(artifact.manifest())
        alone = len(programs) == 1 and target not in (None, "native")
        dims = {} if beside is None else _sizes(library, beside, given, alone)
        artifact.check_integrity()
    targets = targets_of(programs, target)
    values = given.values(library, dims)
    found = verify_targets(
        targets,
        lambda target: verify_model(
            source,
            library,
            values,
            threads=threads,
            dims=dims,
            data=given.data,
            on_progress=on_progress,
            target=target,
        ),
    )
    if not given.inputs and given.data is None:
        return found
    lossy = refusals_of(source, library, found.values, threads, targets.here)
    return replace(found, lossy=tuple(map(str, lossy)))


def _sizes(library: Path, beside: Options, given: Given, alone: bool) -> dict[str, int]:
    """The sizes of generated inputs; `alone` is whether a library's only target is asked for.

    Raises:
        UserError: the options say anything else.
    """
    told = {
        "--target": alone,
        "--shape": beside.shapes,
        "--value": beside.values,
        "--state": beside.states,
        "--dim": beside.dims and given.data is not None,
    }
    useless = [option for option, is_given in told.items() if is_given]
    if useless:
        raise UserError(
            f"{shown(library)} is compiled already, so that {', '.join(useless)} would change "
            "nothing: leave that out, or the library, to compile the model so now"
        )
    sizes = {name: size for name, size in beside.dims.items() if isinstance(size, int)}
    for name in beside.dims.keys() - sizes.keys():
        raise UserError(
            f"--dim {name}: {shown(library)} is compiled already, so that no range can be chosen: "
            f"write {name}=N for inputs of one size"
        )
    return sizes


def refusals_of(
    source: Path,
    library: Path,
    values: Mapping[str, Value] | None,
    threads: int | None,
    targets: Sequence[str | None],
    every: bool = False,
) -> tuple[Refusal, ...]:
    """Returns the layers that filters cost accuracy in the code for any target, each once.

    They are those that lose too much of their outputs, or `every` one.
    """
    found: dict[str, Refusal] = {}
    for target in targets:
        for refusal in refusals(source, library, values, threads, target, every):
            found.setdefault(refusal.name, refusal)
    return tuple(found.values())
