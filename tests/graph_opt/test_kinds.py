"""Rules apply to no nodes of kinds that they do not declare."""

from pathlib import Path

import pytest

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.kinds import KINDS, kind_of, kinds_of
from rutc.graph_opt.rewrite import Reason, Rule, rule_name
from tests.golden import before
from tests.graph_opt.rules import RULES

FILES = sorted((Path(__file__).parent / "golden").glob("*/*.txt"))
DECLARING = [r for r in RULES if kinds_of(r) != KINDS]


@pytest.mark.parametrize("rule", DECLARING, ids=rule_name)
def test_rules_are_about_the_kinds_that_they_declare(rule: Rule) -> None:
    applied = set()
    for path in FILES:
        editor = Editor(before(path))
        for key in list(editor.names()):
            n = editor.nodes[key]
            if not isinstance(rule(n, editor), Reason):
                applied.add(kind_of(n))
    assert applied
    assert applied <= set(kinds_of(rule))
