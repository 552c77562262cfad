"""One style for every command: words that have their places, and settings as `name=value`.

A command is a dataclass of that name, whose docstring is its help, with a field by
`schema.word` or `schema.setting` for each. `--some-name=value` and `--some-name value` are
`some_name=value`; `--name` alone is `name=true`, if the setting is true or false.
"""

import dataclasses
import functools
import inspect
import itertools
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import get_args, get_origin

from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.schema import check_ranges, described, nearest, split, typed
from eqfuse.runs.stopping import exit_code

_UNREAD = CheckpointError, OSError


def of(kind: type, **codes) -> Callable:
    """Return a decorator that makes a task a command: a function of arguments, see `run`."""
    return lambda task: functools.partial(run, kind, task, **codes)


def run(
    kind: type,
    task: Callable,
    arguments: list[str],
    *,
    refused=_UNREAD,
    failures=(),
    read: Callable | None = None,
    text: Callable | None = None,
) -> int:
    """Run a task with the dataclass of its arguments, or print the help; return the exit code.

    `read(arguments)` and `text()` are in the place of `parse` and `help_text`, if given.
    """
    if "--help" in arguments or "-h" in arguments:
        print(text() if text else help_text(kind))
        return 0
    read = read or functools.partial(parse, kind)
    return exit_code(lambda: task(read(arguments)), refused=refused, failures=failures)


def parse(kind: type, arguments: list[str]):
    """Return the dataclass of a command, or raise ConfigError."""
    words, given = words_and_settings(kind, arguments)
    places = _words_of(kind)
    needed = [name for name, field in places.items() if field.default is dataclasses.MISSING]
    wrong = [f"{name} is missing" for name in needed[len(words) :]]
    wrong += [f"{word} is one too many" for word in words[len(places) :]]
    if wrong:
        raise ConfigError(f"{wrong[0]}: {_usage(kind)}; see --help")
    for (name, field), text in zip(places.items(), words, strict=False):
        given[field.name] = typed(name, field, text)
    options = kind(**given)
    check_ranges(options, "")
    return options


def words_and_settings(kind: type, arguments: list[str]) -> tuple[list[str], dict]:
    """Return the words of arguments, and the settings, such as "steps=100", in their types by name.

    The later of two settings overrides the earlier. A file whose name has "=" is a word.
    """
    fields, words, given = settings_of(kind), [], {}
    for argument in undashed(arguments, fields):
        name, equals, _ = argument.partition("=")
        is_name = name in fields or (re.fullmatch(r"\w*", name) and not os.path.exists(argument))
        if not argument.startswith("-") and not (equals and is_name):
            words.append(argument)
            continue
        name, value = split(argument)
        if name not in fields:
            raise ConfigError(f"{name} is not a setting here; {nearest(name, fields)}")
        given[fields[name].name] = typed(name, fields[name], value)
    return words, given


def undashed(arguments: list[str], fields: Mapping[str, dataclasses.Field]) -> list[str]:
    """Return arguments in which settings with dashes are written as `name=value`."""
    found, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if re.match("--[A-Za-z]", argument):
            name, equals, value = argument[2:].partition("=")
            name = name if name.startswith("heads.") else name.replace("-", "_")
            argument = f"{name}={value if equals else _value(name, fields.get(name), rest)}"
        found.append(argument)
    return found


def _value(name: str, field: dataclasses.Field | None, rest: list[str]) -> str:
    """Take the value of `--name` from the arguments that follow."""
    kinds = (field.type, *get_args(field.type)) if field else ()
    if bool in kinds:
        return rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"
    if any(get_origin(kind) is tuple for kind in kinds):  # as in --types Si O
        words = list(itertools.takewhile(lambda word: not re.match("-|.*=", word), rest))
        words = words[:1] if words and "," in words[0] else words
        del rest[: len(words)]
        return ",".join(words)
    if rest and not rest[0].startswith("--"):
        return rest.pop(0)
    if field:
        raise ConfigError(f"--{name} needs a value: {name}=VALUE")
    return "true"  # of a setting that is unknown


def help_text(kind: type) -> str:
    """Return the help of a command: its docstring, words and settings."""
    what, _, more = inspect.getdoc(kind).partition("\n\n")
    words = "\n".join(row(name, f.metadata["help"]) for name, f in _words_of(kind).items())
    rows = (row(n, "{} [{}]".format(*described(f))) for n, f in settings_of(kind).items())
    settings = "\n".join(["Settings (default in brackets)", *rows])
    return "\n\n".join(filter(None, [what, f"  {_usage(kind)}", words, more, settings]))


def settings_of(kind: type, prefix: str = "") -> dict[str, dataclasses.Field]:
    """Return the settings of a command by name, which is `for` of a field `for_`."""
    fields = (field for field in dataclasses.fields(kind) if "within" in field.metadata)
    return {prefix + field.name.rstrip("_"): field for field in fields}


def _words_of(kind: type) -> dict[str, dataclasses.Field]:
    return {f.name.upper(): f for f in dataclasses.fields(kind) if "within" not in f.metadata}


def row(name: str, text: str, width: int = 16) -> str:
    """Return a line of a help, or several."""
    return textwrap.fill(f"  {name:<{width}} {text}", 100, subsequent_indent=" " * (width + 3))


def _usage(kind: type) -> str:
    words = _words_of(kind).items()
    shown = [n if f.default is dataclasses.MISSING else f"[{n}]" for n, f in words]
    return " ".join(["eqfuse", kind.__name__.lower(), *shown, "[name=value ...]"])
