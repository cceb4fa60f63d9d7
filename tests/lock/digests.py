"""The hashes of all models, made in several processes."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rutc.errors import UserError
from tests.lock.models import models
from tests.lock.texts import texts_of


def digests(
    parts: Sequence[str], targets: Sequence[str], jobs: int, texts: Path | None
) -> dict[str, dict[str, str]]:
    """The hashes of all models for all targets; with `texts`, a folder, writes the texts there."""
    console = Console(stderr=True)
    work = [(m.name, t, texts) for m in models(parts) for t in targets]
    found: dict[str, dict[str, str]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar,
        # A process that has compiled a few hundred models keeps what they left in its memory.
        get_context("spawn").Pool(jobs, maxtasksperchild=40) as pool,
    ):
        for key, made in bar.track(pool.imap_unordered(_one, work), total=len(work)):
            if isinstance(made, str):
                console.print(f"left out: {key}: {made}", markup=False)
            else:
                found[key] = made
    return {key: found[key] for key in sorted(found)}


def _one(work: tuple[str, str, Path | None]) -> tuple[str, dict[str, str] | str]:
    """The hashes of a model for a target, or why it is not on this machine."""
    name, target, folder = work
    key = f"{name} @ {target}"
    (model,) = (m for m in models([name]) if m.name == name)
    try:
        texts = texts_of(model, target)
    except UserError as error:
        return key, str(error)
    if folder is not None:
        for kind, each in texts.by_kind.items():
            path = folder / target / _slug(name) / f"{kind}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"=== {part}\n{text}" for part, text in each.items()))
    return key, texts.digests()


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in name)
