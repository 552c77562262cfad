"""Neighbour lists on disk, made by worker processes."""

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from eqfuse.data.batching import Sample
from eqfuse.data.columns import Columns
from eqfuse.data.errors import DataError
from eqfuse.data.lazy import Lazy
from eqfuse.data.progress import reported
from eqfuse.data.references import require_references
from eqfuse.data.samples import arranged, species_index
from eqfuse.data.store.frames import StoredStructures, mapped, pieces, slices
from eqfuse.data.structures import MAX_ATOMIC_NUMBER, Weights

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
_NO_SHIFTS = np.broadcast_to(0.0, (2**40, 3))  # one number
_CHUNK = 500  # frames that a worker makes lists of at once
_FEWEST = 4000  # frames that workers are started for: they import for seconds
_MOST_WORKERS = 16


def write_lists(folder: Path, structures: StoredStructures, cutoff: float, workers=None) -> None:
    """Write the neighbour lists of structures to a folder.

    Args:
      folder: that exists.
      structures: of which lists are made.
      cutoff: Å.
      workers: number of processes; None for one for each core, or none for few structures.
    Raises:
      DataError: see `eqfuse.data.neighbor_list`; names the structure.
    """
    count = len(structures)
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        workers = min(_MOST_WORKERS, cores) if count >= _FEWEST else 1
    edges = shifts = 0
    with (
        open(folder / "lists", "wb") as lists,
        _Files(folder) as files,
    ):
        chunks = _chunks(structures, cutoff, workers)
        for sizes, arrays in reported(chunks, f"times {_CHUNK} neighbour lists made"):
            records = np.zeros(len(sizes), _LIST)
            records["num_edges"] = sizes[:, 0]
            records["start"] = edges + np.cumsum(sizes[:, 0]) - sizes[:, 0]
            records["shifts"] = shifts + np.cumsum(sizes[:, 1]) - sizes[:, 1]
            records["shifts"][sizes[:, 1] == 0] = -1
            edges, shifts = edges + int(sizes[:, 0].sum()), shifts + int(sizes[:, 1].sum())
            lists.write(records.tobytes())
            for name, array in arrays.items():
                files[name].write(array.tobytes())


class _Files(dict):
    """The files of `_ARRAYS`, open for writing."""

    def __init__(self, folder: Path):
        super().__init__({name: open(folder / name, "wb") for name in _ARRAYS})  # noqa: SIM115

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file in self.values():
            file.close()


def _chunks(structures: StoredStructures, cutoff: float, workers: int) -> Iterator:
    """Yield what `_lists` returns for the structures, in order."""
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


class StoredSamples(Lazy):
    """Samples of stored structures with stored neighbour lists; each is a few views of files.

    Args:
      structures: all that are stored.
      folder: of their neighbour lists.
      indices: numbers of the structures that are samples, in their order.
      species: sorted atomic numbers of the model.
      references: atomic number -> eV; None to leave out all labels.
    Raises:
      DataError: an element that is not among the species or has no reference energy.
    """

    def __init__(
        self,
        structures: StoredStructures,
        folder: Path,
        indices: Sequence[int],
        species: Sequence[int],
        references: Mapping[int, float] | None,
    ):
        self.structures, self.folder = structures, folder
        self.indices = np.asarray(indices, np.int64)
        self.species = tuple(species)
        self._lists = mapped(folder / "lists", _LIST)
        self._arrays = {name: mapped(folder / name, *kind) for name, kind in _ARRAYS.items()}
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
        """Return whether a weight of a label is not one."""
        frames = self.structures
        of_types = (frames.factors[frames.frames["config_type"][self.indices]] != 1).any()
        return bool(of_types or (frames.frames["weights"][self.indices] != 1).any())

    def __len__(self) -> int:
        return len(self.indices)

    def columns(self, indices: np.ndarray) -> Columns:
        """Return the columns of samples, see `eqfuse.data.columns`: without a `Sample` of each."""
        numbers, structures = self.indices[indices], self.structures
        frames, lists = structures.frames[numbers], self._lists[numbers]
        atoms, edges = frames["num_atoms"], lists["num_edges"]
        of_atoms, of_edges = slices(frames["start"], atoms), slices(lists["start"], edges)
        arrays = self._arrays
        order = np.repeat(np.cumsum(atoms) - atoms, atoms) + pieces(arrays["order"], of_atoms)
        known, weights = structures.labels(frames)
        known = known & self._labels
        has_energy, has_forces, has_stress = known.T
        energies = self._energies[indices] if self._labels else np.zeros(len(numbers))
        return Columns(
            num_atoms=atoms,
            num_edges=edges,
            positions=pieces(arrays["moved"], of_atoms),
            species=self._species_of[pieces(structures.numbers, of_atoms)[order]],
            senders=pieces(arrays["senders"], of_edges),
            receivers=pieces(arrays["receivers"], of_edges),
            shifts=self._shifts(lists),
            cells=frames["cell"],
            energy=_or_zero(energies, has_energy),
            forces=_or_zero(pieces(structures.forces, of_atoms)[order], has_forces, atoms),
            stress=_or_zero(frames["stress"], has_stress),
            known=known,
            weights=weights,
        )

    def _shifts(self, lists: np.ndarray) -> np.ndarray:
        """Return the shifts [n_edges, 3] of some lists."""
        if (lists["shifts"] < 0).all():
            return _NO_SHIFTS[: lists["num_edges"].sum()]
        return np.concatenate([self._shifts_of(*record) for record in lists.tolist()])

    def _shifts_of(self, _, count: int, first: int) -> np.ndarray:
        return _NO_SHIFTS[:count] if first < 0 else self._arrays["shifts"][first : first + count]

    def item(self, k: int) -> Sample:
        frames, arrays, number = self.structures, self._arrays, int(self.indices[k])
        fields = frames.record(number)
        number_in_file, file, kind, known, _, cell, _, stress, weights, atoms = fields
        start, count, first = self._lists[number].item()
        edges, order = slice(start, start + count), arrays["order"][atoms]
        has_energy, has_forces, has_stress = known.tolist() if self._labels else [False] * 3
        return Sample(
            positions=arrays["moved"][atoms],
            species=self._species_of[frames.numbers[atoms][order]],
            senders=arrays["senders"][edges],
            receivers=arrays["receivers"][edges],
            shifts=self._shifts_of(start, count, first),
            cell=cell,
            energy=float(self._energies[k]) if has_energy else None,
            forces=frames.forces[atoms][order] if has_forces else None,
            stress=stress if has_stress else None,
            name=frames.origin(file, number_in_file),
            order=order,
            weights=Weights(*weights.tolist()),
            config_type=frames.config_type(kind),
        )


def _or_zero(values: np.ndarray, known: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Return values, [n, ...], of samples (of `counts` atoms each), zero where unknown."""
    if known.all():
        return values
    known = known if counts is None else np.repeat(known, counts)
    return np.where(known.reshape(-1, *(1,) * (values.ndim - 1)), values, 0)
