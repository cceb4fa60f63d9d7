"""Text in generated C."""

import re


def c_string(text: str) -> str:
    """Returns a C string literal of the text's UTF-8 bytes."""
    return '"' + "".join(map(_c_char, text.encode())) + '"'


def _c_char(byte: int) -> str:
    # A question mark could begin a trigraph.
    plain = 32 <= byte < 127 and chr(byte) not in '"\\?'
    return chr(byte) if plain else f"\\{byte:03o}"


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
