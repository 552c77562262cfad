"""A trained network as an energy function of jax-md, https://github.com/jax-md/jax-md.

    displacement, shift = jax_md.space.periodic(box)
    neighbor_fn, energy_fn = eqfuse.jax_md.neighbor_list(displacement, box, "runs/first")
    neighbors = neighbor_fn.allocate(R)
    energy_fn(R, neighbors)

It needs jax-md: pip install "eqfuse[jaxmd]".
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from ase.symbols import symbols2numbers

from eqfuse.data import DataError, species_index
from eqfuse.inference import Geometry, Grid, Network, Pairs, list_structures, near_edges


def neighbor_list(
    displacement,
    box,
    run,
    *,
    numbers=None,
    dr_threshold: float = 0.5,
    capacity_multiplier: float = 1.25,
    fractional_coordinates: bool = False,
    per_particle: bool = False,
    reference_energies: bool = False,
    dtype: str | None = None,
    backend: str | None = None,
    dispersion: str | None = None,
    charge: float = 0.0,
):
    """Return a neighbour function and an energy function, as those of `jax_md.energy`.

    Lengths are in Å, energies in eV and forces, `-jax.grad(energy_fn)`, in eV/Å, also with
    fractional coordinates (jax-md differentiates by the positions in space). Boxes of any size will
    do: the list, of eqfuse and not of jax-md, has all images of an atom.

    A box that changes is passed to `allocate`, `update` and the energy as `box=`; each such update
    makes a new list. Where a list no longer has room, `did_buffer_overflow` of what `update`
    returns is set, and the energy is NaN: allocate another.

    Latent charges are summed in float64 over the images of `box`. A box that grows so far, by 5% or
    more, that waves would be missing has the energy NaN: begin with the largest.

    Args:
      displacement: of `jax_md.space`, which tells the directions that are periodic.
      box: Å, a length, three, or a matrix whose columns are lattice vectors, as for jax-md; None
        for `space.free()`.
      run: the folder of a run, or a file of its network (.safetensors).
      numbers: [n_atoms] atomic numbers or symbols; None if the network knows one element.
      dr_threshold: Å, the skin of the list.
      capacity_multiplier: room of a list, in units of the pairs for which it is allocated.
      fractional_coordinates: as in `jax_md.partition.neighbor_list`.
      per_particle: whether the energy function returns the energy of each atom.
      reference_energies: whether they are in the energy, as in that of `eqfuse.Calculator`; without
        them, float32 resolves more.
      dtype: "float64" or "float32", of the network; None for that of the run.
      backend: see `eqfuse.ops`.
      dispersion: "none" for a run with `data.dispersion`, whose network alone is computed here.
      charge: the total charge, e, of a network that reads one (`data.charge_key`).
    Returns:
      (neighbor_fn, energy_fn); energy_fn(R, neighbor, **kwargs).
    Raises:
      ImportError: jax-md is not there.
      ValueError: numbers are needed, float64 (networks with latent charges need it) where JAX has
        it disabled, or a charge that the network does not read.
      DataError: an element that the network does not know, no box where the displacement wraps, or
        latent charges in a box that is periodic along one or two directions.
      CheckpointError: no readable network.
    """
    try:
        from jax_md import partition, space
    except ImportError as error:
        raise ImportError('eqfuse.jax_md needs jax-md: pip install "eqfuse[jaxmd]"') from error

    network = Network(run, dtype=dtype, backend=backend, dispersion=dispersion)
    _check(network, numbers, charge)
    if box is None:
        box = _box_of_free(displacement)
    pbc = _periodic_directions(displacement, box, fractional_coordinates)
    transform = space.transform if fractional_coordinates else lambda _, R: R
    sizes = network.cutoff, dr_threshold, capacity_multiplier
    lists = _Lists(*sizes, np.asarray(box, float), pbc, transform)
    reach = network.reach(_lattice_vectors(lists.box)[None], pbc, [1])  # refuses slabs
    index = None if numbers is None else species_index(_numbers_of(numbers), network.species)
    references = (
        network.references if reference_energies else np.zeros(len(network.species), network.dtype)
    )
    of_atoms = functools.partial(_energies, network, lists, index, references, (charge, reach))

    def energy_fn(R, neighbor, **kwargs):
        energies = of_atoms(R, neighbor, **kwargs)
        return energies if per_particle else jnp.sum(energies)

    return partition.NeighborListFns(lists.allocate, lists.update), energy_fn


def _check(network: Network, numbers, charge: float):
    """Refuse a network that cannot be computed, or not of these numbers and this charge."""
    network.require("eqfuse.jax_md", charges=True)
    is_charged = network.module.potential.long_range is not None
    if (network.dtype == "float64" or is_charged) and not jax.config.jax_enable_x64:
        raise ValueError(
            f"the network {'sums charges' if is_charged else 'computes'} in float64, which JAX has "
            "disabled: set jax_enable_x64" + ("" if is_charged else ', or give dtype="float32"')
        )
    if charge and network.charge_key is None:
        raise ValueError(f"the network reads no total charge, got charge={charge:g}")
    if numbers is None and len(network.species) > 1:
        raise ValueError(f"give numbers=: the network knows several elements, {network.species}")


def _energies(network: Network, lists, index, references, charges, R, neighbor, **kwargs):
    """Return the energies of atoms, [n] eV; NaN, as forces are, where a list lacks pairs.

    The species are `index` [n], `references` their energies, and `charges` the total charge and
    what its sums need.
    """
    count, les = len(R), network.module.potential.long_range
    species = np.zeros(count, np.int32) if index is None else index
    if len(species) != count:
        raise ValueError(f"there are {count} positions and {len(species)} numbers")
    positions, cell = lists.unwrapped(neighbor, R, **kwargs)
    of_charges = jnp.full(1, charges[0]), dataclasses.replace(charges[1], atoms=count)
    of_nodes = np.zeros(count, np.int32), species, np.ones(count, bool)
    geometry = Geometry(positions, cell[None], *of_nodes, *of_charges)
    near = near_edges(network.cutoff, neighbor.pairs, geometry, neighbor.room)
    wrong = neighbor.did_buffer_overflow | jnp.any(jnp.isnan(near.vectors))
    operands = near.vectors.astype(network.dtype), species, near.edges
    with jax.default_matmul_precision("highest"):
        energies = network.module.potential.apply(network.params, *operands)
    if les is not None:
        energies, scalars = energies
        charges = les.charges_of(scalars, geometry)
        places = geometry.positions, geometry.cells, geometry.index, geometry.reach
        potential = jax.grad(lambda charges: jnp.sum(les.energies(charges, *places)))(charges)
        far = jnp.sum(charges * potential, axis=1) / 2  # quadratic in charges
        energies += far * jnp.where(les.covers(geometry.cells, geometry.reach), 1, jnp.nan)
    # times the positions: tables are finite for NaN, and forces have to be NaN too
    energies += (jnp.where(wrong, jnp.nan, 0) * jnp.sum(positions)).astype(energies.dtype)
    return energies + references[species]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Neighbors:
    """A neighbour list of `neighbor_list`, which `update` returns anew where it has to be made."""

    pairs: Pairs
    fractions: jax.Array  # [n_atoms, 3] places along lattice vectors, for which it was made
    did_buffer_overflow: jax.Array  # bool, whether it lacks pairs
    grid: Grid = dataclasses.field(metadata={"static": True})
    room: int = dataclasses.field(metadata={"static": True})  # of pairs
    lists: "_Lists" = dataclasses.field(metadata={"static": True})

    def update(self, position, **kwargs) -> "Neighbors":
        return self.lists.update(position, self, **kwargs)


@dataclasses.dataclass(frozen=True, eq=False)
class _Lists:
    """The settings of neighbour lists, and the functions that make them."""

    cutoff: float  # Å
    skin: float  # Å
    capacity: float
    box: np.ndarray
    is_periodic: np.ndarray  # [3] bool
    transform: object  # of jax-md, (box, R) to positions in space

    def places(self, R, box=None, perturbation=1.0, **_):
        """Return positions [n, 3] Å, lattice vectors [3, 3] Å, and positions in units of these."""
        box, deform = self.box if box is None else box, jnp.asarray(perturbation, float)
        deform = _lattice_vectors(deform)
        positions = jnp.asarray(self.transform(box, R), float) @ deform
        cell = _lattice_vectors(jnp.asarray(box, float)) @ deform
        return positions, cell, jax.lax.stop_gradient(positions @ jnp.linalg.inv(cell))

    def moves(self, fractions, neighbors: Neighbors):
        """Return how far atoms have moved, and the cells by which they were wrapped."""
        moves = fractions - neighbors.fractions
        wraps = jnp.where(self.is_periodic, jnp.round(moves), 0)
        return moves - wraps, wraps

    def unwrapped(self, neighbors: Neighbors, R, **kwargs):
        """Return positions at the images that a list is of, and lattice vectors."""
        positions, cell, fractions = self.places(R, **kwargs)
        _, wraps = self.moves(fractions, neighbors)
        return positions - wraps @ cell, cell * self.is_periodic[:, None]

    def allocate(self, position, extra_capacity: int = 0, **kwargs) -> Neighbors:
        """Return a list with room for the pairs of these positions, and some more."""
        positions, cell, fractions = map(np.asarray, self.places(position, **kwargs))
        structures, pbc = [(positions.astype(float), cell.astype(float))], self.is_periodic
        *pairs, _ = list_structures(structures, [pbc], self.cutoff, self.skin)
        grid, count = Grid.of(structures, pbc, self.cutoff + self.skin), len(positions)
        room = math.ceil(self.capacity * len(pairs[0])) + extra_capacity + 1
        room = min(room, grid.most_pairs(count))
        arrays = Pairs.padded(*pairs, count, room), fractions, np.bool_(False)
        return Neighbors(*jax.tree.map(jnp.asarray, arrays), grid, room, self)

    def update(self, position, neighbors: Neighbors, **kwargs) -> Neighbors:
        """Return the list if it has all pairs; else, and whenever a box is given, a new one."""
        grid, room = neighbors.grid, neighbors.room
        positions, cell, fractions = self.places(position, **kwargs)

        def made():
            with jax.enable_x64(True):
                placed = positions[None].astype(jnp.float64), cell[None].astype(jnp.float64)
                pairs, needed = grid.make_pairs(room, *placed, np.ones((1, len(positions)), bool))
            lacks = (needed.pairs > room) | (needed.occupancy > grid.occupancy) | needed.is_narrow
            lacks |= neighbors.did_buffer_overflow
            return Neighbors(pairs, fractions, lacks, grid, room, self)

        if "box" in kwargs:
            return made()
        moves, _ = self.moves(fractions, neighbors)
        most = jnp.max(jnp.sum((moves @ cell) ** 2, axis=1))
        return jax.lax.cond(4 * most <= self.skin**2, lambda: neighbors, made)


def _box_of_free(displacement) -> float:
    """Return the length of a box, Å, in units of which free positions are; any would do."""
    far = jnp.full(3, 1e6)
    if not np.allclose(displacement(far, jnp.zeros(3)), far):
        raise DataError("box=None is for jax_md.space.free(); give the box of this displacement")
    return 1.0


def _numbers_of(numbers) -> np.ndarray:
    """Return atomic numbers, of which some may be symbols."""
    try:
        return np.array(symbols2numbers(numbers if isinstance(numbers, str) else [*numbers]))
    except KeyError as error:
        raise DataError(f"numbers= has {error}, which is no chemical symbol") from error


def _periodic_directions(displacement, box, fractional: bool) -> np.ndarray:
    """Test whether the displacement of each lattice vector is zero, [3] bool."""
    vectors = _lattice_vectors(np.asarray(box, float))
    lattice = jnp.asarray(np.eye(3) if fractional else vectors)
    apart = [np.linalg.norm(displacement(one, jnp.zeros(3))) for one in lattice]
    return np.array(apart) < 1e-3 * np.linalg.norm(vectors, axis=1)


def _lattice_vectors(box):
    return box.T if jnp.ndim(box) == 2 else jnp.eye(3) * box
