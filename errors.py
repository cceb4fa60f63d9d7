"""The errors a user can meet, and the exit status each one means."""

TOO_DEEP = (
    "the model computes something in too many steps that follow from each other, such as sizes "
    "from sizes; fix the symbolic sizes with --dim, or cut the model in parts"
)
"""What to say where Python's recursion ends."""


class RutcError(Exception):
    """An error with a message written for the user; `exit_status` is the command line's answer."""

    exit_status = 3


class UserError(RutcError):
    """The user's input is at fault (usage, model, data): says what, where, why and what to do."""

    exit_status = 2


class OutOfMemory(UserError):
    """The machine, or a limit, does not give the memory that the model needs."""


class CheckFailed(RutcError):
    """A check did not hold, for example a verification against ONNX Runtime."""

    exit_status = 1


class InternalError(RutcError):
    """A bug of rutc: an invariant of the compiler does not hold; says which and around what."""

    exit_status = 3
