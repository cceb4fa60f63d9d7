"""`--dump`: every intermediate form of a model, written to a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rutc.base.files import make_folder, write_file
from rutc.driver.parts.build import PlanVersion
from rutc.driver.parts.compile_job import Draft, Made
from rutc.driver.parts.launches import Pending
from rutc.emit.host_program.program import Program
from rutc.graph_opt import DumpFolder
from rutc.graph_opt.plan import Plan


class Dump:
    """A folder of the graphs after every step, the plans, all distinct kernels, the host program.

    | file | holds |
    |---|---|
    | `NN-step.txt` | the graph after that step |
    | `plan.txt`, `assignment.txt` | the plans of all versions; what was chosen of the last one |
    | `kernels/NAME.txt` | a kernel's loops before its schedule, the schedule, the loops after it |
    | `kernels/NAME.ll` | its LLVM IR |
    | `program.txt` | the host program |
    """

    def __init__(self, folder: Path) -> None:
        """In a folder that is made if it is not there."""
        self.folder = folder
        self._seen: set[str] = set()
        make_folder(folder / "kernels")
        self.on_step = DumpFolder(folder, write_file)

    def plans(self, plan: Plan, earlier: Sequence[PlanVersion]) -> None:
        """Write the plan, or several under what tells which of them runs."""
        text = f"{plan}\n"
        if earlier:
            parts = [f"where {a.where} > 0:\n{a.plan}\n" for a in earlier]
            text = "\n".join([*parts, f"elsewhere:\n{text}"])
        self._write("plan.txt", text)
        self._write("assignment.txt", str(plan.assignment))

    def on_draft(self, pending: Pending, made: Made, draft: Draft) -> None:
        """Write a kernel, unless an equal one was written before."""
        if made.symbol in self._seen:
            return
        self._seen.add(made.symbol)
        name = re.sub(r"[^\w.]", "_", pending.name)
        lowered = "\n\n".join(map(str, pending.kernels))
        steps = "\n".join(map(str, draft.schedule))
        text = f"{lowered}\n\n=== schedule ===\n{steps}\n\n=== scheduled ===\n{draft.kernel}\n"
        if draft.own.kernel != draft.kernel:
            text += f"\n=== in sizes of its own ===\n{draft.own}\n"
        self._write(f"kernels/{name}.{made.symbol}.txt", text)
        self._write(f"kernels/{name}.{made.symbol}.ll", draft.text)

    def program(self, program: Program) -> None:
        """Write the host program."""
        self._write("program.txt", str(program))

    def _write(self, name: str, text: str) -> None:
        write_file(self.folder / name, text.encode())
