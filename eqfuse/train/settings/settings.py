"""Settings as fields of dataclasses, and what to say of an impossible one."""

import difflib
import math
from dataclasses import field


class ConfigError(ValueError):
    """A setting that is unknown, ill-typed or impossible; the message is for the user."""


def nearest(name: str, valid) -> str:
    """Return the valid names closest to `name`, or all of them, as the end of an error message."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=3, cutoff=0.6)
    rest = "choose from: " + ", ".join(valid) if len(valid) <= 12 else "--help lists all of them"
    return f"nearest: {', '.join(close)}; {rest}" if close else rest


def setting(default, text: str, *, reads: bool = False):
    """Return a field with a default, and what it means as its `help`; `reads`: a path
    that is read.
    """
    return field(default=default, metadata={"help": text, "reads": reads})


def require(ok: bool, key: str, value, what: str):
    """Refuse a value unless `ok`; `what` says what it must be."""
    if not ok:
        raise ConfigError(f"{key}={value} is impossible: it must be {what}")


def positive(config, prefix: str, *names: str):
    """Refuse fields that are given and not finite and positive."""
    for name in names:
        value = getattr(config, name)
        positive = value is None or (value > 0 and math.isfinite(value))
        require(positive, f"{prefix}{name}", value, "finite and greater than zero")


def one_of(key: str, value: str, valid):
    """Refuse a value that is not among the valid ones."""
    if value not in valid:
        raise ConfigError(f"{key}={value} is unknown; {nearest(str(value), valid)}")
