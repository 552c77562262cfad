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
_METADATA = "eqfuse"


class CheckpointError(ValueError):
    """A run folder or network file that cannot be read; the message is for the user."""


def encode(arrays: dict[str, np.ndarray], metadata: dict) -> bytes:
    """Return the content of a safetensors file whose header has the metadata, and checksums.

    Args:
      arrays: by name; the part before the first slash is the group that is read together.
      metadata: plain values, as JSON can hold them.
    """
    digests = {group: _digest(arrays, group) for group in {n.partition("/")[0] for n in arrays}}
    text = json.dumps({"format": FORMAT, **metadata, "arrays_sha256": digests}, sort_keys=True)
    return save(arrays, {_METADATA: text, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def read_metadata_of(path: Path) -> dict:
    """Return the metadata in the header of a file; its arrays are not read.

    Raises:
      CheckpointError: the file is missing, damaged, or no network of eqfuse.
    """
    return read_file(path, ())[1]


def read_file(path: Path, groups: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict]:
    """Return the arrays of some groups by name, and the metadata. Nothing in the file is executed.

    Raises:
      CheckpointError: the file is missing, damaged, or no network of eqfuse.
    """
    try:
        with safe_open(path, framework="np", backend="pread") as file:
            metadata = _checked_metadata(path, file.metadata() or {})
            names = [name for name in file.keys() if name.partition("/")[0] in groups]  # noqa: SIM118
            arrays = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} is missing") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    for group in groups:
        if _digest(arrays, group) != metadata["arrays_sha256"].get(group, _digest({}, group)):
            raise CheckpointError(f"checkpoint {path} is damaged: {group} has changed")
    return arrays, metadata


def _checked_metadata(path: Path, header: dict[str, str]) -> dict:
    if _METADATA not in header:
        raise CheckpointError(f"checkpoint {path} is damaged, or not a network of eqfuse")
    text = header[_METADATA]
    if hashlib.sha256(text.encode()).hexdigest() != header.get("sha256"):
        raise CheckpointError(f"checkpoint {path} is damaged: its metadata has changed")
    metadata = json.loads(text)
    if metadata["format"] != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {metadata['format']}, this version reads {FORMAT}"
        )
    return metadata


def _digest(arrays: dict[str, np.ndarray], group: str) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and bytes of the arrays of a group."""
    digest = hashlib.sha256()
    for name in sorted(name for name in arrays if name.partition("/")[0] == group):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_whole(path: Path, content: str | bytes, previous: Path | None = None):
    """Write a file so that it is whole, the old or the new one, also after a power loss.

    Args:
      path: of the file; its folder exists.
      content: of the file; text in UTF-8.
      previous: new name of the file that is replaced, if there is one; None: it goes.
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
    """Wait until the entries of a folder would survive a power loss.

    Raises:
      OSError: the disk reports that they would not.
    """
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
    """Rename a damaged file or folder, so that nothing is lost.

    Returns:
      The new name: it ends in `.damaged`, or `.damaged.2` and so on where there is one already.
    Raises:
      OSError: it cannot be renamed.
    """
    free, count = path.with_name(f"{path.name}.damaged"), 1
    while os.path.lexists(free):
        count += 1
        free = path.with_name(f"{path.name}.damaged.{count}")
    os.rename(path, free)
    return free
