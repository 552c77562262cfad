"""Files of a run: networks and checkpoints in safetensors, written whole or not at all.

This module does not import JAX, which takes seconds: the command line reads settings with it.
"""

import errno
import hashlib
import json
import os
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

FILES = {"best": ("best.safetensors",), "last": ("last.safetensors", "previous.safetensors")}
"""Names of each checkpoint's files, newest first: `previous` is for a disk that damages `last`."""

FORMAT = 4


class CheckpointError(ValueError):
    """A run folder or network file that cannot be read; the message is for the user."""


def encode(arrays: dict[str, np.ndarray], metadata: dict) -> bytes:
    """Return the content of a safetensors file with metadata, plain values, in its header."""
    metadata = {"format": FORMAT, **metadata, "arrays_sha256": _digest(arrays)}
    text = json.dumps(metadata, sort_keys=True)
    return save(arrays, {"eqfuse": text, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def read_file(path: Path, *, only_metadata=False) -> tuple[dict[str, np.ndarray], dict]:
    """Return the arrays of a file by name, and its metadata. Nothing in the file is executed.

    Raises:
      CheckpointError: the file is missing, damaged, or no network of eqfuse.
    """
    try:
        with safe_open(path, framework="np", backend="pread") as file:
            metadata = _checked_metadata(path, file.metadata() or {})
            arrays = {} if only_metadata else file.get_tensors()
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} is missing") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    if not only_metadata and _digest(arrays) != metadata["arrays_sha256"]:
        raise CheckpointError(f"checkpoint {path} is damaged: its arrays have changed")
    return arrays, metadata


def _checked_metadata(path: Path, header: dict[str, str]) -> dict:
    if "eqfuse" not in header:
        raise CheckpointError(f"checkpoint {path} is damaged, or not a network of eqfuse")
    text = header["eqfuse"]
    if hashlib.sha256(text.encode()).hexdigest() != header.get("sha256"):
        raise CheckpointError(f"checkpoint {path} is damaged: its metadata have changed")
    metadata = json.loads(text)
    if metadata["format"] != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {metadata['format']}, this version reads {FORMAT}"
        )
    return metadata


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and bytes of arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_whole(path: Path, content: str | bytes, previous: Path | None = None):
    """Write a file so that it is whole, the old or the new one, also after a power loss.

    Args:
      path: of the file; its folder exists.
      content: of the file; text in UTF-8.
      previous: new name of the file that is replaced; None: it goes. One of both is there, whole,
        at every moment.
    Raises:
      OSError: it cannot be written; it is as it was.
    """
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path):
    """Wait until the entries of a folder would survive a power loss, or raise OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems sync no folders: their server does.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder to `<name>.damaged`, or `.damaged.2` and so on if it exists.

    Raises:
      OSError: it cannot be renamed.
    """
    free, count = path.with_name(f"{path.name}.damaged"), 1
    while os.path.lexists(free):
        count += 1
        free = path.with_name(f"{path.name}.damaged.{count}")
    return path.rename(free)
