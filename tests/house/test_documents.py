"""The README's commands work as written, and links between documents lead somewhere."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.core import TyperGroup
from typer.main import get_command

from rutc.cli import app
from rutc.tuner.database.database import Database
from tests.documents import blocks, in_shell, run_document
from tests.tuner.trials import trial

ROOT = Path(__file__).resolve().parents[2]
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
    """In a shell, one after another, and then the Python code."""
    lines = [line[2:] for block in BLOCKS for line in block.splitlines() if line[:2] == "$ "]
    assert len(lines) >= 6
    for line in lines:
        assert line.startswith("rutc ")
        result = in_shell(line)
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
    (code,) = (b.text for b in blocks(ROOT / "README.md") if b.language == "python")
    with np.load(ROOT / "models" / "digits" / "images.npz") as held:
        exec(compile(code, "README.md", "exec"), {"images": held["image"]})


@pytest.mark.usefixtures("workplace")
def test_shell_blocks_work() -> None:
    """Those that neither install nor train; what they call is looked for on the search path."""
    ran = 0
    for document in (*DOCUMENTS, ROOT / "models" / "digits" / "README.md"):
        for block in blocks(document):
            if block.language != "sh":
                continue
            for part in re.split(r"&&|\n", block.text):
                line = part.replace(".venv/bin/", "").split("#")[0].strip()
                if not line or re.search(
                    r"-m (venv|pytest|rutc\.models\.digits\.train)|^pip ", line
                ):
                    continue
                result = in_shell(line)
                assert result.returncode == 0, f"{document.name}: {line}\n{result.stderr}"
                ran += 1
    assert ran >= 4


PLACEHOLDERS = {
    "MODEL.onnx": "models/digits/digits.onnx",
    "model.onnx": "models/digits/digits.onnx",
    "OUT.so": "digits.so",
    "COMMAND": "compile",
    "NODE": "scores",
    "FILE.jsonl.gz": "records.jsonl.gz",
    "OTHER.sqlite": "other.sqlite",
    "DIR": "cases",
    "NAME=FILE": "image=models/digits/images.npz",
}
"""What stands for what users have, and what a test has."""
TAKES = {
    "compile": "MODEL.onnx",
    "explain": "MODEL.onnx NODE",
    "inspect": "OUT.so",
    "run": "OUT.so",
    "tune": "MODEL.onnx",
    "bench": "OUT.so",
    "verify": "MODEL.onnx OUT.so",
}
"""What commands take that text may leave out."""


@pytest.mark.usefixtures("workplace")
def test_the_page_on_tuning_has_code_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = (
        next(b.text for b in blocks(ROOT / "docs" / "tuning.md") if b.language == language)
        for language in ("python", "text")
    )
    exec(compile(code, "tuning.md", "exec"), {})
    assert capsys.readouterr().out == said


@pytest.mark.usefixtures("workplace")
def test_the_page_on_the_database_is_true() -> None:
    assert run_document(ROOT / "docs" / "database.md") >= 6


@pytest.mark.usefixtures("workplace")
def test_the_page_on_states_is_true() -> None:
    assert run_document(ROOT / "docs" / "states.md") == 2


def test_the_page_on_serving_is_true(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(workplace / "served")
    monkeypatch.delitem(sys.modules, "rutc_runtime", raising=False)
    try:
        assert run_document(ROOT / "docs" / "serving.md") == 2
    finally:
        sys.modules.pop("rutc_runtime", None)


@pytest.mark.usefixtures("workplace")
def test_commands_in_the_text_work(tmp_path: Path) -> None:
    """With a model in the place of each placeholder, and what a command needs added."""
    (tmp_path / "cases").mkdir()
    with np.load(ROOT / "models" / "digits" / "images.npz") as held:
        np.savez(tmp_path / "cases" / "one.npz", image=held["image"])
    assert in_shell("rutc compile models/digits/digits.onnx").returncode == 0
    for name in ("default.sqlite", "other.sqlite"):
        with Database.open(name) as database:
            database.add([trial(0)])
    found: dict[str, str] = {}
    for document in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.M | re.S)
        for span in re.findall(r"`(rutc [a-zA-Z][^`]*)`", text):
            line = re.sub(r"[\[\]]", "", " ".join(span.split()))
            name = line.split()[1]
            needs = TAKES.get(name, "")
            if needs and needs.split()[0] not in line and "odel.onnx" not in line.lower():
                line += f" {needs}"
            elif name == "explain" and "NODE" not in line:
                line += " NODE"
            found.setdefault(line, document.name)
    assert len(found) >= 15
    for line, name in found.items():
        filled = " ".join(PLACEHOLDERS.get(word, word) for word in line.split())
        if "bench" in filled:
            filled += " --seconds 0.1"
        if "rutc tune" in filled:
            filled += " --trials 2"
        places = {"RUTC_CACHE": str(tmp_path / "cache"), "RUTC_DB": "default.sqlite"}
        result = in_shell(filled, **places)
        assert result.returncode == 0, f"{name}: {line}\n{filled}\n{result.stderr}"


def test_options_in_the_text_are_there() -> None:
    """Every `--option` of the page on the command line is one of some command."""
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    commands = list(command.commands.values())
    commands += [c for g in commands if isinstance(g, TyperGroup) for c in g.commands.values()]
    known = {o for c in commands for p in c.params for o in p.opts} | {"--help"}
    named = set(re.findall(r"`(--[a-z][a-z-]+)", page))
    assert len(named) >= 15
    assert sorted(named - known) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
    for link in links:
        if "://" not in link:
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
