"""Samples of structures: species, neighbour lists, relative energies."""

from collections.abc import Mapping, Sequence

import numpy as np
from ase.data import chemical_symbols

from eqfuse.data.batching import Sample
from eqfuse.data.errors import DataError
from eqfuse.data.neighbors import gathering_offsets, neighbor_list
from eqfuse.data.ordering import renumbered, spatial_order
from eqfuse.data.references import subtract
from eqfuse.data.structures import Structure, names_of


def species_table(structures: Sequence[Structure]) -> tuple[int, ...]:
    """Return the sorted atomic numbers of all elements in the structures."""
    return tuple(sorted({int(z) for structure in structures for z in np.unique(structure.numbers)}))


def species_index(numbers, species: Sequence[int]) -> np.ndarray:
    """Return the index of each atomic number in a sorted table of species, [n_atoms] int32.

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


def prepare_samples(
    structures: Sequence[Structure],
    cutoff: float,
    species: Sequence[int],
    references: Mapping[int, float] | None,
    names: Sequence[str] | None = None,
) -> tuple[Sample, ...]:
    """Return samples of structures, in their order.

    Args:
      structures: whose labels may be missing.
      cutoff: Å.
      species: sorted atomic numbers of the model.
      references: atomic number -> eV; None to leave out all labels, as for a prediction.
      names: what messages call the structures; None for their origins.
    Raises:
      DataError: atoms at the same place, an element that is not among the species or has no
        reference energy.
    """
    names = names_of(structures) if names is None else names
    samples = []
    for structure, name in zip(structures, names, strict=True):
        try:
            samples.append(_sample(structure, name, cutoff, species, references))
        except DataError as err:
            raise DataError(f"{name}: {err}") from err
    return tuple(samples)


def _sample(structure: Structure, name, cutoff, species, references) -> Sample:
    energy = forces = stress = None
    if references is not None:
        energy = subtract(structure, references)
        forces, stress = structure.forces, structure.stress
    order, positions, senders, receivers, shifts = arranged(structure, cutoff)
    return Sample(
        positions=positions,
        species=species_index(structure.numbers[order], species),
        senders=senders,
        receivers=receivers,
        shifts=shifts,
        cell=structure.cell,
        energy=energy,
        forces=None if forces is None else forces[order],
        stress=stress,
        name=name,
        order=order,
        weights=structure.weights,
        config_type=structure.config_type,
    )


def arranged(structure: Structure, cutoff: float):
    """Return the order of the atoms, their positions, and the neighbour list, as samples have them.

    Args:
      structure: whose labels are not used.
      cutoff: Å.
    Returns:
      order [n_atoms], positions [n_atoms, 3], senders, receivers [n_edges], shifts [n_edges, 3].
    Raises:
      DataError: see `eqfuse.data.neighbor_list`.
    """
    positions, cell = structure.positions, structure.cell
    senders, receivers, shifts = neighbor_list(positions, cell, structure.pbc, cutoff)
    order = spatial_order(positions, cell, structure.pbc, cutoff)
    positions = positions[order]
    senders, receivers, shifts = renumbered(order, senders, receivers, shifts)
    offsets, shifts = gathering_offsets(positions, senders, receivers, shifts)
    return order, positions - offsets, senders, receivers, shifts
