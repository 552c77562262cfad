"""Structures split, referenced and given neighbour lists: what training reads."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from ase.data import chemical_symbols

from eqfuse.data.batching import Sample, shuffled
from eqfuse.data.errors import DataError
from eqfuse.data.neighbors import gathering_offsets, neighbor_list
from eqfuse.data.ordering import renumbered, spatial_order
from eqfuse.data.references import energies_of_atoms, fit_reference_energies, subtract
from eqfuse.data.structures import Structure, names_of

_SPLIT_STREAM = 1


def species_table(structures: Sequence[Structure]) -> tuple[int, ...]:
    """Sorted atomic numbers of all elements in the structures."""
    return tuple(sorted({int(z) for structure in structures for z in np.unique(structure.numbers)}))


def species_index(numbers, species: Sequence[int]) -> np.ndarray:
    """Index of each atomic number in a sorted table of species, [n_atoms] int32.

    Raises:
      DataError: an element that is not in the table, by name.
    """
    table = np.asarray(species)
    numbers = np.asarray(numbers)
    unknown = sorted(set(numbers.tolist()) - set(table.tolist()))
    if unknown:
        raise DataError(
            f"{', '.join(chemical_symbols[z] for z in unknown)} not among the model's species "
            f"({', '.join(chemical_symbols[z] for z in table)}); train with structures that have "
            "it, or leave these structures out"
        )
    return np.searchsorted(table, numbers).astype(np.int32)


def split_indices(
    count: int, train_size: float | None, val_size: float | None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return random disjoint indices for training and validation, the same for the same seed.

    Args:
      count: number of structures.
      train_size, val_size: a number of structures (int), or a fraction of them (float from 0 to
        1, rounded down); `train_size` None takes all that validation leaves, `val_size` None takes
        none for validation. The validation structures depend on the seed and `val_size` only, not
        on `train_size`.
      seed: non-negative.
    Returns:
      training and validation indices, in random order.
    Raises:
      DataError: an empty split, more structures than there are, a negative size or seed.
    """
    if seed < 0:
        raise DataError(f"the seed must be at least 0, got {seed}")
    n_val = 0 if val_size is None else _split_size("val_size", val_size, count)
    n_train = count - n_val if train_size is None else _split_size("train_size", train_size, count)
    checked = [("training", "train", train_size, n_train)]
    if val_size is not None:
        checked.insert(0, ("validation", "val", val_size, n_val))
    for name, key, given, size in checked:
        if size <= 0:
            raise DataError(
                f"the {name} split is empty: {key}_size={given} of {count} structures; ask for at "
                f"least one (data.{key}=1), or give more structures"
            )
    if n_train + n_val > count:
        raise DataError(
            f"{n_train} training and {n_val} validation structures asked for, but there are only "
            f"{count}; lower train_size (data.train) or val_size (data.val)"
        )
    order = shuffled(count, (seed,), stream=_SPLIT_STREAM)
    return order[n_val : n_val + n_train], order[:n_val]


