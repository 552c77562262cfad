"""Energies, forces and stress of random networks, in float64: energies are of the order of 1 eV."""

import functools
import re

import ase
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.build import make_supercell

from eqfuse.models import Allegro, NequIP, Potential, compile_predict, predict
from tests.models.conftest import CUTOFF, ONE_OF_ALL, SMALL

# Fields that a symmetry or a split of the sum over edges leaves exact: a few thousand float64
# operations on numbers of order 1 that round at 1e-16 each.
EXACT = 1e-12


EVERY_NETWORK = pytest.mark.parametrize("potential", SMALL, indirect=True, scope="module")


@pytest.fixture(scope="module", params=ONE_OF_ALL)
def potential(request, small_potential):
    return small_potential(request.param)


@pytest.fixture(scope="module")
def variables(potential, make_graph, molecule):
    graph = make_graph([molecule(0)], CUTOFF)
    init = jax.jit(potential.init)
    return init(jax.random.key(0), graph.vectors, graph.species, graph.edges)


@pytest.fixture(scope="module")
def run(potential, variables):
    jitted = jax.jit(lambda v, graph: predict(potential, v, graph, stress=True))
    return lambda graph: jax.device_get(jitted(variables, graph))


def crystal(seed=3):
    """Two atoms in a skewed cell smaller than the cutoff."""
    rng = np.random.default_rng(seed)
    cell = np.array([[2.6, 0.1, 0.0], [0.3, 2.4, 0.2], [-0.2, 0.4, 2.9]])
    places = np.array([[0, 0, 0], [0.5, 0.5, 0.5]]) + 0.04 * rng.normal(size=(2, 3))
    return np.array([1, 2]), places @ cell, cell


def moved(structure, matrix):
    species, positions, cell = structure
    return species, positions @ matrix.T, None if cell is None else cell @ matrix.T


@pytest.mark.parametrize("inversion", [False, True])
@pytest.mark.parametrize("periodic", [False, True])
def test_energy_is_invariant_and_forces_turn(
    run, make_graph, molecule, rotation, inversion, periodic
):
    structure = crystal() if periodic else molecule(0)
    matrix = -rotation if inversion else rotation
    before = run(make_graph([structure], CUTOFF))
    after = run(make_graph([moved(structure, matrix)], CUTOFF))
    assert np.abs(before.forces).max() > 0.1
    np.testing.assert_allclose(after.energy, before.energy, rtol=0, atol=1e-10)
    np.testing.assert_allclose(after.forces, before.forces @ matrix.T, rtol=0, atol=1e-10)
    np.testing.assert_allclose(after.stress, matrix @ before.stress @ matrix.T, rtol=0, atol=1e-10)


