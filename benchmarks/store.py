"""The files of results: lists of JSON objects, one for each thing measured."""

import json
from collections.abc import Sequence
from pathlib import Path

Entry = dict[str, object]


def load(path: Path) -> list[Entry]:
    """Returns the entries measured so far; none without a file."""
    if not path.exists():
        return []
    entries = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(entries, list)
    return entries


def merge(path: Path, measured: Sequence[Entry], cases: Sequence[str]) -> list[Entry]:
    """Writes the entries in place of those before of the same cases, and returns what stays.

    `cases` are the names of all cases, in order; entries of others go.
    """
    known = {str(entry["case"]): entry for entry in [*load(path), *measured]}
    kept = [known[case] for case in cases if case in known]
    save(path, kept)
    return kept


def save(path: Path, entries: Sequence[Entry]) -> None:
    """Writes the entries in place of those before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(list(entries), indent=1) + "\n", encoding="utf-8")
