"""Structures and neighbour lists on disk, for data sets that are larger than memory.

Arrays of all frames are one file each, which is mapped into memory: a frame is a few views of them.
Their folder is found again by the content of the files that they are from.
"""

import contextlib
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np

from eqfuse.data.lazy import Lazy, Subset, reported
from eqfuse.data.readers import USUAL_KEYS, Keys, iterate_structures
from eqfuse.data.readers.public import default_folder
from eqfuse.data.references import require_references
from eqfuse.data.samples import (
    Sample,
    arranged,
    prepare_samples,
    species_index,
)
from eqfuse.data.structures import (
    DEFAULT_TYPE,
    MAX_ATOMIC_NUMBER,
    TRAINED,
    DataError,
    Structure,
    Weights,
    is_isolated_atom,
)

_VERSION = "3"
"""Version of what the files hold; another one is stored anew."""
_FRAME = np.dtype(
    [
        ("start", np.int64),  # of its atoms in the other files
        ("num_atoms", np.int64),
        ("number", np.int64),  # in its file
        ("file", np.int32),
        ("config_type", np.int32),  # -1 for None
        ("known", bool, len(TRAINED)),  # the labels
        ("pbc", bool, 3),
        ("cell", np.float64, (3, 3)),
        ("energy", np.float64),
        ("stress", np.float64, (3, 3)),
        ("hessian", np.int64),  # start of its Hessian, if it is known
        ("weights", np.float64, len(TRAINED)),
        ("weighted", bool),  # whether its atoms have weights
    ]
)
_ATOMS = {
    "numbers": (np.int32, ()),
    "positions": (np.float64, (3,)),
    "forces": (np.float64, (3,)),
    "atom_weights": (np.float64, ()),
}
_LIST = np.dtype(
    [
        ("start", np.int64),  # of its edges
        ("num_edges", np.int64),
        ("shifts", np.int64),  # start of its shifts; -1 where all are zero
    ]
)
_ARRAYS = {
    "order": (np.int32, ()),
    "moved": (np.float64, (3,)),
    "senders": (np.int32, ()),
    "receivers": (np.int32, ()),
    "shifts": (np.float64, (3,)),
}
_CHUNK = 500  # frames that a worker makes lists of at once
_FEWEST = 4000  # frames that workers are started for: they import for seconds
_MOST_WORKERS = 16


