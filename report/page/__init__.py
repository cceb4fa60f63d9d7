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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rutc.driver.parts.outline import Outline
    from rutc.importer.contents import Contents
    from rutc.report.profiled import Profiled
    from rutc.runtime.ports import NodeArg

# What draws is imported by those who draw: `rutc inspect` has tables for a terminal, too.


def artifact_page(
    path: Path,
    manifest: Mapping[str, object],
    kernels: Sequence[Mapping[str, object]],
    outline: Outline | None,
    notes: Sequence[str],
    found: Profiled | None,
) -> bytes:
    """Returns the page of an artifact, with the times of a run if there are any.

    `outline` is that of the artifact, None where it was compiled by a rutc that wrote none; `notes`
    are lines of the overview.

    Raises:
        LookupError, TypeError, ValueError: the manifest or the outline is damaged.
    """
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
        read = outline
    profile = None
    if found is not None:
        profile = Profile(tuple(found.times), found.threads, found.cycle_ns)
        notes = (*notes, found.bound) if found.bound else notes
    shown = ShownArtifact(path.name, manifest, kernels, read, tuple(notes), profile)
    return document(artifact_view(shown))


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
