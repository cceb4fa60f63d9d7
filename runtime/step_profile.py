"""What a session that was opened to measure has measured."""

from collections.abc import Callable
from dataclasses import dataclass

from rutc.runtime.c_interface import Pointer, ProfileRecord


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """The measured time of one step: the kernel (or `"copy"`) and the ONNX nodes it computes."""

    name: str
    origin: str
    calls: int
    total_us: float


def measured(read: Callable[..., int], handle: Pointer) -> list[ProfileEntry]:
    """Returns the time of every step; none where the session does not measure.

    `read` is the library's function of the session `handle`.
    """
    count = read(handle, None, 0)
    records = (ProfileRecord * count)()
    read(handle, records, count)
    return [ProfileEntry(r.name.decode(), r.origin.decode(), r.calls, r.total_us) for r in records]