def store_structures(
    paths: Sequence[str | os.PathLike],
    *,
    format: str | None = None,
    keys: Keys = USUAL_KEYS,
    folder: str | os.PathLike | None = None,
) -> "StoredStructures":
    """Return the structures of files, which are read once and kept on disk.

    They are in `folder`, or in `store` in the folder of downloads; nothing is kept of files of
    which one cannot be read. For format and keys see `eqfuse.data.read_structures`.
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


class StoredStructures(Lazy):
    """The structures that `write_frames` wrote; each is a few views of files."""

    def __init__(self, folder: Path, by_type: Mapping[str, float] | None = None):
        self.folder = Path(folder)
        names = json.loads((self.folder / "names.json").read_text("utf-8"))
        self._files, self._types = names["files"], names["config_types"]
        self.frames = _mapped(self.folder / "frames", _FRAME)  # [n_frames]
        # of all atoms, [n], [n, 3] Å, [n, 3] eV/Å (zero where unknown), [n]
        self.numbers, self.positions, self.forces, self.atom_weights = (
            _mapped(self.folder / name, *kind) for name, kind in _ATOMS.items()
        )
        self._hessians = _mapped(self.folder / "hessians", np.float64)  # one after the other
        kinds = *self._types, None  # whose number is -1
        self._isolated = np.array([is_isolated_atom(kind) for kind in kinds])
        # of the weights, by the number of the config_type
        self.factors = np.array([(by_type or {}).get(k or DEFAULT_TYPE, 1.0) for k in kinds])

    def weighted(self, by_type: Mapping[str, float]) -> "StoredStructures":
        """Return these structures with the weights of `eqfuse.data.structures.weighted_by_type`."""
        return StoredStructures(self.folder, by_type)

    def __len__(self) -> int:
        return len(self.frames)

    def fields(self, k: int) -> tuple[dict, slice]:
        """Return what a frame and its sample have in common, and the slice of its atoms."""
        record = self.frames[k].item()  # all at once: one by one takes ten times as long
        start, num_atoms, number, file, kind, known, _, cell, *of_frame = record[:-2]
        energy, stress, first = of_frame
        known, weights = known.tolist(), record[-2].tolist()
        if (factor := self.factors[kind]) != 1:
            weights = [factor * weight for weight in weights]
            isolated = self._isolated[kind]
            known = [k and (w > 0 or isolated) for k, w in zip(known, weights, strict=True)]
        atoms, hessian = slice(start, start + num_atoms), None
        if known[3]:
            shape = num_atoms, 3, num_atoms, 3
            hessian = self._hessians[first : first + (3 * num_atoms) ** 2].reshape(shape)
        return {
            "name": f"{self._files[file]}, frame {number}",
            "config_type": None if kind < 0 else self._types[kind],
            "cell": cell,
            "energy": energy if known[0] else None,
            "forces": self.forces[atoms] if known[1] else None,
            "stress": stress if known[2] else None,
            "weights": Weights(*weights),
            "atom_weights": self.atom_weights[atoms] if record[-1] else None,
            "hessian": hessian,
        }, atoms

    def item(self, k: int) -> Structure:
        fields, atoms = self.fields(k)
        return Structure.unchecked(
            numbers=self.numbers[atoms],
            positions=self.positions[atoms],
            pbc=self.frames["pbc"][k],
            origin=fields.pop("name"),
            **fields,
        )


class StoredSamples(Lazy):
    """Samples of stored structures with stored neighbour lists; each is a few views of files."""

    def __init__(
        self,
        structures: StoredStructures,  # all that are stored
        folder: Path,  # of their neighbour lists
        indices: Sequence[int],  # of those that are samples, in their order
        species: Sequence[int],  # sorted atomic numbers of the model
        references: Mapping[int, float] | None,  # eV; None to leave out all labels
    ):
        self.structures, self.folder = structures, folder
        self.indices = np.asarray(indices, np.int64)
        self.species = tuple(species)
        self._lists = _mapped(folder / "lists", _LIST)
        self._arrays = {name: _mapped(folder / name, *kind) for name, kind in _ARRAYS.items()}
        self._species_of = np.full(MAX_ATOMIC_NUMBER + 1, -1, np.int32)
        self._species_of[list(self.species)] = np.arange(len(self.species))
        self._labels = references is not None
        if self._labels:
            self._energies = self._relative_energies(references)
        elif not set(np.unique(structures.numbers).tolist()) <= set(self.species):
            self._require_species()

    def _require_species(self) -> None:
        for number in self.indices.tolist():
            species_index(self.structures[number].numbers, self.species)

    def _relative_energies(self, references: Mapping[int, float]) -> np.ndarray:
        """Return the energies [n_samples] relative to references, NaN where they are unknown."""
        energies = np.full(len(self), np.nan)
        self._require_species()
        of_element = np.zeros(max(references) + 1)
        of_element[list(references)] = list(references.values())
        for k, number in enumerate(self.indices.tolist()):
            structure = self.structures[number]
            require_references(structure.numbers, references)
            if structure.energy is not None:
                energies[k] = structure.energy - float(of_element[structure.numbers].sum())
        return energies

    def with_references(self, references: Mapping[int, float]) -> "StoredSamples":
        """Return these samples with energies relative to other reference energies."""
        given = self.structures, self.folder, self.indices, self.species
        return StoredSamples(*given, references)

    @property
    def sizes(self) -> np.ndarray:
        """Return the numbers of atoms and edges, [n_samples, 2] int32."""
        sizes = np.empty((len(self), 2), np.int32)
        sizes[:, 0] = self.structures.frames["num_atoms"][self.indices]
        sizes[:, 1] = self._lists["num_edges"][self.indices]
        return sizes

    @property
    def weighted(self) -> bool:
        """Test for a weight of a label that is not one."""
        frames = self.structures
        of_types = (frames.factors[frames.frames["config_type"][self.indices]] != 1).any()
        of_atoms = frames.frames["weighted"][self.indices].any()
        return bool(of_types or of_atoms or (frames.frames["weights"][self.indices] != 1).any())

    def __len__(self) -> int:
        return len(self.indices)

    def item(self, k: int) -> Sample:
        arrays, number = self._arrays, int(self.indices[k])
        fields, atoms = self.structures.fields(number)
        start, count, first = self._lists[number].item()
        edges, order = slice(start, start + count), arrays["order"][atoms]
        if not self._labels:
            fields |= dict.fromkeys(TRAINED)
        if fields["energy"] is not None:
            fields["energy"] = float(self._energies[k])
        for name in ("forces", "atom_weights"):
            fields[name] = None if fields[name] is None else fields[name][order]
        shifts = np.zeros((count, 3)) if first < 0 else arrays["shifts"][first : first + count]
        return Sample(
            positions=arrays["moved"][atoms],
            species=self._species_of[self.structures.numbers[atoms][order]],
            senders=arrays["senders"][edges],
            receivers=arrays["receivers"][edges],
            shifts=shifts,
            order=order,
            **fields,
        )


def write_frames(folder: Path, files: dict[str, Iterable[Structure]]) -> None:
    """Write structures, by the name of their file, to a folder, while they are read."""
    types: dict[str, int] = {}
    start = first = 0
    with _written(folder, "frames", "hessians", *_ATOMS) as outputs:
        for file, (path, structures) in enumerate(files.items()):
            number = -1
            for number, s in enumerate(structures):
                record = np.zeros((), _FRAME)
                record["start"], record["num_atoms"] = start, s.num_atoms
                record["file"], record["number"] = file, number
                kind = s.config_type
                record["config_type"] = -1 if kind is None else types.setdefault(kind, len(types))
                record["known"] = [getattr(s, name) is not None for name in TRAINED]
                record["pbc"], record["cell"], record["weights"] = s.pbc, s.cell, s.weights
                record["weighted"] = s.atom_weights is not None
                record["energy"] = 0.0 if s.energy is None else s.energy
                record["stress"] = 0.0 if s.stress is None else s.stress
                record["hessian"] = first
                if s.hessian is not None:
                    outputs["hessians"].write(s.hessian.tobytes())
                    first += s.hessian.size
                outputs["frames"].write(record.tobytes())
                forces = np.zeros((s.num_atoms, 3)) if s.forces is None else s.forces
                ones = np.ones(s.num_atoms) if s.atom_weights is None else s.atom_weights
                arrays = dict(zip(_ATOMS, (s.numbers, s.positions, forces, ones), strict=True))
                for name, (dtype, _) in _ATOMS.items():
                    outputs[name].write(np.ascontiguousarray(arrays[name], dtype).tobytes())
                start += s.num_atoms
            if number < 0:
                raise DataError(f"{path} has no frames; give a file with structures in it")
    names = {"files": list(files), "config_types": list(types)}
    (folder / "names.json").write_text(json.dumps(names), encoding="utf-8")


@contextlib.contextmanager
def _written(folder: Path, *names: str) -> Iterator[dict[str, BinaryIO]]:
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(open(folder / name, "wb")) for name in names}


def _mapped(path: Path, dtype, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return the array in a file, which is read when it is used, [n, *shape]."""
    if not path.stat().st_size:  # nothing can be mapped
        return np.zeros((0, *shape), dtype)
    # views of an array are made faster than those of its subclass
    return np.asarray(np.memmap(path, dtype, "r")).reshape(-1, *shape)


