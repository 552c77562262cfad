"""Steps of dynamics on the device, with neighbour lists that the host makes when they are due."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ase import units

from eqfuse.inference.calculator import skin_of
from eqfuse.inference.evaluator import Geometry, Sizes, evaluate, strain_derivatives
from eqfuse.inference.lists import Pairs, list_side_by_side, padded_pairs
from eqfuse.inference.network import Module, Network
from eqfuse.inference.spread import spread_of_atoms
from eqfuse.md.integrators import CHAIN, Integrator, State, volume
from eqfuse.md.settings import Settings

MOST_STEPS = 100
"""Steps that one call can take."""
RUNNING, LIMIT, STALE, OVERFLOW = range(4)
"""Why a call returned: all steps are done, a limit was passed, a list is due, or has more edges."""
COLUMNS = (
    "potential",
    "kinetic",
    "temperature",
    "force",
    "conserved",
    "pressure",
    "volume",
    "spread",
)
"""Columns of the rows of a call, in eV, K, eV/Å, eV/Å^3, Å^3 and eV."""


class Constants(NamedTuple):
    """Constants of the structures of a batch, which have an axis in front of all arrays.

    They are padded to the same number of atoms, by atoms of no mass.
    """

    species: jax.Array  # [n_structures, n_atoms] int32
    masses: jax.Array  # [n_structures, n_atoms] atomic mass units; zero for padding
    freedoms: jax.Array  # [n_structures] degrees of freedom
    seeds: jax.Array  # [n_structures] of the noise


class Listing(NamedTuple):
    """The neighbour list of all structures, and the positions and cells for which it was made."""

    pairs: Pairs
    positions: jax.Array
    cell: jax.Array


class Advanced(NamedTuple):
    """Results of a call."""

    state: State  # the last good state
    begun: State  # of the next step, whose positions have no forces yet
    reason: jax.Array  # RUNNING, LIMIT, STALE or OVERFLOW
    rows: jax.Array  # [MOST_STEPS, n_structures, len(COLUMNS)], without reference energies
    edges: jax.Array  # the most that were within the cutoff, of all structures


def _compile_steps(module: Module, settings: Settings, skin: float):
    """Compile a function that takes steps, and returns `Advanced`.

    No forces are computed with a list that is too short: the call ends where one is due. A step of
    more edges than the arrays hold is not taken. The row of a step that a limit refused for one of
    the structures comes last.
    """

    def advance(
        params, structures: Constants, state: State, listing: Listing, steps, step, *, size
    ):
        finish = functools.partial(_finish, module, settings, params, structures, listing)
        each = functools.partial(_each, settings, structures)

        def begun(state, reason) -> tuple[State, jax.Array]:
            state = each(lambda integrator, state: integrator.begin(state, step), state)
            valid = _are_valid(listing, state, module.cutoff, skin, settings.ensemble == "npt")
            stale = (reason == RUNNING) & ~jnp.all(valid)
            return state, jnp.where(stale, STALE, reason).astype(jnp.int32)

        def body(carry):
            number, before = carry
            state, reason, row, edges = finish(before.begun, step, size)
            taken = reason == RUNNING
            state = jax.tree.map(lambda new, old: jnp.where(taken, new, old), state, before.state)
            rows, edges = before.rows.at[number].set(row), jnp.maximum(edges, before.edges)
            return number + 1, Advanced(state, *begun(state, reason), rows, edges)

        def goes_on(carry):
            return (carry[0] < steps) & (carry[1].reason == RUNNING)

        rows = jnp.zeros((MOST_STEPS, len(state.step), len(COLUMNS)), jnp.float64)
        zero = jnp.int32(0)
        start = Advanced(state, *begun(state, jnp.int32(RUNNING)), rows, zero)
        return jax.lax.while_loop(goes_on, body, (zero, start))[1]

    return jax.jit(advance, static_argnames="size", donate_argnums=2)


def _each(settings, structures: Constants, function, *arrays):
    """Map a function of an integrator and the arrays of a structure over all."""
    own = structures.masses, structures.freedoms, structures.seeds
    return jax.vmap(lambda own, *a: function(Integrator(settings, *own), *a))(own, *arrays)


def _finish(module: Module, settings, params, structures, listing, begun: State, step, size):
    """Finish a step of all structures; return state, reason, row and number of edges."""
    is_atom, each = structures.masses > 0, functools.partial(_each, settings, structures)
    index = jnp.repeat(jnp.arange(len(is_atom), dtype=jnp.int32), is_atom.shape[1])
    placed, species = begun.positions.reshape(-1, 3), structures.species.reshape(-1)
    geometry = Geometry(placed, begun.cell, index, species, is_atom.size)
    done = evaluate(module, params, listing.pairs, geometry, size=size)
    energies = done.node_energy.reshape(is_atom.shape)
    potential = jnp.sum(jnp.where(is_atom, energies, 0), axis=1)
    forces, strain = done.forces.reshape(begun.positions.shape), strain_derivatives(done, geometry)
    state = begun._replace(forces=forces, strain=strain)
    state = each(lambda integrator, state: integrator.finish(state, step), state)
    spread = jnp.full(len(is_atom), jnp.nan)
    if settings.max_spread is not None:
        of_atoms = spread_of_atoms(module, params, done.near, geometry).reshape(is_atom.shape)
        spread = jnp.max(jnp.where(is_atom, of_atoms, 0), axis=1)
    rows = each(_row, state, potential, spread)
    temperature, force = rows[:, COLUMNS.index("temperature")], rows[:, COLUMNS.index("force")]
    good = jnp.all((force <= settings.max_force) & (temperature <= settings.max_temperature))
    if settings.max_spread is not None:
        good &= jnp.all(spread <= settings.max_spread)
    good &= jnp.all(jnp.isfinite(potential))
    edges = done.near.num_edges
    reason = jnp.where(edges <= min(size, len(listing.pairs.images)), RUNNING, OVERFLOW)
    return state, jnp.where((reason == RUNNING) & ~good, LIMIT, reason), rows, edges


def _are_valid(listing: Listing, state: State, cutoff: float, skin: float, rescaled: bool):
    """See `eqfuse.inference.lists.is_valid`, for each structure; not where it is NaN."""
    stretch = jnp.ones(len(state.cell))
    if rescaled:
        stretch = jnp.cbrt(jax.vmap(volume)(state.cell) / jax.vmap(volume)(listing.cell))
    moved = state.positions - stretch[:, None, None] * listing.positions
    most = jnp.sqrt(jnp.max(jnp.sum(moved**2, axis=2), axis=1))
    return 2 * most <= (cutoff + skin) * stretch - cutoff


def _row(integrator: Integrator, state: State, potential, spread):
    kinetic = integrator.kinetic(state.velocities)
    temperature = 2 * kinetic / (integrator.freedoms * units.kB)
    force = jnp.sqrt(jnp.max(jnp.sum(state.forces**2, axis=1)))
    row = [potential, kinetic, temperature, force, integrator.conserved(state, potential)]
    size = volume(state.cell)  # of a slab too, as in the calculator
    row += [jnp.where(size > 0, value, jnp.nan) for value in (integrator.pressure(state), size)]
    return jnp.stack([*row, spread])


def side_by_side(arrays, dtype=np.float64) -> np.ndarray:
    """Return arrays of different lengths as one, padded with zeros, of numpy."""
    arrays = [np.asarray(array) for array in arrays]
    out = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), dtype)
    for padded, array in zip(out, arrays, strict=True):
        padded[: len(array)] = array
    return out


class Stepper:
    """Steps of a simulation on the device, of all structures of a batch together.

    Species, masses and periodic directions are lists with an array for each structure; the noise of
    structure k has the seed `settings.seed + k`.
    """

    def __init__(self, network: Network, species, masses, pbc, settings: Settings):
        self._network, self._pbc = network, pbc
        self._count = np.array([len(one) for one in species])
        # noise acts on the total momentum too; without it the momentum is conserved
        conserves = (settings.ensemble in ("nve", "nose-hoover")) & (self._count > 1)
        self._structures = Constants(
            species=side_by_side(species, np.int32),
            masses=side_by_side(masses),
            freedoms=3.0 * self._count - np.where(conserves, 3, 0),
            seeds=settings.seed + np.arange(len(species), dtype=np.int64),
        )
        given = settings.skin
        self._skin = skin_of(max(self._count)) if given is None else given
        self._advance = _compile_steps(network.module, settings, self._skin)
        self.sizes, self.num_lists = Sizes(), 0
        self.listed: tuple[np.ndarray, np.ndarray] | None = None
        self._listing: Listing | None = None

    def begin(self, positions, cells, sizes: Sizes | None = None):
        """Have the next step make a list of positions and cells, as in `State`.

        `sizes` are those of a checkpoint.
        """
        self.listed, self._listing = (np.array(positions), np.array(cells)), None
        self.sizes = sizes or self.sizes

    def _list(self) -> Listing:
        positions, cells = self.listed
        parts = zip(positions, self._count, cells, strict=True)
        structures = [(one[:count], cell) for one, count, cell in parts]
        reach = self._network.cutoff, self._skin
        *ends, images, near = list_side_by_side(structures, self._pbc, *reach)
        self.sizes = self.sizes.grown(Sizes(pairs=len(images), edges=near))
        is_atom = self._structures.masses > 0
        number = np.flatnonzero(is_atom)  # of each atom among those of all, with padding
        ends = (number[end] for end in ends)
        pairs = padded_pairs(*ends, images, is_atom.size, self.sizes.pairs)
        self.num_lists += 1
        return jax.device_put(Listing(pairs, *self.listed))

    def state(self, positions, velocities, cells) -> State:
        """Return the state before the first step, from lists with an array for each structure."""
        count, positions = len(self._count), side_by_side(positions)
        return State(
            positions=positions,
            velocities=side_by_side(velocities),
            forces=np.zeros_like(positions),
            cell=np.array(cells, np.float64),
            strain=np.zeros((count, 3, 3)),
            chain=np.zeros((count, 2, CHAIN)),
            heat=np.zeros(count),
            step=np.zeros(count, np.int32),
        )

    def take(self, state: State, steps: int, timestep: float) -> Advanced:
        """Take at most MOST_STEPS; fewer if a list is due, or arrays were too small.

        The timestep is in ASE's units. The device may use the memory of the state. All results are
        on the host.

        Raises:
          DataError: atoms for which no list can be made, see `eqfuse.data.neighbor_list`.
        """
        if self._listing is None:
            self._listing = self._list()
        arguments = self._structures, state, self._listing, np.int32(steps), np.float64(timestep)
        done = self._advance(self._network.params, *arguments, size=self.sizes.edges)
        done = jax.device_get(done)
        if done.reason == STALE:
            self.begin(done.begun.positions, done.begun.cell)
        elif done.reason == OVERFLOW:
            self.sizes = self.sizes.grown(Sizes(edges=int(done.edges)))
        return done
