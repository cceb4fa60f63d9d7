"""`rutc explain`: shows what a compilation with the same options and records would make."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rutc.report.console import command
from rutc.report.flags import (
    AsJson,
    Calibrate,
    CalibrateBy,
    Debug,
    Dims,
    ExactAlgorithms,
    KeepSubnormals,
    Model,
    PlanBy,
    PlanTime,
    Precision,
    Quiet,
    Schedules,
    Shapes,
    States,
    Target,
    Tolerance,
    Values,
)


def explain(
    model: Model,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]", help="A node's name, or an output's; default: the whole model."
        ),
    ] = None,
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    state: States = None,
    target: Target = "native",
    precision: Precision = "fp32",
    calibrate: Calibrate = None,
    calibrate_by: CalibrateBy = None,
    tolerance: Tolerance = None,
    exact_algorithms: ExactAlgorithms = False,
    plan: PlanBy = "greedy",
    plan_time: PlanTime = None,
    keep_subnormals: KeepSubnormals = False,
    db: Schedules = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what becomes of a model, or of one node: plan, kernels, layouts and schedules.

    It is what compile makes with the same options and database: what of it was measured, and what
    estimates say of it. For a node also why it did not fuse.
    """
    with command(as_json=as_json, debug=debug, quiet=quiet) as screen:
        from rutc.driver.asked import asked
        from rutc.report.arguments import parse_dims, parse_shapes, parse_states, parse_values
        from rutc.report.explain import explain as explain_node
        from rutc.report.explain import explain_model
        from rutc.report.explanation import explanation_text, model_shown

        options = asked(
            target=target,
            precision=precision,
            calibrate=calibrate,
            calibrate_by=calibrate_by,
            tolerance=tolerance,
            shapes=parse_shapes(shape),
            dims=parse_dims(dim),
            values=parse_values(value),
            states=parse_states(state),
            exact_algorithms=exact_algorithms,
            plan=plan,
            plan_time=plan_time,
            keep_subnormals=keep_subnormals,
            db=db,
        )
        if node is None:
            whole = explain_model(model, options)
            screen.result(asdict(whole), *model_shown(whole))
        else:
            found = explain_node(model, node, options)
            screen.result(asdict(found), explanation_text(found))
