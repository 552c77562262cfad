"""Steps of dynamics on the device, for as long as a neighbour list is valid."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from ase import units

from eqfuse.models.potential import Potential
from eqfuse.ops import Edges

MOST_STEPS = 100
"""Steps that one call can take."""
RUNNING, NEW_LIST, LIMIT = range(3)
"""Why a call returned: all steps are done, the next needs a new neighbour list, or a limit."""


class State(NamedTuple):
    """Atoms between two steps, float64 in ASE's units (Å, eV, atomic mass units).

    Attributes:
      positions, velocities, forces: [n_atoms, 3].
      step: int32, the number of steps that led here.
    """

    positions: jax.Array
    velocities: jax.Array
    forces: jax.Array
    step: jax.Array


class Listing(NamedTuple):
    """A padded neighbour list.

    Attributes:
      edges: pairs within cutoff and skin; padding joins an atom to itself.
      shifts: [n_edges, 3] Å, of the senders; zero for padding.
      positions: [n_atoms, 3] Å, for which it was made.
    """

    edges: Edges
    shifts: jax.Array
    positions: jax.Array


class Advanced(NamedTuple):
    """What a call did.

    Attributes:
      state: the last good state.
      reason: RUNNING, NEW_LIST or LIMIT.
      rows: [MOST_STEPS, 4], after each step: potential energy (eV, without reference energies),
        kinetic energy (eV), temperature (K), largest force (eV/Å). The row of a step that a limit
        refused comes last.
      moved: Å, the largest distance of an atom from where the list was made.
    """

    state: State
    reason: jax.Array
    rows: jax.Array
    moved: jax.Array


def total_energy(potential: Potential, params, cutoff: float, dtype):
    """Return the function of (positions, species, listing) that is the relative energy in eV.

    Pairs beyond the cutoff get a vector of zero, as padding has, so that they contribute nothing,
    whatever the model does there. Vectors are differences in float64, then of `dtype`.
    """

    def energy(positions, species, listing: Listing):
        edges = listing.edges
        vectors = positions[edges.senders] + listing.shifts - positions[edges.receivers]
        near = jnp.sum(vectors**2, axis=1) < cutoff**2
        vectors = jnp.where(near[:, None], vectors, 0).astype(dtype)
        return jnp.sum(potential.apply(params, vectors, species, edges).astype(jnp.float64))

    return energy


def compile_steps(energy, species, masses, settings, freedoms: int):
    """Return the compiled function (state, listing, steps, timestep) -> `Advanced`.

    `nve` is velocity Verlet (Swope et al. 1982). `langevin` is BAOAB: half a kick, half a drift,
    friction and noise, half a drift, half a kick (Leimkuhler and Matthews 2013, Appl. Math. Res.
    Express 2013, 34, https://doi.org/10.1093/amrx/abs010). The noise of a step depends on the seed
    and the number of the step only.

    No forces are computed with a list that is too short: before them, the function returns the
    state of the step before if an atom has moved by more than half the skin.

    Args:
      energy: see `total_energy`.
      species: [n_atoms] int32.
      masses: [n_atoms] atomic mass units.
      settings: see `eqfuse.md.Settings`.
      freedoms: the degrees of freedom, of the temperature.
    """
    masses = jnp.asarray(masses, jnp.float64)[:, None]
    key = jax.random.key(settings.seed)
    thermal = jnp.sqrt(units.kB * settings.temperature / masses)
    friction = settings.friction / (1000 * units.fs)

    def drift(state, timestep):
        velocities = state.velocities + timestep / 2 * state.forces / masses
        if settings.ensemble == "nve":
            return state.positions + timestep * velocities, velocities
        positions = state.positions + timestep / 2 * velocities
        kept = jnp.exp(-friction * timestep)
        noise = jax.random.normal(jax.random.fold_in(key, state.step), positions.shape, jnp.float64)
        velocities = kept * velocities + jnp.sqrt(1 - kept**2) * thermal * noise
        return positions + timestep / 2 * velocities, velocities

    def advance(state: State, listing: Listing, steps, timestep) -> Advanced:
        def finish(positions, velocities, before: State):
            potential, gradient = jax.value_and_grad(energy)(positions, species, listing)
            velocities = velocities - timestep / 2 * gradient / masses
            kinetic = jnp.sum(masses * velocities**2) / 2
            temperature = 2 * kinetic / (freedoms * units.kB)
            force = jnp.sqrt(jnp.max(jnp.sum(gradient**2, axis=1)))
            good = (force <= settings.max_force) & (temperature <= settings.max_temperature)
            good &= jnp.isfinite(potential)
            after = State(positions, velocities, -gradient, before.step + 1)
            state = jax.tree.map(lambda new, old: jnp.where(good, new, old), after, before)
            row = jnp.stack([potential, kinetic, temperature, force])
            return state, jnp.where(good, RUNNING, LIMIT).astype(jnp.int32), row

        def body(carry):
            state, done, _, rows, _ = carry
            positions, velocities = drift(state, timestep)
            moved = _largest(positions - listing.positions)
            valid = moved <= settings.skin / 2  # not where it is NaN
            state, reason, row = jax.lax.cond(
                valid,
                lambda: finish(positions, velocities, state),
                lambda: (state, jnp.int32(NEW_LIST), rows[done]),
            )
            return state, done + 1, reason, rows.at[done].set(row), moved

        def goes_on(carry):
            return (carry[1] < steps) & (carry[2] == RUNNING)

        start = (
            state,
            jnp.int32(0),
            jnp.int32(RUNNING),
            jnp.zeros((MOST_STEPS, 4), jnp.float64),
            jnp.float64(0),
        )
        state, _, reason, rows, moved = jax.lax.while_loop(goes_on, body, start)
        return Advanced(state, reason, rows, moved)

    return jax.jit(advance)


def _largest(vectors):
    return jnp.sqrt(jnp.max(jnp.sum(vectors**2, axis=1)))
