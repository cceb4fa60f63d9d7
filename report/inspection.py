"""What `rutc inspect` shows: the inside of an artifact, or of an ONNX model."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType

from rutc.driver.parts.outline import Outline, read_outline
from rutc.driver.plans.planning import PlanSource
from rutc.emit.files import write_file
from rutc.emit.targets.select import TARGETS, target_named
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.contents import contents
from rutc.report import display
from rutc.report.page import artifact_page, model_page
from rutc.report.printable import counted
from rutc.report.profiled import Profiled, profiled
from rutc.runtime.artifact import ArtifactFile, open_artifact, programs_of
from rutc.runtime.bundles import bundles
from rutc.runtime.dtypes import onnx_type
from rutc.runtime.errors import ModelError
from rutc.runtime.ports import NodeArg, Ports, undamaged, whole_args
from rutc.runtime.weights_file import weights_path
from rutc.tensor_ir import Graph
from rutc.tensor_ir.affine import Index, Size, plain, quoted, typical
from rutc.tensor_ir.lexer import ParseError
from rutc.tensor_ir.parse import parse_index
from rutc.tensor_ir.ranges import Range, common_size, common_sizes, limits_text, multiple
from rutc.tensor_ir.stated_sizes import stated_sizes
from rutc.tuner.choice import OnRecord
from rutc.verify.each_target import lacking
from rutc.verify.sizes import planned_ranges

LIBRARY_MAGIC = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"MZ")
MOST_LISTED = 24
"""Kernels that are listed without being asked for: a screen of them."""
INTACT = "every byte is what it was when the model was compiled"
Shown = tuple[dict[str, object], list[RenderableType]]


def is_library(path: Path) -> bool:
    """Tells a shared library from a model by its first bytes.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            kind = "a directory" if path.is_dir() else "no regular file"
            raise UserError(f"cannot read {path}: it is {kind}")
        with path.open("rb") as file:
            return file.read(4).startswith(LIBRARY_MAGIC)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def inspect_library(
    path: Path,
    *,
    profile: bool,
    inputs: Sequence[str] = (),
    dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    integrity: bool = False,
    all_kernels: bool = False,
    page: Path | None = None,
    target: str | None = None,
) -> Shown:
    """Returns an artifact's interface, memory and kernels, and the time of its steps if asked for.

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
        facts = artifact.outline() if profile or page is not None else None
        if integrity:
            artifact.check_integrity()
    programs = programs_of(whole)
    manifest = _chosen(path, programs, target)
    outline: Outline | None = None
    if facts is not None:
        # It has fallbacks as the manifest has them.
        own = dict(enumerate(programs_of(facts))).get(programs.index(manifest))
        outline = None if own is None else undamaged(path, lambda: read_outline(own))
    ports = Ports.of(path, manifest)
    kernels = [k for k in _listed(manifest, "kernels") if isinstance(k, Mapping)]
    payload: dict[str, object] = {"library": path, "manifest": whole, "weights": outside}
    if len(programs) > 1:
        target = str(manifest.get("target"))
        payload["target"] = target
        payload["lacking"] = {str(p.get("target")): lacking(p) for p in programs}
    if integrity:
        payload["integrity"] = True
    shown: list[RenderableType] = undamaged(
        path,
        lambda: [
            _made_for(path, manifest),
            _memory(manifest),
            *([_targets(programs)] if len(programs) > 1 else []),
            *([] if outside is None else [_where(outside)]),
            display.ports_table(ports.get_inputs(), ports.get_outputs()),
            *_states(manifest),
            *_open_sizes(_input_sizes(manifest)),
            *([INTACT] if integrity else []),
            *([_plans(manifest)] if manifest.get("versions") else []),
            *_measured(manifest, kernels),
            *_stored(manifest),
            *_eight_bits(manifest),
            *_algorithms(manifest),
        ],
    )
    notes = tuple(item for item in shown[1:] if isinstance(item, str))
    found: Profiled | None = None
    if profile:
        found = profiled(path, kernels, outline, inputs, dims or {}, threads, target)
        times, ran = found.times, found.ran
        payload["profile"] = [asdict(time) for time in times]
        payload["least_us"] = display.least_of(times)
        payload |= {"sizes": ran.sizes, "refused": ran.refused, "timed": found.clock}
        shown += [*ran.lines, found.line]
        shown.append(display.profile_table(times))
        shown += [found.bound] if found.bound else []
    elif all_kernels or len(kernels) <= MOST_LISTED:
        shown.append(undamaged(path, lambda: display.kernels_table(kernels)))
    else:
        shown.append(f"{len(kernels)} kernels: --kernels lists them, --profile runs and times them")
    if page is not None:
        told = undamaged(
            path, lambda: artifact_page(path, manifest, kernels, outline, notes, found)
        )
        shown.append(_write_page(page, told, payload))
    return payload, shown


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


def _listed(facts: Mapping[str, object], name: str) -> list[Any]:
    """What a manifest lists under a name; nothing where it has no such list."""
    found = facts.get(name)
    return found if isinstance(found, list) else []


def _write_page(page: Path, told: bytes, payload: dict[str, object]) -> str:
    """Writes a page, and returns a line that says so."""
    write_file(page, told)
    payload["page"] = page
    return f"{page}: open it in a browser"


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


def _measured(
    manifest: Mapping[str, object], kernels: Sequence[Mapping[str, object]]
) -> list[RenderableType]:
    """Where the plan comes from, and how many kernels have schedules that were measured."""
    lines: list[RenderableType] = []
    plan = manifest.get("plan")
    if isinstance(plan, Mapping):
        told = plan["record"]
        source = PlanSource(plan["from"], told and OnRecord(**told))
        lines.append(f"plan: {source}")
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


def _algorithms(manifest: Mapping[str, object]) -> list[RenderableType]:
    shown: list[RenderableType] = []
    if found := _listed(manifest, "algorithms"):
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


def _open_sizes(sizes: Mapping[str, Range]) -> list[str]:
    """A line on the sizes that a run chooses, if there are some."""
    each = [
        f"{quoted(name)} ({limits_text(limits, step)}, planned for {step * common_size(limits)})"
        for (name, step), limits in ((multiple(s), limits) for s, limits in sizes.items())
    ]
    return [f"sizes that a run chooses: {', '.join(each)}"] if each else []


def inspect_model(
    path: Path,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int | tuple[int, ...] | str],
    values: Mapping[str, np.ndarray],
    page: Path | None = None,
) -> Shown:
    """Returns a model's inputs, outputs, opset, weights and operators, and what import makes of it.

    All of it is drawn on a `page`.

    Raises:
        UserError: the model cannot be imported, or the page cannot be written.
    """
    graph = import_model(path, shapes=shapes, dims=dims, values=values)
    ports = _ports(graph)
    held = contents(path)
    open_sizes = _sizes(graph)
    kinds = Counter(type(node).__name__ for node in graph.nodes)
    payload: dict[str, object] = {
        "model": path,
        "opsets": dict(held.opsets),
        "inputs": [asdict(port) for port in ports[0]],
        "outputs": [asdict(port) for port in ports[1]],
        "sizes": {name: list(bounds) for name, bounds in open_sizes.items()},
        "common_sizes": common_sizes(open_sizes),
        "weights": held.weights,
        "weight_bytes": held.weight_bytes,
        "operators": dict(held.operators),
        "nodes": dict(sorted(kinds.items())),
    }
    weight_bytes = display.quantity(held.weight_bytes, "B", display.BYTES)
    shown: list[RenderableType] = [
        f"{path}: {counted(sum(held.operators.values()), 'node')}, "
        f"{', '.join(f'{domain} {version}' for domain, version in held.opsets.items())}, "
        f"{counted(held.weights, 'weight')} of {weight_bytes}",
        display.ports_table(*ports),
        *_open_sizes(open_sizes),
        display.operators_table(held.operators),
    ]
    if page is not None:
        shown.append(
            _write_page(
                page, model_page(path, held, ports[0], ports[1], _open_sizes(open_sizes)), payload
            )
        )
    return payload, shown


def _ports(graph: Graph) -> tuple[list[NodeArg], list[NodeArg]]:
    """The inputs and outputs of a model, as an artifact of it has them."""
    dtypes, stated = graph.values, stated_sizes(graph)
    takes, gives = (
        [
            NodeArg(
                n,
                [_extent(Index.of(graph.extents[a]).subs(stated)) for a in axes],
                onnx_type(dtype.stored_name),
            )
            for n, axes, dtype in found
        ]
        for found in (
            [(i.name, i.axes, i.out.dtype) for i in graph.inputs],
            [(o.name, o.axes, dtypes[o.value].dtype) for o in graph.outputs],
        )
    )
    if graph.interface is None:
        return takes, gives
    facts = {"interface": graph.interface.facts()}
    return whole_args(takes, bundles(facts, "inputs")), whole_args(gives, bundles(facts, "outputs"))


def _extent(size: Size) -> int | str:
    size = plain(size)
    return size if isinstance(size, int) else str(size)


def _sizes(graph: Graph) -> dict[str, Range]:
    """The sizes in the shapes of inputs, with their ranges."""
    extents = [Index.of(graph.extents[a]) for i in graph.inputs for a in i.axes]
    named = {name for extent in extents for name in extent.names()}
    return {name: bounds for name, bounds in graph.symbols if name in named}
