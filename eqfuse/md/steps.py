"""Steps of dynamics on the device, with neighbour lists that are made there when they are due."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ase import units

from eqfuse.inference.pairs import Pairs, evaluate, strain_derivative
from eqfuse.md.integrators import Integrator, State, volume
from eqfuse.md.neighbors import Grid, Needed, make_pairs
from eqfuse.models.potential import Potential

MOST_STEPS = 100
"""Steps that one call can take."""
RUNNING, LIMIT, OVERFLOW = range(3)
"""Why a call returned: all steps are done, a limit was passed, or arrays are too small."""
COLUMNS = ("potential", "kinetic", "temperature", "force", "conserved", "pressure", "volume")
"""Of the rows of a call, in eV, K, eV/Å, eV/Å^3 and Å^3."""


class Room(NamedTuple):
    """The sizes that a program is compiled for: grid of boxes, pairs, edges within the cutoff."""

    grid: Grid
    pairs: int
    edges: int


class Listing(NamedTuple):
    """A neighbour list, and the positions and the cell for which it was made.

    Positions that are infinite say that a list has still to be made.
    """

    pairs: Pairs
    positions: jax.Array
    cell: jax.Array


class Most(NamedTuple):
    """What was needed at most: see `Needed`; edges within the cutoff; and how many lists."""

    needed: Needed
    edges: jax.Array
    lists: jax.Array


class Advanced(NamedTuple):
    """What a call did.

    Attributes:
      state: the last good state.
      listing: the last list, to be passed to the next call.
      reason: RUNNING, LIMIT or OVERFLOW.
      rows: [MOST_STEPS, len(COLUMNS)], after each step. The row of a step that a limit refused
        comes last. The potential energy is without reference energies.
      most: what was needed in this call.
    """

    state: State
    listing: Listing
    reason: jax.Array
    rows: jax.Array
    most: Most


def energy_and_forces(potential: Potential, cutoff: float, dtype: str, edges: int):
    """Return the function of (params, pairs, positions, cell, species) that evaluates a network.

    It returns the relative energy (eV), forces, the derivative by the strain, and the number of
    edges within the cutoff; see `eqfuse.inference.pairs.evaluate`.
    """

    def function(params, pairs, positions, cell, species):
        index = jnp.zeros(len(species), jnp.int32)
        structure = positions, cell[None], index, species, len(species)
        done = evaluate(potential, cutoff, dtype, params, pairs, *structure, size=edges)
        return jnp.sum(done.node_energy), done.forces, strain_derivative(done), done.num_edges

    return function


def no_listing(room: Room, num_atoms: int) -> Listing:
    """Return a listing that says that a list has to be made."""
    arrays = np.zeros((num_atoms, 3)), np.zeros((3, 3))
    shapes = jax.eval_shape(lambda *a: make_pairs(room.grid, room.pairs, *a)[0], *arrays)
    pairs = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    return Listing(pairs, np.full((num_atoms, 3), np.inf), np.eye(3))


def compile_steps(energy, integrator: Integrator, room: Room, settings, cutoff: float):
    """Return a compiled function: params, species, state, listing, steps, timestep -> `Advanced`.

    No forces are computed with a list that is too short: before them, a new one is made if atoms,
    with the cell, have moved too far. A step for which the arrays are too small is not taken; the
    caller enlarges them, and takes it then.

    Args:
      energy: see `energy_and_forces`.
      integrator: of the ensemble.
      room: the sizes; of edges, those of `energy`.
      settings: see `eqfuse.md.Settings`.
      cutoff: Å.
    """
    periodic = all(room.grid.pbc)

    def is_valid(listing: Listing, state: State):
        """See `eqfuse.inference.pairs.is_valid`; not where it is NaN."""
        stretch = 1.0
        if settings.ensemble == "npt":
            stretch = jnp.cbrt(volume(state.cell) / volume(listing.cell))
        moved = state.positions - stretch * listing.positions
        most = jnp.sqrt(jnp.max(jnp.sum(moved**2, axis=1)))
        return 2 * most <= (cutoff + settings.skin) * stretch - cutoff

    def listed(listing: Listing, state: State) -> tuple[Listing, Needed]:
        pairs, needed = make_pairs(room.grid, room.pairs, state.positions, state.cell)
        return Listing(pairs, state.positions, state.cell), needed

    def take(params, species, before: State, listing: Listing, timestep):
        state = integrator.begin(before, timestep)
        valid = is_valid(listing, state)
        none = Needed(jnp.int32(0), jnp.int32(0), jnp.bool_(True))
        listing, needed = jax.lax.cond(
            valid, lambda: (listing, none), lambda: listed(listing, state)
        )
        potential, forces, strain, edges = energy(
            params, listing.pairs, state.positions, state.cell, species
        )
        state = integrator.finish(state._replace(forces=forces, strain=strain), timestep)
        kinetic = integrator.kinetic(state.velocities)
        temperature = 2 * kinetic / (integrator.freedoms * units.kB)
        force = jnp.sqrt(jnp.max(jnp.sum(forces**2, axis=1)))
        good = (force <= settings.max_force) & (temperature <= settings.max_temperature)
        good &= jnp.isfinite(potential)
        fits = (needed.pairs <= room.pairs) & (needed.occupancy <= room.grid.occupancy)
        fits &= needed.is_wide & (edges <= room.edges)
        reason = jnp.where(fits, jnp.where(good, RUNNING, LIMIT), OVERFLOW).astype(jnp.int32)
        now = [integrator.conserved(state, potential), jnp.nan, jnp.nan]
        if periodic:
            now[1:] = integrator.pressure(state), volume(state.cell)
        row = jnp.stack([potential, kinetic, temperature, force, *now])
        state = jax.tree.map(lambda new, old: jnp.where(fits & good, new, old), state, before)
        return state, listing, reason, row, Most(needed, edges, (~valid).astype(jnp.int32))

    def advance(params, species, state: State, listing: Listing, steps, timestep) -> Advanced:
        def body(carry):
            state, listing, done, _, rows, most = carry
            state, listing, reason, row, now = take(params, species, state, listing, timestep)
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
        rows = jnp.zeros((MOST_STEPS, len(COLUMNS)), jnp.float64)
        start = state, listing, zero, jnp.int32(RUNNING), rows, most
        state, listing, _, reason, rows, most = jax.lax.while_loop(goes_on, body, start)
        return Advanced(state, listing, reason, rows, most)

    return jax.jit(advance, donate_argnums=(2, 3))
