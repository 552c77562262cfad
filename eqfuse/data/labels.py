"""The labels of a batch: which are known, and their weights in the loss."""

import dataclasses

import jax
import numpy as np

from eqfuse.data.columns import Columns
from eqfuse.data.shapes import Shape
from eqfuse.data.structures import Weights


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of a batch; zero where they are unknown and in the padding.

    Attributes:
      energy: [n_graphs] eV, relative to the reference energies (subtracted in float64).
      forces: [n_nodes, 3] eV/Å.
      stress: [n_graphs, 3, 3] eV/Å^3.
      energy_mask, stress_mask: [n_graphs] bool, True where the label is known.
      forces_mask: [n_nodes] bool, True where the label is known.
      num_atoms: [n_graphs] int32; 1 for padding graphs, so that it can divide.
      weights: of the squared errors, [n_graphs], [n_nodes] and [n_graphs]; None where all are one.
    """

    energy: jax.Array
    forces: jax.Array
    stress: jax.Array
    energy_mask: jax.Array
    forces_mask: jax.Array
    stress_mask: jax.Array
    num_atoms: jax.Array
    weights: Weights | None = None


def labels_of(columns: Columns, shape: Shape, dtype, weighted: bool) -> Labels:
    """Return the labels of samples, see `eqfuse.data.collate`."""
    atoms = columns.num_atoms

    def of_graphs(values: np.ndarray, fill=0, dtype=dtype) -> np.ndarray:
        return padded(values, (shape.n_graphs, *values.shape[1:]), fill, dtype)

    def of_nodes(values: np.ndarray, dtype=dtype) -> np.ndarray:
        return padded(values, (shape.n_nodes, *values.shape[1:]), 0, dtype)

    energy_known, forces_known, stress_known = columns.known.T
    of_energy, of_forces, of_stress = columns.weights.T
    return Labels(
        energy=of_graphs(columns.energy),
        forces=of_nodes(columns.forces),
        stress=of_graphs(columns.stress),
        energy_mask=of_graphs(energy_known, dtype=bool),
        forces_mask=of_nodes(np.repeat(forces_known, atoms), dtype=bool),
        stress_mask=of_graphs(stress_known, dtype=bool),
        num_atoms=of_graphs(atoms, fill=1, dtype=np.int32),
        weights=Weights(
            energy=of_graphs(of_energy),
            forces=of_nodes(np.repeat(of_forces, atoms)),
            stress=of_graphs(of_stress),
        )
        if weighted
        else None,
    )


def padded(values: np.ndarray, shape: tuple[int, ...], fill, dtype) -> np.ndarray:
    """Return an array of a shape with the values first, then `fill`."""
    out = np.full(shape, fill, dtype)
    out[: len(values)] = values
    return out
