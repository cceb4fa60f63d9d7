"""Expected failures: one file a mode, each line `test: reason`, in the suite's order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.adapter import Result

FOLDER = Path(__file__).resolve().parent / "expected_failures"


def read_expected(mode: str, folder: Path = FOLDER) -> dict[str, str]:
    """Reasons by test.

    Raises:
        ValueError: A line is no `test: reason`, or repeats a test.
    """
    reasons: dict[str, str] = {}
    path = folder / f"{mode}.txt"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        name, colon, reason = line.partition(": ")
        if not (name and colon and reason.strip()) or name in reasons:
            raise ValueError(f"{path.name}:{number}: write `test: reason`, each test once: {line}")
        reasons[name] = reason
    return reasons


def write_expected(mode: str, reasons: Mapping[str, str], folder: Path = FOLDER) -> None:
    """Writes the file, in the order of `reasons`."""
    text = "".join(f"{name}: {reason}\n" for name, reason in reasons.items())
    (folder / f"{mode}.txt").write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Verdict:
    """What the results say about the list: tests not on it that fail, and entries that pass."""

    failures: tuple[Result, ...]
    stale: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{r.name} fails in {r.stage or 'the worker'}: {r.reason}" for r in self.failures]
        lines += [
            f"{name} passes: take it off the list of expected failures" for name in self.stale
        ]
        return "\n".join(lines)

    @property
    def holds(self) -> bool:
        """Whether the list is true."""
        return not self.failures and not self.stale


def judge(results: Iterable[Result], expected: Mapping[str, str]) -> Verdict:
    """Compares results with the list."""
    known = list(results)
    failures = tuple(r for r in known if not r.passed and r.name not in expected)
    return Verdict(failures, tuple(r.name for r in known if r.passed and r.name in expected))


def revised(
    expected: Mapping[str, str], results: Iterable[Result], order: Iterable[str]
) -> dict[str, str]:
    """The list made true of the results, reasons of entries that stay kept."""
    reasons = dict(expected)
    for r in results:
        if r.passed:
            reasons.pop(r.name, None)
        else:
            reasons.setdefault(r.name, f"[{r.stage or 'worker'}] {r.reason[:160]}")
    return {name: reasons[name] for name in order if name in reasons}
