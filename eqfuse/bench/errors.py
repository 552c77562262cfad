"""What went wrong, in one line of a table."""

from __future__ import annotations

from eqfuse.bench.peers import MissingError
from eqfuse.bench.record import ParityError

LENGTH = 200
DEVICE_ERRORS = ("XlaRuntimeError", "JaxRuntimeError")


def first_line(error: BaseException) -> str:
    """Return the kind of an exception and its first line, or that memory ran out."""
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, ParityError | MissingError):
        return message[:LENGTH]
    if "RESOURCE_EXHAUSTED" in message or "Out of memory" in message:
        return f"out of memory: {message}"[:LENGTH]
    return f"{type(error).__name__}: {message}"[:LENGTH]


def spoiled(result: dict) -> bool:
    """Return whether a result is a device error, after which others may fail."""
    sides = result.get("sides", {}).values()
    messages = [part.get("error", "") for part in (result, *sides)]
    return any(name in message for message in messages for name in DEVICE_ERRORS)
