"""Neighbour lists that stay on the device, and the evaluation of a network on them.

A list holds the pairs within cutoff and skin. Each evaluation computes their vectors and passes the
pairs within the cutoff to the network, so that the skin costs a few operations and no edges.
"""

import dataclasses
import functools
import math
import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.data import neighbor_list
from eqfuse.models.potential import Potential
from eqfuse.ops import Edges

_PAIR_HEADROOM, _EDGE_HEADROOM, _EDGE_MULTIPLE = 1.1, 1.02, 32


class Pairs(NamedTuple):
    """A neighbour list, sorted by receiver.

    Attributes:
      edges: `eqfuse.ops.Edges`; padding joins a node to itself.
      images: [n_pairs, 3] int32, lattice vectors by which the sender is moved; zero for padding.
    """

    edges: Edges
    images: jax.Array


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


def room_for_pairs(count: int) -> int:
    """Return the number of pairs that a list of `count` pairs is padded to."""
    return _EDGE_MULTIPLE * math.ceil((_PAIR_HEADROOM * count + 1) / _EDGE_MULTIPLE)


def room_for_edges(count: int) -> int:
    """Return the number of edges of a program for about `count` edges within the cutoff.

    The headroom of 2% and two standard deviations of a Poisson distribution is for fluctuations.
    """
    room = _EDGE_HEADROOM * count + 2 * math.sqrt(count) + 1
    return _EDGE_MULTIPLE * math.ceil(room / _EDGE_MULTIPLE)


