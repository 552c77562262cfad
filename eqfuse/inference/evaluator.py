"""Energies, forces and stress of structures by a trained network.

Whatever uses a network does so here: compiled loops (dynamics) by `evaluate_pairs`, all that has
arrays on the host by `Evaluator`. Programs are compiled for `Sizes`, which grow here alone.
"""

import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.data import DataError, padding
from eqfuse.data.neighbors import COINCIDENT, LEAST_DISTANCE, neighbor_list, spatial_order
from eqfuse.data.samples import species_index
from eqfuse.inference import lists
from eqfuse.inference.lists import Pairs
from eqfuse.inference.network import ROOM, Module, Network
from eqfuse.inference.programs import Kept
from eqfuse.models.ewald import Geometry, Reach
from eqfuse.models.potential import Derivatives, energy_and_gradient
from eqfuse.ops import Edges
from eqfuse.runs.errors import naming
from eqfuse.runs.process import give_back

_MOST_OWN, _MOST_OTHERS = 2, 1.2
"""Limits of the size of a compiled program by what is needed: of one used here, and of others."""
_MOST_OF_SUMS = 8
"""Limit of the size of a sum of charges by what is needed."""


class Sizes(NamedTuple):
    """Sizes of the arrays of a program: nodes, pairs, edges within the cutoff, and structures.

    With latent charges also the size of their sums.
    """

    nodes: int = 0
    pairs: int = 0
    edges: int = 0
    graphs: int = 1
    reach: Reach = Reach()

    def grown(self, needed: "Sizes") -> "Sizes":
        """Return sizes that hold what is needed, with headroom where these do not."""
        pairs, edges = self.pairs, self.edges
        if max(needed.pairs, 1) > pairs:  # an array of none cannot be read
            pairs = padding.room_for_pairs(needed.pairs)
        if max(needed.edges, 1) > edges:
            edges = padding.room_for_edges(needed.edges)
        nodes, graphs = max(self.nodes, needed.nodes), max(self.graphs, needed.graphs)
        return Sizes(nodes, pairs, edges, graphs, self.reach.grown(needed.reach))


class Near(NamedTuple):
    """The pairs of a list that are within the cutoff, and others, whose vector is zero."""

    edges: Edges  # sorted by receiver
    vectors: jax.Array  # [n_edges, 3] Å, float64
    real: jax.Array  # [n_edges, 1] bool, those within the cutoff
    num_edges: jax.Array  # int32, pairs within the cutoff; above n_edges, no result is right


def near_edges(cutoff: float, pairs: Pairs, geometry: Geometry, size: int) -> Near:
    """Return `size` (static) pairs with all within the cutoff, and their vectors.

    Two atoms at one place have a vector of NaN: no energy then depends on the list of before.
    """
    size = min(size, pairs.images.shape[0])
    ends = pairs.edges.senders, pairs.edges.receivers
    place = geometry.positions, geometry.cells, geometry.index
    vectors = lists.pair_vectors(*place, *ends, pairs.images)
    squares = sum(vectors[:, k] ** 2 for k in range(3))
    touching = (squares < COINCIDENT**2) & (ends[0] != ends[1])
    near = (squares < cutoff**2) & (squares > 0) | touching
    vectors = jnp.where(touching[:, None], jnp.nan, vectors)
    edges, kept, count = lists.within(pairs, near, size)
    real = near[kept][:, None]
    return Near(edges, jnp.where(real, vectors[kept], 0), real, count)


def moved(near: Near, geometry: Geometry, moves) -> tuple[Near, Geometry]:
    """Return the same edges of atoms that have moved by [n_nodes, 3] Å."""
    ends = near.edges.senders, near.edges.receivers
    vectors = jnp.where(near.real, near.vectors + moves[ends[0]] - moves[ends[1]], 0)
    return near._replace(vectors=vectors), geometry._replace(positions=geometry.positions + moves)


def derivatives(module: Module, params, near: Near, geometry: Geometry) -> Derivatives:
    """Compute energies and their derivatives by the edges of structures, in float64."""
    function = functools.partial(energy_and_gradient, module.potential)
    operands = near.vectors.astype(module.dtype), geometry.species, near.edges, geometry.is_atom
    if module.potential.long_range is not None:
        found = function(params, *operands, geometry)
    else:  # small networks are one native call on a CPU
        found = ops.sequence(function)(params, *operands)
    energies = found.node_energy.astype(jnp.float64)
    gradient = jnp.where(near.real, found.gradient, 0).astype(jnp.float64)
    return found._replace(node_energy=energies, gradient=gradient)


def evaluate_pairs(
    module: Module, params, pairs: Pairs, geometry: Geometry, *, size: int
) -> tuple[Near, Derivatives]:
    """Compute energies and derivatives of structures side by side; inside of `jit`."""
    near = near_edges(module.cutoff, pairs, geometry, size)
    return near, derivatives(module, params, near, geometry)


