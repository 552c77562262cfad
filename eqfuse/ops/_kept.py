"""What one process makes and later ones find: files under a digest of all that they are made of.

Trust: code from these files is executed, so folders are of mode 0700 and files 0600, whatever the
umask, and what another user owns, or can write, is not used. Windows has no such modes, and nothing
is checked there. Size: what was not used for long is removed, see `remove_old`. Nothing that goes
wrong with a file that is kept for speed, such as on a full disk, stops the work.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

KEPT_DAYS, KEPT_MB = 30, 1000
"""How long a file is kept after its use, and how much each folder keeps: see `remove_old`."""
_TEMPORARY: list[tempfile.TemporaryDirectory] = []
"""Folders that are removed when the process ends."""


class Kept:
    """An entry of a folder, which one process makes and later ones find.

    Args:
      folder: its name in `cache_folder`, or a path.
      key: JSON of all that the entry depends on; None for what `name` says.
      suffix: of the name, the same for all entries of a folder.
      name: what the name begins with, before the digest of the key.
    """

    def __init__(self, folder: str | os.PathLike, key=None, suffix: str = "", name: str = ""):
        self._folder, self._suffix = folder, suffix
        self.name = f"{name}{'' if key is None else digest(key)}{suffix}"

    @property
    def path(self) -> pathlib.Path:
        own = self._folder
        return (cache_folder(own) if isinstance(own, str) else pathlib.Path(own)) / self.name

    def read(self) -> bytes | None:
        """Return what was written; None if there is nothing, or if it is damaged.

        What others may have written is not read, which is a warning.
        """
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            if fault := _fault(os.fstat(file.fileno())):
                text = f"{self.path} is ignored, since it {fault}; what it holds is made again"
                warnings.warn(text, UserWarning, stacklevel=2)
                return None
            with contextlib.suppress(OSError):  # a folder that is read only
                os.utime(self.path)  # the least recently used are removed first
            content = file.read()
            if self._checksum(content[32:]) == content[:32]:
                return content[32:]
        return None

    def write(self, content: bytes) -> None:
        """Keep bytes, with a checksum, if the disk lets it, and remove what is old.

        A reader sees the old content or the new one, never a part.
        """
        with contextlib.suppress(OSError):
            content = self._checksum(content) + content
            self._put(self.path, lambda path: path.write_bytes(content))
            remove_old(self.path.parent, f"*{self._suffix}")

    def _checksum(self, content: bytes) -> bytes:
        return hashlib.sha256(self.name.encode() + content).digest()

    def made(self, make: Callable[[pathlib.Path], object]) -> pathlib.Path:
        """Return the path of the entry, a file or folder, which `make` writes where there is none.

        It is never there in part, and of several processes that ask for it at the same time, one
        writes it. It is not removed when it is old.

        Raises:
          OSError: it cannot be written.
        """
        path = self.path
        if not path.exists() or remove_untrusted(path):
            with alone(path.with_name(f".{path.name}.lock")):
                if not path.exists():
                    self._put(path, make)
        return path

    def _put(self, path: pathlib.Path, make: Callable[[pathlib.Path], object]) -> None:
        """Let `make` write the entry under another name, and rename it."""
        _make(path.parent)
        partial = pathlib.Path(tempfile.mkdtemp(dir=path.parent, prefix=".partial-"))
        try:
            make(new := partial / path.name)
            new.chmod(new.stat().st_mode & ~0o077)
            os.replace(new, path)
        except OSError:
            if not path.exists():  # another process, that was faster, may have written a folder
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def alone(lock: pathlib.Path, waiting: str = ""):
    """Return a context of one process at a time, where the system and the disk have locks.

    A process that waits for another one prints `waiting`, once.
    """
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # which Windows does not have

            _make(lock.parent)  # the user may have removed it
            file = opened.enter_context(open(lock, "a", encoding="utf-8"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _print_once(waiting)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def _print_once(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


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


def remove_untrusted(path: pathlib.Path) -> bool:
    """Remove a file or folder that others may have written, with a warning; return whether."""
    with contextlib.suppress(FileNotFoundError):  # another process removes it too
        if fault := _fault(path.lstat()):
            text = f"{path} is ignored, since it {fault}, and is removed"
            warnings.warn(text, UserWarning, stacklevel=3)
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            return True
    return False


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


def digest(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
