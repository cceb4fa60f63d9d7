"""Names of variables as they stand in text."""

from __future__ import annotations

import re
from functools import lru_cache

RESERVED = frozenset(("and", "else", "false", "inf", "nan", "not", "or", "true"))
"""Words of the text form that a variable's name must be quoted to use."""


@lru_cache(maxsize=1 << 14)
def quoted(name: str) -> str:
    """A variable's name as it stands in text: in single quotes unless it is a plain word."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name, re.ASCII) and name not in RESERVED:
        return name
    escaped = name.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
