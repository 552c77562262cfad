"""Steps of dynamics on the device, with neighbour lists that the host makes when they are due."""

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
from eqfuse.md.integrators import Integrator, State, volume
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


class Listing(NamedTuple):
    """A neighbour list, and the positions and the cell for which it was made."""

    pairs: Pairs
    positions: jax.Array
    cell: jax.Array


class Advanced(NamedTuple):
    """Results of a call."""

    state: State  # the last good state
    begun: State  # of the next step, whose positions have no forces yet
    reason: jax.Array  # RUNNING, LIMIT, STALE or OVERFLOW
    rows: jax.Array  # [MOST_STEPS, len(COLUMNS)], without reference energies
    edges: jax.Array  # the most that were within the cutoff


def _compile_steps(module: Module, settings: Settings, skin: float):
    """Compile a function that takes steps, and returns `Advanced`.

    No forces are computed with a list that is too short: the call ends where one is due. A step of
    more edges than the arrays hold is not taken. The row of a step that a limit refused comes last.
    """

    def advance(params, atoms, state: State, listing: Listing, steps, timestep, *, size):
        species, masses, freedoms = atoms
        integrator = Integrator(settings, masses, freedoms)

        def begun(state, reason) -> tuple[State, jax.Array]:
            state = integrator.begin(state, timestep)
            valid = _is_valid(listing, state, module.cutoff, skin, settings.ensemble == "npt")
            stale = (reason == RUNNING) & ~valid
            return state, jnp.where(stale, STALE, reason).astype(jnp.int32)

        def body(carry):
            number, before = carry
            given = module, params, species, listing.pairs, before.begun
            state, done, potential, spread = _evaluate(*given, settings, size)
            state = integrator.finish(state, timestep)
            row = _row(integrator, state, potential, spread)
            edges = done.near.num_edges
            fits = edges <= min(size, len(listing.pairs.images))
            good = _is_good(row, settings)
            reason = jnp.where(fits, jnp.where(good, RUNNING, LIMIT), OVERFLOW)
            taken = reason == RUNNING
            state = jax.tree.map(lambda new, old: jnp.where(taken, new, old), state, before.state)
            rows, edges = before.rows.at[number].set(row), jnp.maximum(edges, before.edges)
            return number + 1, Advanced(state, *begun(state, reason), rows, edges)

        def goes_on(carry):
            return (carry[0] < steps) & (carry[1].reason == RUNNING)

        rows = jnp.zeros((MOST_STEPS, len(COLUMNS)), jnp.float64)
        zero = jnp.int32(0)
        start = Advanced(state, *begun(state, jnp.int32(RUNNING)), rows, zero)
        return jax.lax.while_loop(goes_on, body, (zero, start))[1]

    return jax.jit(advance, static_argnames="size", donate_argnums=2)


def _evaluate(module: Module, params, species, pairs, begun: State, settings, size):
    """Return a state with forces, the evaluation, the potential energy and the largest spread."""
    index = jnp.zeros(len(species), jnp.int32)
    geometry = Geometry(begun.positions, begun.cell[None], index, species, len(species))
    done = evaluate(module, params, pairs, geometry, size=size)
    [strain] = strain_derivatives(done, geometry)
    spread = jnp.nan
    if settings.max_spread is not None:
        spread = jnp.max(spread_of_atoms(module, params, done.near, geometry))
    state = begun._replace(forces=done.forces, strain=strain)
    return state, done, jnp.sum(done.node_energy), spread


def _is_good(row, settings) -> jax.Array:
    values = dict(zip(COLUMNS, row, strict=True))
    good = jnp.isfinite(values["potential"]) & (values["force"] <= settings.max_force)
    good &= values["temperature"] <= settings.max_temperature
    return good if settings.max_spread is None else good & (values["spread"] <= settings.max_spread)


def _is_valid(listing: Listing, state: State, cutoff: float, skin: float, rescaled: bool):
    """See `eqfuse.inference.lists.is_valid`; not where it is NaN."""
    stretch = jnp.cbrt(volume(state.cell) / volume(listing.cell)) if rescaled else 1.0
    moved = state.positions - stretch * listing.positions
    most = jnp.sqrt(jnp.max(jnp.sum(moved**2, axis=1)))
    return 2 * most <= (cutoff + skin) * stretch - cutoff


def _row(integrator: Integrator, state: State, potential, spread):
    kinetic = integrator.kinetic(state.velocities)
    temperature = 2 * kinetic / (integrator.freedoms * units.kB)
    force = jnp.sqrt(jnp.max(jnp.sum(state.forces**2, axis=1)))
    row = [potential, kinetic, temperature, force, integrator.conserved(state, potential)]
    size = volume(state.cell)  # of a slab too, as in the calculator
    row += [jnp.where(size > 0, value, jnp.nan) for value in (integrator.pressure(state), size)]
    return jnp.stack([*row, spread])


class Stepper:
    """Steps of a simulation on the device."""

    def __init__(self, network: Network, species, masses, pbc, settings: Settings):
        self._network, self._pbc = network, pbc
        # noise acts on the total momentum too; without it the momentum is conserved
        conserves = settings.ensemble in ("nve", "nose-hoover") and len(species) > 1
        freedoms = np.float64(3 * len(species) - 3 * conserves)
        self._atoms = np.asarray(species, np.int32), np.asarray(masses, np.float64), freedoms
        self._skin = skin_of(len(species)) if settings.skin is None else settings.skin
        self._advance = _compile_steps(network.module, settings, self._skin)
        self.sizes, self.num_lists = Sizes(), 0
        self.listed: tuple[np.ndarray, np.ndarray] | None = None
        self._listing: Listing | None = None

    def begin(self, positions, cell, sizes: Sizes | None = None):
        """Have the next step make a list of positions and a cell; `sizes` are of a checkpoint."""
        self.listed, self._listing = (np.array(positions), np.array(cell)), None
        self.sizes = sizes or self.sizes

    def _list(self) -> Listing:
        reach = self._network.cutoff, self._skin
        *pairs, near = list_side_by_side([self.listed], [self._pbc], *reach)
        self.sizes = self.sizes.grown(Sizes(pairs=len(pairs[0]), edges=near))
        pairs = padded_pairs(*pairs, len(self.listed[0]), self.sizes.pairs)
        self.num_lists += 1
        return jax.device_put(Listing(pairs, *self.listed))

    def take(self, state: State, steps: int, timestep: float) -> Advanced:
        """Take at most MOST_STEPS; fewer if a list is due, or arrays were too small.

        The timestep is in ASE's units. The device may use the memory of the state. All results are
        on the host.

        Raises:
          DataError: atoms for which no list can be made, see `eqfuse.data.neighbor_list`.
        """
        if self._listing is None:
            self._listing = self._list()
        arguments = self._atoms, state, self._listing, np.int32(steps), np.float64(timestep)
        done = self._advance(self._network.params, *arguments, size=self.sizes.edges)
        done = jax.device_get(done)
        if done.reason == STALE:
            self.begin(done.begun.positions, done.begun.cell)
        elif done.reason == OVERFLOW:
            self.sizes = self.sizes.grown(Sizes(edges=int(done.edges)))
        return done
