"""Structures and neighbour lists on disk, for data sets that are larger than memory.

Frames are pickled one after the other into a file, which is mapped into memory, and each has a
checksum. Their folder is this user's own, and found again by the content of the files that they are
from. LMDB has no checksums of its pages: one flipped bit of a page ends the process (SIGBUS). Lists
that are made when a sample is read would take 6 times (9 atoms) to 18 times (108 atoms) as long.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import multiprocessing
import os
import pickle
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from eqfuse.data.lazy import Lazy, Subset, reported
from eqfuse.data.readers import USUAL_KEYS, Keys, iterate_structures
from eqfuse.data.readers.format import files_of
from eqfuse.data.samples import Sample, arranged, prepare_samples, sample_of
from eqfuse.data.structures import UNWEIGHTED, DataError, Structure, weighted
from eqfuse.ops._host import num_processors
from eqfuse.ops._kept import Kept

_VERSION = "7"
"""Version of what the files hold; another one is stored anew."""
_CHUNK = 500  # frames that a worker makes lists of at once
_FEWEST = 4000  # frames that workers are started for: they import for seconds
_MOST_WORKERS = 16


def store_structures(
    paths: Sequence[str | os.PathLike],
    *,
    keys: Keys = USUAL_KEYS,
    types: str | None = None,
    folder: str | os.PathLike | None = None,
) -> "StoredStructures":
    """Return the structures of files, which are read once and kept on disk.

    They are in `folder`, or in `store` in the folder of compiled kernels; nothing is kept of files
    of which one cannot be read. For keys and types see `eqfuse.data.read_structures`.

    Raises:
      DataError: a file that cannot be read, a folder that cannot be written, or a damaged one.
    """
    fields = [field.name for field in dataclasses.fields(Structure)]
    key = hashlib.sha256(repr((_VERSION, fields, tuple(keys), types)).encode())
    for path in paths:
        key.update(f"{os.fspath(path)}\0".encode())
        for one in files_of(path):
            with contextlib.suppress(OSError), open(one, "rb") as file:  # reading it raises
                key.update(hashlib.file_digest(file, "sha256").digest())
    kept = Kept("store" if folder is None else folder, key.hexdigest())

    def write(to: Path):
        how = {"keys": keys, "types": types}
        write_frames(to, {os.fspath(p): iterate_structures(p, **how) for p in paths})

    return StoredStructures(_made(kept, write))


def samples_of(
    structures: Sequence[Structure],
    cutoff: float,
    species: Sequence[int],
    references: Mapping[int, float] | None,
) -> Sequence[Sample]:
    """Return samples of structures, see `prepare_samples`; of stored ones, with lists on disk."""
    every, indices = structures, range(len(structures))
    if isinstance(structures, Subset):
        every, indices = structures.items, structures.indices
    if not isinstance(every, StoredStructures):
        return prepare_samples(list(structures), cutoff, species, references)
    return StoredSamples(every, lists_of(every, cutoff), indices, species, references)


def lists_of(structures: "StoredStructures", cutoff: float) -> Path:
    """Return the folder of the neighbour lists of stored structures, which are made once."""
    kept = Kept(structures.folder, name=f"lists-{float(cutoff)!r}")
    return _made(kept, lambda to: write_lists(to, structures, cutoff))


def _made(kept: Kept, write: Callable[[Path], None]) -> Path:
    try:
        return kept.made(write)
    except OSError as error:
        raise DataError(
            f"frames cannot be stored in {kept.path}: {error.strerror or error}; free or repair "
            "the disk, name another by XDG_CACHE_HOME, or keep them in memory by data.store=off"
        ) from error


class _Pickled(Lazy):
    """Objects that `write` pickled; each is checked and read when it is asked for."""

    def __init__(self, path: Path):
        self._path = path
        try:
            # [n, 4]: end, size, flag and CRC-32 of each; then a row that ends with that of the rows
            # before. Views of an array are faster than those of a memmap.
            table = np.asarray(np.memmap(path.with_suffix(".table"), np.int64, "r")).reshape(-1, 4)
            self._content = memoryview(np.memmap(path, np.uint8, "r"))
        except (OSError, ValueError) as error:
            raise self._damage(error) from error
        self.table = table[:-1]
        if zlib.crc32(self.table) != table[-1, -1] or table[-1, :-1].any():
            raise self._damage("its table has changed")

    def _damage(self, what) -> DataError:
        return DataError(
            f"the stored frames in {self._path.parent} are damaged ({what}); remove this folder, "
            "and the next run makes it again from your files"
        )

    @staticmethod
    def write(path: Path, pickles: Iterable[tuple[bytes, int, bool]]) -> None:
        """Write pickles, with a size and a flag of each, to a file in a new folder."""
        path.parent.mkdir(exist_ok=True)
        table = array("q")  # a list has 40 bytes for each number
        with open(path, "wb") as file:
            for content, size, flag in pickles:
                file.write(content)
                table.extend((file.tell(), size, flag, zlib.crc32(content)))
        table.extend((0, 0, 0, zlib.crc32(table)))
        path.with_suffix(".table").write_bytes(table)

    def __len__(self) -> int:
        return len(self.table)

    def item(self, k: int):
        content = self._content[self.table[k - 1, 0] if k else 0 : self.table[k, 0]]
        if zlib.crc32(content) != self.table[k, 3]:
            raise self._damage(f"record {k} has changed")
        return pickle.loads(content)  # of a file of our own


class StoredStructures(Lazy):
    """The structures that `write_frames` wrote, with weights by their config_type."""

    def __init__(self, folder: Path, by_type: Mapping[str, float] | None = None):
        self.folder, self.by_type = Path(folder), by_type or {}
        self._frames = _Pickled(self.folder / "frames")
        self.elements = self._frames[-1]
        _, self.num_atoms, self.are_weighted, _ = self._frames.table[:-1].T

    def __reduce__(self):
        return StoredStructures, (self.folder, self.by_type)

    def weighted(self, by_type: Mapping[str, float]) -> "StoredStructures":
        """Return these structures with the weights of `eqfuse.data.structures.weighted_by_type`."""
        return StoredStructures(self.folder, by_type)

    def __len__(self) -> int:
        return len(self._frames) - 1

    def item(self, k: int) -> Structure:
        return weighted(Structure.unchecked(**self._frames.item(k)), self.by_type)


class StoredSamples(Lazy):
    """Samples of stored structures with stored neighbour lists."""

    def __init__(
        self,
        structures: StoredStructures,  # all that are stored
        folder: Path,  # of their neighbour lists
        indices: Sequence[int],  # of those that are samples, in their order
        species: Sequence[int],  # sorted atomic numbers of the model
        references: Mapping[int, float] | None,  # eV; None to leave out all labels
    ):
        self.structures, self.folder, self.species = structures, folder, tuple(species)
        self.indices, self._references = np.asarray(indices, np.int64), references
        self._lists = _Pickled(folder / "lists")
        known = set(self.species) & set(self.species if references is None else references)
        if not known.issuperset(structures.elements):
            collections.deque(self, maxlen=0)  # refuses one with an element that is not known

    def with_references(self, references: Mapping[int, float]) -> "StoredSamples":
        """Return these samples with energies relative to other reference energies."""
        given = self.structures, self.folder, self.indices, self.species
        return StoredSamples(*given, references)

    @property
    def sizes(self) -> np.ndarray:
        columns = self.structures.num_atoms, self._lists.table[:, 1]
        return np.stack([c[self.indices] for c in columns], axis=1).astype(np.int32)

    @property
    def weighted(self) -> bool:
        """Test for a weight of a label that may not be one."""
        return bool(self.structures.by_type or self.structures.are_weighted[self.indices].any())

    def __len__(self) -> int:
        return len(self.indices)

    def item(self, k: int) -> Sample:
        number = int(self.indices[k])
        *lists, shifts = self._lists.item(number)
        shifts = np.zeros((len(lists[-1]), 3)) if shifts is None else shifts
        structure = self.structures.item(number)
        return sample_of(structure, (*lists, shifts), self.species, self._references)


def write_frames(folder: Path, files: dict[str, Iterable[Structure]]) -> None:
    """Write structures, by the name of their file, to a folder, while they are read."""
    elements: set[int] = set()

    def pickles():
        for path, structures in files.items():
            for number, s in enumerate(structures):
                elements.update(s.numbers.tolist())
                fields = vars(s) | {"origin": f"{path}, frame {number}"}
                is_weighted = s.weights != UNWEIGHTED or s.atom_weights is not None
                yield pickle.dumps(fields, pickle.HIGHEST_PROTOCOL), s.num_atoms, is_weighted
        yield pickle.dumps(sorted(elements)), 0, False

    _Pickled.write(folder / "frames", pickles())


def write_lists(folder: Path, structures: StoredStructures, cutoff: float, workers=None) -> None:
    """Write the neighbour lists of structures to a folder.

    There are as many processes as `workers`; without it, one for each core, or one for few
    structures.
    """
    count, each = len(structures), map
    if workers is None:
        workers = min(_MOST_WORKERS, num_processors()) if count >= _FEWEST else 1
    with contextlib.ExitStack() as stack:
        if workers > 1:  # forked ones would have the threads' locks of JAX without the threads
            context = multiprocessing.get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=context))
            each = functools.partial(pool.map, chunksize=_CHUNK)
        lists = each(functools.partial(_list, structures, cutoff), range(count))
        _Pickled.write(folder / "lists", reported(lists, "neighbour lists made"))


def _list(structures: StoredStructures, cutoff: float, k: int) -> tuple[bytes, int, bool]:
    """Return what is written of the neighbour list of a structure."""
    *lists, shifts = arranged(structures[k], cutoff)
    lists.append(shifts if shifts.any() else None)
    return pickle.dumps(lists, pickle.HIGHEST_PROTOCOL), len(lists[-2]), False
