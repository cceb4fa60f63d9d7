"""docs/operators.md: what of the standard passes, from the suite and the expected failures."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import groupby

from onnx import defs

from rutc.importer.functions import is_function
from rutc.importer.opsets.first_opsets import WITHDRAWN
from rutc.importer.registry import OPERATORS
from tests.conformance.expected import read_expected
from tests.conformance.modes import MODES
from tests.conformance.results import ROOT
from tests.conformance.suite import KINDS, Case

DOCUMENT = ROOT / "docs" / "operators.md"

OLDEST_OPSET = 1

INTRODUCTION = """\
# Operators

Written by `python -m tests.conformance --report`; do not edit. How the tests are run, and what the
modes are, is in [conformance.md](conformance.md).

The suite is that of onnx {onnx}. A test that is not named in
`tests/conformance/expected_failures/` passes, and a run of the suite fails where that is not so.
"""


@dataclass(frozen=True, order=True)
class Operator:
    """An operator by domain ("" for ONNX's own), name, and the version that defines it."""

    domain: str
    name: str
    since: int

    @property
    def title(self) -> str:
        """Its name with its domain."""
        return f"{self.domain}.{self.name}" if self.domain else self.name


@dataclass
class _Row:
    tests: int = 0
    failures: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def operators_document(cases: Iterable[Case]) -> str:
    """The whole document."""
    listed = list(cases)
    expected = {mode: read_expected(mode) for mode in MODES}
    parts = [INTRODUCTION.format(onnx=version("onnx"))]
    parts.append(_kinds(listed, expected))
    parts.append(_operators(listed, expected))
    parts.append(_untested(listed))
    parts.append(_reasons(listed, expected))
    return "\n".join(parts)


def operator_of(case: Case, plain: Mapping[str, Operator]) -> Operator | None:
    """The operator that a test is about: of an expanded one that whose body it is."""
    if case.kind != "node":
        return None
    return plain.get(re.sub(r"_expanded(_ver\d+)?$", "", case.name))


def _plain(cases: Iterable[Case]) -> dict[str, Operator]:
    """The operators of the tests that hold one node."""
    found = {}
    for case in cases:
        if case.kind == "node" and "_expanded" not in case.name:
            model = case.proto()
            node = model.graph.node[-1]
            domain = "" if node.domain == "ai.onnx" else node.domain
            opset = next(o.version for o in model.opset_import if o.domain in {domain, node.domain})
            schema = defs.get_schema(node.op_type, opset, domain)
            found[case.name] = Operator(domain, node.op_type, schema.since_version)
    return found


def _kinds(cases: list[Case], expected: Mapping[str, Mapping[str, str]]) -> str:
    header = ["tests", *MODES]
    lines = ["## All tests", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for kind in (*KINDS, "all"):
        names = [c.name for c in cases if kind in {c.kind, "all"}]
        cells = [
            f"{len(names) - sum(n in expected[mode] for n in names)} / {len(names)}"
            for mode in MODES
        ]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _operators(cases: list[Case], expected: Mapping[str, Mapping[str, str]]) -> str:
    plain = _plain(cases)
    rows: dict[Operator, dict[str, _Row]] = {}
    for case in cases:
        operator = operator_of(case, plain)
        if operator is None:
            continue
        modes = rows.setdefault(operator, {mode: _Row() for mode in MODES})
        for mode, row in modes.items():
            row.tests += 1
            if case.name in expected[mode]:
                row.failures[expected[mode][case.name]].append(case.name)
    header = ["operator", "since opset", *MODES]
    lines = [
        "## By operator",
        "",
        "Tests that pass: of one node, and of the body that the standard gives for it.",
        "",
        f"| {' | '.join(header)} |",
        "|---" * len(header) + "|",
    ]
    for operator in sorted(rows):
        cells = []
        for row in rows[operator].values():
            failed = sum(len(v) for v in row.failures.values())
            text = f"{row.tests - failed} / {row.tests}"
            cells.append(f"**{text}**" if failed else text)
        lines.append(f"| {operator.title} | {operator.since} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _untested(cases: list[Case]) -> str:
    """The definitions that no test of one node uses, and what ONNX no longer defines."""
    used = set(_plain(cases).values())
    newest = defs.onnx_opset_version()
    names = sorted({s.name for s in defs.get_all_schemas_with_history() if s.domain == ""})
    lines = [
        "## Definitions without a test of one node",
        "",
        f"Of ONNX's own operators in opsets {OLDEST_OPSET} to {newest}. Operators that cannot be",
        "compiled at all are bold.",
        "",
    ]
    for name in names:
        pairs = {
            Operator("", name, schema.since_version)
            for opset in range(OLDEST_OPSET, newest + 1)
            if defs.has(name, opset, "")
            for schema in [defs.get_schema(name, opset, "")]
            if not schema.deprecated
        }
        missing = [str(p.since) for p in sorted(pairs - used)]
        if missing:
            replaced = defs.get_schema(name, newest, "").deprecated
            known = ("", name) in OPERATORS or is_function(name) or replaced
            lines.append(f"- {name if known else f'**{name}**'}: {', '.join(missing)}")
    early = ", ".join(sorted(n for n in WITHDRAWN if not defs.has(n, newest, "")))
    lines += ["", f"Besides, at the opsets at which ONNX Runtime runs them: {early}."]
    return "\n".join([*lines, ""])


def _reasons(cases: list[Case], expected: Mapping[str, Mapping[str, str]]) -> str:
    plain = _plain(cases)
    lines = ["## What fails, and why", ""]
    for mode, reasons in expected.items():
        rows = sorted(
            (operator.title if operator is not None else case.kind, reasons[case.name], case.name)
            for case in cases
            if case.name in reasons
            for operator in [operator_of(case, plain)]
        )
        lines += [f"### {mode}", ""]
        for (title, reason), group in groupby(rows, key=lambda row: row[:2]):
            tests = [name for _, _, name in group]
            shown = ", ".join(f"`{t}`" for t in tests[:3]) + (", ..." if len(tests) > 3 else "")
            lines.append(f"- {title} ({len(tests)}): {_escaped(reason)} ({shown})")
        lines += [] if rows else ["Nothing."]
        lines.append("")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return re.sub(r"([<>|*_`\[\]])", r"\\\1", text)