def strain_derivatives(near: Near, found: Derivatives, geometry: Geometry):
    """Return the derivatives of energies by strain, see `Derivatives.strain`."""
    of_edges = geometry.index[near.edges.receivers]
    return found.strain(near.vectors, of_edges, len(geometry.cells))


def atom_strain_derivatives(near: Near, found: Derivatives):
    """Return the parts of the nodes of `strain_derivatives`, [n_nodes, 3, 3] eV.

    Each edge gives half to either of its atoms, as in LAMMPS and mace.
    """
    edges = near.edges
    products = near.vectors[:, :, None] * found.gradient[:, None, :] / 4
    products += jnp.swapaxes(products, 1, 2)
    parts = jnp.zeros((edges.num_nodes, 3, 3))
    return parts.at[edges.senders].add(products).at[edges.receivers].add(products)


class Program:
    """The compiled functions of a network, which all networks of the same settings share."""

    def __init__(self, module: Module):
        self.module, self.sizes, self.lock = module, [], threading.RLock()
        self._compiled: dict[tuple, Kept] = {}

    @property
    def num_compilations(self) -> int:
        return sum(map(len, self._compiled.values()))

    def compiled(self, function: Callable, **static) -> Callable:
        """Return a compiled program for a function of structures.

        The function takes (module, params, near, geometry, **static) and returns an array. The
        program takes (params, pairs, places, of_nodes, size=): positions of the nodes with the
        cells below them, and the rest of `Geometry`. It returns float64 of one axis that ends with
        the number of edges: one copy to the device, and one from it.
        """
        key = function, *static.items()
        if key not in self._compiled:

            def program(params, pairs, places, of_nodes, *, size: int):
                nodes = len(of_nodes[0])
                cells = places[nodes:].reshape(-1, 3, 3)
                geometry = Geometry(places[:nodes], cells, *of_nodes)
                near = near_edges(self.module.cutoff, pairs, geometry, size)
                result = function(self.module, params, near, geometry, **static)
                return jnp.append(result.astype(jnp.float64), near.num_edges.astype(jnp.float64))

            module, name = self.module, f"{function.__module__}.{function.__qualname__}"
            made_of = repr((module.settings, module.cutoff, module.dtype, name, static))
            is_ours = name.startswith("eqfuse.") and "<" not in name  # others' may change
            self._compiled[key] = Kept(program, made_of if is_ours else None)
        return self._compiled[key]


program_of = functools.lru_cache(maxsize=32)(Program)
"""The program of a `Module`."""


class Placed(NamedTuple):
    """A structure as an `Evaluator` takes it; an `eqfuse.data.Structure` is one too."""

    numbers: np.ndarray  # [n_atoms] atomic numbers
    positions: np.ndarray  # [n_atoms, 3] Å
    cell: np.ndarray  # [3, 3] Å, zeros for directions without a vector
    pbc: np.ndarray  # [3] bool
    charge: float = 0.0  # e


class Results(NamedTuple):
    """Results of an `Evaluator`, on the host."""

    energies: np.ndarray  # [n_atoms] eV, without reference energies
    forces: np.ndarray  # [n_atoms, 3] eV/Å
    strain: np.ndarray  # [n_structures, 3, 3] eV; or the parts of the atoms, [n_atoms, 3, 3]
    references: np.ndarray  # [n_atoms] eV, the reference energies
    charges: np.ndarray | None = None  # [n_atoms, charges] e, the latent ones, if there are any


def _results(module, params, near: Near, geometry: Geometry, *, of_atoms: bool):
    found = derivatives(module, params, near, geometry)
    if of_atoms:
        strain = atom_strain_derivatives(near, found)
    else:
        strain = strain_derivatives(near, found, geometry)
    parts = [found.node_energy, found.forces(near.edges).ravel(), strain.ravel()]
    parts += [] if found.charges is None else [found.charges.ravel()]
    return jnp.concatenate(parts)


@dataclasses.dataclass(eq=False)
class Listed:
    """A neighbour list on the device, and the structures for which it was made."""

    structures: list[tuple[np.ndarray, np.ndarray]]  # (positions, cell), Å
    key: tuple  # on which the list depends besides
    sizes: Sizes  # of the program; may grow
    pairs: Pairs
    of_nodes: tuple  # structures and species of the nodes, which are atoms, on the device
    order: np.ndarray  # [n_atoms] the atom that each node is
    number: np.ndarray  # [n_atoms] the node that each atom is
    species: np.ndarray  # [n_atoms] int32, in the order of the structures
    pbc: Sequence  # of the structures
    names: Sequence[str] | None = None
    num_edges: int = 0  # within the cutoff when they were last computed

    def is_valid(self, structures, key, cutoff: float, skin: float) -> bool:
        """Test that the list has all pairs within the cutoff of structures as they are now."""
        return key == self.key and all(
            lists.is_valid(before, now, cutoff, skin)
            for before, now in zip(self.structures, structures, strict=True)
        )


