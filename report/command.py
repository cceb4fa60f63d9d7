"""What makes a function a command: its options, the screen that it shows things on, its frame."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from rutc.report.console import Screen
from rutc.report.flags import AsJson, Debug, Quiet

Function = Callable[..., None]
Result = TypeVar("Result")


def command(**shared: Callable[..., object]) -> Callable[[Function], Function]:
    """Makes a function of a `screen` a command, as `typer` reads it; its errors are told there.

        @command(flags=compile_flags)
        def explain(screen: Screen, model: Model, *, flags: CompileFlags, plan: PlanBy = "greedy")

    has the argument and the options of `explain`, among them, in the place of `flags`, those of
    `compile_flags`, which makes it of them, and at last those that all commands have.
    """

    def made(function: Function) -> Function:
        _, *own = _parameters(function)
        taken = [x for p in own for x in (_parameters(shared[p.name]) if p.name in shared else [p])]
        taken += _parameters(_screen)

        @wraps(function)
        def run(**given: Any) -> None:
            def result_of(make: Callable[..., Result]) -> Result:
                return make(**{p.name: given.pop(p.name) for p in _parameters(make)})

            screen = result_of(_screen)
            with screen.framed():
                found = {name: result_of(make) for name, make in shared.items()}
                function(screen, **found, **given)

        signature = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in taken])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in taken}
        return run

    return made


def _screen(*, quiet: Quiet = False, as_json: AsJson = False, debug: Debug = False) -> Screen:
    return Screen(quiet=quiet, as_json=as_json, debug=debug)


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())
