"""What records of older versions of rutc say, in today's words."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rutc.tensor_ir.steps import Pack
from rutc.tuner.database.trial import digest, plain_json


def with_packs(schedule: str, packing: object) -> str:
    """The text of a schedule whose packing of constants was written beside it, not in steps.

    A packing is `{buffer: [order of its dims, [[dim, block], ..]]}`. Raises ValueError for others.
    """
    match packing:
        case dict():
            steps = [str(_pack(str(buffer), said)) for buffer, said in sorted(packing.items())]
        case _:
            raise ValueError("the packing is none")
    return "; ".join([*steps, *([schedule] if schedule else [])])


def digest_before(schedule: str, packing: object) -> str:
    """What told a default schedule from others when its packing was written beside it."""
    return digest(f"{schedule} {plain_json(packing)}")


def with_default(summary: str, digests: Mapping[str, str]) -> str:
    """The summary of a trial with the digest of its default schedule as it is today.

    `digests` has today's by those of before, as far as these schedules are on record.
    """
    try:
        said = json.loads(summary)
        before = said["default"]
    except (ValueError, TypeError, LookupError):
        return summary
    if not isinstance(before, str) or before not in digests:
        return summary
    return json.dumps({**said, "default": digests[before]}, separators=(",", ":"))


def _pack(buffer: str, said: object) -> Pack:
    match said:
        case [[*order], [*blocks]] if all(isinstance(d, str) for d in order):
            pairs = tuple((d, n) for d, n in map(_block, blocks))
            return Pack(buffer, tuple(map(str, order)), pairs)
    raise ValueError("the packing is none")


def _block(said: object) -> tuple[str, int]:
    match said:
        case [str(dim), int(block)] if not isinstance(block, bool):
            return dim, block
    raise ValueError("the packing is none")
