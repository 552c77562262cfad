"""Energies of a network and their derivative by edge vectors, as a function for programs."""

import jax.numpy as jnp
import numpy as np
from ase.data import chemical_symbols

from eqfuse.inference import Network
from eqfuse.models import energy_and_gradient
from eqfuse.ops import Edges


def species_of(network: Network):
    """Return the species of atomic numbers, -1 for elements that the network does not know."""
    species = np.full(len(chemical_symbols), -1, np.int32)
    species[list(network.species)] = np.arange(len(network.species))
    return jnp.asarray(species)


def of_vectors(network: Network, params, numbers, vectors, edges: Edges, atoms):
    """Return energies [n_receivers] without references, and the derivative by vectors, [e, 3].

    Atoms for which `atoms` [n_receivers] is false have no energy; unknown elements that of NaN.
    Vectors beyond the cutoff are taken for padding, whose derivative is zero.
    """
    species = species_of(network)[numbers]
    near = jnp.sum(vectors**2, axis=1, keepdims=True) < network.cutoff**2
    vectors = jnp.where(near, vectors, 0)
    operands = params, vectors, jnp.maximum(species, 0), edges, atoms
    found = energy_and_gradient(network.module.potential, *operands)
    is_unknown = atoms & (edges.of_receivers(species) < 0)
    energies = jnp.where(is_unknown, jnp.nan, found.node_energy)
    return energies, jnp.where(near, found.gradient, 0)
