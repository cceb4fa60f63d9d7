"""`rutc inspect`: shows what is inside an artifact or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rutc.base.files import shown
from rutc.report.command import command
from rutc.report.console import Screen
from rutc.report.flags import Dims, Inputs, OneTarget, Shapes, Threads, Values


@command()
def inspect(
    screen: Screen,
    path: Annotated[Path, typer.Argument(metavar="OUT.so|MODEL.onnx", help="What to look at.")],
    profile: Annotated[
        bool, typer.Option("--profile", help="Run an artifact and show the time of every step.")
    ] = False,
    all_kernels: Annotated[
        bool, typer.Option("--kernels", help="List kernels and filtered sums, however many.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="PAGE.html",
            help="Draw graph, memory and time of it on a page for a browser, in one file.",
        ),
    ] = None,
    inputs: Inputs = None,
    integrity: Annotated[
        bool,
        typer.Option("--integrity", help="Compare every byte of an artifact with its digests."),
    ] = False,
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    target: OneTarget = None,
    threads: Threads = None,
) -> None:
    """Show what is inside an artifact (kernels, memory, time) or a model (inputs, operators)."""
    from rutc.report.arguments import (
        check_page,
        check_useless,
        parse_dims,
        parse_shapes,
        parse_sizes,
        parse_values,
    )
    from rutc.report.inside_library import inspect_library
    from rutc.report.inside_model import inspect_model
    from rutc.report.inspection import is_library
    from rutc.report.profiled import RunsOf

    if html is not None:
        check_page(html, path)
    of_run = {"--input": inputs, "--dim": dim, "--threads": threads}
    of_import = {"--shape": shape, "--value": value}
    of_artifact = {"--kernels": all_kernels, "--integrity": integrity, "--target": target}
    if is_library(path):
        check_useless(of_import, f"{shown(path)} is compiled already")
        if not profile:
            check_useless(of_run, "nothing is run without --profile")
        payload, told = inspect_library(
            path,
            runs=RunsOf(inputs or (), parse_sizes(dim) or {}, threads) if profile else None,
            integrity=integrity,
            all_kernels=all_kernels,
            page=html,
            target=target,
        )
    else:
        del of_run["--dim"]
        why = f"{shown(path)} is a model: compile it, then look at the artifact"
        check_useless({"--profile": profile, **of_artifact, **of_run}, why)
        payload, told = inspect_model(
            path,
            shapes=parse_shapes(shape),
            dims=parse_dims(dim),
            values=parse_values(value),
            page=html,
        )
    screen.result(payload, *told)