def _split_size(name: str, size: float, count: int) -> int:
    if isinstance(size, float) and 0 <= size <= 1:
        return int(np.floor(size * count + 1e-9))  # 0.29 * 100 is 28.999999999999996
    if size < 0 or size != int(size):
        raise DataError(f"{name} must be a number of structures or a fraction, got {size}")
    return int(size)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Training and validation samples, and what a model has to know of them.

    Make one with `Dataset.build`.

    Attributes:
      train, val: the samples; neighbour lists are made once, here.
      train_indices, val_indices: which of the given structures they are; the latter of those given
        for validation, if any were.
      isolated_atoms: which of the given structures are isolated atoms, which are no samples.
      references_fitted: whether the reference energies were fitted to the training structures.
      species: sorted atomic numbers; a sample's species index into it.
      references: atomic number -> reference energy, eV.
      cutoff: Å.
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
        references: Mapping[int, float] | None = None,
        validation: Sequence[Structure] | None = None,
    ) -> "Dataset":
        """Split the structures, subtract reference energies, find the neighbours.

        Isolated atoms among the structures (see `Structure.config_type`) are not trained on and not
        validated with.

        Args:
          structures: with energies and forces; of isolated atoms, energies.
          cutoff: Å.
          train_size, val_size, seed: see `split_indices`.
          species: atomic numbers of a model that exists; None for all that occur.
          references: atomic number -> eV; None for the energies of the isolated atoms among the
            structures (and those for validation), or, if there are none, a least-squares fit to the
            training structures.
          validation: with energies and forces, to validate with; `val_size` is not used then. None
            to take them from the structures.
        Raises:
          DataError: an empty split, a structure without energy or forces, an element that is not
            among the species or has no reference energy, atoms at the same place.
        Warns:
          UserWarning: atoms without any neighbour within the cutoff; elements that no training
            structure has.
        """
        frames, atoms = _isolated_atoms_apart(structures, "structure")
        if validation is None:
            train_indices, val_indices = split_indices(len(frames), train_size, val_size, seed)
            val_indices, val_from, val_atoms = frames[val_indices], structures, []
        else:
            train_indices, _ = split_indices(len(frames), train_size, None, seed)
            val_from = validation
            val_indices, val_atoms = _isolated_atoms_apart(validation, "validation structure")
            if not len(val_indices):
                raise DataError("there is no validation structure; give at least one")
        train_indices = frames[train_indices]
        train_structures = [structures[i] for i in train_indices]
        val_structures = [val_from[i] for i in val_indices]
        if species is None:
            species = species_table([structures[i] for i in frames] + val_structures)
        species = tuple(sorted(species))
        names = names_of(structures)
        val_names = names if validation is None else names_of(validation, "validation structure")
        isolated = [(names[i], structures[i]) for i in atoms]
        isolated += [(val_names[i], validation[i]) for i in val_atoms]
        fitted = references is None and not isolated
        if fitted:
            references = fit_reference_energies(train_structures)
            _require_fitted(references, val_structures, [val_names[i] for i in val_indices])
        elif references is None:
            references = energies_of_atoms(isolated)
        references = dict(references)
        common = cutoff, species, references
        train = _prepared(train_structures, [names[i] for i in train_indices], *common)
        val = _prepared(val_structures, [val_names[i] for i in val_indices], *common)
        _warn_of_atoms_without_neighbors((*train, *val), cutoff)
        _warn_of_unseen_elements(train_structures, val_structures)
        return cls(
            train=train,
            val=val,
            train_indices=train_indices,
            val_indices=val_indices,
            isolated_atoms=atoms,
            references_fitted=fitted,
            species=species,
            references=references,
            cutoff=float(cutoff),
        )

    def prepare(self, structures: Sequence[Structure]) -> tuple[Sample, ...]:
        """Return samples of further structures (a test set), with this species table and
        references.

        Raises and warns as `build`.
        """
        samples = prepare_samples(structures, self.cutoff, self.species, self.references)
        _warn_of_atoms_without_neighbors(samples, self.cutoff)
        return samples

    def with_references(
        self,
        references: Mapping[int, float],
        structures: Sequence[Structure],
        validation: Sequence[Structure] | None = None,
    ) -> "Dataset":
        """Return the same, with energies relative to other reference energies: as if built with
        them.

        Args:
          references: atomic number -> eV.
          structures, validation: those that it was built of.
        Raises:
          DataError: an element without a reference energy.
        """

        def moved(samples, indices, frames):
            return tuple(
                dataclasses.replace(sample, energy=subtract(frames[i], references))
                for sample, i in zip(samples, indices, strict=True)
            )

        train = moved(self.train, self.train_indices, structures)
        val_from = structures if validation is None else validation
        val = moved(self.val, self.val_indices, val_from)
        return dataclasses.replace(self, train=train, val=val, references=dict(references))

    @property
    def force_rms(self) -> float:
        """Root mean square of the training forces' components, eV/Å; 1 if all are zero."""
        forces = np.concatenate([sample.forces for sample in self.train])
        return float(np.sqrt(np.mean(forces**2))) or 1.0

    @property
    def mean_neighbors(self) -> float:
        """Return the average number of neighbours of a training atom within the cutoff."""
        num_edges = sum(sample.num_edges for sample in self.train)
        return num_edges / sum(sample.num_atoms for sample in self.train)

    @property
    def avg_num_neighbors(self) -> float:
        """Return what sums over neighbours are scaled by: `mean_neighbors`, or 1 if no atom has
        any.
        """
        return self.mean_neighbors or 1.0

    @property
    def energy_per_atom(self) -> float:
        """Mean over the training atoms of the energy relative to the references, eV/atom.

        About zero after a fit; the binding energy with isolated-atom references.
        """
        energy = sum(sample.energy for sample in self.train)
        return energy / sum(sample.num_atoms for sample in self.train)


