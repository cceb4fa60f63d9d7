"""What `rutc inspect` shows of an artifact: its interface, memory and kernels, and their times."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from rutc.driver.parts.outline import Outline, read_outline
from rutc.driver.plans.planning import PlanSource
from rutc.emit.targets.select import TARGETS, target_named
from rutc.errors import UserError
from rutc.report import display
from rutc.report.inspection import Shown, open_sizes, write_page
from rutc.report.page import artifact_page
from rutc.report.printable import counted
from rutc.report.profiled import Profiled, RunsOf, profiled
from rutc.runtime.artifact import ArtifactFile, open_artifact, programs_of
from rutc.runtime.errors import ModelError
from rutc.runtime.ports import Ports, undamaged
from rutc.runtime.weights_file import weights_path
from rutc.tensor_ir.indices.affine import Index, typical
from rutc.tensor_ir.indices.ranges import Range
from rutc.tensor_ir.textual.lexer import ParseError
from rutc.tensor_ir.textual.parse import parse_index
from rutc.tuner.choice import OnRecord
from rutc.verify.each_target import lacking
from rutc.verify.feeding.sizes import planned_ranges

MOST_LISTED = 24
"""Kernels, and sums, that are listed without being asked for: a screen of them."""
INTACT = "every byte is what it was when the model was compiled"


def inspect_library(
    path: Path,
    *,
    runs: RunsOf | None = None,
    integrity: bool = False,
    all_kernels: bool = False,
    page: Path | None = None,
    target: str | None = None,
) -> Shown:
    """Returns an artifact's interface, memory and kernels, and the time of its steps in `runs`.

    More kernels than fill a screen are listed on request. All of it is drawn on a `page`.

    The file is read, not loaded, unless it is to run: it may be one for another processor. Of
    several targets it tells of one, None: of that which a session has here, or else the first.

    Raises:
        rutc.runtime.ModelError: the file is no artifact, is not whole, has changed since it was
            compiled if `integrity` is asked for, or does not run here if its times are.
        UserError: the page cannot be written.
    """
    artifact = open_artifact(path)
    with artifact.file:
        whole = artifact.manifest()
        outside = _weights_file(artifact)
        facts = None if runs is None and page is None else artifact.outline()
        if integrity:
            artifact.check_integrity()
    programs = programs_of(whole)
    manifest = _chosen(path, programs, target)
    outline = None if facts is None else _outline(path, facts, programs.index(manifest))
    kernels = _kernels(manifest)
    payload: dict[str, object] = {"library": path, "manifest": whole, "weights": outside}
    if len(programs) > 1:
        target = str(manifest.get("target"))
        payload["target"] = target
        payload["lacking"] = {str(p.get("target")): lacking(p) for p in programs}
    if integrity:
        payload["integrity"] = True
    shown = undamaged(
        path, lambda: _of_whole(path, programs, manifest, outside, integrity, all_kernels)
    )
    notes = tuple(item for item in shown[1:] if isinstance(item, str))
    found: Profiled | None = None
    if runs is not None:
        found = profiled(path, kernels, outline, runs, target)
        payload |= found.facts()
        shown += found.lines()
    elif all_kernels or len(kernels) <= MOST_LISTED:
        shown.append(undamaged(path, lambda: display.kernels_table(kernels)))
    else:
        shown.append(f"{len(kernels)} kernels: --kernels lists them, --profile runs and times them")
    if page is not None:
        told = undamaged(
            path, lambda: artifact_page(path, manifest, kernels, outline, notes, found)
        )
        shown.append(write_page(page, told, payload))
    return payload, shown


def _outline(path: Path, facts: Mapping[str, object], place: int) -> Outline | None:
    """The outline of one of an artifact's targets; None: there is none. Fallbacks are as listed."""
    own = dict(enumerate(programs_of(facts))).get(place)
    return None if own is None else undamaged(path, lambda: read_outline(own))


