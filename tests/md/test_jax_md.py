import ase.build
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import units

import eqfuse
from eqfuse.data import DataError
from eqfuse.jax_md import neighbor_list
from eqfuse.models.ewald import LatentEwald
from tests.lammps.untrained import untrained_run

# of jax-md 0.2.29 itself
pytestmark = pytest.mark.filterwarnings("ignore:scatter inputs have incompatible:FutureWarning")
space = pytest.importorskip("jax_md.space")
simulate = pytest.importorskip("jax_md.simulate")


@pytest.fixture
def atoms():
    atoms = ase.build.bulk("Cu", cubic=True).repeat((2, 2, 2))
    atoms.rattle(0.05, seed=0)
    return atoms


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.filterwarnings("ignore:atoms 0 has a lattice and pbc F F F:UserWarning")
@pytest.mark.parametrize("kind", ["general", "free"])
def test_energies_and_forces_are_those_of_the_calculator(kind, run, atoms):
    if kind == "general":
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.05 * np.eye(3)[[1, 2, 0]]), True)
        displacement, _ = space.periodic_general(atoms.cell.array.T, fractional_coordinates=True)
        box, positions = atoms.cell.array.T, atoms.get_scaled_positions()
    else:
        displacement, _ = space.free()
        box, positions = atoms.cell.lengths(), atoms.get_positions(wrap=True)
        atoms.positions = positions
    atoms.pbc = kind != "free"
    atoms.calc = eqfuse.Calculator(run)
    given = {"fractional_coordinates": kind == "general", "numbers": atoms.numbers}
    neighbor_fn, energy_fn = neighbor_list(displacement, box, run, reference_energies=True, **given)
    neighbors = neighbor_fn.allocate(positions)
    energy, gradient = jax.jit(jax.value_and_grad(energy_fn))(positions, neighbors)
    assert float(energy) == pytest.approx(atoms.get_potential_energy(), rel=1e-9)
    np.testing.assert_allclose(-gradient, atoms.get_forces(), rtol=0, atol=1e-9)
    assert np.abs(gradient).max() > 1e-3
    _, each_fn = neighbor_list(displacement, box, run, per_particle=True, **given)
    references = atoms.calc.network.references.item()
    each = np.asarray(jax.jit(each_fn)(positions, neighbors)) + references
    np.testing.assert_allclose(each, atoms.get_potential_energies(), rtol=0, atol=1e-9)


def test_a_simulation_of_jax_md_conserves_the_energy(run, atoms):
    box = atoms.cell.lengths()
    displacement, shift = space.periodic(box)
    neighbor_fn, energy_fn = neighbor_list(displacement, box, run, capacity_multiplier=2.0)
    positions = jnp.asarray(atoms.get_positions(wrap=True))
    neighbors = neighbor_fn.allocate(positions)
    begin, step = simulate.nve(energy_fn, shift, 2 * units.fs)
    state = begin(jax.random.key(0), positions, 600 * units.kB, mass=63.5, neighbor=neighbors)

    def body(carry, _):
        state, neighbors = carry
        neighbors = neighbors.update(state.position)
        state = step(state, neighbor=neighbors)
        kinetic = jnp.sum(state.momentum**2 / state.mass) / 2
        energy = energy_fn(state.position, neighbors)
        return (state, neighbors), jnp.stack([kinetic, kinetic + energy])

    (_, neighbors), rows = jax.jit(lambda carry: jax.lax.scan(body, carry, None, length=100))(
        (state, neighbors)
    )
    assert not neighbors.did_buffer_overflow
    kinetic, total = np.asarray(rows).T
    assert np.ptp(kinetic) > 0.05
    assert np.ptp(total) < 0.01 * np.ptp(kinetic)


