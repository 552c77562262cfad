"""This machine: its processors, and a folder of compiled code that survives the process.

The folder is this user's own, and written atomically. The code is executed, so what another user
owns, or can write, is not used. Folders have mode 0700 and files 0600, whatever the umask; Windows
has no such modes, and nothing is checked there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import platform
import shutil
import sys
import tempfile
import time
import warnings

DEFAULT_CACHES = 1 << 20, 1 << 24
"""Bytes of the caches of level 2 and 3 of a small server, where the system reports none."""
_TEMPORARY: list[tempfile.TemporaryDirectory] = []
"""Folders that are removed when the process ends."""
KEPT_DAYS, KEPT_MB = 30, 1000
"""How long a file is kept after its use, and how much each folder keeps: see `remove_old`."""


def num_processors() -> int:
    """Return the number of processors this process may run on; all, if the system reports none."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def caches(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> tuple[int, int]:
    """Return the bytes of the caches of level 2 and 3 that a core uses, as Linux reports them.

    A level of which nothing is known has the bytes in `DEFAULT_CACHES`.
    """
    found: dict[int, int] = {}
    for path in pathlib.Path(folder).glob("index*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            level, kind, size = ((path / n).read_text().strip() for n in ("level", "type", "size"))
            unit = 1 << (10 * " KMG".index(size[-1])) if size[-1] in "KMG" else 1
            if kind != "Instruction":
                found[int(level)] = int(size.rstrip("KMG")) * unit
    return found.get(2) or DEFAULT_CACHES[0], found.get(3) or DEFAULT_CACHES[1]


def description() -> list[str]:
    """Return the key of code for this processor: system, names, instructions and caches.

    Without llvmlite, the name is what Python knows of it.
    """
    words = [platform.system(), platform.machine(), repr(caches())]
    with contextlib.suppress(ImportError):
        import llvmlite.binding as llvm

        features = sorted(dict(llvm.get_host_cpu_features()).items())
        return [*words, llvm.get_host_cpu_name(), repr(features)]
    return [*words, platform.processor()]


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

    It is EQFUSE_CACHE_DIR, or in the user's cache folder. A temporary one replaces a folder that
    cannot be written to, or that others own or can write to, with a warning.
    """
    asked = os.environ.get("EQFUSE_CACHE_DIR")
    folder = _usable(pathlib.Path(asked).expanduser().absolute() if asked else _default_folder())
    for name in names:
        folder = _usable(folder / name)
    return folder


@functools.cache
def _usable(folder: pathlib.Path) -> pathlib.Path:
    """Return a folder, or a temporary one in its place, with a warning that says why."""
    try:
        _make(folder)
        if not (fault := _fault(folder.stat())):
            with tempfile.TemporaryFile(dir=folder):
                return folder.resolve()
        why = f"is ignored, since it {fault}"
    except OSError as error:
        why = f"cannot be written to ({error.strerror or error})"
    _TEMPORARY.append(tempfile.TemporaryDirectory(prefix="eqfuse-"))
    warnings.warn(
        f"the kernel cache {folder} {why}. A temporary folder takes its place, and the next "
        "process compiles again. Set EQFUSE_CACHE_DIR to a writable folder of your own.",
        UserWarning,
        stacklevel=3,
    )
    return pathlib.Path(_TEMPORARY[-1].name)


def _make(folder: pathlib.Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _fault(status: os.stat_result) -> str:
    """Return why others may have written a file or a folder, or ""."""
    if not hasattr(os, "geteuid"):
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    return "can be written by others (chmod go-w)" if status.st_mode & 0o022 else ""


def read(path: pathlib.Path) -> bytes | None:
    """Return the content of a file; None if there is none, or, with a warning, another user's."""
    try:
        with open(path, "rb") as file:
            if not (fault := _fault(os.fstat(file.fileno()))):
                with contextlib.suppress(OSError):  # a folder that is read only
                    os.utime(path)  # the least recently used are removed first
                return file.read()
    except OSError:
        return None
    warnings.warn(
        f"{path} is ignored, since it {fault}; what it holds is compiled again",
        UserWarning,
        stacklevel=3,
    )
    return None


def remove_untrusted(folder: pathlib.Path) -> None:
    """Remove entries that others may have written, with a warning, where others read them."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process removes it too
            if fault := _fault(path.lstat()):
                warnings.warn(
                    f"{path} is ignored, since it {fault}, and is removed",
                    UserWarning,
                    stacklevel=2,
                )
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def remove_old(folder: pathlib.Path, pattern: str) -> None:
    """Remove files that were not used for `KEPT_DAYS`, or else the least recently used.

    What is left is at most EQFUSE_CACHE_MB, or `KEPT_MB`, and what was used in the last hour, which
    another process may be about to read.

    Raises:
      ValueError: EQFUSE_CACHE_MB is no whole number.
    """
    text, now, kept = os.environ.get("EQFUSE_CACHE_MB") or str(KEPT_MB), time.time(), 0
    if not text.isdecimal():
        raise ValueError(f"EQFUSE_CACHE_MB must be a whole number of megabytes, got {text!r}")
    found = []
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # another process removes it too
            status = path.stat()
            found.append((now - status.st_mtime, status.st_size, path))
    for age, size, path in sorted(found):
        kept += size
        if age > KEPT_DAYS * 24 * 3600 or (age > 3600 and kept > int(text) * 10**6):
            path.unlink(missing_ok=True)


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


def digest(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_entry(path: pathlib.Path, key: dict, value: dict) -> None:
    """Keep `value` under `key` with a checksum."""
    content = {"key": key, "value": value}
    write(path, json.dumps({"checksum": digest(content), **content}, indent=1).encode())


def read_entry(path: pathlib.Path, key: dict) -> dict | None:
    """Return the entry that was kept under this key; None if it is missing or damaged."""
    try:
        entry = json.loads(read(path) or b"")
        content = {"key": entry["key"], "value": entry["value"]}
        sound = entry["checksum"] == digest(content) and entry["key"] == key
    except (ValueError, KeyError, TypeError):
        return None
    return entry["value"] if sound else None
