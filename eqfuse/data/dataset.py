"""Training and validation sets made of structures."""

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from ase.data import chemical_symbols

from eqfuse.data.batching import shuffled
from eqfuse.data.copies import copies_of, distances_of, kept_together
from eqfuse.data.lazy import Joined, Lazy, chosen, evenly, flags
from eqfuse.data.references import energies_of_atoms, fitted_references, subtract
from eqfuse.data.samples import Sample, SamplesOfHeads, species_table
from eqfuse.data.store import StoredSamples, samples_of
from eqfuse.data.structures import (
    MAX_ATOMIC_NUMBER,
    DataError,
    Structure,
    count_labelled,
    counted,
    with_origins,
)

_SAMPLED = 10_000  # of stored frames
_ZERO = dict.fromkeys(range(1, MAX_ATOMIC_NUMBER + 1), 0.0)  # reference energies
_OUTLIER, _NO_FORCE = 20.0, 1e-3
"""An outlier is this many times the usual forces, which are above that, eV/Å."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Training and validation samples, and the statistics that a model needs.

    Make one with `Dataset.build`.

    Attributes:
      train, val: the samples, with their neighbour lists.
      train_indices, val_indices: numbers of their structures; `val_indices` count the structures
        that were given for validation, if there were any.
      isolated_atoms: numbers of the structures that are isolated atoms, which are not samples.
      references_fitted: whether the reference energies were fitted to the training structures;
        they are zero if none of these has an energy.
      species: sorted atomic numbers; a sample's species index into it.
      references: atomic number -> reference energy, eV.
      cutoff: Å.
      distances: of the training and the validation samples, see `eqfuse.data.copies`.
      test: samples that the trained network is evaluated on, once.
      heads: the datasets of the heads of a network with several, by name; the samples are theirs,
        and `references` are those of the first.
    """

    train: tuple[Sample, ...]
    val: tuple[Sample, ...]
    train_indices: np.ndarray
    val_indices: np.ndarray
    isolated_atoms: np.ndarray
    references_fitted: bool
    species: tuple[int, ...]
    references: dict[int, float]
    cutoff: float
    distances: np.ndarray
    test: tuple[Sample, ...] = ()
    heads: Mapping[str, "Dataset"] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_heads(cls, heads: Mapping[str, "Dataset"]) -> "Dataset":
        """Return the dataset of a network with several heads, of the same species and cutoff.

        Elements that a head has no reference energy of have that of another one.
        """
        every = {z: e for own in reversed(heads.values()) for z, e in own.references.items()}
        heads = {
            name: dataclasses.replace(own, references=every | own.references)
            for name, own in heads.items()
        }
        first = next(iter(heads.values()))
        sides = {
            name: SamplesOfHeads(*(getattr(own, name) for own in heads.values()))
            for name in ("train", "val", "test")
        }
        fitted = any(own.references_fitted for own in heads.values())
        return dataclasses.replace(first, **sides, references_fitted=fitted, heads=heads)

    @classmethod
    def build(
        cls,
        structures: Sequence[Structure],
        *,
        cutoff: float,
        train_size: float | None = None,
        val_size: float = 0.1,
        seed: int = 0,
        species: Sequence[int] | None = None,
        references: Mapping[int, float] | Literal["average"] | None = None,
        validation: Sequence[Structure] | None = None,
        duplicates: str = "warn",
    ) -> "Dataset":
        """Split the structures, subtract reference energies, compute neighbour lists.

        Isolated atoms (see `Structure.config_type`) are in neither set. Copies (see
        `eqfuse.data.copies`) that the split would part go to one side.

        Args:
          structures: whose labels may be missing, except the energies of isolated atoms.
          cutoff: Å.
          train_size, val_size, seed: see `split_indices`.
          species: atomic numbers of a model that exists; None for all that occur.
          references: atomic number -> eV; None for the energies of the isolated atoms among the
            structures (and those for validation), or, if there are none, "average": a least-squares
            fit to the training structures that have an energy.
          validation: to validate with instead of `val_size` of the structures; None for these.
          duplicates: "drop" leaves out what is a copy of an earlier training or validation
            structure, "error" refuses it, "warn" does neither.
        Raises:
          DataError: an empty split, an isolated atom without an energy, an element that is not
            among the species or has no reference energy, atoms at the same place.
        Warns:
          UserWarning: atoms without any neighbour within the cutoff; isolated atoms with images
            of themselves within it; elements that no training structure has.
        """
        structures = with_origins(structures)
        frames, atoms = _isolated_atoms_apart(structures, "structure")
        taken = val_size if validation is None else None
        indices = [frames[part] for part in split_indices(len(frames), train_size, taken, seed)]
        sources, isolated = [structures, structures], [structures[k] for k in atoms]
        if validation is not None:
            sources[1] = validation = with_origins(validation, "validation structure")
            indices[1], others = _isolated_atoms_apart(validation, "validation structure")
            isolated += [validation[k] for k in others]
            if not len(indices[1]):
                raise DataError("there is no validation structure; give at least one")
        if species is None:
            species = species_table(Joined(*map(chosen, sources, (frames, indices[1]))))
        how = {"cutoff": cutoff, "species": tuple(sorted(species)), "references": _ZERO}
        given = Joined(*(samples_of(s, **how) for s in map(chosen, sources, indices)))
        distances = distances_of(given, cutoff)
        numbers = _sides(given, distances, len(given.parts[0]), duplicates, validation is None)
        if not len(numbers[1]):
            raise DataError("all validation frames are copies of training frames; give others")
        indices = [np.concatenate(indices)[own] for own in numbers]
        sides = [*map(chosen, sources, indices)]
        train, val = (
            samples_of(side, **how) if isinstance(side, Lazy) else [given[k] for k in own]
            for side, own in zip(sides, numbers, strict=True)
        )
        fitted = references == "average" or (references is None and not isolated)
        if fitted:
            references = fitted_references(*sides, how["species"])
        elif references is None:
            references = energies_of_atoms(isolated, cutoff)
        _warn_of_problems(Joined(train, val), cutoff, *sides)
        dataset = cls(
            train=train,
            val=val,
            train_indices=indices[0],
            val_indices=indices[1],
            isolated_atoms=atoms,
            references_fitted=fitted,
            species=how["species"],
            references=_ZERO,
            cutoff=float(cutoff),
            distances=distances[np.concatenate(numbers)],
        )
        return dataset.with_references(references, structures, validation)

    def with_test(self, structures: Sequence[Structure], duplicates: str = "warn") -> "Dataset":
        """Return this dataset with test samples, of which `duplicates` says as in `build`."""
        how = self.cutoff, self.species, self.references
        test = samples_of(structures, *how)
        if duplicates != "warn":
            every = Joined(self.train, self.val, test)
            start = len(every) - len(test)
            distances = np.concatenate([self.distances, distances_of(test, self.cutoff)])
            _, numbers = _sides(every, distances, start, duplicates)
            test = samples_of(chosen(structures, numbers - start), *how)
        return dataclasses.replace(self, test=test)

    def with_references(
        self,
        references: Mapping[int, float],
        structures: Sequence[Structure],
        validation: Sequence[Structure] | None = None,
    ) -> "Dataset":
        """Return this dataset, built of these structures, with other reference energies, eV."""

        def moved(samples, indices, frames):
            if isinstance(samples, StoredSamples):
                return samples.with_references(references)
            return tuple(map(of, samples, (frames[i] for i in indices)))

        def of(sample: Sample, structure: Structure) -> Sample:
            try:
                return dataclasses.replace(sample, energy=subtract(structure, references))
            except DataError as err:
                raise DataError(f"{sample.name}: {err}") from err

        train = moved(self.train, self.train_indices, structures)
        val_from = structures if validation is None else validation
        val = moved(self.val, self.val_indices, val_from)
        return dataclasses.replace(self, train=train, val=val, references=dict(references))

    @property
    def force_rms(self) -> float:
        """Return the root mean square of the components of the known training forces, eV/Å.

        Frames of `force_outliers` are left out. 1 if all are zero, or none is known.
        """
        outliers, sums = set(self.force_outliers), np.zeros(2)
        for number, sample in enumerate(self.train):
            if sample.forces is not None and number not in outliers:
                sums += np.nansum(sample.forces**2), (~np.isnan(sample.forces)).sum()
        return float(np.sqrt(sums[0] / max(sums[1], 1))) or 1.0

    @functools.cached_property
    def force_outliers(self) -> list[int]:
        """Return the numbers of training samples with a force above 20 times the 95th percentile.

        There are none where nearly all forces are zero.
        """
        # The percentile of stored frames is that of some.
        given = evenly(self.train, _SAMPLED) if isinstance(self.train, Lazy) else self.train
        some = [s.forces for s in given if s.forces is not None]
        usual = np.nanquantile(np.abs(np.concatenate(some)), 0.95) if some else 0.0
        if usual < _NO_FORCE:
            return []
        largest = ((k, s.forces) for k, s in enumerate(self.train) if s.forces is not None)
        return [k for k, forces in largest if np.nanmax(np.abs(forces)) > _OUTLIER * usual]

    @property
    def mean_neighbors(self) -> float:
        """Return the average number of neighbours of a training atom within the cutoff."""
        num_edges = sum(sample.num_edges for sample in self.train)
        return num_edges / sum(sample.num_atoms for sample in self.train)

    @property
    def avg_num_neighbors(self) -> float:
        """Return the normalisation of sums over neighbours: `mean_neighbors`, or 1 for zero."""
        return self.mean_neighbors or 1.0

    @property
    def energy_per_atom(self) -> float:
        """Return the mean energy of the training atoms relative to the references, eV/atom.

        It is about zero after a fit, and the binding energy with isolated-atom references. Samples
        without an energy are left out; 0 if none has one.
        """
        sums = np.zeros(2)
        for sample in self.train:
            if sample.energy is not None:
                sums += sample.energy, sample.num_atoms
        return float(sums[0] / max(sums[1], 1))

    def num_labelled(self, name: str) -> tuple[int, int]:
        """Count the training and validation samples with a label: energy, forces or stress."""
        return count_labelled(self.train, name), count_labelled(self.val, name)