@EVERY_NETWORK
def test_compiled_predictions_are_one_native_call(potential, variables, run, make_graph):
    """Compare a small network's with the results of what is written."""
    graph = make_graph([crystal()], CUTOFF)
    compiled = compile_predict(potential, stress=True)
    for found, expected in zip(compiled(variables, graph), run(graph), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
    text = compiled.lower(variables, graph).compile().as_text()
    assert len(re.findall(r'custom_call_target="eqfuse_\w+"', text)) == 1


def test_permutation_and_translation(run, make_graph, molecule):
    species, positions, _ = molecule(0)
    order = np.random.default_rng(1).permutation(len(species))
    before = run(make_graph([(species, positions, None)], CUTOFF))
    after = run(make_graph([(species[order], positions[order] + 2.5, None)], CUTOFF))
    np.testing.assert_allclose(after.energy, before.energy, rtol=0, atol=1e-10)
    np.testing.assert_allclose(after.forces, before.forces[order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("periodic", [False, True])
@EVERY_NETWORK
def test_forces_are_minus_the_gradient(run, make_graph, molecule, periodic):
    species, positions, cell = crystal() if periodic else molecule(0)
    forces = run(make_graph([(species, positions, cell)], CUTOFF)).forces

    def energy(x):
        return run(make_graph([(species, x, cell)], CUTOFF)).energy[0]

    # Five points: error of the formula h^4 E''''' / 30, of rounding 1e-15 / h.
    h = 1e-3
    for atom, axis in np.ndindex(*positions.shape):
        step = np.zeros_like(positions)
        step[atom, axis] = h
        slope = 8 * (energy(positions + step) - energy(positions - step))
        slope -= energy(positions + 2 * step) - energy(positions - 2 * step)
        assert abs(-slope / (12 * h) - forces[atom, axis]) < 1e-7


@EVERY_NETWORK
def test_stress_is_the_strain_derivative_over_the_volume(run, make_graph):
    structure = crystal()
    stress = run(make_graph([structure], CUTOFF)).stress[0]
    np.testing.assert_array_equal(stress, stress.T)
    assert np.abs(stress).max() > 1e-2

    def energy(strain):
        return run(make_graph([moved(structure, np.eye(3) + strain)], CUTOFF)).energy[0]

    volume, h = abs(np.linalg.det(structure[2])), 1e-3
    for i, j in [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]:
        step = np.zeros((3, 3))
        step[i, j] += h / 2
        step[j, i] += h / 2
        slope = 8 * (energy(step) - energy(-step)) - (energy(2 * step) - energy(-2 * step))
        assert abs(slope / (12 * h * volume) - stress[i, j]) < 1e-7


def test_stress_is_positive_when_a_crystal_is_stretched(make_graph):
    """The sign of ASE: a spring between images that is longer than its rest length pulls."""

    class Spring:
        @staticmethod
        def apply(_, vectors, species, edges):
            energy = 0.25 * (jnp.linalg.norm(vectors, axis=1) - 1.0) ** 2
            return jax.ops.segment_sum(energy, edges.receivers, edges.num_nodes)

    cell = 2.0 * np.eye(3)
    graph = make_graph([(np.array([0]), np.zeros((1, 3)), cell)], 2.5)
    prediction = predict(Spring, None, graph, stress=True)
    # E = 3 springs * (a - 1)^2 / 2, a = 2; dE/de_xx = a (a - 1) = 2 eV, V = 8 Å^3.
    np.testing.assert_allclose(prediction.stress[0], np.eye(3) * 2 / 8, rtol=1e-12)
    assert predict(Spring, None, graph).stress is None


def test_stress_of_a_molecule_is_zero(run, make_graph, molecule):
    assert not np.any(run(make_graph([molecule(0)], CUTOFF)).stress)


def test_molecules_far_apart_do_not_see_each_other(run, make_graph, molecule):
    (z1, x1, _), (z2, x2, _) = molecule(0), molecule(1, 5)
    together = (np.append(z1, z2), np.append(x1, x2 + np.array([100.0, 0, 0]), axis=0), None)
    whole = run(make_graph([together], CUTOFF))
    parts = run(make_graph([(z1, x1, None), (z2, x2, None)], CUTOFF))
    # Coordinates near 100 Å round at 1.4e-14 Å.
    np.testing.assert_allclose(whole.energy[0], parts.energy.sum(), rtol=0, atol=EXACT)
    np.testing.assert_allclose(whole.forces, parts.forces, rtol=0, atol=EXACT)


def test_an_isolated_atom(run, make_graph, molecule):
    alone = run(make_graph([(np.array([2]), np.ones((1, 3)), None)], CUTOFF))
    assert np.isfinite(alone.energy[0])
    assert not np.any(alone.forces)
    species, positions, _ = molecule(0)
    beside = (np.append(species, 2), np.append(positions, [[50.0, 0, 0]], axis=0), None)
    both = run(make_graph([beside], CUTOFF))
    np.testing.assert_allclose(both.node_energy[-1], alone.energy[0], rtol=0, atol=EXACT)
    assert not np.any(both.forces[-1])


def test_a_batch_gives_what_its_members_give(run, make_graph, molecule):
    members = [molecule(0), crystal(), molecule(1, 4)]
    batch = run(make_graph(members, CUTOFF))
    single = [run(make_graph([member], CUTOFF)) for member in members]
    for field in batch._fields:
        expected = np.concatenate([getattr(prediction, field) for prediction in single])
        np.testing.assert_allclose(getattr(batch, field), expected, rtol=0, atol=EXACT)


def test_energy_and_forces_are_smooth_at_the_cutoff(potential, run, make_graph):
    def at(distance):
        positions = np.array([[0, 0, 0], [1.1, 0, 0], [0, 0, distance]])
        return run(make_graph([(np.array([0, 1, 2]), positions, None)], CUTOFF))

    outside = at(CUTOFF + 1e-6)
    energy, force = [], []
    for gap in (8e-3, 4e-3, 2e-3):
        inside = at(CUTOFF - gap)
        energy.append(abs(inside.energy[0] - outside.energy[0]))
        force.append(np.abs(inside.forces - outside.forces).max())
    # The weights fall as the Bessel functions (gap) times the cutoff (gap^3): order 4, and 3 for
    # its derivative. The latents of Allegro fall as the cutoff: one order less. The next order is a
    # few per cent at these gaps, rounding 1 % at the last.
    order = 3 if isinstance(potential.model, Allegro) else 4
    assert energy[-1] > 100 * np.spacing(np.abs(outside.node_energy).max())
    for values, expected in ((energy, order), (force, order - 1)):
        orders = np.log2(np.divide(values[:-1], values[1:]))
        np.testing.assert_allclose(orders, expected, rtol=0, atol=0.25)


def test_edges_beyond_the_cutoff_do_nothing(run, make_graph, molecule):
    near, far = (run(make_graph([molecule(0)], cutoff)) for cutoff in (CUTOFF, CUTOFF + 1))
    np.testing.assert_allclose(far.energy, near.energy, rtol=0, atol=EXACT)
    np.testing.assert_allclose(far.forces, near.forces, rtol=0, atol=EXACT)


def test_periodic_is_the_same_as_a_supercell(run, make_graph):
    species, positions, cell = crystal()
    atoms = ase.Atoms(species + 1, positions, cell=cell, pbc=True)
    many = make_supercell(atoms, [[2, 0, 0], [1, 2, 0], [0, 0, 2]])
    cells = len(many) // len(atoms)
    small = run(make_graph([(species, positions, cell)], CUTOFF))
    large = run(make_graph([(many.numbers - 1, many.positions, many.cell.array)], CUTOFF))
    np.testing.assert_allclose(large.energy, cells * small.energy, rtol=0, atol=cells * EXACT)
    np.testing.assert_allclose(large.forces, np.tile(small.forces, (cells, 1)), rtol=0, atol=1e-11)
    np.testing.assert_allclose(large.stress, small.stress, rtol=0, atol=EXACT)


def test_padding_is_neutral(run, make_graph, molecule):
    members = [molecule(0), crystal()]
    bare = run(make_graph(members, CUTOFF))
    padded = run(make_graph(members, CUTOFF, nodes=16, edges=600))
    elsewhere = run(make_graph(members, CUTOFF, nodes=16, edges=600, pad_seed=7))
    for field in bare._fields:
        value, expected = getattr(padded, field), getattr(bare, field)
        count = len(expected)
        np.testing.assert_allclose(value[:count], expected, rtol=0, atol=EXACT)
        assert not np.any(value[count:])
        np.testing.assert_array_equal(getattr(elsewhere, field), value)


def test_gradients_for_training_are_finite_and_blind_to_padding(
    potential, variables, make_graph, molecule
):
    def loss(variables, graph):
        prediction = predict(potential, variables, graph, stress=True)
        return sum(jnp.sum(jnp.sin(field)) for field in prediction)

    gradient = jax.jit(jax.grad(loss))
    members = [molecule(0), crystal()]
    bare = gradient(variables, make_graph(members, CUTOFF))
    padded = gradient(variables, make_graph(members, CUTOFF, nodes=16, edges=600))
    for a, b in zip(jax.tree.leaves(bare), jax.tree.leaves(padded), strict=True):
        # A sum over some 600 edges of terms of order 1, in another order.
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_second_derivatives_are_finite_at_zero_length(potential, variables, make_graph, molecule):
    graph = make_graph([molecule(0, 3)], CUTOFF, nodes=5, edges=12)
    rest, real = (graph.species, graph.edges), graph.edges.senders != graph.edges.receivers

    def energy(positions):
        vectors = positions[graph.edges.senders] - positions[graph.edges.receivers]
        return potential.apply(variables, vectors, graph.species, graph.edges)[:3].sum()

    hessian = np.asarray(jax.jit(jax.hessian(energy))(graph.positions)).reshape(15, 15)
    assert np.all(np.isfinite(hessian))
    assert not np.any(hessian[9:])
    assert np.abs(hessian[:9, :9]).max() > 0.01  # untrained, but far above rounding
    slopes = jax.jit(jax.grad(lambda v: potential.apply(variables, v, *rest).sum()))(graph.vectors)
    assert not np.any(slopes[~real])
    assert np.any(slopes[real])
    # Acoustic sum rule, and symmetry of second derivatives.
    np.testing.assert_allclose(hessian, hessian.T, rtol=0, atol=1e-11)
    np.testing.assert_allclose(hessian.reshape(15, 5, 3).sum(axis=1), 0, atol=1e-11)


@pytest.mark.parametrize("trainable", [False, True])
def test_scale_and_shift_are_parameters(potential, variables, make_graph, molecule, trainable):
    graph = make_graph([molecule(0)], CUTOFF)
    potential = potential.clone(trainable_scale_shift=trainable)
    np.testing.assert_array_equal(variables["params"]["scale"], potential.scale)
    np.testing.assert_array_equal(variables["params"]["shift"], (0.2, -0.4, 0.1))

    @jax.jit
    def energy(variables):
        return potential.apply(variables, graph.vectors, graph.species, graph.edges).sum()

    gradient = jax.jit(jax.grad(energy))(variables)["params"]
    count = np.bincount(graph.species, minlength=3) if trainable else np.zeros(3)
    np.testing.assert_array_equal(gradient["shift"], count)
    assert np.any(gradient["scale"]) == trainable

    doubled = {"params": variables["params"] | {"shift": np.array([0.4, -0.8, 0.2])}}
    difference = energy(doubled) - energy(variables)
    expected = np.array([0.2, -0.4, 0.1])[graph.species].sum()
    np.testing.assert_allclose(difference, expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("model", ONE_OF_ALL)
def test_the_energy_of_an_isolated_atom_is_its_reference(
    small_potential, make_graph, molecule, model
):
    """In a molecule the factor is one; an atom leaves it without a jump of energy or force."""
    plain = small_potential(model)
    bound = plain.clone(binds_within=CUTOFF)
    species, positions, cell = molecule(0)
    positions = positions / 2  # with as many neighbours as atoms of a molecule have
    graph = make_graph([(species, positions, cell)], CUTOFF)
    variables = plain.init(jax.random.key(0), graph.vectors, graph.species, graph.edges)

    compiled = {p: jax.jit(functools.partial(predict, p)) for p in (plain, bound)}

    def energies_and_forces(potential, positions):
        graph = make_graph([(species, positions, cell)], CUTOFF)
        found = compiled[potential](variables, graph)
        return np.asarray(found.node_energy), np.asarray(found.forces)

    real = np.asarray(graph.node_mask)
    energies, forces = energies_and_forces(bound, positions)
    expected, expected_forces = energies_and_forces(plain, positions)
    near = np.exp(-4 * _near(positions))[: real.sum()]
    assert near.max() < 1e-3
    np.testing.assert_allclose(energies[real], (1 - near) * expected[real], rtol=1e-12)
    assert np.abs(forces - expected_forces).max() < 0.05 * np.abs(expected_forces).max()

    apart = positions * 100.0
    energies, forces = energies_and_forces(bound, apart)
    np.testing.assert_array_equal(energies[real], 0.0)
    np.testing.assert_array_equal(forces, 0.0)
    assert np.abs(energies_and_forces(plain, apart)[0][real]).min() > 0.05

    # the first atom leaves: the force is the derivative, up to where nothing is left of it
    direction, step = np.eye(1, len(species)).T * [[1.0, 0.0, 0.0]], 1e-5
    for distance in (0.0, 2.5, 3.5):
        total = [
            energies_and_forces(bound, positions + (distance + s) * direction)[0][real].sum()
            for s in (-step, step)
        ]
        force = energies_and_forces(bound, positions + distance * direction)[1][0, 0]
        assert force == pytest.approx(-(total[1] - total[0]) / (2 * step), abs=1e-6)


def _near(positions):
    """Return the sum of the polynomial cutoffs of the neighbours, power 6, as in the paper."""
    x = np.linalg.norm(positions[:, None] - positions[None], axis=-1) / CUTOFF
    u = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
    return np.where((x > 0) & (x < 1), u, 0).sum(axis=1)


@pytest.mark.parametrize(
    ("potential", "message"),
    [
        (Potential(NequIP(), (1.0, 1.0), (0.0,)), "one number per species each, got 2 and 1"),
        (Potential(NequIP("1o"), (1.0,), (0.0,)), "irreps_out='0e', got 1x1o"),
    ],
)
def test_unfit_potentials_are_refused(potential, message, make_graph, molecule):
    graph = make_graph([(np.zeros(2, int), molecule(0)[1][:2], None)], CUTOFF)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(potential.init, jax.random.key(0), graph.vectors, graph.species, graph.edges)