def _of_whole(
    path: Path,
    programs: Sequence[Mapping[str, object]],
    manifest: Mapping[str, object],
    outside: Mapping[str, object] | None,
    intact: bool,
    all_kernels: bool,
) -> list[RenderableType]:
    """What is told of an artifact as a whole, that has `manifest` of several targets' programs."""
    ports = Ports.of(path, manifest)
    return [
        _made_for(path, manifest),
        _memory(manifest),
        *([_targets(programs)] if len(programs) > 1 else []),
        *([] if outside is None else [_where(outside)]),
        display.ports_table(ports.get_inputs(), ports.get_outputs()),
        *_states(manifest),
        *open_sizes(_input_sizes(manifest)),
        *([INTACT] if intact else []),
        *([_plans(manifest)] if manifest.get("versions") else []),
        *_measured(manifest),
        *_stored(manifest),
        *_eight_bits(manifest),
        *_algorithms(manifest, all_kernels),
    ]


def _made_for(path: Path, manifest: Mapping[str, object]) -> str:
    """Returns "a.so: target x86-64-v4 with avx512vnni, precision fp32".

    What a processor needs besides all that the target names is told: libraries for this machine
    have its name, too.
    """
    name = str(manifest.get("target"))
    least = target_named(name).machine.features if name in TARGETS[1:] else frozenset[str]()
    more = [f for f in map(str, _listed(manifest, "features")) if f not in least] if least else []
    needed = f" with {', '.join(more)}" if more else ""
    return f"{path}: target {name}{needed}, precision {manifest.get('precision')}"


def _kernels(manifest: Mapping[str, object]) -> list[Mapping[str, object]]:
    """What a manifest says of each kernel."""
    return [k for k in _listed(manifest, "kernels") if isinstance(k, Mapping)]


def _listed(facts: Mapping[str, object], name: str) -> list[Any]:
    """What a manifest lists under a name; nothing where it has no such list."""
    found = facts.get(name)
    return found if isinstance(found, list) else []


def _chosen(
    path: Path, programs: Sequence[Mapping[str, object]], target: str | None
) -> Mapping[str, object]:
    """The manifest of one of several targets: the named one, or the best that runs here."""
    asked = target or (os.environ.get("RUTC_TARGET") if len(programs) > 1 else None)
    if not asked:
        return next((p for p in programs if not lacking(p)), programs[0])
    for program in programs:
        if program.get("target") == asked:
            return program
    names = ", ".join(str(p.get("target")) for p in programs)
    raise UserError(f"{path} has no target {asked!r}: it has {names}")


def _targets(programs: Sequence[Mapping[str, object]]) -> RenderableType:
    """The targets of an artifact, in the order in which a session looks for one that runs."""
    rows = []
    for program in programs:
        count = len(_listed(program, "kernels"))
        without = lacking(program)
        runs = f"lacks {', '.join(without)}" if without else "runs here"
        rows.append((str(program.get("target")), str(count), _memory(program), runs))
    return display.targets_table(rows)


def _plans(manifest: Mapping[str, object]) -> str:
    """Which plan runs where, and the sizes that each but the last was made for."""
    listed, sizes = _listed(manifest, "versions"), _listed(manifest, "version_sizes")
    made = [f" (made for {x})" if x else "" for x in sizes] or [""] * len(listed)
    both = zip(listed, made, strict=False)
    parts = [f"plan {n} run where {size} > 0{of}" for n, (size, of) in enumerate(both)]
    return f"kernels of {', of '.join([*parts, f'plan {len(parts)} elsewhere'])}"


def _eight_bits(manifest: Mapping[str, object]) -> list[RenderableType]:
    """What is summed in 8 bits, on what it was calibrated, and how far results may be off."""
    facts = manifest.get("eight_bits")
    if not isinstance(facts, Mapping):
        return []
    count, rather = len(_listed(facts, "sums")), len(_listed(facts, "filtered"))
    more = f", {rather} filtered instead" if rather else ""
    # None: of all that gain by it.
    rounded = facts.get("rounded")
    if isinstance(rounded, list) and rounded:
        more += f", factors of {len(rounded)} in bf16"
    return [
        f"{count} of {facts.get('of')} sums of products in 8 bits{more}, calibrated on "
        f"{facts.get('calibration')}; tolerance {manifest.get('tolerance')}"
    ]


def _states(manifest: Mapping[str, object]) -> list[RenderableType]:
    """What a session keeps from run to run: of those that are alike, the first and the last."""
    alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for s in _listed(manifest, "states"):
        grows = f", axis {s['axis']} up to {s['capacity']}" if "axis" in s else ""
        place = ", in place" if s["in_place"] else ""
        alike.setdefault((str(s["input"]["shape"]), grows, place), []).append(s)
    lines: list[RenderableType] = []
    for (shape, grows, place), states in alike.items():
        inputs, outputs = ([s[side]["name"] for s in states] for side in ("input", "output"))
        kept = display.quantity(sum(s["bytes"] for s in states), "B", display.BYTES)
        many = f"{len(states)} states" if len(states) > 1 else "state"
        lines.append(f"{many} {_ends(inputs)} {shape} = {_ends(outputs)}{grows}: {kept}{place}")
    return lines