def _isolated_atoms_apart(structures, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the structures, and those of the isolated atoms among them."""
    isolated = flags(structures, lambda s: s.is_isolated_atom)
    if len(isolated) and isolated.all():
        raise DataError(
            f"there is no {name} but isolated atoms ({len(isolated)}), whose energies are "
            "references; give structures of several atoms too"
        )
    return np.flatnonzero(~isolated), np.flatnonzero(isolated)


def _sides(
    samples, distances, start: int, duplicates: str, together=False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the samples to use, of those before `start` and of the later ones.

    Copies are left out or refused as `duplicates` says; `together` puts them on one side.
    """
    first, later = copies_of(samples, distances), np.arange(len(samples)) >= start
    if together:
        later = kept_together(first, start)
        asked, found = len(samples) - start, int(later.sum())
        if found != asked and duplicates == "warn":
            frames = counted(found, "frame validates", "frames validate")
            text = f"{frames}, not {asked}: copies of a frame are all trained on or all validate"
            warnings.warn(text, UserWarning, stacklevel=3)
    order = np.argsort(later, kind="stable")
    own = order[np.sort(np.unique(first[order], return_index=True)[1])]
    copies = np.setdiff1d(order, own)
    if duplicates != "warn" and len(copies):
        copy = int(copies[0])
        original = next(int(k) for k in own if first[k] == first[copy])
        example = f"{samples[original].name} and {samples[copy].name}"
        frames = counted(len(copies), "frame is a copy", "frames are copies")
        if duplicates == "error":
            raise DataError(
                f"{frames} of others (data.duplicates=error): {example}; remove them, or leave "
                "them out with data.duplicates=drop"
            )
        warnings.warn(f"left out: {frames} of others: {example}", UserWarning, stacklevel=3)
        order = own
    return order[~later[order]], order[later[order]]


def _warn_of_problems(samples, cutoff: float, train_frames, val_frames) -> None:
    """Warn of atoms without neighbours, of elements to validate with, and of unknown forces."""
    alone = [s.num_atoms - len(np.unique(s.receivers)) for s in samples]
    problems = []
    if any(alone):
        problems.append(
            f"{sum(alone)} of {sum(s.num_atoms for s in samples)} atoms have no neighbours within "
            f"the cutoff of {cutoff} Å (in {np.count_nonzero(alone)} of {len(alone)} structures): "
            "the model does not depend on their positions; a larger cutoff may be needed"
        )
    if unseen := sorted(set(species_table(val_frames)) - set(species_table(train_frames))):
        names = ", ".join(chemical_symbols[z] for z in unseen)
        problems.append(
            f"no training structure has {names}: the model does not learn it, which its errors on "
            "validation structures show; train with structures that have it"
        )
    nan = [0 if s.forces is None else int(np.isnan(s.forces).any(1).sum()) for s in samples]
    if any(nan):
        frames = counted(np.count_nonzero(nan), "frame")
        problems.append(
            f"the forces of {counted(sum(nan), 'atom')} in {frames} are NaN, or have no "
            f"weight, and are not trained on; the first is {samples[int(np.argmax(nan))].name}"
        )
    for text in problems:
        warnings.warn(text, UserWarning, stacklevel=3)


_STREAM = 1


def split_indices(
    count: int, train_size: float | None, val_size: float | None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return random disjoint indices for training and validation, which depend on the seed.

    A size is a number of structures (int), or a fraction of them (float from 0 to 1, rounded down,
    but one at least);
    `train_size` None takes all that validation leaves, `val_size` None takes none for validation.
    The validation structures depend on the seed and `val_size` only, not on `train_size`.
    """
    if seed < 0:
        raise DataError(f"the seed must be at least 0, got {seed}")
    n_val = 0 if val_size is None else _split_size("val_size", val_size, count)
    n_train = count - n_val if train_size is None else _split_size("train_size", train_size, count)
    sides = ("validation", "val", val_size, n_val), ("training", "train", train_size, n_train)
    for name, key, given, size in sides:
        if size <= 0 and given is not None:
            raise DataError(
                f"the {name} split is empty: {key}_size={given} of {count} structures; ask for at "
                f"least one (data.{key}=1), or give more structures"
            )
    if n_train <= 0:
        frames = counted(count, "frame")
        raise DataError(f"the training split is empty: data.val={n_val} leaves none of {frames}")
    if n_train + n_val > count:
        raise DataError(
            f"{n_train} training and {n_val} validation structures asked for, but there are only "
            f"{count}; lower train_size (data.train) or val_size (data.val)"
        )
    order = shuffled(count, (seed,), stream=_STREAM)
    return order[n_val : n_val + n_train], order[:n_val]


def _split_size(name: str, size: float, count: int) -> int:
    if isinstance(size, float) and 0 <= size <= 1:
        least = 1 if size > 0 and count > 1 else 0  # a tenth of nine frames is one, and not none
        return max(int(np.floor(size * count + 1e-9)), least)  # 0.29 * 100 is 28.999999999999996
    if size < 0 or size != int(size):
        raise DataError(f"{name} must be a number of structures or a fraction, got {size}")
    return int(size)