def prepare_samples(
    structures: Sequence[Structure],
    cutoff: float,
    species: Sequence[int],
    references: Mapping[int, float],
) -> tuple[Sample, ...]:
    """Return samples of structures for a model that exists.

    Args:
      structures: with energies and forces.
      cutoff: Å.
      species: sorted atomic numbers of the model.
      references: atomic number -> eV.
    Raises:
      DataError: as `Dataset.build`.
    """
    return _prepared(structures, names_of(structures), cutoff, species, references)


def _isolated_atoms_apart(structures, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return indices of the structures that are no isolated atoms, and of those that are.

    Raises:
      DataError: there are isolated atoms only.
    """
    isolated = np.array([structure.is_isolated_atom for structure in structures], bool)
    if len(isolated) and isolated.all():
        raise DataError(
            f"there is no {name} but isolated atoms ({len(isolated)}), whose energies are "
            "references; give structures of several atoms too"
        )
    return np.flatnonzero(~isolated), np.flatnonzero(isolated)


def _require_fitted(references, structures: Sequence[Structure], names: Sequence[str]):
    """Refuse elements whose energy no training structure tells.

    Raises:
      DataError: one of them, with the first structure that has it.
    """
    for structure, name in zip(structures, names, strict=True):
        unseen = sorted(set(structure.numbers.tolist()) - set(references))
        if unseen:
            raise DataError(
                f"{name}: validates with {', '.join(chemical_symbols[z] for z in unseen)}, which "
                "no training structure has, and reference energies are fitted to these; train on "
                "such structures (another seed= may choose them), leave them out, or give the "
                "energy of the isolated atom (data.reference_energies, or a frame with "
                "config_type=IsolatedAtom)"
            )


def _warn_of_unseen_elements(train, val):
    unseen = sorted(set(species_table(val)) - set(species_table(train)))
    if unseen:
        names = ", ".join(chemical_symbols[z] for z in unseen)
        warnings.warn(
            f"no training structure has {names}: the model learns nothing of it, and its errors on "
            "validation structures with it say so; train with structures that have it",
            UserWarning,
            stacklevel=3,
        )


def _prepared(structures, names, cutoff, species, references) -> tuple[Sample, ...]:
    return tuple(
        _prepare(structure, name, cutoff, species, references)
        for structure, name in zip(structures, names, strict=True)
    )


def _prepare(structure, name, cutoff, species, references) -> Sample:
    try:
        if structure.energy is None or structure.forces is None:
            missing = "energy" if structure.energy is None else "forces"
            raise DataError(f"there is no {missing}; training needs energies and forces")
        positions, cell = structure.positions, structure.cell
        senders, receivers, shifts = neighbor_list(positions, cell, structure.pbc, cutoff)
        order = spatial_order(positions, cell, structure.pbc, cutoff)
        positions = positions[order]
        senders, receivers, shifts = renumbered(order, senders, receivers, shifts)
        offsets, shifts = gathering_offsets(positions, senders, receivers, shifts)
        return Sample(
            positions=positions - offsets,
            species=species_index(structure.numbers[order], species),
            senders=senders,
            receivers=receivers,
            shifts=shifts,
            cell=cell,
            energy=subtract(structure, references),
            forces=structure.forces[order],
            stress=structure.stress,
            name=name,
            order=order,
        )
    except DataError as err:
        raise DataError(f"{name}: {err}") from err


def _warn_of_atoms_without_neighbors(samples, cutoff: float) -> None:
    isolated = [s.num_atoms - len(np.unique(s.receivers)) for s in samples]
    if any(isolated):
        total = sum(sample.num_atoms for sample in samples)
        warnings.warn(
            f"{sum(isolated)} of {total} atoms have no neighbours within the cutoff of {cutoff} Å "
            f"(in {np.count_nonzero(isolated)} of {len(isolated)} structures): the model sees "
            "nothing of where they are; a larger cutoff may be needed",
            UserWarning,
            stacklevel=3,
        )