class Evaluator:
    """A network that computes structures, with a neighbour list that is kept while it is valid.

    The skin (Å), by which lists go beyond the cutoff, may be a function of the number of atoms.
    """

    def __init__(self, network: Network, skin: float | Callable = 0.0):
        self.network, self.listed = network, None
        self._skin = skin if callable(skin) else lambda _: skin
        self._used = set()
        self.program = program_of(network.module)

    def __call__(self, structures: Sequence, *, of_atoms: bool = False) -> Results:
        """Compute structures, with a new list if that of before does not hold all pairs."""
        count = sum(len(structure.numbers) for structure in structures)
        placed, key = _places_and_key(structures)
        if self.listed is None or not self.listed.is_valid(
            placed, key, self.network.cutoff, self._skin(count)
        ):
            self.listed = self.list(structures)
        return self.run(self.listed, placed, of_atoms=of_atoms)

    def list(self, structures: Sequence, names: Sequence[str] | None = None) -> Listed:
        """Return a neighbour list of structures, whose names are for messages."""
        network, species, orders, first = self.network, [], [], 0
        for k, structure in enumerate(structures):
            with naming(names and names[k]):
                species.append(species_index(structure.numbers, network.species))
        (placed, key), pbc = _places_and_key(structures), [one.pbc for one in structures]
        skin = self._skin(sum(map(len, species)))
        *pairs, near = lists.list_structures(placed, pbc, network.cutoff, skin, names)
        for (positions, cell), periodic in zip(placed, pbc, strict=True):
            orders.append(spatial_order(positions, cell, periodic, network.cutoff) + first)
            first += len(positions)
        index = np.repeat(np.arange(len(species), dtype=np.int32), list(map(len, species)))
        species, order = np.concatenate(species), np.concatenate(orders)
        count = len(species)
        needed = Sizes(max(count, 1), len(pairs[0]), near, len(structures))
        sizes = self._sizes(needed._replace(reach=self._reach(placed, pbc)))
        number = np.argsort(order)
        ends = number[pairs[0]], number[pairs[1]]
        pairs = lists.Pairs.padded(*ends, pairs[2], sizes.nodes, sizes.pairs)
        nodes = np.zeros((2, sizes.nodes), np.int32)
        nodes[0] = sizes.graphs - 1
        nodes[:, :count] = index[order], species[order]
        of_nodes = *nodes, np.arange(sizes.nodes) < count
        if network.module.potential.long_range is not None:
            of_nodes += (np.zeros(sizes.graphs),)
            of_nodes[-1][: len(structures)] = [getattr(one, "charge", 0.0) for one in structures]
        with jax.enable_x64(True):
            pairs, of_nodes = jax.device_put((pairs, of_nodes))
        placed = [(positions.copy(), cell) for positions, cell in placed]
        about = {"pbc": pbc, "names": names}
        return Listed(placed, key, sizes, pairs, of_nodes, order, number, species, **about)

    def run(self, listed: Listed, structures=None, *, of_atoms: bool = False) -> Results:
        """Compute structures, by default those of the list, with a list.

        Raises:
          DataError: an energy or force is not finite; names the structure and the atom.
        """
        array = self._apply(_results, listed, structures, of_atoms=of_atoms)
        nodes, number = listed.sizes.nodes, listed.number
        end = 4 * nodes + 9 * (nodes if of_atoms else listed.sizes.graphs)
        strain, charges = array[4 * nodes : end].reshape(-1, 3, 3), None
        if len(array) > end:
            charges = array[end:].reshape(nodes, -1).take(number, axis=0)
        energies = array[:nodes].take(number)
        forces = array[nodes : 4 * nodes].reshape(-1, 3).take(number, axis=0)
        is_finite = np.isfinite(energies) & np.isfinite(forces).all(axis=1)
        if not is_finite.all():
            self._refuse(listed, structures, int(np.argmin(is_finite)))
        strain = strain.take(number, axis=0) if of_atoms else strain[: len(listed.structures)]
        references = self.network.references[listed.species]
        return Results(energies, forces, strain, references, charges)

    def _refuse(self, listed: Listed, structures, atom: int):
        """Raise the error of structures in which an atom has a number that is not finite."""
        structures = listed.structures if structures is None else structures
        ends = np.cumsum([len(positions) for positions, _ in structures])
        k = int(np.searchsorted(ends, atom, side="right"))
        positions, cell = structures[k]
        with naming(listed.names and listed.names[k]):
            reach, least = self.network.cutoff, LEAST_DISTANCE
            neighbor_list(positions, cell, listed.pbc[k], reach, least=least)  # refuses near ones
            raise DataError(
                f"the network gives an energy or force of atom {atom - ends[k] + len(positions)} "
                "that is not finite; see that the structure is like those of training"
            )

    def apply(self, function: Callable, listed: Listed, structures=None, **static) -> np.ndarray:
        """Compute a function of structures, see `Program.compiled`.

        Raises:
          DataError: a number is not finite, as where two atoms are at one place.
        """
        array = self._apply(function, listed, structures, **static)
        if not np.isfinite(array).all():
            self.run(listed, structures)  # names the atom
            self._refuse(listed, structures, 0)
        return array

    def _apply(self, function: Callable, listed: Listed, structures=None, **static) -> np.ndarray:
        """Compute a function of structures, with sizes that grow for more edges."""
        structures = listed.structures if structures is None else structures
        if not listed.sizes.reach.holds(self._reach(structures, listed.pbc, 1.0)):
            reach = self._reach(structures, listed.pbc).grown(listed.sizes.reach)
            listed.sizes = listed.sizes._replace(reach=reach)  # cells have grown
        compiled, sizes = self.program.compiled(function, **static), listed.sizes
        places = np.zeros((sizes.nodes + 3 * sizes.graphs, 3))
        positions, cells = map(np.concatenate, zip(*structures, strict=True))
        places[: len(positions)] = positions.take(listed.order, axis=0)
        places[sizes.nodes : sizes.nodes + len(cells)] = cells
        charged = len(listed.of_nodes) > 3
        arguments = listed.pairs, places, (*listed.of_nodes, *[sizes.reach][:charged])
        while True:
            precise = jax.default_matmul_precision("highest")
            with jax.enable_x64(True), precise, self.network.described():
                done = compiled(self.network.params, *arguments, size=listed.sizes.edges)
            done = np.asarray(done)
            give_back()
            listed.num_edges = int(done[-1])
            if listed.num_edges <= listed.sizes.edges:
                return done[:-1]
            listed.sizes = self._sizes(sizes._replace(edges=listed.num_edges), sizes)

    def _reach(self, structures, pbc, room: float = ROOM) -> Reach:
        """Return what sums of charges need for (positions, cell) of structures, see `Network`."""
        cells, counts = [cell for _, cell in structures], [len(at) for at, _ in structures]
        return self.network.reach(cells, pbc, counts, room)

    def _sizes(self, needed: Sizes, now: Sizes | None = None) -> Sizes:
        """Return compiled sizes that hold what is needed, or new ones with less padding.

        With `now`, all but the edges stay as they are.
        """
        limit = padding.room_for_edges(needed.edges)

        def fits(sizes: Sizes) -> bool:
            most = _MOST_OWN if sizes in self._used else _MOST_OTHERS
            return (
                needed.nodes <= sizes.nodes <= most * needed.nodes
                and needed.edges <= sizes.edges <= most * limit
                and needed.pairs <= sizes.pairs
                and needed.graphs <= sizes.graphs <= most * needed.graphs
                and sizes.reach.holds(needed.reach, _MOST_OF_SUMS)
                and (now is None or now == sizes._replace(edges=now.edges))
            )

        with self.program.lock:
            fitting = filter(fits, self.program.sizes)
            chosen = min(fitting, key=lambda sizes: (sizes.edges, *sizes), default=None)
            if chosen is None:
                chosen = self._new_sizes(needed) if now is None else now._replace(edges=limit)
                self.program.sizes.append(chosen)
        self._used.add(chosen)
        return chosen

    def _new_sizes(self, needed: Sizes) -> Sizes:
        nodes = needed.nodes
        if not {sizes.nodes for sizes in self._used} - {nodes}:
            # Dynamics keep their atoms, and pay for no others; where one came, more may.
            return Sizes(nodes, graphs=needed.graphs).grown(needed)
        more = padding.room_for_nodes(nodes)
        pairs, edges = (math.ceil(n * more / nodes) for n in (needed.pairs, needed.edges))
        atoms = math.ceil(needed.reach.atoms * more / nodes)
        rest = Sizes(0, pairs, edges, reach=dataclasses.replace(needed.reach, atoms=atoms))
        return Sizes(more, graphs=needed.graphs).grown(rest)


def _places_and_key(structures) -> tuple[list, tuple]:
    """Return (positions, cell) of structures, and what a list depends on besides."""
    placed = [(structure.positions, structure.cell) for structure in structures]
    key = ((s.numbers.tobytes(), s.pbc.tobytes(), getattr(s, "charge", 0)) for s in structures)
    return placed, tuple(key)
