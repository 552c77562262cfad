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
from tests.small_runs import copper_cell

pytestmark = [
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible:FutureWarning"),  # jax-md's
    pytest.mark.usefixtures("x64"),
]
space = pytest.importorskip("jax_md.space")
simulate = pytest.importorskip("jax_md.simulate")


@pytest.fixture
def atoms():
    return copper_cell((2, 2, 2))


@pytest.mark.filterwarnings("ignore:atoms 0 has a lattice and pbc F F F:UserWarning")
@pytest.mark.parametrize("kind", ["general", "free", "no box"])
def test_energies_and_forces_are_those_of_the_calculator(kind, run, atoms):
    if kind == "general":
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.05 * np.eye(3)[[1, 2, 0]]), True)
        displacement, _ = space.periodic_general(atoms.cell.array.T, fractional_coordinates=True)
        box, positions = atoms.cell.array.T, atoms.get_scaled_positions()
    else:
        displacement, _ = space.free()
        box, positions = atoms.cell.lengths(), atoms.get_positions(wrap=True)
        box = box if kind == "free" else None
        atoms.positions = positions
    atoms.pbc = kind == "general"
    atoms.calc = eqfuse.Calculator(run)
    numbers = atoms.get_chemical_symbols() if box is None else atoms.numbers
    given = {"fractional_coordinates": kind == "general", "numbers": numbers}
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


@pytest.fixture
def charged(untrained):
    les = LatentEwald(scale=0.5, charges=2, charge_key="q")
    return untrained(numbers=(11, 17), long_range=les, dtype="float32")


@pytest.mark.parametrize("kind", ["fractional", "real", "free"])
def test_latent_charges_are_those_of_the_calculator(kind, charged):
    """Energies, their parts, forces, stress; charges are summed in float64 for float32 networks."""
    atoms = ase.build.bulk("NaCl", "rocksalt", a=5.6, cubic=True).repeat((2, 2, 2))
    atoms.rattle(0.2, seed=1)
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.05 * np.eye(3)[[1, 2, 0]]), True)
    box, atoms.info["q"], fractional = atoms.cell.array.T, 1.0, kind == "fractional"
    positions = atoms.get_scaled_positions() if fractional else atoms.positions
    displacement, _ = space.periodic_general(box, fractional_coordinates=fractional)
    if kind == "free":
        displacement, _ = space.free()
        atoms.pbc, atoms.cell = False, None
    given = {"numbers": atoms.numbers, "charge": 1.0, "fractional_coordinates": fractional}
    given |= {"per_particle": True, "reference_energies": True}
    neighbor_fn, each_fn = neighbor_list(displacement, box, charged, **given)
    neighbors = neighbor_fn.allocate(positions)

    def energy(R, strain):
        more = {} if kind == "free" else {"box": box, "perturbation": jnp.eye(3) + strain}
        each = each_fn(R, neighbors, **more)
        return each.sum(), each

    at = jnp.asarray(positions), jnp.zeros((3, 3))
    (_, each), (gradient, virial) = jax.jit(jax.value_and_grad(energy, (0, 1), has_aux=True))(*at)
    atoms.calc = eqfuse.Calculator(charged)
    np.testing.assert_allclose(each, atoms.get_potential_energies(), rtol=0, atol=2e-6)
    np.testing.assert_allclose(-gradient, atoms.get_forces(), rtol=0, atol=2e-6)
    if kind != "free":
        stress = (virial + virial.T) / 2 / atoms.get_volume()
        np.testing.assert_allclose(stress, atoms.get_stress(voigt=False), rtol=0, atol=1e-8)
    if fractional:  # waves for more than 1.02 times the box, and not for 1.2 times
        forces = jax.jit(jax.grad(lambda box: each_fn(at[0], neighbors, box=box).sum()))
        stress = np.asarray(forces(box)) @ box.T / atoms.get_volume()  # by the box itself
        stress = (stress + stress.T) / 2
        np.testing.assert_allclose(stress, atoms.get_stress(voigt=False), rtol=0, atol=1e-8)
        assert np.isfinite(forces(1.02 * box)).all()
        assert np.isnan(forces(1.2 * box)).any()


