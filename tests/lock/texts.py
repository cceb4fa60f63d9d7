"""What the compiler decides of a model for a target, as texts: the lock compares these."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.driver.parts.build import Builder, plans_of
from rutc.driver.plans.planning import planned
from rutc.emit.targets import aarch64, x86
from rutc.errors import RutcError
from rutc.graph_opt import versions
from rutc.importer import import_model

if TYPE_CHECKING:
    from rutc.driver.parts.compile_job import Draft, Made
    from rutc.driver.parts.launches import Pending
    from tests.lock.models import Locked

TARGETS = {
    "x86-64-v3": x86.avx2(),
    "x86-64-v4": x86.avx512(),
    "amx": replace(x86.avx512(), features=x86.V4_FEATURES | x86.OPTIONAL_FEATURES),
    "aarch64": aarch64.neon(),
}
"""The machines of the lock, by name: as they are described, whatever machine this is."""
KINDS = ("plan", "program", "schedules", "kernels", "code")
"""The texts of a model, from the first that is decided to the last."""


@dataclass(frozen=True)
class Texts:
    """The texts of each kind, by what they are of; a model that is refused has one of its error."""

    by_kind: dict[str, dict[str, str]]

    def digests(self) -> dict[str, str]:
        """A short hash of all texts of each kind."""
        return {kind: _digest(texts) for kind, texts in self.by_kind.items()}


def texts_of(model: Locked, target: str) -> Texts:
    """The texts of a model for a target."""
    with model.file() as path:
        try:
            return _texts_of(path, model, target)
        except RutcError as error:
            return Texts({"plan": {"refused": f"{error}\n"}})


def _texts_of(path: Path, model: Locked, target: str) -> Texts:
    machine = TARGETS[target]
    graph = import_model(path, shapes=model.shapes, dims=model.dims)
    plan, earlier = planned(versions(graph, machine), machine)
    texts: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for number, each in enumerate(plans_of(plan, earlier)):
        texts["plan"][f"plan {number}"] = f"{each}\n"

    def on_draft(pending: Pending, made: Made, draft: Draft) -> None:
        name = f"{len(texts['code']):04} {pending.name}"
        texts["schedules"][name] = "".join(f"{step}\n" for step in draft.schedule)
        texts["kernels"][name] = f"{draft.kernel}\n"
        texts["code"][name] = draft.text

    builder = Builder(plan, machine, "model", 1, on_draft=on_draft, earlier=earlier)
    builder.code = False
    texts["program"]["program"] = _numbered(f"{builder.build().program}\n")
    return Texts(texts)


def _numbered(program: str) -> str:
    """A program that names its kernels by numbers: their names are hashes of their code."""
    known: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return known.setdefault(found[0], f"kernel{len(known)}")

    return re.sub(r"\bk_[0-9a-f]{24}\b", number, program)


def _digest(texts: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(f"{name}\n{len(text)}\n{text}".encode())
    return digest.hexdigest()[:12]
