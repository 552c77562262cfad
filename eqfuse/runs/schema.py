"""Settings as fields of dataclasses: types, ranges and help, and errors that name what is wrong."""

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, get_args, get_origin

from eqfuse.runs.errors import ConfigError

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}

_MOST_BITS = 1000  # of a whole number; Python writes no number of 4300 digits


class Range(NamedTuple):
    """The values that a number may have: `holds` checks one, `text` describes them."""

    holds: Callable
    text: str


FINITE = Range(lambda _: True, "finite")
POSITIVE = Range(lambda value: value > 0, "finite and greater than zero")
NOT_NEGATIVE = Range(lambda value: value >= 0, "finite and zero or more")
FRACTION = Range(lambda value: 0 < value < 1, "between 0 and 1")

TYPES = "elements of LAMMPS's types 1, 2, ... in a dump or data file, such as Si,O"
BACKEND = "of the ops: triton, llvm, xla or e3nn; null: by device"
DISPERSION = (
    "is added: d3(bj) (of PBE), d3(bj,r2scan), d3(zero), ..., by dftd3 on the CPU; none: the "
    "network alone; null: that of the run's data.dispersion"
)
"""The help of settings that several commands have."""


def setting(default, text: str, within: Range | None = None, convert: Callable = str):
    """Return a field with its help; `convert` is applied to a text, such as the name of a file."""
    metadata = {"help": text, "within": within, "convert": convert}
    return dataclasses.field(default=default, metadata=metadata)


def word(text: str, default=dataclasses.MISSING):
    """Return a field of what a command takes by its place, with its help."""
    return dataclasses.field(default=default, metadata={"help": text, "convert": str})


def value(default, within: Range | None = None, convert: Callable = str):
    """Return a field whose help is the docstring below it, see `documented`."""
    return setting(default, "", within, convert)


def documented(kind: type) -> type:
    """Make the docstrings below the fields of a dataclass their help; a decorator."""
    for field in dataclasses.fields(kind):
        field.metadata = {"help": "", **field.metadata, "of": kind}
    return kind


@functools.cache
def _docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class by name."""
    tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    [own] = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
    return {
        node.target.id: below.value.value
        for node, below in itertools.pairwise(own.body)
        if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr)
    }


def absolute(path: str) -> str:
    """Return the whole name of a file, or of several with commas between them."""
    files = [path] if os.path.exists(path) else path.split(",")
    return ",".join(os.path.abspath(os.path.expanduser(file)) for file in files)


def _words(field: dataclasses.Field) -> list[str]:
    kinds = field.type, *get_args(field.type)
    return [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]


def described(field: dataclasses.Field) -> tuple[str, str]:
    """Return the help of a setting, with its words if it has any, and its default, as typed."""
    words = _words(field)
    text = field.metadata["help"] or _docstrings(field.metadata["of"])[field.name]
    what = [*filter(None, [", ".join(words)]), " ".join(text.split())]
    return "; ".join(what), written(field.default)


def written(value) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(written, value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def split(argument: str) -> tuple[str, str]:
    """Return the name and the value of an argument, or raise ConfigError."""
    key, equals, value = argument.partition("=")
    if not equals or not key or key.startswith(("+", "~", "-")):
        raise ConfigError(f"{argument} is not a setting; write it as name=value, see --help")
    return key, value


def nearest(name: str, valid) -> str:
    """Return the valid names closest to `name`, or all of them, as the end of an error message."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=3, cutoff=0.6)
    rest = "choose from: " + ", ".join(valid) if len(valid) <= 12 else "--help lists all of them"
    return f"nearest: {', '.join(close)}; {rest}" if close else rest


def require(ok: bool, key: str, value, what: str):
    """Refuse a value unless `ok`; `what` says what it must be."""
    if not ok:
        raise ConfigError(f"{key}={value} is impossible: it must be {what}")


def one_of(key: str, value, valid):
    """Refuse a value that is not among the valid ones."""
    if value not in valid:
        raise ConfigError(f"{key}={value} is unknown; {nearest(str(value), valid)}")


def typed(key: str, field: dataclasses.Field, value):
    """Return a value as it was written, a text or of YAML, in the type of its setting.

    Types are int, float, bool, str, Path, a Literal of texts, or a tuple of one of these, with
    commas between its items; or None besides, written "null".
    """
    optional, convert = type(None) in get_args(field.type), field.metadata["convert"]
    kind = get_args(field.type)[0] if optional else field.type
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ConfigError(f"{key} is impossible: a whole number of {value.bit_length()} bits")
    if isinstance(value, list | dict):
        raise ConfigError(f"{key} is impossible: a {type(value).__name__}, and not one value")
    if value in (None, "null") and optional:
        return None
    if get_origin(kind) is tuple:
        item = dataclasses.field(metadata=field.metadata)
        item.type = get_args(kind)[0]
        return tuple(typed(key, item, text) for text in value.split(",") if text)
    if get_origin(kind) is Literal:
        one_of(key, value, get_args(kind))
        return value
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind in (str, Path) and isinstance(value, str):
        require("\0" not in value, key, repr(value), "without NUL characters")
        is_known = value[:1] != "~" or os.path.expanduser(value) != value
        require(is_known, key, value, "in the home of a user of this machine")
        return convert(value) if kind is str else Path(value).expanduser()
    if kind in (int, float) and type(value) in (int, kind, str):
        with contextlib.suppress(ValueError, OverflowError):
            return kind(value)
    what = _KINDS[kind] + (" or null" if optional else "")
    raise ConfigError(f"{key}={value} is impossible: it must be {what}")


def check_ranges(settings, prefix: str):
    """Refuse the words and numbers of a dataclass that are unknown, not finite or out of range.

    NumPy's become Python's, which JSON can write, and 1e4 of a whole number 10000.
    """
    for field in dataclasses.fields(settings):
        value, within = getattr(settings, field.name), field.metadata.get("within")
        if value is not None and (words := _words(field)):
            for item in value if isinstance(value, tuple | list) else [value]:
                one_of(prefix + field.name, str(item), words)
        if within is not None and value is not None:
            if hasattr(value, "item"):
                setattr(settings, field.name, value := value.item())
            ok = isinstance(value, int | float) and math.isfinite(value) and within.holds(value)
            shown = repr(value) if isinstance(value, str) else value
            require(ok, prefix + field.name, shown, within.text)
            if int in (field.type, *get_args(field.type)):
                require(value == int(value), prefix + field.name, shown, _KINDS[int])
                if isinstance(value, float):
                    setattr(settings, field.name, int(value))
