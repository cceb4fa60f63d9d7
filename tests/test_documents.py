"""The README's commands work as written, and links between documents lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rutc.cli import app

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_first_two_blocks_are_one_line_each() -> None:
    first, second = BLOCKS[:2]
    assert first.count("\n") == second.count("\n") == 1
    assert "rutc compile" in first
    assert "pytest" in second


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder where the repository's models are."""
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("workplace")
def test_the_readme_commands_work() -> None:
    commands = [line[2:] for block in BLOCKS for line in block.splitlines() if line[:2] == "$ "]
    assert len(commands) >= 6
    for line in commands:
        program, *arguments = shlex.split(line)
        assert program == "rutc"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{line}\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
    for link in links:
        if "://" not in link:
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
