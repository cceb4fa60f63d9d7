"""Texts as they are shown: every character of a name is seen, numbers go with their nouns."""

CONTROL_PICTURES = 0x2400
"""The pictures of the control characters 0 to 31."""


def printable(text: str) -> str:
    """Returns a text in which every character shows, and none changes the order of others.

    Control characters have pictures; what else does not show, its number.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _picture(c) for c in text)


def counted(number: int, what: str) -> str:
    """Returns a number of things: `1 trial`, `2 trials`, `2,000 trials`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def _picture(character: str) -> str:
    code = ord(character)
    return chr(CONTROL_PICTURES + code) if code < ord(" ") else f"\\u{{{code:x}}}"
