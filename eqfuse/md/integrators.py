"""Integrators: what happens to positions, velocities and the cell before and after the forces."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from ase import units

CHAIN = 3
"""Length of a Nosé-Hoover chain."""
_WEIGHTS = (1 / (2 - 2 ** (1 / 3)), 1 - 2 / (2 - 2 ** (1 / 3)), 1 / (2 - 2 ** (1 / 3)))
"""Weights of Suzuki and Yoshida, fourth order: three parts of the step of a chain."""


class State(NamedTuple):
    """Atoms between two steps, float64 in ASE's units (Å, eV, atomic mass units)."""

    positions: jax.Array  # [n_atoms, 3], as velocities and forces
    velocities: jax.Array
    forces: jax.Array
    cell: jax.Array  # [3, 3] Å
    strain: jax.Array  # [3, 3] eV, dE/d(strain), without the kinetic part
    chain: jax.Array  # [2, CHAIN], positions (no unit) and velocities of the thermostats
    heat: jax.Array  # eV, that the thermostat gave to the atoms so far
    step: jax.Array  # int32, the number of steps that led here


class Integrator:
    """The integrator of an ensemble.

    `nve` is velocity Verlet (Swope et al. 1982). `langevin` is BAOAB: half a kick, half a drift,
    friction and noise, half a drift, half a kick (Leimkuhler and Matthews 2013, Appl. Math. Res.
    Express 2013, 34, https://doi.org/10.1093/amrx/abs010). `nose-hoover` is velocity Verlet between
    two halves of a chain of thermostats (Martyna, Klein, Tuckerman 1992, J. Chem. Phys. 97, 2635;
    integrated as Martyna et al. 1996, Mol. Phys. 87, 1117). `npt` is `langevin` with stochastic
    cell rescaling, isotropic, in the middle of the step (Bernetti and Bussi 2020, J. Chem. Phys.
    153, 114107, https://doi.org/10.1063/5.0020514; equation for the root of the volume).

    The noise of a step depends on the seed and the number of the step only. Masses are [n_atoms]
    atomic mass units; atoms of no mass are padding and do not move.
    """

    def __init__(self, settings, masses, freedoms, seed=None):
        self.settings, self.freedoms = settings, freedoms
        self.masses = jnp.asarray(masses, jnp.float64)[:, None]
        self._inverse = jnp.where(self.masses > 0, 1 / self.masses, 0)
        self._key = jax.random.key(settings.seed if seed is None else seed)
        self._energy = units.kB * settings.temperature  # eV
        self._friction = settings.friction / (1000 * units.fs)
        inertia = self._energy * (settings.thermostat_time * units.fs) ** 2
        self._inertia = inertia * jnp.ones(CHAIN).at[0].set(freedoms)

    def kinetic(self, velocities):
        """Return the kinetic energy, eV."""
        return jnp.sum(self.masses * velocities**2) / 2

    def pressure(self, state: State):
        """Return the pressure, eV/Å^3, of a periodic cell."""
        virial = 2 * self.kinetic(state.velocities) - jnp.trace(state.strain)
        return virial / (3 * volume(state.cell))

    def begin(self, state: State, timestep) -> State:
        """Return the state with the positions of the next step, for which no forces are known."""
        if self.settings.ensemble == "nose-hoover":
            state = self._chain(state, timestep)
        kicked = state.velocities + timestep / 2 * state.forces * self._inverse
        if self.settings.ensemble in ("nve", "nose-hoover"):
            positions = state.positions + timestep * kicked
            return state._replace(positions=positions, velocities=kicked)
        positions = state.positions + timestep / 2 * kicked
        key = jax.random.fold_in(self._key, state.step)
        state = self._bath(state._replace(positions=positions, velocities=kicked), timestep, key)
        if self.settings.ensemble == "npt":
            state = self._rescale(state, timestep, jax.random.fold_in(key, 1))
        return state._replace(positions=state.positions + timestep / 2 * state.velocities)

    def finish(self, state: State, timestep) -> State:
        """Return the state after the step, from one whose forces are those of its positions."""
        velocities = state.velocities + timestep / 2 * state.forces * self._inverse
        state = state._replace(velocities=velocities, step=state.step + 1)
        return self._chain(state, timestep) if self.settings.ensemble == "nose-hoover" else state

    def conserved(self, state: State, potential):
        """Return the conserved energy of the ensemble, eV; NaN for `npt`, which has none."""
        total = potential + self.kinetic(state.velocities) - state.heat
        if self.settings.ensemble == "npt":
            return jnp.full_like(total, jnp.nan)
        if self.settings.ensemble == "nose-hoover":
            places, rates = state.chain
            total += jnp.sum(self._inertia * rates**2) / 2
            total += self._energy * (self.freedoms * places[0] + jnp.sum(places[1:]))
        return total

    def _bath(self, state: State, timestep, key) -> State:
        """Apply friction and noise."""
        kept = jnp.exp(-self._friction * timestep)
        noise = jax.random.normal(key, state.positions.shape, jnp.float64)
        thermal = jnp.sqrt(self._energy * self._inverse)
        velocities = kept * state.velocities + jnp.sqrt(1 - kept**2) * thermal * noise
        gained = self.kinetic(velocities) - self.kinetic(state.velocities)
        return state._replace(velocities=velocities, heat=state.heat + gained)

    def _rescale(self, state: State, timestep, key) -> State:
        """Move the root of the volume, and with it all positions, by pressure and noise."""
        settings = self.settings
        rate = settings.compressibility / units.GPa / (settings.pressure_time * units.fs)
        size = volume(state.cell)
        root = jnp.sqrt(size)
        excess = self.pressure(state) - settings.pressure * units.GPa + self._energy / (2 * size)
        noise = jnp.sqrt(self._energy * rate * timestep / 2) * jax.random.normal(key, ())
        moved = root + root * rate / 2 * excess * timestep + noise
        factor = (moved / root) ** (2 / 3)
        return state._replace(
            positions=factor * state.positions,
            velocities=state.velocities / factor,
            cell=factor * state.cell,
        )

    def _chain(self, state: State, timestep) -> State:
        """Let the chain of thermostats act for half a step."""
        inertia, energy = self._inertia, self._energy
        places, rates = state.chain
        twice, factor = 2 * self.kinetic(state.velocities), 1.0

        def force(k, rates, twice):
            drive = twice - self.freedoms * energy
            drive = drive if k == 0 else inertia[k - 1] * rates[k - 1] ** 2 - energy
            return drive / inertia[k]

        def kick(k, rates, twice, step):
            damped = jnp.exp(-step / 8 * rates[k + 1]) if k + 1 < CHAIN else 1.0
            return rates.at[k].set((rates[k] * damped + step / 4 * force(k, rates, twice)) * damped)

        for weight in _WEIGHTS:
            step = weight * timestep
            for k in reversed(range(CHAIN)):
                rates = kick(k, rates, twice, step)
            slowed = jnp.exp(-step / 2 * rates[0])
            factor, twice = factor * slowed, twice * slowed**2
            places = places + step / 2 * rates
            for k in range(CHAIN):
                rates = kick(k, rates, twice, step)
        chain = jnp.stack([places, rates])
        return state._replace(velocities=factor * state.velocities, chain=chain)


def volume(cell):
    """Return the volume of a cell, Å^3."""
    return jnp.abs(jnp.sum(cell[0] * jnp.cross(cell[1], cell[2])))
