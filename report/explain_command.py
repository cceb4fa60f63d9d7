"""`rutc explain`: shows what a compilation with the same options and records would make."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rutc.report.command import command
from rutc.report.console import Screen
from rutc.report.flags import (
    CompileFlags,
    Model,
    PlanBy,
    PlanTime,
    Schedules,
    Target,
    compile_flags,
)


@command(flags=compile_flags)
def explain(
    screen: Screen,
    model: Model,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]", help="A node's name, or an output's; default: the whole model."
        ),
    ] = None,
    *,
    flags: CompileFlags,
    target: Target = "native",
    plan: PlanBy = "greedy",
    plan_time: PlanTime = None,
    db: Schedules = None,
) -> None:
    """Show what becomes of a model, or of one node: plan, kernels, layouts and schedules.

    It is what compile makes with the same options and database: what of it was measured, and what
    estimates say of it. For a node also why it did not fuse.
    """
    from rutc.driver.check_options import asked
    from rutc.report.explain import explain as explain_node
    from rutc.report.explain import explain_model
    from rutc.report.explanation import explanation_text, model_shown

    options = asked(target=target, plan=plan, plan_time=plan_time, db=db, **flags)
    if node is None:
        whole = explain_model(model, options)
        screen.result(asdict(whole), *model_shown(whole))
    else:
        found = explain_node(model, node, options)
        screen.result(asdict(found), explanation_text(found))
