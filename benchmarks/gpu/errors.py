"""What went wrong, in one line of a table."""

from __future__ import annotations

from benchmarks.peers import MissingError
from benchmarks.record import ParityError

LENGTH = 200


def first_line(error: BaseException) -> str:
    """The kind of an exception and the first line of its message; memory that ran out is named."""
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, ParityError | MissingError):
        return message[:LENGTH]
    if "RESOURCE_EXHAUSTED" in message or "Out of memory" in message:
        return f"out of memory: {message}"[:LENGTH]
    return f"{type(error).__name__}: {message}"[:LENGTH]


def spoils_process(error: BaseException) -> bool:
    """Whether what failed may leave the process, and the device, in a state that fails others."""
    harmless = isinstance(error, ParityError | MissingError)
    return not harmless and not first_line(error).startswith("out of memory")