@pytest.mark.parametrize("cells", [(3, 3, 3), pytest.param((2, 2, 3), marks=pytest.mark.slow)])
def test_a_box_that_shrinks_is_right_or_flagged(cells, run):
    """Atoms do not move in fractional coordinates, so that jax-md would keep its list."""
    atoms = ase.build.bulk("Cu", cubic=True, a=4.3).repeat(cells)
    atoms.rattle(0.05, seed=0)
    atoms.calc = eqfuse.Calculator(run)
    box, positions = np.diag(atoms.cell.lengths()), atoms.get_scaled_positions()
    displacement, _ = space.periodic_general(box, fractional_coordinates=True)
    given = {"fractional_coordinates": True, "reference_energies": True}
    neighbor_fn, energy_fn = neighbor_list(displacement, box, run, **given)
    first = neighbor_fn.allocate(positions, extra_capacity=300)
    update, energy = jax.jit(lambda r, n, b: n.update(r, box=b)), jax.jit(energy_fn)
    seen = set()
    for factor in np.linspace(1.0, 0.76, 7):
        smaller, shrunk = atoms.copy(), box * factor
        smaller.set_cell(shrunk, scale_atoms=True)
        smaller.calc = atoms.calc
        listed, wide = update(positions, first, shrunk), shrunk.diagonal().min() >= 7.2
        seen.add(bool(wide))
        if wide:
            if listed.did_buffer_overflow:
                listed = neighbor_fn.allocate(positions, box=shrunk)
            expected = smaller.get_potential_energy()
            assert float(energy(positions, listed, box=shrunk)) == pytest.approx(expected, rel=1e-9)
        else:
            assert listed.did_buffer_overflow
            assert np.isnan(energy(positions, listed, box=shrunk))
            assert np.isnan(jax.grad(energy_fn)(positions, listed, box=shrunk)).any()
            with pytest.raises(ValueError, match="wide along direction 0, less than twice the"):
                neighbor_fn.allocate(positions, box=shrunk)
    assert True in seen


def test_jax_md_refuses_what_would_be_wrong(run, atoms):
    displacement, _ = space.periodic(np.array([7.0, 7.0, 20.0]))
    with pytest.raises(ValueError, match="is 7 Å wide along direction 0, less than twice the"):
        neighbor_list(displacement, np.array([7.0, 7.0, 20.0]), run)
    displacement, _ = space.periodic(10.0)
    with pytest.raises(DataError, match="H not among"):
        neighbor_list(displacement, 10.0, run, numbers=[1, 29])
    with jax.enable_x64(False), pytest.raises(ValueError, match="JAX has disabled"):
        neighbor_list(displacement, 10.0, run)


@pytest.mark.filterwarnings("ignore:atoms 0 has a lattice and pbc F F F:UserWarning")
@pytest.mark.parametrize("periodic", [True, False])
def test_latent_charges_are_summed_as_in_the_calculator(periodic, tmp_path):
    """Energies, forces and the derivative by the box; a box that outgrows its waves has no energy.

    The total charge of 1 e has a uniform background.
    """
    les = LatentEwald(scale=0.5, charge_key="q")
    charged = untrained_run(tmp_path, "nequip", numbers=(11, 17), long_range=les)
    atoms = ase.build.bulk("NaCl", "rocksalt", a=5.6, cubic=True).repeat(2)
    atoms.rattle(0.05, seed=0)
    atoms.pbc, atoms.info["q"] = periodic, 1
    atoms.calc = eqfuse.Calculator(charged)
    box, given = atoms.cell.array.T, {"numbers": atoms.numbers, "charge": 1.0}
    if periodic:
        displacement, _ = space.periodic_general(box, fractional_coordinates=True)
        positions, given["fractional_coordinates"] = atoms.get_scaled_positions(), True
    else:
        displacement, positions = space.free()[0], atoms.positions
    given["reference_energies"] = True
    neighbor_fn, energy_fn = neighbor_list(displacement, box, charged, **given)
    neighbors = neighbor_fn.allocate(positions)
    energy, gradient = jax.jit(jax.value_and_grad(energy_fn))(positions, neighbors)
    assert float(energy) == pytest.approx(atoms.get_potential_energy(), rel=1e-9)
    np.testing.assert_allclose(-gradient, atoms.get_forces(), rtol=0, atol=1e-9)
    if periodic:
        by_box = jax.grad(lambda box: energy_fn(positions, neighbors, box=box))(box)
        stress = np.asarray(by_box) @ box.T / atoms.get_volume()
        expected = atoms.get_stress(voigt=False)
        np.testing.assert_allclose((stress + stress.T) / 2, expected, rtol=0, atol=1e-9)
        assert np.isnan(energy_fn(positions, neighbors, box=1.5 * box))
