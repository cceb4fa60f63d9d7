"""Every rule on small graphs: what it makes of them, or why it does not apply.

A file golden/RULE/CASE.txt begins with a graph. Where the rule changes nothing, the file says why
it does not apply to the node behind the graph's first output, or behind the value that a comment
`# rejects %VALUE` names.
"""

import re
from pathlib import Path

import pytest

from rutc.graph_opt.pipeline import optimize
from rutc.graph_opt.rewrite import Pass, Sweep, why_not
from rutc.graph_opt.rules.cse import MergeEqual
from rutc.tensor_ir.verifier import verify
from tests.golden import After, Rejected, before, check_golden
from tests.graph_opt.rules import BY_NAME

PASSES: dict[str, Pass] = {"MergeEqual": MergeEqual()}
GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*/*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_rule(path: Path, update_golden: bool) -> None:
    graph = before(path)
    verify(graph)
    name = path.parent.name
    step = PASSES.get(name) or Sweep(name, (BY_NAME[name],))
    rewritten = optimize(graph, pipeline=(step,))
    if rewritten is not graph:
        verify(rewritten)
        check_golden(path, [After(name, rewritten)], update=update_golden)
        return
    reason = "nothing to do"
    if name in BY_NAME:
        named = re.search(r"# rejects %(\S+)", path.read_text(encoding="utf-8"))
        value = named[1] if named else graph.outputs[0].value
        reason = why_not(BY_NAME[name], graph, value) or reason
    check_golden(path, [Rejected(reason)], update=update_golden)


def test_every_rule_has_both_kinds_of_case() -> None:
    for name in [*BY_NAME, *PASSES]:
        texts = [p.read_text(encoding="utf-8") for p in FILES if p.parent.name == name]
        assert any("=== after" in t for t in texts), name
        assert any("=== rejected" in t for t in texts), name
