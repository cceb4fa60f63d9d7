"""The page of `rutc inspect --html`: one file that draws a model or an artifact.

    artifact_view, model_view    what is told of it -> a view
    values                       what both of them tell of values and weights
    graph_layout, charts         where everything is drawn
    labels                       texts that fit
    document                     a view -> HTML, by the templates beside it

Numbers and places are found here; templates only write them. What a script adds is colours,
panning, searching, sorting and the panel of what is selected: without one all is there to be read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.errors import RutcError

if TYPE_CHECKING:
    from rutc.importer.contents import Contents
    from rutc.report.display import StepTime
    from rutc.runtime.ports import NodeArg

# What draws is imported by those who draw: `rutc inspect` has tables for a terminal, too.


def artifact_page(
    path: Path,
    manifest: Mapping[str, object],
    kernels: Sequence[Mapping[str, object]],
    outline: Mapping[str, object] | None,
    notes: Sequence[str],
    times: Sequence[StepTime] | None,
    threads: int | None,
) -> bytes:
    """Returns the page of an artifact, with the times of a run by so many threads if there are any.

    `outline` is that of the artifact, None where it was compiled by a rutc that wrote none; `notes`
    are lines of the overview.

    Raises:
        LookupError, TypeError, ValueError: the manifest or the outline is damaged.
    """
    from rutc.driver.outline import read_outline
    from rutc.report.page.artifact_view import (
        Profile,
        ShownArtifact,
        artifact_view,
        without_outline,
    )
    from rutc.report.page.document import document

    if outline is None:
        notes = (*notes, "nothing is known of values and memory: compile the model again")
        read = without_outline(kernels)
    else:
        read = read_outline(outline)
    profile = None
    if times is not None:
        count = threads or len(os.sched_getaffinity(0))
        profile = Profile(tuple(times), count, _cycle_ns())
    found = ShownArtifact(path.name, manifest, kernels, read, tuple(notes), profile)
    return document(artifact_view(found))


def model_page(
    path: Path,
    held: Contents,
    inputs: Sequence[NodeArg],
    outputs: Sequence[NodeArg],
    notes: Sequence[str],
) -> bytes:
    """Returns the page of a model that holds this, with its inputs and outputs."""
    from rutc.report.page.document import document
    from rutc.report.page.model_view import model_view

    return document(model_view(path.name, held, inputs, outputs, notes))


def _cycle_ns() -> float | None:
    """How long a cycle of this processor's clock is now; None if that cannot be measured."""
    from rutc.driver.trials import Clock
    from rutc.emit.targets import native_target

    try:
        return Clock(native_target().machine).cycle_ns()
    except RutcError:
        return None
