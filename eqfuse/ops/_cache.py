"""A folder of readable files that survives the process: written atomically, verified on read."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
import sys
import tempfile
import warnings


def _default_folder() -> pathlib.Path:
    if sys.platform == "darwin":
        base = pathlib.Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = pathlib.Path(os.environ.get("LOCALAPPDATA") or pathlib.Path.home())
    else:
        base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return base / "eqfuse"


def cache_folder() -> pathlib.Path:
    """Where kernels are kept: EQFUSE_CACHE_DIR, or the user's cache folder.

    A folder that cannot be written to is replaced by a temporary one, with a warning.
    """
    asked = os.environ.get("EQFUSE_CACHE_DIR")
    return _writable(pathlib.Path(asked).expanduser().absolute() if asked else _default_folder())


@functools.cache
def _writable(folder: pathlib.Path) -> pathlib.Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        fallback = pathlib.Path(tempfile.mkdtemp(prefix="eqfuse-"))
        warnings.warn(
            f"the kernel cache {folder} cannot be written to ({error.strerror or error}); using "
            f"{fallback} instead, which other processes will not find. Set EQFUSE_CACHE_DIR to a "
            "writable folder.",
            UserWarning,
            stacklevel=3,
        )
        return fallback


def write(path: pathlib.Path, content: bytes) -> None:
    """Fill the file at once: a reader sees the old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def ensure(path: pathlib.Path, content: bytes) -> None:
    """Make the file hold exactly `content`; one that holds anything else is replaced."""
    try:
        if path.read_bytes() == content:
            return
    except OSError:
        pass
    write(path, content)


def digest(value) -> str:
    """Hash of a value made of numbers, strings, lists and dicts."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_entry(path: pathlib.Path, key: dict, value: dict) -> None:
    """Keep `value` under `key` with a checksum."""
    body = {"key": key, "value": value}
    write(path, json.dumps({"checksum": digest(body), **body}, indent=1).encode())


def read_entry(path: pathlib.Path, key: dict) -> dict | None:
    """What `write_entry` kept under this key; None if it is missing, damaged or another key's."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        body = {"key": entry["key"], "value": entry["value"]}
        sound = entry["checksum"] == digest(body) and entry["key"] == key
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entry["value"] if sound else None
