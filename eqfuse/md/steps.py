"""Steps of dynamics on the device, with neighbour lists that are made there when they are due."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ase import units

from eqfuse.inference.pairs import Pairs
from eqfuse.inference.program import evaluate, strain_derivatives
from eqfuse.md.integrators import Integrator, State, volume
from eqfuse.md.neighbors import Grid, Needed, make_pairs
from eqfuse.models.potential import Potential

MOST_STEPS = 100
"""Steps that one call can take."""
RUNNING, LIMIT, OVERFLOW = range(3)
"""Why a call returned: all steps are done, a limit was passed, or arrays are too small."""
COLUMNS = ("potential", "kinetic", "temperature", "force", "conserved", "pressure", "volume")
"""Columns of the rows of a call, in eV, K, eV/Å, eV/Å^3 and Å^3."""


class Structures(NamedTuple):
    """What does not change of the structures of a batch, which have an axis in front of all arrays.

    They are padded to the same number of atoms, by atoms of no mass.

    Attributes:
      species: [n_structures, n_atoms] int32.
      masses: [n_structures, n_atoms] atomic mass units; zero for padding.
      freedoms: [n_structures] degrees of freedom.
      seeds: [n_structures] of the noise.
    """

    species: jax.Array
    masses: jax.Array
    freedoms: jax.Array
    seeds: jax.Array


class Room(NamedTuple):
    """The sizes that a program is compiled for.

    They are the grid of boxes, the pairs of a structure, and the edges within the cutoff of all.
    """

    grid: Grid
    pairs: int
    edges: int


class Listing(NamedTuple):
    """The neighbour list of all structures, and the positions and cells for which it was made.

    Positions that are infinite mean that a list has still to be made.
    """

    pairs: Pairs
    positions: jax.Array
    cell: jax.Array


class Most(NamedTuple):
    """What was needed at most: see `Needed`; edges of all; and how many lists were made."""

    needed: Needed
    edges: jax.Array
    lists: jax.Array


class Advanced(NamedTuple):
    """What a call did.

    Attributes:
      state: the last good state.
      listing: the last list, to be passed to the next call.
      reason: RUNNING, LIMIT or OVERFLOW.
      rows: [MOST_STEPS, n_structures, len(COLUMNS)], after each step. The row of a step that a
        limit refused for one of the structures comes last. The potential energy is without
        reference energies.
      most: what was needed in this call.
    """

    state: State
    listing: Listing
    reason: jax.Array
    rows: jax.Array
    most: Most


def energy_and_forces(potential: Potential, cutoff: float, dtype: str, edges: int):
    """Return the function of (params, pairs, positions, cells, species, is_atom).

    It evaluates a network for structures side by side, and returns their relative energies
    [n_structures] eV, forces, the derivatives by the strain [n_structures, 3, 3] eV, and the number
    of edges within the cutoff of all; see `eqfuse.inference.program.evaluate`.
    """

    def function(params, pairs, positions, cells, species, is_atom):
        structures, count = species.shape
        index = jnp.repeat(jnp.arange(structures, dtype=jnp.int32), count)
        nodes = positions.reshape(-1, 3), cells, index, species.reshape(-1), structures * count
        done = evaluate(potential, cutoff, dtype, params, pairs, *nodes, size=edges)
        energies = jnp.where(is_atom, done.node_energy.reshape(structures, count), 0)
        forces = done.forces.reshape(positions.shape)
        strain = strain_derivatives(done, index, structures)
        return jnp.sum(energies, axis=1), forces, strain, done.num_edges

    return function


def no_listing(room: Room, structures: int, atoms: int) -> Listing:
    """Return a listing which means that a list has to be made."""
    positions, cells = np.zeros((structures, atoms, 3)), np.zeros((structures, 3, 3))
    arrays = positions, cells, np.ones((structures, atoms), bool)
    shapes = jax.eval_shape(lambda *a: make_pairs(room.grid, room.pairs, *a)[0], *arrays)
    pairs = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    return Listing(pairs, np.full_like(positions, np.inf), cells + np.eye(3))


def compile_steps(energy, room: Room, settings, cutoff: float):
    """Return a compiled function that takes steps, and returns `Advanced`.

    Its arguments are params, structures, state, listing, the number of steps, and the timestep.

    No forces are computed with a list that is too short: before them, a new one is made if atoms,
    with the cell, have moved too far in one of the structures. A step for which the arrays are too
    small is not taken; the caller enlarges them, and takes it then.

    Args:
      energy: see `energy_and_forces`.
      room: the sizes; of edges, those of `energy`.
      settings: see `eqfuse.md.Settings`.
      cutoff: Å.
    """
    take = functools.partial(_take, energy, room, settings, cutoff)

    def advance(params, structures: Structures, state: State, listing: Listing, steps, timestep):
        def body(carry):
            state, listing, done, _, rows, most = carry
            state, listing, reason, row, now = take(params, structures, state, listing, timestep)
            needed = Needed(
                jnp.maximum(most.needed.pairs, now.needed.pairs),
                jnp.maximum(most.needed.occupancy, now.needed.occupancy),
                most.needed.is_wide & now.needed.is_wide,
            )
            edges = jnp.maximum(most.edges, now.edges)
            most = Most(needed, edges, most.lists + now.lists)
            return state, listing, done + 1, reason, rows.at[done].set(row), most

        def goes_on(carry):
            return (carry[2] < steps) & (carry[3] == RUNNING)

        zero = jnp.int32(0)
        most = Most(Needed(zero, zero, jnp.bool_(True)), zero, zero)
        rows = jnp.zeros((MOST_STEPS, len(state.step), len(COLUMNS)), jnp.float64)
        start = state, listing, zero, jnp.int32(RUNNING), rows, most
        state, listing, _, reason, rows, most = jax.lax.while_loop(goes_on, body, start)
        return Advanced(state, listing, reason, rows, most)

    return jax.jit(advance, donate_argnums=(2, 3))


def _take(energy, room: Room, settings, cutoff: float, params, structures, before, listing, step):
    """Take one step of all structures; see `compile_steps`.

    Returns:
      state, listing, reason, row, `Most`.
    """

    def each(function, *arrays):
        """Return what a function of an integrator and the arrays of a structure gives, for each."""
        own = structures.masses, structures.freedoms, structures.seeds
        return jax.vmap(lambda own, *a: function(Integrator(settings, *own), *a))(own, *arrays)

    def made(state: State) -> tuple[Listing, Needed]:
        pairs, needed = make_pairs(room.grid, room.pairs, state.positions, state.cell, is_atom)
        return Listing(pairs, state.positions, state.cell), needed

    is_atom = structures.masses > 0
    state = each(lambda integrator, state: integrator.begin(state, step), before)
    rescaled = settings.ensemble == "npt"
    valid = jnp.all(_are_valid(listing, state, cutoff, settings.skin, rescaled))
    none = Needed(jnp.int32(0), jnp.int32(0), jnp.bool_(True))
    listing, needed = jax.lax.cond(valid, lambda: (listing, none), lambda: made(state))
    potential, forces, strain, edges = energy(
        params, listing.pairs, state.positions, state.cell, structures.species, is_atom
    )
    state = state._replace(forces=forces, strain=strain)
    state = each(lambda integrator, state: integrator.finish(state, step), state)
    rows = each(functools.partial(_row, periodic=all(room.grid.pbc)), state, potential)
    temperature, force = rows[:, COLUMNS.index("temperature")], rows[:, COLUMNS.index("force")]
    good = jnp.all((force <= settings.max_force) & (temperature <= settings.max_temperature))
    good &= jnp.all(jnp.isfinite(potential))
    fits = (needed.pairs <= room.pairs) & (needed.occupancy <= room.grid.occupancy)
    fits &= needed.is_wide & (edges <= room.edges)
    reason = jnp.where(fits, jnp.where(good, RUNNING, LIMIT), OVERFLOW).astype(jnp.int32)
    state = jax.tree.map(lambda new, old: jnp.where(fits & good, new, old), state, before)
    most = Most(needed, edges, (~valid).astype(jnp.int32))
    return state, listing, reason, rows, most


def _are_valid(listing: Listing, state: State, cutoff: float, skin: float, rescaled: bool):
    """See `eqfuse.inference.pairs.is_valid`, for each structure; not where it is NaN."""
    stretch = jnp.ones(len(state.cell))
    if rescaled:
        stretch = jnp.cbrt(jax.vmap(volume)(state.cell) / jax.vmap(volume)(listing.cell))
    moved = state.positions - stretch[:, None, None] * listing.positions
    most = jnp.sqrt(jnp.max(jnp.sum(moved**2, axis=2), axis=1))
    return 2 * most <= (cutoff + skin) * stretch - cutoff


def _row(integrator: Integrator, state: State, potential, periodic: bool):
    """Return the values of `COLUMNS` of a structure."""
    kinetic = integrator.kinetic(state.velocities)
    temperature = 2 * kinetic / (integrator.freedoms * units.kB)
    force = jnp.sqrt(jnp.max(jnp.sum(state.forces**2, axis=1)))
    row = [potential, kinetic, temperature, force, integrator.conserved(state, potential)]
    row += [integrator.pressure(state), volume(state.cell)] if periodic else [jnp.nan, jnp.nan]
    return jnp.stack(row)
