"""`python -m tests.lock`: what a change of the compiler changes in what it makes of models.

The zoo and a few hundred single operators are compiled, but for machine code, for four targets
(AVX2, AVX-512, AVX-512 with AMX, NEON). Of each model and target the lock holds a hash of the plan,
of the host program, of all schedules, all scheduled kernels, and all LLVM IR.

    python -m tests.lock                       compare with what is recorded; 1 if anything differs
    python -m tests.lock --update              record
    python -m tests.lock mobilenet --target x86-64-v3
    python -m tests.lock --against COMMIT --texts FOLDER
                                               compare with that commit, and write all texts that
                                               differ to FOLDER/before and FOLDER/after

A change that only moves or renames code leaves all of them as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rutc.base.files import write_atomically
from tests.lock.digests import digests
from tests.lock.texts import KINDS, TARGETS

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("recorded.json")
Digests = Mapping[str, Mapping[str, str]]
"""Model and target -> kind of text -> hash."""


def main() -> int:
    """Does what the command line says; 1 where something differs, 2 where it asks for nonsense."""
    parser = argparse.ArgumentParser(prog="python -m tests.lock", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", metavar="MODEL", help="parts of names of models")
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--update", action="store_true", help="record what is made now")
    parser.add_argument("--against", metavar="COMMIT", help="compare with what that commit makes")
    parser.add_argument("--texts", type=Path, metavar="FOLDER", help="write texts that differ")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    targets = chosen.target or list(TARGETS)
    if chosen.write:
        chosen.write.write_text(recorded(digests(chosen.parts, targets, chosen.jobs, chosen.texts)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "after" if chosen.texts else None
        now = digests(chosen.parts, targets, chosen.jobs, texts)
        if chosen.update:
            known = json.loads(RECORDED.read_text()) if RECORDED.exists() and chosen.parts else {}
            write_atomically(RECORDED, recorded({**known, **now}).encode())
            return 0
        if chosen.against:
            before = Path(folder) / "before" if chosen.texts else None
            then = _of_commit(chosen.against, chosen.parts, targets, chosen.jobs, before)
        elif not RECORDED.exists():
            parser.error("nothing is recorded yet: --update records, --against COMMIT needs none")
        else:
            everything: Digests = json.loads(RECORDED.read_text())
            then = {name: everything[name] for name in now if name in everything}
        lines = differences(then, now)
        print("\n".join([*lines, f"{len(lines)} of {len(now)} differ"]))
        if texts and chosen.against:
            _write_differing(Path(folder), chosen.texts)
    return 1 if lines else 0


def differences(then: Digests, now: Digests) -> list[str]:
    """What differs, a line for each model and target: which kinds of its texts."""
    found: list[str] = []
    for key, own in now.items():
        if key not in then:
            found.append(f"new: {key}")
            continue
        kinds = [k for k in KINDS if own.get(k) != then[key].get(k)]
        if kinds:
            found.append(f"{key}: {', '.join(kinds)}")
    return found + [f"gone: {key}" for key in sorted(then.keys() - now.keys())]


def recorded(every: Digests) -> str:
    """The digests as JSON, a line each."""
    lines = (f"{json.dumps(key)}: {json.dumps(each)}" for key, each in sorted(every.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """A checkout of a commit.

    Raises:
        SystemExit: git knows no such commit.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "rutc"
        made = subprocess.run(
            ["git", "worktree", "add", "--detach", str(tree), commit],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            sys.exit(made.stderr.strip())
        try:
            yield tree
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True
            )


def _of_commit(
    commit: str, parts: Sequence[str], targets: Sequence[str], jobs: int, texts: Path | None
) -> Digests:
    """What a commit makes, by its own `tests.lock`."""
    with _checkout(commit) as tree, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digests.json"
        command = [sys.executable, "-m", "tests.lock", *parts, "--jobs", str(jobs)]
        command += ["--write", str(file)]
        command += [x for t in targets for x in ("--target", t)]
        command += ["--texts", str(texts)] if texts is not None else []
        # The folder that holds the checkout comes first: the checkout is the package `rutc`.
        path = os.pathsep.join([str(tree.parent), str(tree)])
        subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": path}, check=True)
        found: Digests = json.loads(file.read_text())
        return found


def _write_differing(folder: Path, output: Path) -> None:
    """Writes all pairs of texts that differ."""
    for after in sorted((folder / "after").rglob("*.txt")):
        name = after.relative_to(folder / "after")
        before = folder / "before" / name
        old = before.read_text() if before.exists() else ""
        new = after.read_text()
        if old == new:
            continue
        for side, text in (("before", old), ("after", new)):
            path = output / side / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