def test_latent_charges_of_slabs_or_in_float32_are_refused(charged, run):
    displacement, _ = space.periodic(20.0)
    with pytest.raises(ValueError, match="reads no total charge, got charge=1"):
        neighbor_list(displacement, 20.0, run, charge=1.0)

    def slab(a, b, **_):
        return a - b - jnp.array([20.0, 20.0, 0.0]) * jnp.round((a - b) / 20)

    with pytest.raises(DataError, match="over all three periodic directions, or none"):
        neighbor_list(slab, 20.0, charged, numbers=[11])
    with jax.enable_x64(False), pytest.raises(ValueError, match="sums charges in float64"):
        neighbor_list(displacement, 20.0, charged, numbers=[11])


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


@pytest.mark.parametrize("cells", [(3, 3, 3), (1, 1, 2)])
def test_a_box_that_shrinks_is_right_or_flagged(cells, run):
    """Boxes narrower than the cutoff too; atoms do not move in fractional coordinates."""
    atoms = ase.build.bulk("Cu", cubic=True, a=4.3).repeat(cells)
    atoms.rattle(0.05, seed=0)
    atoms.calc = eqfuse.Calculator(run)
    box, positions = np.diag(atoms.cell.lengths()), atoms.get_scaled_positions()
    displacement, _ = space.periodic_general(box, fractional_coordinates=True)
    given = {"fractional_coordinates": True, "reference_energies": True}
    neighbor_fn, energy_fn = neighbor_list(displacement, box, run, **given)
    first = neighbor_fn.allocate(positions, extra_capacity=300)
    update = jax.jit(lambda r, n, b: n.update(r, box=b))
    computed, flagged = jax.jit(jax.value_and_grad(energy_fn)), []
    for factor in (1.0, 0.85, 0.7):
        smaller, shrunk = atoms.copy(), box * factor
        smaller.set_cell(shrunk, scale_atoms=True)
        smaller.calc = atoms.calc
        listed = update(positions, first, shrunk)
        flagged.append(bool(listed.did_buffer_overflow))
        if flagged[-1]:
            energy, gradient = computed(positions, listed, box=shrunk)
            assert np.isnan(energy)
            assert np.isnan(gradient).any()
            assert update(positions, listed, box).did_buffer_overflow  # until it is allocated anew
            listed = neighbor_fn.allocate(positions, box=shrunk)
        expected = smaller.get_potential_energy()
        energy, _ = computed(positions, listed, box=shrunk)
        assert float(energy) == pytest.approx(expected, rel=1e-9)
    assert not flagged[0]
    assert flagged[-1]


def test_lists_follow_atoms_that_are_wrapped(run, atoms):
    """Lists are kept while atoms are wrapped into the box, and made anew where they have moved."""
    box = atoms.cell.lengths()
    displacement, shift = space.periodic(box)
    given = {"reference_energies": True, "dtype": "float32"}
    atoms.calc = eqfuse.Calculator(run)
    with jax.enable_x64(False):
        neighbor_fn, energy_fn = neighbor_list(displacement, box, run, **given)
        update, energy = jax.jit(lambda r, n: n.update(r)), jax.jit(jax.value_and_grad(energy_fn))
        positions = jnp.asarray(atoms.get_positions(wrap=True))
        listed = neighbor_fn.allocate(positions)
        for step, is_kept in ((-0.1, True), (-0.1, True), (-0.2, False)):
            positions = shift(positions, jnp.full_like(positions, step / 3**0.5))
            new = update(positions, listed)
            assert np.array_equal(new.fractions, listed.fractions) == is_kept
            atoms.positions, listed = np.asarray(positions, float), new
            found, gradient = energy(positions, listed)
            # float32 rounds each of 32 energies of the order of 1 eV by 6e-8, and their sums
            assert found == pytest.approx(atoms.get_potential_energy(), rel=0, abs=1e-5)
            np.testing.assert_allclose(-gradient, atoms.get_forces(), rtol=0, atol=1e-4)


def test_jax_md_refuses_what_would_be_wrong(run, atoms):
    displacement, _ = space.periodic(10.0)
    with pytest.raises(DataError, match="H not among"):
        neighbor_list(displacement, 10.0, run, numbers=[1, 29])
    with pytest.raises(DataError, match="numbers= has 'Xx', which is no chemical symbol"):
        neighbor_list(displacement, 10.0, run, numbers=["Cu", "Xx"])
    with pytest.raises(DataError, match="give the box of this displacement"):
        neighbor_list(displacement, None, run)
    with jax.enable_x64(False), pytest.raises(ValueError, match="JAX has disabled"):
        neighbor_list(displacement, 10.0, run)
