"""Linux gives a process the registers for matrices (AMX) only when asked."""

from __future__ import annotations

import ctypes
import os
import platform

from rutc.errors import UserError

# As Linux numbers its calls, what they ask for, and the states of a processor.
SYS_ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18


def ask_for_tiles() -> None:
    """Asks that code of this process may use registers for matrices, as libraries do themselves.

    To ask again changes nothing; processes that are forked may use them, too.

    Raises:
        UserError: the system or the processor has none.
    """
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        libc = ctypes.CDLL(None, use_errno=True)
        words = map(ctypes.c_long, (SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA))
        if libc.syscall(*words) == 0:
            return
        why = os.strerror(ctypes.get_errno())
    else:
        why = f"this is {platform.system()} on {platform.machine()}"
    raise UserError(f"code for registers for matrices (AMX) cannot run in this process: {why}")
