"""Samples of structures, ready for batches: species, neighbour lists, relative energies."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from ase.data import chemical_symbols

from eqfuse.data.lazy import Joined
from eqfuse.data.neighbors import LEAST_DISTANCE, centred, neighbor_list, renumbered, spatial_order
from eqfuse.data.references import subtract
from eqfuse.data.structures import TRAINED, UNWEIGHTED, DataError, Structure, Weights, with_origins


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """One structure with its neighbour list, species and relative energy, ready for batches.

    Attributes:
      positions: [n_atoms, 3] float64, Å, of images around the origin, see
        `eqfuse.data.neighbors.centred`.
      species: [n_atoms] int32, index into the table of species.
      senders, receivers: [n_edges] int32, sorted by receiver, then sender.
      shifts: [n_edges, 3] float64, Å, between these images; see `neighbor_list`.
      cell: [3, 3] float64, Å, zero for a molecule.
      energy: eV, relative to the reference energies, float64, or None.
      forces: [n_atoms, 3] float64, eV/Å, or None.
      stress: [3, 3] float64, eV/Å^3, or None.
      name: for messages.
      order: [n_atoms], the number of each atom in the structure; None if the order is the same.
        Large structures are sorted, see `eqfuse.data.neighbors`.
      weights: of the labels in the loss.
      config_type: name of the group of structures it belongs to, or None.
      atom_weights: [n_atoms] of the forces of each atom, or None.
      head: number of the head of a network with several, see `eqfuse.models.heads`; None for one.
      hessian: [n_atoms, 3, n_atoms, 3] eV/Å^2, of the atoms in the order of the structure, or None.
      charge: the total charge, e.
    """

    positions: np.ndarray
    species: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    shifts: np.ndarray
    cell: np.ndarray
    energy: float | None
    forces: np.ndarray | None
    stress: np.ndarray | None = None
    name: str = ""
    order: np.ndarray | None = None
    weights: Weights = UNWEIGHTED
    config_type: str | None = None
    atom_weights: np.ndarray | None = None
    head: int | None = None
    hessian: np.ndarray | None = None
    charge: float = 0.0

    def in_structure(self, of_atoms: np.ndarray) -> np.ndarray:
        """Return a property of each atom, [n_atoms, ...], in the order of the structure's atoms."""
        if self.order is None:
            return of_atoms
        out = np.empty_like(of_atoms)
        out[self.order] = of_atoms
        return out

    def number_of(self, atom: int) -> int:
        """Return the number of an atom in the structure."""
        return int(atom if self.order is None else self.order[atom])

    @property
    def num_atoms(self) -> int:
        return len(self.species)

    @property
    def num_edges(self) -> int:
        return len(self.senders)


class Samples(tuple):
    """Samples in memory, with what batches are made of; `StoredSamples` have the same."""

    @property
    def sizes(self) -> np.ndarray:
        """Return the numbers of atoms and edges, [n_samples, 2] int32."""
        return np.array([(s.num_atoms, s.num_edges) for s in self], np.int32).reshape(-1, 2)

    @property
    def weighted(self) -> bool:
        """Test for a weight of a label that is not one."""
        return any(s.weights != UNWEIGHTED or s.atom_weights is not None for s in self)


class SamplesOfHeads(Joined):
    """The samples of each head of a network, one head after the other."""

    def __init__(self, *parts: Sequence[Sample]):
        super().__init__(*(p if hasattr(p, "sizes") else Samples(p) for p in parts))

    @property
    def sizes(self) -> np.ndarray:
        return np.concatenate([part.sizes for part in self.parts])

    @property
    def weighted(self) -> bool:
        return any(part.weighted for part in self.parts)

    def item(self, k: int) -> Sample:
        return dataclasses.replace(super().item(k), head=self.part_of(k))


def species_table(structures: Sequence[Structure]) -> tuple[int, ...]:
    """Return the sorted atomic numbers of all elements in the structures."""
    return tuple(sorted({int(z) for structure in structures for z in np.unique(structure.numbers)}))


def species_index(numbers, species: Sequence[int]) -> np.ndarray:
    """Return the index of each atomic number in a sorted table of species, [n_atoms] int32."""
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


def prepare_samples(
    structures: Sequence[Structure],
    cutoff: float,
    species: Sequence[int],
    references: Mapping[int, float] | None,
) -> Samples:
    """Return samples of structures, in their order, for the sorted atomic numbers of a model.

    Without reference energies, eV, they have no labels, as for a prediction.
    """
    how = species, references
    return Samples(sample_of(s, arranged(s, cutoff), *how) for s in with_origins(structures))


def sample_of(structure: Structure, lists, species, references) -> Sample:
    """Return the sample of a structure and what `arranged` gave of it, see `prepare_samples`."""
    order, positions, *edges = lists
    labels = dict.fromkeys(TRAINED)
    try:
        indices = species_index(structure.numbers[order], species)
        if references is not None:
            labels = {name: getattr(structure, name) for name in TRAINED}
            labels["energy"] = subtract(structure, references)
    except DataError as err:
        raise DataError(f"{structure.origin}: {err}") from err
    labels |= {"atom_weights": structure.atom_weights}
    for name in ("forces", "atom_weights"):
        labels[name] = None if labels[name] is None else labels[name][order]
    names = "cell", "weights", "config_type", "charge"
    others = {name: getattr(structure, name) for name in names}
    return Sample(
        positions, indices, *edges, name=structure.origin, order=order, **others, **labels
    )


def arranged(structure: Structure, cutoff: float) -> tuple[np.ndarray, ...]:
    """Return order, positions, senders, receivers and shifts of a structure as in a sample."""
    positions, lattice = structure.positions, (structure.cell, structure.pbc)
    try:
        edges = neighbor_list(positions, *lattice, cutoff, least=LEAST_DISTANCE)
    except DataError as err:
        raise DataError(f"{structure.origin}: {err}") from err
    order = spatial_order(positions, *lattice, cutoff)
    senders, receivers, shifts = renumbered(order, *edges)
    positions, shifts = centred(positions[order], *lattice, senders, receivers, shifts)
    return order, positions, senders, receivers, shifts
