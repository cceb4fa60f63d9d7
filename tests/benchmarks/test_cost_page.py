"""The page of estimates has the table of whole models that results give."""

from benchmarks import cost_page
from benchmarks.estimates import beside
from benchmarks.store import Entry, load


def _entry(model: str, **others: object) -> Entry:
    return {"model": model, "cpu": "a", "features": [], "commit": "1", "cycles": 1, **others}


def test_a_model_takes_its_place_among_those_of_its_machine_and_commit() -> None:
    before = [_entry("digits"), _entry("unet", cpu="b"), _entry("gpt2", commit="0")]
    found = beside(before, _entry("magika"))
    assert [e["model"] for e in found] == ["digits", "magika"]
    again = beside(found, _entry("digits", cycles=2))
    assert [(e["model"], e["cycles"]) for e in again] == [("digits", 2), ("magika", 1)]


def test_the_page_has_the_table_of_the_results() -> None:
    page = (cost_page.ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    models = load(cost_page.MODELS)
    assert models
    assert all(f"| {e['model']} | {e['launches']} |" in page for e in models)
    assert cost_page.with_models(page) == page
