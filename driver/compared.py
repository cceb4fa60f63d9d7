"""What was compiled before, compared with its model: at which sizes, and for which targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.driver.given import Given
from rutc.driver.options import Options
from rutc.emit.files import shown
from rutc.errors import UserError
from rutc.runtime.artifact import open_artifact
from rutc.verify import Refusal, Verification, refusals, targets_here, verify_targets
from rutc.verify.each_target import programs_in

if TYPE_CHECKING:
    from rutc.base.progress import Progress
    from rutc.verify.compare import Value


def sizes_beside(
    library: Path, how: Options, given: Given, target: str | None = None
) -> dict[str, int]:
    """Returns the sizes of generated inputs, all that options can say beside a library.

    Of one for several targets they can also say which `target` is compared.

    Raises:
        UserError: they say something else.
    """
    told = {
        "--target": target not in (None, "native") and len(programs_in(library)) == 1,
        "--shape": how.shapes,
        "--value": how.values,
        "--dim": how.dims and given.data is not None,
    }
    useless = [option for option, is_given in told.items() if is_given]
    if useless:
        raise UserError(
            f"{shown(library)} is compiled already, so that {', '.join(useless)} would change "
            "nothing: leave that out, or the library, to compile the model so now"
        )
    sizes = {name: size for name, size in how.dims.items() if isinstance(size, int)}
    for name in how.dims.keys() - sizes.keys():
        raise UserError(
            f"--dim {name}: {shown(library)} is compiled already, so that no range can be chosen: "
            f"write {name}=N for inputs of one size"
        )
    return sizes


def compared(
    source: Path,
    library: Path,
    dims: Mapping[str, int],
    given: Given,
    threads: int | None,
    target: str | None,
    on_progress: Progress | None,
) -> Verification:
    """Returns the comparison of a library, with generated inputs of these sizes.

    Of several targets, the code for one, or for all that this machine can run.
    """
    artifact = open_artifact(library)
    with artifact.file:
        artifact.check_integrity()
    several = len(programs_in(library)) > 1
    here = (target,) if several and target is not None else targets_here(library)
    found = verify_targets(
        source,
        library,
        given.values(library, dims),
        targets=here,
        threads=threads,
        dims=dims,
        data=given.data,
        on_progress=on_progress,
    )
    if not given.inputs and given.data is None:
        return found
    lossy = refusals_of(source, library, found.values, threads, here)
    return replace(found, lossy=tuple(map(str, lossy)))


def refusals_of(
    source: Path,
    library: Path,
    values: Mapping[str, Value] | None,
    threads: int | None,
    targets: Sequence[str | None],
) -> tuple[Refusal, ...]:
    """Returns the layers that filters cost accuracy in the code for any target, each once."""
    found: dict[str, Refusal] = {}
    for target in targets:
        for refusal in refusals(source, library, values, threads, target):
            found.setdefault(refusal.name, refusal)
    return tuple(found.values())
