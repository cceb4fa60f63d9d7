"""Every rule on small graphs: what it makes of them, or why it does not apply.

A file golden/RULE/CASE.txt begins with a graph. Where the rule changes nothing, the file says why
it does not apply to the node behind the graph's first output, or behind the value that a comment
`# rejects %VALUE` names.
"""

import re
from pathlib import Path

import pytest

from rutc.graph_opt.rewrite import Pass, Rule, Sweep, rule_name, why_not
from rutc.graph_opt.rules.algebra import simplify_expressions
from rutc.graph_opt.rules.contraction import (
    drop_unit_dims,
    drop_unused_dims,
    fuse_product_into_sum,
    fuse_sums,
)
from rutc.graph_opt.rules.cse import MergeEqual
from rutc.graph_opt.rules.fold import FoldConstants, choose_branch
from rutc.graph_opt.rules.normalize import OnePassMoments, OnePassSoftmax
from rutc.graph_opt.rules.scale import combine_scales, fold_scale, join_weights
from rutc.graph_opt.rules.split import SplitForReaders, split_bound_dim, split_free_dim
from rutc.graph_opt.rules.views import compose_views, drop_copy, drop_fill
from rutc.tensor_ir.verify import verify
from tests.golden import After, Rejected, before, check_golden

RULES: tuple[Rule, ...] = (
    FoldConstants(),
    OnePassMoments(),
    OnePassSoftmax(),
    SplitForReaders(),
    choose_branch,
    combine_scales,
    compose_views,
    drop_copy,
    drop_fill,
    drop_unit_dims,
    drop_unused_dims,
    fold_scale,
    fuse_product_into_sum,
    fuse_sums,
    join_weights,
    simplify_expressions,
    split_bound_dim,
    split_free_dim,
)
BY_NAME = {rule_name(r).partition("(")[0]: r for r in RULES}
PASSES: dict[str, Pass] = {"MergeEqual": MergeEqual()}
GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*/*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_rule(path: Path, update_golden: bool) -> None:
    graph = before(path)
    verify(graph)
    name = path.parent.name
    step = PASSES.get(name) or Sweep(name, (BY_NAME[name],))
    rewritten = step.run(graph)
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
