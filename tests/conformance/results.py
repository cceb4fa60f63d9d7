"""Results on disk, kept as they come, so that a run that was interrupted goes on where it was."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rutc.emit.linking.toolchain import cache_directory
from tests.conformance.adapter import Result

CONFORMANCE = Path(__file__).resolve().parent
ROOT = CONFORMANCE.parents[1]


def sources_digest() -> str:
    """A hash of all that a result depends on in this repository."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    skipped = {"tests", "benchmarks", "docs", "tools", "models"}
    for path in sorted(ROOT.rglob("*")):
        top = path.relative_to(ROOT).parts[0]
        if path.suffix in {".py", ".c", ".h"} and top not in skipped and not top.startswith("."):
            yield path
    yield from (p for p in sorted(CONFORMANCE.glob("*.py")) if not p.name.startswith("test_"))


class ResultFile:
    """The results of one mode for one state of the sources: a JSON object a line."""

    def __init__(self, mode: str) -> None:
        folder = cache_directory() / "conformance" / "results"
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{sources_digest()}.{mode}.jsonl"

    def read(self) -> dict[tuple[str, str], Result]:
        """Results by kind and name of the test; a line that was cut short is left out."""
        found: dict[tuple[str, str], Result] = {}
        if not self.path.exists():
            return found
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                fields = json.loads(line)
            except json.JSONDecodeError:
                continue
            result = Result(**{**fields, "frozen": tuple(fields["frozen"])})
            found[result.kind, result.name] = result
        return found

    def add(self, result: Result) -> None:
        """Appends a result."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(result)) + "\n")

    def clear(self) -> None:
        """Forgets all results."""
        self.path.unlink(missing_ok=True)
