"""A sample of what `python -m tests.verify.perturbed` does a hundred times."""

from pathlib import Path

import numpy as np
import pytest

from tests.verify.perturbed import KINDS, fault, subjects, verified


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_nest_is_found(kind: str, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    found = 0
    for subject in subjects(["digits"], tmp_path):
        made = fault(subject, kind, random)
        if made is None:
            # Digits have no boxes.
            assert (subject.name, kind) == ("digits", "score")
            continue
        assert not verified(subject, tmp_path, graph=made.graph).passed
        assert verified(subject, tmp_path, seed=1).passed
        found += 1
    assert found
