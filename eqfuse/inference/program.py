"""The evaluation of a network on a list of pairs, compiled once in a process."""

import dataclasses
import functools
import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.inference.pairs import Pairs, pair_vectors, within
from eqfuse.models.potential import Potential
from eqfuse.ops import Edges


class Sizes(NamedTuple):
    """The sizes of the arrays of a compiled program: nodes, pairs, and edges within the cutoff."""

    nodes: int
    pairs: int
    edges: int


class Evaluated(NamedTuple):
    """What `evaluate` returns, in float64.

    Attributes:
      node_energy: [n_nodes] eV, without reference energies; zero in the padding.
      forces: [n_nodes, 3] eV/Å.
      vectors: [n_edges, 3] Å; zero for what is no edge.
      gradient: [n_edges, 3] eV/Å, of the energy by `vectors`; zero for what is no edge.
      edges: the pairs within the cutoff, and others with a vector of zero.
      num_edges: int32, the number of pairs within the cutoff. Where it is above n_edges, all
        other values are meaningless.
    """

    node_energy: jax.Array
    forces: jax.Array
    vectors: jax.Array
    gradient: jax.Array
    edges: Edges
    num_edges: jax.Array


def evaluate(
    potential: Potential,
    cutoff: float,
    dtype: str,
    params,
    pairs: Pairs,
    positions,
    cells,
    graph_index,
    species,
    num_atoms,
    *,
    size: int,
) -> Evaluated:
    """Compute energies and forces of structures side by side.

    Vectors are differences in float64, then of `dtype`. Pairs beyond the cutoff get a vector of
    zero, as padding has, so that they contribute nothing, whatever the model does there. One
    derivative, by the vectors of the edges, gives forces, stress and virials.

    Args:
      potential: the module.
      cutoff: Å.
      dtype: of the network.
      params: its variables.
      pairs: a list with all pairs within the cutoff.
      positions: [n_nodes, 3] float64, Å.
      cells: [n_graphs, 3, 3] float64, Å.
      graph_index: [n_nodes] int32; not read if there is one graph.
      species: [n_nodes] int32.
      num_atoms: the nodes from this number on are padding.
      size: the number of edges, static; see `Evaluated.num_edges`.
    """
    size = min(size, pairs.images.shape[0])
    ends = pairs.edges.senders, pairs.edges.receivers
    vectors = pair_vectors(positions, cells, graph_index, *ends, pairs.images)
    squares = sum(vectors[:, k] ** 2 for k in range(3))
    near = (squares < cutoff**2) & (squares > 0)
    edges, kept, count = within(pairs, near, size)
    real = near[kept][:, None]
    vectors = jnp.where(real, vectors[kept], 0)
    atoms = jnp.arange(len(species)) < num_atoms

    def total(params, vectors, species, edges, atoms):
        energies = jnp.where(atoms, potential.apply(params, vectors, species, edges), 0)
        return jnp.sum(energies), energies

    # small networks are one native call on a CPU
    differentiate = ops.sequence(jax.grad(total, argnums=1, has_aux=True))
    gradient, energies = differentiate(params, vectors.astype(dtype), species, edges, atoms)
    gradient = jnp.where(real, gradient, 0).astype(jnp.float64)
    forces = jnp.zeros_like(positions).at[edges.senders].add(-gradient)
    forces = forces.at[edges.receivers].add(gradient, indices_are_sorted=True)
    energies = energies.astype(jnp.float64)
    return Evaluated(energies, forces, vectors, gradient, edges, count)


@jax.jit
def strain_derivative(evaluated: Evaluated):
    """Return dE/de at e = 0, [3, 3] eV, for the strain r -> (1 + (e + e^T)/2) r."""
    product = evaluated.vectors.T @ evaluated.gradient
    return (product + product.T) / 2