def list_pairs(positions, cell, pbc, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return senders, receivers and images of the pairs within `reach`, on the host.

    Raises:
      DataError: see `eqfuse.data.neighbor_list`.
    """
    senders, receivers, shifts = neighbor_list(positions, cell, pbc, reach)
    images = np.zeros(shifts.shape, np.int32)
    if np.any(pbc):
        images[:, pbc] = np.rint(shifts @ np.linalg.pinv(np.asarray(cell)[pbc]))
    return senders, receivers, images


def padded_pairs(senders, receivers, images, num_nodes: int, room: int) -> Pairs:
    """Return the list of `room` pairs, of numpy arrays.

    Padding is spread over the nodes: the edges of one are summed one after the other.
    """
    padding = room - len(senders)
    loops = np.arange(padding) * num_nodes // max(padding, 1)
    senders, receivers = np.append(senders, loops), np.append(receivers, loops)
    order = np.argsort(receivers * num_nodes + senders, kind="stable")
    images = np.concatenate([images, np.zeros((padding, 3), np.int32)])[order]
    return Pairs(Edges.from_arrays(senders[order], receivers[order], num_nodes), images)


def is_valid(listed, positions, cutoff: float, skin: float) -> bool:
    """Return whether all pairs within the cutoff are in a list that reached to cutoff and skin.

    Every vector v of the list became v A + u_j - u_i, for the deformation A of the cell and the
    displacements u besides, so that it is at least as long as |v| s - 2 max |u| for the least
    singular value s of A.

    Args:
      listed: (positions, cell) for which the list was made, [n_atoms, 3] and [3, 3] Å.
      positions: (positions, cell) now; a cell that changed must have a volume.
    """
    (old, old_cell), (new, cell) = listed, positions
    stretch = 1.0
    if not np.array_equal(old_cell, cell):
        if np.linalg.det(old_cell) == 0:
            return False
        deformation = np.linalg.solve(old_cell, cell)
        old = old @ deformation
        stretch = np.linalg.svd(deformation, compute_uv=False)[-1]
    moved = new - old
    most = math.sqrt(np.einsum("ai,ai->a", moved, moved).max(initial=0))
    return 2 * most <= (cutoff + skin) * stretch - cutoff


def within(pairs: Pairs, near, size: int) -> tuple[Edges, jax.Array, jax.Array]:
    """Return a part of the pairs of a list that has all near ones, without sorting.

    Pairs that are not near fill what is left of `size`, spread over all. The list is sorted by
    receiver, and so is what is returned. If more than `size` pairs are near, the first are kept.

    Args:
      pairs: the list.
      near: [n_pairs] bool.
      size: at most n_pairs, static.
    Returns:
      the edges, their images, and whether each is near.
    """
    edges, count = pairs.edges, near.shape[0]
    keep = chosen_evenly(near, size)
    number, kept = numbered(keep, size)  # [n_pairs + 1], [size]
    of_sender, kept_by_sender = numbered(keep[edges.sender_order], size)
    chosen = Edges(
        senders=edges.senders[kept],
        receivers=edges.receivers[kept],
        receiver_order=jnp.arange(size, dtype=jnp.int32),
        receiver_ptr=number[edges.receiver_ptr],
        sender_order=number[edges.sender_order[kept_by_sender]],
        sender_ptr=of_sender[edges.sender_ptr],
        num_nodes=edges.num_nodes,
    )
    if size == count:  # all are kept, in their order
        chosen = edges
    return chosen, pairs.images[kept], near[kept]


def chosen_evenly(near, size: int) -> jax.Array:
    """Return the near ones and others, spread evenly, that are `size` together.

    If more are near, the first are kept.

    Args:
      near: [count] bool.
      size: at most count, static.
    Returns:
      [count] bool, `size` of which are true.
    """
    until = jnp.cumsum(near, dtype=jnp.int32)
    near &= until <= size
    until = jnp.minimum(until, size)
    others = jnp.arange(1, len(near) + 1, dtype=jnp.int32) - until
    # how many of the first others are kept: evenly up to what is left
    due = others.astype(jnp.float64) * (size - until[-1]) / jnp.maximum(others[-1], 1)
    due = jnp.floor(due + 1e-9).astype(jnp.int32)
    return near | (due > jnp.append(0, due[:-1]))


def numbered(keep, size: int):
    """Return for each place how many kept ones are before it, and the places of the kept ones."""
    count = keep.shape[0]
    until = jnp.cumsum(keep.astype(jnp.int32), dtype=jnp.int32)
    before = jnp.append(jnp.int32(0), until)
    place = jnp.where(keep, before[:-1], size)
    numbers = jnp.arange(count, dtype=jnp.int32)
    kept = jnp.zeros(size, jnp.int32).at[place].set(numbers, mode="drop", unique_indices=True)
    return before, kept


def pair_vectors(positions, cells, graph_index, senders, receivers, images):
    """Return the vectors [n_edges, 3] from receivers to senders, in the precision of positions."""
    images = images.astype(positions.dtype)
    if cells.shape[0] == 1:
        shifts = images @ cells[0]
    else:
        shifts = jnp.einsum("ei,eij->ej", images, cells[graph_index[receivers]])
    return positions[senders] + shifts - positions[receivers]


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
    squares = jnp.sum(vectors**2, axis=1)
    near = (squares < cutoff**2) & (squares > 0)
    edges, images, real = within(pairs, near, size)
    ends = edges.senders, edges.receivers
    vectors = pair_vectors(positions, cells, graph_index, *ends, images)
    vectors = jnp.where(real[:, None], vectors, 0)
    atoms = jnp.arange(len(species)) < num_atoms

    def total(params, vectors, species, edges, atoms):
        energies = jnp.where(atoms, potential.apply(params, vectors, species, edges), 0)
        return jnp.sum(energies), energies

    # small networks are one native call on a CPU
    differentiate = ops.sequence(jax.grad(total, argnums=1, has_aux=True))
    gradient, energies = differentiate(params, vectors.astype(dtype), species, edges, atoms)
    gradient = jnp.where(real[:, None], gradient, 0).astype(jnp.float64)
    forces = jnp.zeros_like(positions).at[edges.senders].add(-gradient)
    forces = forces.at[edges.receivers].add(gradient, indices_are_sorted=True)
    energies = energies.astype(jnp.float64)
    return Evaluated(energies, forces, vectors, gradient, edges, jnp.sum(near, dtype=jnp.int32))


@jax.jit
def strain_derivative(evaluated: Evaluated):
    """Return dE/de at e = 0, [3, 3] eV, for the strain r -> (1 + (e + e^T)/2) r."""
    product = evaluated.vectors.T @ evaluated.gradient
    return (product + product.T) / 2


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


class Program:
    """The evaluation of a network, compiled once for each `Sizes` in a process.

    Attributes:
      sizes: those that were compiled so far.
      lock: for who chooses sizes.
    """

    def __init__(self, potential: Potential, cutoff: float, dtype: str):
        self.sizes: list[Sizes] = []
        self.lock = threading.RLock()
        function = functools.partial(evaluate, potential, cutoff, dtype)
        self.compiled = jax.jit(function, static_argnames="size")

    @property
    def num_compilations(self) -> int:
        """Number of programs that were compiled so far."""
        return self.compiled._cache_size()


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