def write_lists(folder: Path, structures: StoredStructures, cutoff: float, workers=None) -> None:
    """Write the neighbour lists of structures to a folder.

    There are as many processes as `workers`; without it, one for each core, or one for few
    structures.
    """
    count = len(structures)
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        workers = min(_MOST_WORKERS, cores) if count >= _FEWEST else 1
    edges = shifts = 0
    with _written(folder, "lists", *_ARRAYS) as files:
        chunks = _chunks(structures, cutoff, workers)
        for sizes, arrays in reported(chunks, f"times {_CHUNK} neighbour lists made"):
            records = np.zeros(len(sizes), _LIST)
            records["num_edges"] = sizes[:, 0]
            records["start"] = edges + np.cumsum(sizes[:, 0]) - sizes[:, 0]
            records["shifts"] = shifts + np.cumsum(sizes[:, 1]) - sizes[:, 1]
            records["shifts"][sizes[:, 1] == 0] = -1
            edges, shifts = edges + int(sizes[:, 0].sum()), shifts + int(sizes[:, 1].sum())
            files["lists"].write(records.tobytes())
            for name, array in arrays.items():
                files[name].write(array.tobytes())


def _chunks(structures: StoredStructures, cutoff: float, workers: int) -> Iterator:
    """Yield the result of `_lists` for each chunk of structures, in order."""
    starts = range(0, len(structures), _CHUNK)
    if workers == 1:
        for start in starts:
            yield _lists(structures.folder, cutoff, start)
        return
    # Forked processes would have the threads' locks of JAX without the threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = []
        for start in starts:
            waiting.append(pool.submit(_lists, structures.folder, cutoff, start))
            if len(waiting) > 2 * workers:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def _lists(folder: Path, cutoff: float, start: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return numbers of edges and shifts, [n, 2], and the arrays of a chunk of structures."""
    structures = StoredStructures(folder)
    parts = {name: [np.zeros((0, *shape), dtype)] for name, (dtype, shape) in _ARRAYS.items()}
    sizes = []
    for k in range(start, min(start + _CHUNK, len(structures))):
        structure = structures[k]
        try:
            order, positions, senders, receivers, shifts = arranged(structure, cutoff)
        except DataError as err:
            raise DataError(f"{structure.origin}: {err}") from err
        kept = shifts if shifts.any() else shifts[:0]
        sizes.append((len(senders), len(kept)))
        made = {"order": order, "moved": positions, "senders": senders, "receivers": receivers}
        for name, array in (made | {"shifts": kept}).items():
            parts[name].append(np.asarray(array, _ARRAYS[name][0]))
    arrays = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return np.array(sizes, np.int64).reshape(-1, 2), arrays
