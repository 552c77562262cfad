"""The folder of stored structures: found again by the content of the files that they are from."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from eqfuse.data.batching import Sample
from eqfuse.data.lazy import Subset
from eqfuse.data.progress import reported
from eqfuse.data.readers import USUAL_KEYS, Keys, iterate_structures
from eqfuse.data.readers.public import default_folder
from eqfuse.data.samples import prepare_samples
from eqfuse.data.store.frames import StoredStructures, write_frames
from eqfuse.data.store.lists import StoredSamples, write_lists
from eqfuse.data.structures import Structure

_VERSION = "1"
"""Version of what the files hold; another one is stored anew."""


def store_structures(
    paths: Sequence[str | os.PathLike],
    *,
    format: str | None = None,
    keys: Keys = USUAL_KEYS,
    folder: str | os.PathLike | None = None,
) -> StoredStructures:
    """Return the structures of files, which are read once and kept on disk.

    Args:
      paths: the files.
      format, keys: see `eqfuse.data.read_structures`.
      folder: where they are kept; None for `store` in the folder of downloads.
    Raises:
      DataError: a file that cannot be read; nothing is kept then.
    """
    key = hashlib.sha256(repr((_VERSION, format, tuple(keys))).encode())
    for path in paths:
        key.update(f"{os.fspath(path)}\0".encode())
        with contextlib.suppress(OSError), open(path, "rb") as file:  # reading it raises
            key.update(hashlib.file_digest(file, "sha256").digest())
    above = Path(folder) if folder is not None else default_folder() / "store"

    def write(to: Path):
        readers = {os.fspath(p): iterate_structures(p, format=format, keys=keys) for p in paths}
        write_frames(to, {p: reported(r, f"frames of {p} read") for p, r in readers.items()})

    return StoredStructures(_made(above / key.hexdigest()[:32], write))


def samples_of(
    structures: Sequence[Structure],
    cutoff: float,
    species: Sequence[int],
    references: Mapping[int, float] | None,
    names: Sequence[str] | None = None,
) -> Sequence[Sample]:
    """Return samples of structures; of stored ones, with neighbour lists on disk.

    Args:
      structures: in memory, or all or some of `store_structures`.
      cutoff, species, references, names: see `prepare_samples`.
    Raises:
      DataError: see `prepare_samples`.
    """
    indices = None
    if isinstance(structures, Subset):
        structures, indices = structures.items, structures.indices
    if not isinstance(structures, StoredStructures):
        if indices is not None:
            structures = [structures[int(i)] for i in indices]
        return prepare_samples(structures, cutoff, species, references, names)
    indices = range(len(structures)) if indices is None else indices
    return StoredSamples(structures, lists_of(structures, cutoff), indices, species, references)


def lists_of(structures: StoredStructures, cutoff: float) -> Path:
    """Return the folder of the neighbour lists of stored structures, which are made once.

    Args:
      structures: all that are stored.
      cutoff: Å.
    Raises:
      DataError: see `eqfuse.data.neighbor_list`; nothing is kept then.
    """
    folder = structures.folder / f"lists-{float(cutoff)!r}"
    return _made(folder, lambda to: write_lists(to, structures, cutoff))


def _made(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return a folder that is complete; one that is not there is written beside it, and renamed.

    Of several processes that ask for it at the same time, one writes it.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.parent):
        if folder.is_dir():
            return folder
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
        try:
            write(partial)
            with contextlib.suppress(OSError):  # where there are no locks, another may be faster
                os.rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _alone(folder: Path):
    """Return a context of one process at a time in a folder, if its file system has locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
