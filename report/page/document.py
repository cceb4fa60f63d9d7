"""A view as HTML: one file that needs nothing else, and shows names as they are.

Templates escape all that they are given, `finalize` makes every character of it visible, and the
browser is told to run the one script that is known by its digest: names of a model are text only.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rutc.report.page import labels
from rutc.report.page.charts import MEMORY_HEIGHT, ROOF_HEIGHT, ROOF_WIDTH
from rutc.report.page.graph_layout import BOX_HEIGHT, BOX_WIDTH
from rutc.report.page.view import View
from rutc.report.printable import printable

FOLDER = Path(__file__).parent


def document(view: View) -> bytes:
    """Returns the page of a view, the same for the same view."""
    style, script = (
        Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js")
    )
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = _environment().get_template("page.html")
    told = {"style": style, "script": script, "script_digest": f"sha256-{digest}"}
    text = page.render(view=view, **told)
    return text.encode("utf-8", "replace")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals |= {
        "percent": labels.share,
        "bytes": labels.size,
        "box_width": BOX_WIDTH,
        "box_height": BOX_HEIGHT,
        "memory_height": MEMORY_HEIGHT,
        "roof_width": ROOF_WIDTH,
        "roof_height": ROOF_HEIGHT,
    }
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _shown(value: object) -> object:
    """What a template writes of a value: of a text every character, but of one that is HTML."""
    return printable(value) if isinstance(value, str) and type(value) is str else value
