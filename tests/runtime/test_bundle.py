"""The single-file loader."""

import ast
import collections
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rutc.emit.linking.bundle import RUNTIME_SOURCES, loader_source, write_loader
from rutc.errors import UserError


def test_it_runs_a_model_without_rutc(doubling: Path, tmp_path: Path) -> None:
    path = write_loader(tmp_path / "bundle")
    shutil.copy(doubling, path.parent)
    script = (
        "import sys, numpy as np, rutc_runtime\n"
        "with rutc_runtime.load('model.so') as session:\n"
        "    print(session.run(None, {'x': np.arange(8, dtype=np.float32)})[0].tolist())\n"
        "assert not any(name == 'rutc' or name.startswith('rutc.') for name in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=path.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str([2.0 * n for n in range(8)])


def test_it_holds_every_definition_once() -> None:
    found = collections.Counter(_definitions(ast.parse(loader_source())))
    assert [name for name, count in found.items() if count > 1] == []
    for module in RUNTIME_SOURCES.glob("*.py"):
        assert set(_definitions(ast.parse(module.read_text()))) <= {*found, "__all__"}


def _definitions(module: ast.Module) -> list[str]:
    names = []
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.append(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = (
                [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
            )
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def test_unwritable_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot make the folder .*bundle: Not a directory"):
        write_loader(tmp_path / "file" / "bundle")