def _ends(names: Sequence[str]) -> str:
    """The first and the last of some names."""
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"


def _measured(manifest: Mapping[str, object]) -> list[RenderableType]:
    """Where the plan comes from, and how many kernels have schedules that were measured."""
    lines: list[RenderableType] = []
    plan = manifest.get("plan")
    if isinstance(plan, Mapping):
        told = plan["record"]
        source = PlanSource(plan["from"], told and OnRecord(**told))
        lines.append(f"plan: {source}")
    kernels = _kernels(manifest)
    found = sum(bool(k.get("records")) for k in kernels)
    lines.append(f"schedules on record: {found} of {counted(len(kernels), 'kernel')}")
    return lines


def _stored(manifest: Mapping[str, object]) -> list[RenderableType]:
    """What is stored in fewer bits than it is computed in, of each type in a line."""
    found: dict[str, list[tuple[int, int]]] = {}
    for s in _listed(manifest, "stored"):
        found.setdefault(s["type"], []).append((s["bytes"], s["saved"]))
    lines: list[RenderableType] = []
    for name, sizes in found.items():
        own, saved = (sum(column) for column in zip(*sizes, strict=True))
        lines.append(
            f"stored as {name}: {counted(len(sizes), 'value')}, {display.instead(own, saved)}"
        )
    return lines


def _algorithms(manifest: Mapping[str, object], every: bool) -> list[RenderableType]:
    """The sums that other algorithms compute: `every` one, or how many where they are many."""
    shown: list[RenderableType] = []
    found = _listed(manifest, "algorithms")
    if len(found) > MOST_LISTED and not every:
        counts = Counter(str(a["name"]) for a in found)
        names = ", ".join(f"{count} by {name}" for name, count in counts.items())
        shown.append(f"sums that other algorithms compute: {names}; --kernels lists them")
    elif found:
        shown.append(display.algorithms_table(found))
    if spread := _listed(manifest, "spread"):
        shown.append(f"inputs are spread too far for most filters: {', '.join(spread)}")
    return shown


def _weights_file(artifact: ArtifactFile) -> dict[str, object] | None:
    """Where the weights are that a library has not, and why they cannot serve; None: it has all."""
    try:
        path = artifact.check_weights_file()
    except ModelError as error:
        return {"file": weights_path(artifact.path), "problem": str(error)}
    return None if path is None else {"file": path, "problem": None}


def _where(outside: Mapping[str, object]) -> str:
    problem = outside["problem"]
    return f"weights in {outside['file']}" if problem is None else f"no weights: {problem}"


def _formula(size: str) -> Index:
    """A size as a manifest has it.

    Raises:
        ValueError: it is none.
    """
    try:
        return parse_index(size)
    except ParseError as error:
        raise ValueError(f"{size!r} is no size") from error


def _memory(manifest: Mapping[str, object]) -> str:
    """The memory of weights and of a session, at common sizes where its formula has some."""
    symbols = planned_ranges(manifest)
    parts = []
    for key, name in (("weight_bytes", "weights"), ("arena_bytes", "working memory")):
        size = manifest.get(key)
        if isinstance(size, str):
            size = typical(_formula(size), symbols)
            name = f"{name} at common sizes"
        if isinstance(size, int):
            parts.append(f"{display.quantity(size, 'B', display.BYTES)} of {name}")
    scratch = manifest.get("thread_bytes")
    return ", ".join(parts) + display.for_each_thread(scratch if isinstance(scratch, int) else 0)


def _input_sizes(manifest: Mapping[str, object]) -> dict[str, Range]:
    """The ranges of the sizes in the shapes of an artifact's inputs."""
    shapes = [port["shape"] for port in _listed(manifest, "inputs")]
    found = [_formula(extent) for shape in shapes for extent in shape if isinstance(extent, str)]
    named = {name for extent in found for name in extent.names()}
    return {name: limits for name, limits in planned_ranges(manifest).items() if name in named}
