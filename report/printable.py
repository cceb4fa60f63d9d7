"""Texts in which every character shows: names come from models, and may hold any."""

CONTROL_PICTURES = 0x2400
"""The pictures of the control characters 0 to 31."""


def printable(text: str) -> str:
    """Returns a text in which every character shows, and none changes the order of others.

    Control characters have pictures; what else does not show, its number.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _picture(c) for c in text)


def _picture(character: str) -> str:
    code = ord(character)
    return chr(CONTROL_PICTURES + code) if code < ord(" ") else f"\\u{{{code:x}}}"
