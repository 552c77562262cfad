"""What a run asks of the disk: room, files that survive a power loss, and what to say of errors."""

import errno
import os
import re
import shutil
from pathlib import Path

import jax
import numpy as np

# Bytes of orbax's own files: measured with many small arrays, and rounded up.
_OVERHEAD, _OVERHEAD_PER_ARRAY = 100_000, 1_500


def require_space(folder: Path, items: dict):
    """Refuse to begin a checkpoint for which there is no room.

    Args:
      folder: where it will be written.
      items: pytree of its arrays.
    Raises:
      OSError: with what is needed and what is free. A quota may still end the writing later.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(items)]
    needed = _OVERHEAD + sum(leaf.nbytes + _OVERHEAD_PER_ARRAY for leaf in leaves)
    free = shutil.disk_usage(folder).free
    if free < needed:
        text = f"it needs {needed // 1000} kB, and {free // 1000} kB are free"
        raise OSError(errno.ENOSPC, text)


def sync(path: Path):
    """Wait until a file, or the entries of a folder, would survive a power loss.

    Raises:
      OSError: the disk says that they would not.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems sync no folders: their server does.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


def sync_tree(path: Path):
    """Do what `sync` does for all files and folders below a folder, and for the folder itself."""
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))


def write_whole(path: Path, text: str):
    """Write a file so that it is there whole, as it was or as it will be, also after a power loss.

    Raises:
      OSError: it cannot be written; it is as it was.
    """
    part = path.with_name(path.name + ".part")
    with open(part, "w", newline="", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync(path.parent)


def set_aside(path: Path, target: Path | None = None) -> Path:
    """Rename a damaged file or folder, so that nothing is lost.

    Args:
      path: what is damaged.
      target: its new name without the ending; None for its own.
    Returns:
      The new name: it ends in `.damaged`, or `.damaged.2` and so on where there is one already.
    Raises:
      OSError: it cannot be renamed.
    """
    target = path if target is None else target
    free, count = target.with_name(f"{target.name}.damaged"), 1
    while os.path.lexists(free):
        count += 1
        free = target.with_name(f"{target.name}.damaged.{count}")
    os.rename(path, free)
    return free


def reason(error: Exception) -> str:
    """Return what the system said of a file, without the names of orbax's parts of it."""
    if code := _os_error_code(error):
        return os.strerror(code)
    return error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)


def remedy(error: Exception) -> str:
    """Return what to do about an error in writing a checkpoint."""
    if isinstance(error, OSError) or _os_error_code(error):
        return "free or repair the disk and resume the run"
    return "this is no fault of the disk, please report it; resume the run"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def _os_error_code(error: Exception) -> int | None:
    """Return the system's number in orbax's message, if it has one."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return int(code[1]) if code else None
