"""The commits that pages and results name are in the history of the tree that they lie in."""

import gzip
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
HEX = r"[0-9a-f]{7,40}"


def _git(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, input=given, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def history() -> list[str]:
    """All commits that the tree's own one comes from; skips where they are not at hand."""
    try:
        shallow = _git("rev-parse", "--is-shallow-repository", "--show-prefix").stdout.splitlines()
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if not shallow or any(shallow[1:]):
        pytest.skip("the tree is not one of git's")
    if shallow[0] == "true":
        pytest.skip("the history is cut off (a shallow clone)")
    return _git("rev-list", "HEAD").stdout.split()


def named_on_page(text: str) -> set[str]:
    """Returns what a page names as a commit: words of at least seven hexadecimal digits.

    Words without letters are numbers unless `commit` stands before them; words without digits are
    English.
    """
    words = re.findall(rf"\b{HEX}\b(?![-.\w])", text)
    mixed = {w for w in words if re.search("[a-f]", w) and re.search("[0-9]", w)}
    return mixed | set(re.findall(rf"\bcommit `?({HEX})\b", text))


def named_in_results(value: object) -> Iterator[str]:
    """Yields the commits of provenances, wherever they stand.

    `with changes` may follow them; a record of an installed package has its `version` instead.
    """
    if isinstance(value, dict):
        commit = value.get("commit")
        if isinstance(commit, str) and not commit.startswith("version "):
            yield commit.removesuffix(" with changes")
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from named_in_results(part)


def missing(named: set[str], history: list[str]) -> list[str]:
    """Returns those that are no beginning of a commit of the history."""
    lengths = {len(name) for name in named}
    known = {commit[:length] for commit in history for length in lengths}
    return sorted(named - known)


def test_what_pages_and_results_say_of_commits_is_found() -> None:
    text = "At 63f36e9, of 2101984 models (commit 1234567, `0a1b2c3d`): effaced, 0.12345678 ms."
    assert named_on_page(text) == {"63f36e9", "1234567", "0a1b2c3d"}
    entries = [{"commit": "ab12cd3"}, {"made": [{"commit": "cd34ef5 with changes"}]}]
    entries.append({"commit": "version 0.1.0"})
    assert set(named_in_results(entries)) == {"ab12cd3", "cd34ef5"}
    assert missing({"ab12cd3", "cd34ef5"}, ["ab12cd3" + 33 * "0"]) == ["cd34ef5"]


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_commits_on_pages_are_in_the_history(history: list[str]) -> None:
    gone = {p.name: missing(named_on_page(p.read_text("utf-8")), history) for p in PAGES}
    assert {name: commits for name, commits in gone.items() if commits} == {}


def test_commits_in_results_are_in_the_history(history: list[str]) -> None:
    gone, found = {}, 0
    for path in sorted(RESULTS.rglob("*.json*")):
        held = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        named = set(named_in_results(json.loads(held)))
        found += len(named)
        gone[path.name] = missing(named, history)
    assert found
    assert {name: commits for name, commits in gone.items() if commits} == {}
