"""Text in generated C."""

import re

SPECIAL = re.compile(r'[^ -~]|["\\?]')
"""What does not stand for itself in a C string; a question mark could begin a trigraph."""


def c_string(text: str) -> str:
    """Returns a C string literal of the text's UTF-8 bytes."""
    # Bytes as characters of the same numbers: most stay as they are.
    return f'"{SPECIAL.sub(_escaped, text.encode().decode("latin-1"))}"'


def _escaped(found: re.Match[str]) -> str:
    return f"\\{ord(found[0]):03o}"


def c_comment(text: str) -> str:
    """Returns the text on one line and unable to end a C comment."""
    return re.sub(r"[^ -~]", "?", text).replace("*/", "* /").replace("/*", "/ *")


def c_integer(value: int) -> str:
    """Returns a C expression of a 64-bit integer, the smallest one included."""
    return f"(-{-value - 1} - 1)" if value == -(1 << 63) else str(value)


def c_number(value: float) -> str:
    """Returns a C expression of a double, exactly; infinities and NaN by arithmetic."""
    if value != value:
        return "(0.0 / 0.0)"
    if value in (float("inf"), float("-inf")):
        return "(1.0 / 0.0)" if value > 0 else "(-1.0 / 0.0)"
    return value.hex()
