"""Reading pages of `rutc inspect --html` as a browser does, and what must hold of each."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "input", "link", "br", "img"}
"""Elements without an end, and those of SVG that the template closes at once."""
SVG = {"path", "rect", "circle"}
OUTSIDE = re.compile(r"""\b(?:https?|ftp|data|file):|//\w|@import|url\(""")
HANDLERS = re.compile(r"on\w+")


@dataclass
class Element:
    """An element with its attributes, and all text in it."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """All elements of a page in their order."""

    elements: list[Element] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute of {tag} is there twice"
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SVG
        self.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"{tag} ends where it is not open"

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """The elements of a tag with these attributes; `of="x"` is `data-of="x"`."""
        names = {("class" if n == "class_" else f"data-{n}"): v for n, v in attributes.items()}
        return [
            e
            for e in self.elements
            if e.tag == tag and all(e.attributes.get(n) == v for n, v in names.items())
        ]

    def rows(self, of: str) -> list[Element]:
        """The rows of the tables of steps, values or weights."""
        return self.all("tr", of=of)

    def numbers(self, tag: str, of: str) -> set[int]:
        """The numbers of what can be selected of a kind."""
        found = (e.attributes.get("data-n") for e in self.all(tag, of=of))
        return {int(n) for n in found if n is not None}

    @property
    def details(self) -> list[Any]:
        """What the panels show, of each sheet."""
        return [json.loads(e.text) for e in self.all("script", class_="details")]


def read(path: Path) -> Page:
    """A page, of which is checked what holds of all of them.

    It is well-formed, asks for nothing from elsewhere, runs one script, which is the one that it
    comes with, and all that can be selected has a row and details.
    """
    data = path.read_bytes()
    text = data.decode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text), "a control character"
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    for element in page.elements:
        for name, value in element.attributes.items():
            assert name not in {"src", "href", "action", "srcset"}, name
            assert not HANDLERS.fullmatch(name), name
            if name == "style":
                assert value is not None
                assert re.fullmatch(r"--part:[\d.e-]+", value)
    (style,) = page.all("style")
    run = [e for e in page.all("script") if e.attributes.get("type") != "application/json"]
    (script,) = run
    for part in (style, script):
        assert not OUTSIDE.search(part.text), part.tag
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    (policy,) = (e for e in page.all("meta") if "http-equiv" in e.attributes)
    assert f"script-src 'sha256-{digest}'" in str(policy.attributes["content"])
    assert "default-src 'none'" in str(policy.attributes["content"])
    for kind in ("steps", "values", "weights"):
        known = sum(len(sheet[kind]) for sheet in page.details)
        assert len(page.rows(kind)) == known
    if len(page.details) == 1:
        _check_numbers(page)
    return page


def _check_numbers(page: Page) -> None:
    """Everything that can be selected is in a table and in the details, and so is what it names."""
    (details,) = page.details
    for kind, things in details.items():
        assert page.numbers("tr", kind) == set(range(len(things)))
        for tag in ("g", "circle"):
            assert page.numbers(tag, kind) <= set(range(len(things)))
        for thing in things:
            for other, numbers in thing["links"].values():
                assert set(numbers) <= set(range(len(details[other])))
    boxes = {
        int(str(e.attributes["data-box"])) for e in page.elements if "data-box" in e.attributes
    }
    assert boxes == set(range(len(boxes)))
    for path in page.all("path"):
        if "data-a" in path.attributes:
            ends = (int(str(path.attributes[f"data-{end}"])) for end in "ab")
            assert set(ends) <= boxes
