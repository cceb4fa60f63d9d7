"""The files of results: lists of JSON objects, one for each thing measured on each machine."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

Entry = dict[str, object]
Key = Callable[[Entry], str]


def load(path: Path) -> list[Entry]:
    """Returns the entries measured so far; none without a file."""
    if not path.exists():
        return []
    entries = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(entries, list)
    return entries


def machine(entry: Entry) -> tuple[str, ...]:
    """Returns what tells the machine of an entry from others whose results do not compare."""
    features = entry.get("features", ())
    assert isinstance(features, list | tuple)
    return (str(entry.get("cpu", "")), str(entry.get("processor", "")), *map(str, features))


def merged(before: Sequence[Entry], measured: Sequence[Entry], key: Key) -> list[Entry]:
    """Returns all entries, those measured in place of earlier ones of their key and machine."""
    return list({(machine(e), key(e)): e for e in (*before, *measured)}.values())


def case_of(entry: Entry) -> str:
    """Returns the case of an entry."""
    return str(entry["case"])


def measured_already(entries: Sequence[Entry], now: Entry, key: Key) -> set[str]:
    """Returns the keys of what this machine measured at this commit and by this protocol."""
    same = [k for k in now if k in ("cpu", "processor", "features", "commit", "protocol")]
    return {key(e) for e in entries if all(e.get(k) == now[k] for k in same) and "error" not in e}


def save(path: Path, entries: Sequence[Entry]) -> None:
    """Writes the entries in place of those before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(list(entries), indent=1) + "\n", encoding="utf-8")
