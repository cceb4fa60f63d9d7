import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import sampling
from tests.times import Times


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the texts that the tests got into the golden files instead of comparing",
    )
    parser.addoption(
        "--processor-times",
        type=int,
        default=0,
        metavar="N",
        help="name the N tests and files that took the most processor time",
    )
    sampling.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    # No test depends on what was tuned on this machine.
    os.environ["RUTC_DB"] = str(Path(tempfile.gettempdir()) / "rutc-tests" / "no-records.sqlite")
    config.pluginmanager.register(sampling.Sampling(config))
    config.pluginmanager.register(Times(config.getoption("--processor-times")))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Objects are cached for the tests of one module alone."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RUTC_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()