def strain_derivatives(evaluated: Evaluated, graph_index, count: int):
    """Return the `strain_derivative` of each of `count` structures side by side, [count, 3, 3] eV.

    Args:
      graph_index: [n_nodes] int32, the structure of each node.
    """
    if count == 1:
        return strain_derivative(evaluated)[None]
    products = evaluated.vectors[:, :, None] * evaluated.gradient[:, None, :]
    strain = jax.ops.segment_sum(products, graph_index[evaluated.edges.receivers], count)
    return (strain + jnp.swapaxes(strain, 1, 2)) / 2


@jax.jit
def atom_strain_derivatives(evaluated: Evaluated):
    """Return the parts of `strain_derivative`, [n_nodes, 3, 3] eV.

    Each edge gives half to either of its atoms, as in LAMMPS and mace.
    """
    products = evaluated.vectors[:, :, None] * evaluated.gradient[:, None, :] / 4
    products += jnp.swapaxes(products, 1, 2)
    parts = jnp.zeros((len(evaluated.forces), 3, 3))
    return (
        parts.at[evaluated.edges.senders].add(products).at[evaluated.edges.receivers].add(products)
    )


def evaluate_packed(potential, cutoff, dtype, params, pairs, geometry, species, num_atoms, *, size):
    """Return what `Packed` holds, of one structure: one copy to the device, and one from it.

    Args:
      geometry: [n_nodes + 3, 3] float64, Å, positions and below them the cell.
      potential, cutoff, dtype, params, pairs, species, num_atoms, size: see `evaluate`.
    """
    structure = geometry[:-3], geometry[None, -3:], jnp.zeros_like(species), species, num_atoms
    done = evaluate(potential, cutoff, dtype, params, pairs, *structure, size=size)
    count, strain = done.num_edges.astype(jnp.float64)[None], strain_derivative(done)
    return jnp.concatenate([done.node_energy, done.forces.ravel(), strain.ravel(), count])


class Packed(NamedTuple):
    """The results of `evaluate_packed`, on the host; see `Evaluated` and `strain_derivative`."""

    node_energy: np.ndarray
    forces: np.ndarray
    strain: np.ndarray
    num_edges: int

    @classmethod
    def of(cls, array: np.ndarray) -> "Packed":
        """Return the parts of an array [4 n_nodes + 10]."""
        count = (len(array) - 10) // 4
        forces, strain = array[count:-10].reshape(count, 3), array[-10:-1].reshape(3, 3)
        return cls(array[:count], forces, strain, int(array[-1]))


class Program:
    """The evaluation of a network, compiled once for each `Sizes` in a process.

    Attributes:
      sizes: those that were compiled so far.
      lock: for who chooses sizes.
      compiled: `evaluate`, of arrays that stay on the device.
      packed: `evaluate_packed`.
    """

    def __init__(self, potential: Potential, cutoff: float, dtype: str):
        self.sizes: list[Sizes] = []
        self.lock = threading.RLock()
        self.compiled, self.packed = (
            jax.jit(functools.partial(function, potential, cutoff, dtype), static_argnames="size")
            for function in (evaluate, evaluate_packed)
        )

    @property
    def num_compilations(self) -> int:
        """Return the number of programs that were compiled so far."""
        return self.compiled._cache_size() + self.packed._cache_size()


@dataclasses.dataclass(frozen=True)
class Described:
    """A potential that is equal to all with the same settings: their programs are the same."""

    potential: Potential = dataclasses.field(compare=False)
    settings: str

    @classmethod
    def of(cls, potential: Potential) -> "Described":
        """Return the potential with its settings as text: some of them may be lists."""
        return cls(potential, repr(potential))


def program_of(potential: Potential, cutoff: float, dtype: str) -> Program:
    """Return the program of a potential, which all with the same settings share."""
    return _program(Described.of(potential), cutoff, dtype)


@functools.lru_cache(maxsize=32)
def _program(described: Described, cutoff: float, dtype: str) -> Program:
    return Program(described.potential, cutoff, dtype)
