"""What may stand in the place of a run: the name of a published network, or another program's file.

Without JAX, which takes seconds: the conversion imports it when it is needed.
"""

import difflib
import functools
import importlib
import os
from pathlib import Path

import yaml

_LIST = Path(__file__).parents[1] / "convert" / "networks.yaml"
_FILES = (".model", ".pth", ".pt", ".nqx", ".zip")
"""Endings of files of other programs, which `eqfuse convert` reads."""


@functools.cache
def published_names() -> tuple[str, ...]:
    """Return the names of the published networks, in small letters."""
    return tuple(yaml.safe_load(_LIST.read_text(encoding="utf-8"))["networks"])


def is_published(name) -> bool:
    """Test whether a text is the name of a published network, and of no file or folder here."""
    text = str(name)
    is_name = os.sep not in text and not text.endswith(".safetensors")
    return is_name and text.lower() in published_names() and not os.path.lexists(text)


def absolute_run(run: str) -> str:
    """Return the whole name of a run, or the name of a published network as it is."""
    return run.lower() if is_published(run) else os.path.abspath(os.path.expanduser(run))


def named(run) -> str | Path:
    """Return the run that is meant: what is given, or the conversion of a network in the cache.

    Args:
      run: a run; the name of a published network, such as "7net-0"; or a file of another program.
        The last two are converted once, into the user's cache.
    Raises:
      CheckpointError: a file that is not here, with the command that fetches it, or one that
        cannot be converted.
    """
    if is_published(run):
        return importlib.import_module("eqfuse.convert.cache").converted_name(str(run).lower())
    if str(run).lower().endswith(_FILES) and os.path.isfile(path := os.path.expanduser(run)):
        return importlib.import_module("eqfuse.convert.cache").converted_file(path)
    return run


def hint(name) -> str:
    """Return what an error says of a name that is neither a run nor a published network."""
    close = difflib.get_close_matches(Path(name).name.lower(), published_names(), n=2)
    nearest = f" (nearest: {', '.join(close)})" if close else ""
    return f"no run, and no published network{nearest}; `eqfuse convert list` has their names"
