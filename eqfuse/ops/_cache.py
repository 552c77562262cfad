"""A folder that survives the process, written atomically and read with care: its code is executed.

Only what nobody else can have written is used. A folder or an entry that belongs to a user who is
neither this one nor root, or that group or others can write, is ignored with a warning; so is a
folder within one in which others can exchange it. Kernels are compiled anew then. What is compiled
goes into the place of an entry that is ignored, and for a folder that is ignored into a private
one that is removed when the process ends.

Folders are made with mode 0700 and files with 0600, whatever the umask. On Windows, which has no
such modes, nothing is checked.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import warnings

KEPT = ("compiled", "cpu", "programs", "source")
"""The folders in it: Triton's kernels, native ones, XLA's programs, the text of Triton's."""

_warned: set[pathlib.Path] = set()
"""Folders for which a warning about ignored entries was given."""


def _default_folder() -> pathlib.Path:
    if sys.platform == "darwin":
        base = pathlib.Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = pathlib.Path(os.environ.get("LOCALAPPDATA") or pathlib.Path.home())
    else:
        base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return base / "eqfuse"


def cache_folder(*names: str) -> pathlib.Path:
    """Return the folder where kernels are kept, or the one called `names` in it; make what lacks.

    It is EQFUSE_CACHE_DIR, or that of this program in the user's cache folder. Links are resolved.
    A folder that cannot be written to, or that others can write to, is replaced by a private,
    temporary one, with a warning.

    Raises:
      OSError: a folder in it cannot be made.
    """
    asked = os.environ.get("EQFUSE_CACHE_DIR")
    folder = pathlib.Path(asked).expanduser().absolute() if asked else _default_folder()
    folder = _base(folder)
    for name in names:
        folder = _within(folder / name)
    return folder


@functools.cache
def _base(folder: pathlib.Path) -> pathlib.Path:
    try:
        _make(folder)
        whole = folder.resolve()
        # a link may be exchanged as well as what it leads to
        above = dict.fromkeys([folder, *folder.parents, *whole.parents])
        for path in (whole, *above):
            if fault := _fault(path.lstat(), leads=path != whole):
                remedy = f"For this one: chmod go-w {path}"
                if path == whole:  # what was written to it meanwhile would be trusted
                    remedy += f", and remove {', '.join(KEPT)} in it"
                return _instead(folder, f"is ignored, since {path} {fault}", remedy + ".")
        with tempfile.TemporaryFile(dir=whole):
            return whole
    except OSError as error:
        return _instead(folder, f"cannot be written to ({error.strerror or error})", "")


@functools.cache
def _within(folder: pathlib.Path) -> pathlib.Path:
    _make(folder)
    if fault := _fault(folder.lstat()):
        remedy = f"For this one: rm -r {folder}."
        folder = _instead(folder, f"is ignored, since it {fault}", remedy) / folder.name
        _make(folder)
    return folder


def _make(folder: pathlib.Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _instead(folder: pathlib.Path, why: str, remedy: str) -> pathlib.Path:
    """Make a temporary folder in the place of `folder`, and warn why."""
    fallback = pathlib.Path(tempfile.mkdtemp(prefix="eqfuse-")).resolve()
    process = os.getpid()

    @atexit.register
    def remove():
        if os.getpid() == process:  # a process forked from it must not
            shutil.rmtree(fallback, ignore_errors=True)

    warnings.warn(
        f"the kernel cache {folder} {why}; using {fallback} instead, which other processes will "
        f"not find. Set EQFUSE_CACHE_DIR to a writable folder of your own. {remedy}".strip(),
        UserWarning,
        stacklevel=4,
    )
    return fallback


def _fault(status: os.stat_result, leads: bool = False) -> str:
    """Return what may have let others write a file or a folder, or "".

    Args:
      status: its own (of lstat or fstat), not that of what a link leads to.
      leads: it is a link or a folder that leads to the cache. Others may have written to such a
        folder where each may only remove what is his own, as in /tmp. The owner of / may own it:
        in a container without root that is nobody.
    """
    if not hasattr(os, "geteuid"):
        return ""
    trusted = {0, os.geteuid()} | ({os.stat("/").st_uid} if leads else set())
    if status.st_uid not in trusted:
        return f"belongs to user {status.st_uid}, neither to this user ({os.geteuid()}) nor to root"
    if stat.S_ISLNK(status.st_mode):
        return "" if leads else "is a symbolic link"
    sticky = leads and status.st_mode & stat.S_ISVTX
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        return f"can be written by its group or by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _warn_ignored(path: pathlib.Path, fault: str) -> None:
    """Warn of the first such entry in a folder."""
    if path.parent in _warned:
        return
    _warned.add(path.parent)
    warnings.warn(
        f"{path} is ignored, since it {fault}; so are others in its folder for such reasons. What "
        "they hold is compiled anew and replaces them, so there is nothing to do; chmod go-w keeps "
        "a file of your own that you trust.",
        UserWarning,
        stacklevel=3,
    )


def read(path: pathlib.Path) -> bytes | None:
    """Return the content of an entry; None if there is none.

    One that others may have written is not read, and a warning says so, once for a folder. What is
    checked is the file that was opened, whatever becomes of the path meanwhile.
    """
    try:
        with open(path, "rb", opener=_open) as file:
            status = os.fstat(file.fileno())
            regular = stat.S_ISREG(status.st_mode)
            fault = _fault(status) if regular else "is not a file"
            if not fault:
                return file.read()
    except OSError as error:
        if error.errno != errno.ELOOP:
            return None
        fault = "is a symbolic link"
    _warn_ignored(path, fault)
    return None


def _open(path: str, flags: int) -> int:
    """Open for reading, follow no link in the last place, and wait for no writer of a FIFO."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def remove_untrusted(folder: pathlib.Path) -> None:
    """Remove entries that others may have written, with a warning, where others read them.

    Raises:
      OSError: one cannot be removed.
    """
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process removes it too
            if fault := _fault(path.lstat()):
                _warn_ignored(path, fault)
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def write(path: pathlib.Path, content: bytes) -> None:
    """Fill the file at once: a reader sees the old content or the new one, never a part."""
    _make(path.parent)
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
    if read(path) != content:
        write(path, content)


def digest(value) -> str:
    """Return a hash of a value made of numbers, strings, lists and dicts."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_entry(path: pathlib.Path, key: dict, value: dict) -> None:
    """Keep `value` under `key` with a checksum."""
    content = {"key": key, "value": value}
    write(path, json.dumps({"checksum": digest(content), **content}, indent=1).encode())


def read_entry(path: pathlib.Path, key: dict) -> dict | None:
    """Return what `write_entry` kept under this key; None if that is missing or damaged."""
    try:
        entry = json.loads(read(path) or b"")
        content = {"key": entry["key"], "value": entry["value"]}
        sound = entry["checksum"] == digest(content) and entry["key"] == key
    except (ValueError, KeyError, TypeError):
        return None
    return entry["value"] if sound else None
