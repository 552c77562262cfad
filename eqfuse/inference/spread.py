"""The spread of predictions: of a committee, and what of one network its features tell."""

import copy
import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse.inference.evaluator import Evaluator, Listed, strain_derivatives
from eqfuse.inference.network import Network
from eqfuse.models.features import readout_features
from eqfuse.models.potential import Derivatives
from eqfuse.runs.errors import CheckpointError

_SPREAD = "spread"  # the collection of what is added to the parameters


@dataclasses.dataclass(frozen=True, eq=False)
class Spread:
    """Standard deviations: over the members of a committee (of n - 1), or fitted to one network."""

    energy: float  # eV, of the total energy
    energies: np.ndarray  # [n_atoms] eV, of the energies of the atoms
    forces: np.ndarray  # [n_atoms] eV/Å: the root of the summed variances of x, y, z
    stress: np.ndarray | None  # [3, 3] eV/Å^3; None where it is not predicted

    @classmethod
    def of_members(cls, energy, energies, forces, stress=None) -> "Spread":
        """Return that of the predictions of several members, along the first axis of all."""
        of_forces = np.sqrt(np.var(forces, axis=0, ddof=1).sum(axis=-1))
        of_stress = None if stress is None else np.std(stress, axis=0, ddof=1)
        of_atoms = np.std(energies, axis=0, ddof=1)
        return cls(float(np.std(energy, ddof=1)), of_atoms, of_forces, of_stress)

    def results(self) -> dict:
        """Return these as results of a calculator, such as "forces_spread"; stress [6]."""
        found = {f"{name}_spread": value for name, value in vars(self).items()}
        stress = found.pop("stress_spread")
        if stress is not None:
            found["stress_spread"] = full_3x3_to_voigt_6_stress(stress)
        return found


def rows_of(module, params, near, geometry, vectors):
    """Return the features of the atoms, [n_nodes, n_features], zero in the padding."""
    operands = vectors.astype(module.dtype), geometry.species, near.edges
    rows = readout_features(module.potential, params, *operands)
    if _SPREAD in params and len(params[_SPREAD]["root"]) != rows.shape[1]:
        raise CheckpointError(
            f"the spread was fitted to {len(params[_SPREAD]['root'])} features, and the network "
            f"has {rows.shape[1]}: uncertainty.npz is damaged; fit it again"
        )
    return jnp.where(geometry.is_atom[:, None], rows, 0)


def spread_of_atoms(module, params, near, geometry):
    """Return the spread of the energy of each atom, [n_nodes] eV; inside of `jit`.

    The parameters are those of `with_spread`.
    """
    rows = rows_of(module, params, near, geometry, near.vectors) @ params[_SPREAD]["root"]
    return jnp.sqrt((rows.astype(jnp.float64) ** 2).sum(axis=1))


def with_spread(network: Network) -> Network:
    """Return a network whose parameters have what its spread is computed from.

    Raises:
      CheckpointError: nothing was fitted to it.
    """
    if network.uncertainty is None:
        raise CheckpointError(
            "the spread of one network is not known before `eqfuse uncertainty RUN` has fitted it"
        )
    network = copy.copy(network)
    root = network.uncertainty["root"].astype(network.dtype)
    network.params = network.params | {_SPREAD: {"root": root}}
    return network


def _variances(module, params, near, geometry):
    """Return the variances of energies of atoms, forces, energies and derivatives by strain."""
    root, count = params[_SPREAD]["root"], len(geometry.cells)

    def of_vectors(vectors):
        return rows_of(module, params, near, geometry, vectors) @ root

    rows, back = jax.vjp(of_vectors, near.vectors.astype(module.dtype))

    def add(sums, column):
        [gradient] = back(jnp.zeros_like(rows).at[:, column].set(1))
        gradient = jnp.where(near.real, gradient, 0).astype(jnp.float64)
        found = Derivatives(None, gradient)
        squares = (found.forces(near.edges) ** 2).sum(axis=1)
        return (sums[0] + squares, sums[1] + strain_derivatives(near, found, geometry) ** 2), None

    start = jnp.zeros(len(rows)), jnp.zeros((count, 3, 3))
    (forces, strain), _ = jax.lax.scan(add, start, jnp.arange(rows.shape[1]))
    rows = rows.astype(jnp.float64)
    index = jnp.zeros_like(geometry.index) if count == 1 else geometry.index
    totals = jax.ops.segment_sum(rows, index, count)
    parts = (rows**2).sum(axis=1), forces, (totals**2).sum(axis=1), strain.ravel()
    return jnp.concatenate(parts)


def spreads_of(network: Network, listed: Listed, structures: Sequence) -> list[Spread]:
    """Return the spreads of what one network predicts, with a list that an evaluator of it made."""
    evaluator, factor = Evaluator(with_spread(network)), network.uncertainty["forces"]
    placed = [(one.positions, one.cell) for one in structures]
    found = np.sqrt(evaluator.apply(_variances, listed, placed))
    nodes, graphs = listed.sizes.nodes, listed.sizes.graphs
    energies, forces = (found[k * nodes :].take(listed.number) for k in range(2))
    of_graphs = found[2 * nodes : 2 * nodes + graphs]
    strain = factor * found[2 * nodes + graphs :].reshape(-1, 3, 3)
    spreads, stop = [], 0
    for k, (one, energy) in enumerate(zip(structures, of_graphs, strict=False)):
        own = slice(stop, stop := stop + len(one.positions))
        volume = abs(np.linalg.det(one.cell))
        stress = strain[k] / volume if volume else None
        spreads.append(Spread(float(energy), energies[own], factor * forces[own], stress))
    return spreads
