import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import units

from eqfuse.md import Settings
from eqfuse.md.integrators import CHAIN, Integrator, State, volume


def gas(count, length, rng):
    return State(
        positions=jnp.asarray(rng.uniform(0, length, (count, 3))),
        velocities=jnp.asarray(rng.normal(size=(count, 3))),
        forces=jnp.zeros((count, 3)),
        cell=jnp.asarray(length * np.eye(3)),
        strain=jnp.zeros((3, 3)),
        chain=jnp.zeros((2, CHAIN)),
        heat=jnp.float64(0),
        step=jnp.int32(0),
    )


def steps(integrator, state, count, timestep, spring=0.0):
    """Take steps of atoms that are held by springs to the origin."""

    def step(state, _):
        state = integrator.begin(state, timestep)
        state = state._replace(forces=-spring * state.positions)
        state = integrator.finish(state, timestep)
        potential = spring / 2 * jnp.sum(state.positions**2)
        numbers = volume(state.cell), integrator.kinetic(state.velocities), potential
        return state, jnp.stack([*numbers, integrator.conserved(state, potential)])

    return jax.jit(lambda state: jax.lax.scan(step, state, None, length=count)[1])(state)


def test_the_volume_of_an_ideal_gas_has_its_distribution():
    """Mean (N + 1) kT / P, and relative variance 1 / (N + 1), over 200,000 steps."""
    count, kelvin, pascal = 8, 300.0, 1.0
    npt = {"ensemble": "npt", "friction": 50.0, "pressure_time": 100.0, "compressibility": 1.0}
    settings = Settings(temperature=kelvin, pressure=pascal, **npt)
    expected = (count + 1) * units.kB * kelvin / (pascal * units.GPa)
    with jax.enable_x64(True):
        integrator = Integrator(settings, np.full(count, 10.0), 3 * count)
        state = gas(count, expected ** (1 / 3), np.random.default_rng(0))
        volumes, kinetic = np.asarray(steps(integrator, state, 200_000, 2 * units.fs))[5000:, :2].T
    assert volumes.mean() == pytest.approx(expected, rel=0.03)
    assert volumes.std() == pytest.approx(expected / np.sqrt(count + 1), rel=0.06)
    assert kinetic.mean() == pytest.approx(1.5 * count * units.kB * kelvin, rel=0.02)


def oscillators(steps_taken, femtoseconds, **settings):
    """Return kinetic, potential and conserved energies of two atoms held by springs, from 0 K."""
    settings = Settings(temperature=300.0, **settings)
    with jax.enable_x64(True):
        integrator = Integrator(settings, np.array([1.0, 5.0]), 6)
        state = gas(2, 0.1, np.random.default_rng(0))
        state = state._replace(velocities=0.02 * state.velocities, forces=-0.5 * state.positions)
        rows = steps(integrator, state, steps_taken, femtoseconds * units.fs, spring=0.5)
    return np.asarray(rows).T[1:]


def test_a_chain_drives_oscillators_to_the_temperature():
    """Two atoms: one alone, or without a chain, would not get there (Martyna et al. 1992)."""
    chain = {"ensemble": "nose-hoover", "thermostat_time": 20.0}
    (kinetic, potential, conserved), thermal = oscillators(200_000, 0.5, **chain), units.kB * 300
    assert kinetic[10_000:].mean() == pytest.approx(3 * thermal, rel=0.05)
    assert potential[10_000:].mean() == pytest.approx(3 * thermal, rel=0.05)
    assert kinetic[10_000:].std() == pytest.approx(np.sqrt(3) * thermal, rel=0.1)
    assert np.ptp(conserved) < 0.01 * np.ptp(kinetic + potential)


def test_friction_and_noise_are_in_the_conserved_energy():
    kinetic, potential, conserved = oscillators(20_000, 0.2, ensemble="langevin", friction=20.0)
    assert np.ptp(conserved) < 0.02 * np.ptp(kinetic + potential)
