"""How the explanation of a model or of a node looks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rutc.report.display import instead
from rutc.report.listing import Table

if TYPE_CHECKING:
    from rutc.report.explain import (
        Apart,
        Cycles,
        Explanation,
        ModelExplanation,
        Part,
        PlanMade,
        Took,
    )


LONGEST_LINE = 240
"""Characters of a line that are shown: three lines of a wide terminal."""
NAMED = 3
"""Nodes that a line names, where a kernel's are many."""


def explanation_text(explanation: Explanation) -> str:
    """Returns what became of a node, section by section; of long lines the ends."""
    e = explanation
    lines = [f"{e.operator} {e.node!r}".strip()]
    history = ", ".join(f"{s.nodes} after {s.step!r}" for s in e.history)
    lines.append(f"  nodes in the graph: {history}")
    if not e.parts:
        lines.append("  nothing is left of it: its results are constants, unused, or other values")
    for part in e.parts:
        lines += ["", part.text, f"  {_part_home(part)}"]
        lines += [f"  {v}" for v in part.stored]
    if e.types:
        lines.append("")
        lines += [f"%{s.value} is stored as {s.type}, {instead(s.bytes, s.saved)}" for s in e.types]
    for kernel in e.kernels:
        loops = ", ".join(kernel.loops)
        lines += ["", f"kernel {kernel.name}, shared loops {{{loops}}}"]
        lines.append(f"  computes {', '.join(kernel.origin)}")
        lines += [f"  {step}" for step in kernel.schedule] or ["  plain loops: no schedule steps"]
        if kernel.took is not None:
            lines += ["", *(f"  {line}" for line in _took_lines(kernel.took))]
    lines += ["", *_plan_lines(e.plan)]
    if e.apart:
        lines += ["", "not fused:", *(f"  {_apart_text(a)}" for a in e.apart)]
    if e.refused:
        told = (f"  {r.rule} at %{r.value}: {r.reason}" for r in e.refused)
        lines += ["", "would round too much:", *told]
    return "\n".join(_shortened(line) for told in lines for line in told.split("\n"))


def _shortened(line: str) -> str:
    """A line without its middle where it is long: a nest ends with the nodes that it is of."""
    if len(line) <= LONGEST_LINE:
        return line
    end = LONGEST_LINE // 3
    return f"{line[: LONGEST_LINE - end - 3]} … {line[-end:]}"


def _named(origin: tuple[str, ...]) -> str:
    """Nodes by their names, the first of them where they are many."""
    if len(origin) <= NAMED:
        return ", ".join(origin)
    first = ", ".join(origin[: NAMED - 1])
    return f"{first} and {len(origin) - NAMED + 1} more"


def _part_home(part: Part) -> str:
    if part.joined:
        return f"no work: {', '.join(f'%{v}' for v in part.joined)} lie in its memory"
    if part.kernel is None:
        return "done by the host program"
    return f"in kernel {part.kernel}" + ("" if part.stored else ", never stored")


def _apart_text(a: Apart) -> str:
    reader = f"%{a.reader} ({_named(a.reader_origin)})"
    return f"{reader} with %{a.value} ({_named(a.value_origin)}): {a.reason}"


def model_shown(explanation: ModelExplanation) -> tuple[str, Table]:
    """Returns what became of a model: its plan, and a table of its kernels."""
    table = Table(
        *("kernel", "computes", "schedule", "estimated", "learned", "measured"),
        names=("computes", "schedule"),
    )
    for kernel in explanation.kernels:
        took = kernel.took
        if took is None:
            continue
        source = took.why if took.record is None else f"on record, {took.record}"
        own = [took.default, *([took.recorded] if took.recorded else [])]
        columns = zip(*((c.estimated, c.learned, c.measured) for c in own), strict=True)
        table.add(
            kernel.name,
            ", ".join(kernel.origin),
            source or "default",
            *(_instead(column) for column in columns),
        )
    lines = [*_plan_lines(explanation.plan), "kernels, with cycles of default schedules, or of "]
    lines[-1] += "these -> of those on record:"
    return "\n".join(lines), table


def _instead(cycles: tuple[float | None, ...]) -> str:
    """Cycles before and after, as far as they are known."""
    return " -> ".join("?" if c is None else f"{c:.0f}" for c in cycles if any(cycles))


def _plan_lines(plan: PlanMade) -> list[str]:
    """Where a plan comes from, and what estimates say of it."""
    lines = [f"plan: {plan.source}"]
    if plan.usual_cycles is None:
        return [*lines, f"  {plan.cycles:.0f} cycles by the estimate"]
    gain = plan.usual_cycles / plan.cycles
    said = f"{plan.cycles:.0f} cycles by the estimate, {plan.usual_cycles:.0f} of the usual one"
    return [*lines, f"  {said}: {gain:.2f} times as fast"]


def _took_lines(took: Took) -> Iterator[str]:
    """Where a schedule comes from, and what estimates and measurements say of it."""
    if took.record is not None:
        yield f"schedule: on record, {took.record}"
    else:
        yield f"schedule: the default one{f'; {took.why}' if took.why else ''}"
    if took.recorded is not None:
        yield f"cycles: {_cycles(took.recorded)}; of the default one {_cycles(took.default)}"
    else:
        yield f"cycles: {_cycles(took.default)}"


def _cycles(c: Cycles) -> str:
    measured = "" if c.measured is None else f", {c.measured:.0f} measured"
    return f"{c.estimated:.0f} estimated, {c.learned:.0f} learned{measured}"
