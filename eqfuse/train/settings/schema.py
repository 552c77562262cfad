"""Settings as fields of dataclasses: types, ranges and help, and errors that name what is wrong."""

import ast
import dataclasses
import difflib
import math
import os
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, Union, get_args, get_origin

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class ConfigError(ValueError):
    """A setting that is unknown, ill-typed or impossible; the message is for the user."""


class Range(NamedTuple):
    """The values that a number may have: `holds` checks one, `text` describes them."""

    holds: Callable
    text: str


POSITIVE = Range(lambda value: value > 0, "finite and greater than zero")
NOT_NEGATIVE = Range(lambda value: value >= 0, "finite and zero or more")
FRACTION = Range(lambda value: 0 < value < 1, "between 0 and 1")


def setting(
    default,
    text: str,
    within: Range | None = None,
    path: str | None = None,
    words: tuple[str, ...] = (),
):
    """Return a field.

    Args:
      default: its value where none is given.
      text: its help.
      within: the range of a number.
      path: "read" for a path that is read, which is made absolute, "written" for another one.
      words: values of such a setting that are no paths, as mappings, "{a: 1}", never are.
    """
    metadata = {"help": text, "within": within, "path": path, "words": words}
    return dataclasses.field(default=default, metadata=metadata)


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
    """Return a value of the command line, a text, or of YAML in the type of its setting.

    Args:
      key: full name of the setting.
      field: of its dataclass: of type int, float, bool, str or Literal of texts, or None besides.
      value: as it was written; "null" is None.
    Raises:
      ConfigError: a value of another type.
    """
    kind, optional = field.type, False
    if get_origin(kind) in (Union, types.UnionType):
        optional = True
        [kind] = (k for k in get_args(kind) if k is not type(None))
    if value in (None, "null") and optional:
        return None
    if get_origin(kind) is Literal:
        one_of(key, value, get_args(kind))
        return value
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind is str and isinstance(value, str):
        require("\0" not in value, key, repr(value), "without NUL characters")
        is_word = value in field.metadata["words"] or value.startswith("{")
        path = None if is_word else field.metadata["path"]
        value = os.path.expanduser(value) if path else value
        return absolute(value) if path == "read" else value
    if kind in (int, float) and type(value) in (int, kind, str):
        try:
            return kind(value)
        except (ValueError, OverflowError):
            pass
    raise ConfigError(
        f"{key}={value} is impossible: it must be {_KINDS[kind]}{' or null' if optional else ''}"
    )


def absolute(path: str) -> str:
    """Return the whole name of a file, or of several with commas between them."""
    files = [path] if os.path.exists(path) else path.split(",")
    return ",".join(os.path.abspath(os.path.expanduser(file)) for file in files)


def check_ranges(settings, prefix: str):
    """Refuse the numbers of a dataclass that are not finite or not in their range.

    Raises:
      ConfigError: naming the first of them.
    """
    for field in dataclasses.fields(settings):
        value, within = getattr(settings, field.name), field.metadata.get("within")
        if within is not None and value is not None:
            finite = not isinstance(value, float) or math.isfinite(value)
            require(finite and within.holds(value), prefix + field.name, value, within.text)


def fields_of_source(path: Path, name: str) -> tuple[str, list[tuple]]:
    """Read the settings of a network from the source of its class.

    The fields of the class are the settings and its docstring is their help. It is not imported:
    that would import JAX, which takes seconds, and for which `--help` does not wait.

    Args:
      path: the file.
      name: the class, whose fields have literal defaults.
    Returns:
      the first line of the docstring, and (name, type, default, help) of each field that is a
      number, a text, or true or false.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    [node] = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    doc = ast.get_docstring(node)
    attributes = re.split(r"\n\n|\n(?=\w)", doc.partition("Attributes:\n")[2])[0]
    texts = {}
    for names, text in re.findall(r"^  (\w[\w, ]*): (.*(?:\n    .*)*)", attributes, re.M):
        texts |= dict.fromkeys(names.split(", "), " ".join(text.split()).rstrip("."))
    fields = [
        (item.target.id, ast.unparse(item.annotation), ast.literal_eval(item.value))
        for item in node.body
        if isinstance(item, ast.AnnAssign)
    ]
    return doc.splitlines()[0], [
        (name, eval(kind, {"Literal": Literal}), default, texts[name])
        for name, kind, default in fields
        if not kind.startswith("tuple")
    ]
