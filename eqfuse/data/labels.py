"""The labels of a batch: which are known, and their weights in the loss."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

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


def labels_of(samples: Sequence, shape: Shape, dtype, weighted: bool) -> Labels:
    """Return the labels of samples, see `eqfuse.data.collate`."""

    def of_graphs(values: list, size=(), fill=0, dtype=dtype) -> np.ndarray:
        return padded([[value] for value in values], (shape.n_graphs, *size), fill, dtype)

    def of_nodes(values: list, size=(), dtype=dtype) -> np.ndarray:
        rows = [
            np.broadcast_to(value, (s.num_atoms, *size))
            for s, value in zip(samples, values, strict=True)
        ]
        return padded(rows, (shape.n_nodes, *size), 0, dtype)

    def known(name: str) -> list:
        return [0.0 if (value := getattr(s, name)) is None else value for s in samples]

    def mask(name: str) -> list[bool]:
        return [getattr(s, name) is not None for s in samples]

    weights = [s.weights for s in samples]
    return Labels(
        energy=of_graphs(known("energy")),
        forces=of_nodes(known("forces"), (3,)),
        stress=of_graphs([np.broadcast_to(stress, (3, 3)) for stress in known("stress")], (3, 3)),
        energy_mask=of_graphs(mask("energy"), dtype=bool),
        forces_mask=of_nodes(mask("forces"), dtype=bool),
        stress_mask=of_graphs(mask("stress"), dtype=bool),
        num_atoms=of_graphs([s.num_atoms for s in samples], fill=1, dtype=np.int32),
        weights=Weights(
            energy=of_graphs([w.energy for w in weights]),
            forces=of_nodes([w.forces for w in weights]),
            stress=of_graphs([w.stress for w in weights]),
        )
        if weighted
        else None,
    )


def padded(arrays: list, shape: tuple[int, ...], fill, dtype) -> np.ndarray:
    """Return an array of a shape with the arrays one after the other, then `fill`."""
    out = np.full(shape, fill, dtype)
    if arrays:
        values = np.concatenate(arrays)
        out[: len(values)] = values
    return out
