"""Failing cases on disk: the model, its inputs, and a text that tells all."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from onnx import printer

from rutc.verify.feeding.npz import save_npz
from tests.fuzz.cases import Case
from tests.fuzz.check import Verdict
from tests.fuzz.rules import operator_name


@dataclass(frozen=True)
class Finding:
    """A case that fails, how it was found, and what findings of the same cause share."""

    case: Case
    verdict: Verdict
    signature: str
    seed: int
    batch: int

    def write(self, folder: Path) -> Path:
        """Writes `model.onnx`, `inputs.npz`, `case.pickle` and `report.txt`; returns the folder."""
        digest = sha256(self.signature.encode()).hexdigest()[:8]
        operators = "_".join(operator_name(n) for n in self.case.proto().graph.node)[:60]
        place = folder / f"{self.verdict.kind}_{operators}_{digest}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "model.onnx").write_bytes(self.case.model)
        (place / "case.pickle").write_bytes(pickle.dumps(self.case))
        save_npz(place / "inputs.npz", self.case.sets[0].feeds)
        (place / "report.txt").write_text(self.text(), encoding="utf-8")
        return place

    def text(self) -> str:
        """The verdict, the model in ONNX's text form, and the data."""
        lines = [
            f"{self.verdict.kind}: {self.verdict.reason}",
            f"found by: python -m tests.fuzz --seed {self.seed} --batch {self.batch}",
            "again: python -m tests.fuzz --replay FOLDER",
            f"symbolic sizes: {dict(self.case.dims) or 'none'}",
            f"target: {self.case.target}, {self.case.precision}"
            f"{', exact algorithms' if self.case.exact else ''}"
            f"{', all kernels shared' if self.case.eager else ''}",
            "",
            printer.to_text(self.case.proto()),
        ]
        for number, data in enumerate(self.case.sets):
            for name, array in data.feeds.items():
                lines.append(f"data {number}, input {name}: {np.array2string(array)} {array.dtype}")
            for name, runs in data.expected.items():
                lines.append(f"data {number}, output {name} by the oracles: {runs[0]}")
        return "\n".join(lines) + "\n"


def read_case(folder: Path) -> Case:
    """The case of a finding."""
    found = pickle.loads((folder / "case.pickle").read_bytes())
    assert isinstance(found, Case)
    return found
