"""Energies, forces and stress of random networks, in float64: energies are of the order of 1 eV."""

import dataclasses
import functools
import re

import ase
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.build import make_supercell

from eqfuse.data import Shape
from eqfuse.models import Allegro, NequIP, Potential, Prediction, compile_predict, predict
from tests.models.conftest import CUTOFF, ONE_OF_ALL, SMALL
from tests.models.networks import variables_of

# Fields that a symmetry or a split of the sum over edges leaves exact: a few thousand float64
# operations on numbers of order 1 that round at 1e-16 each.
EXACT = 1e-12


EVERY_NETWORK = pytest.mark.parametrize("potential", SMALL, indirect=True, scope="module")
# Of every batch but one, so that a network is compiled once: 20 atoms, 320 edges, 4 structures.
SHAPE = Shape(20, 320, 4)
FIELDS = Prediction._fields[:4]  # without slopes, which nobody asks for here


@pytest.fixture(scope="module", params=ONE_OF_ALL)
def potential(request, small_potential):
    return small_potential(request.param)


@pytest.fixture(scope="module")
def variables(potential, make_graph, molecule):
    return variables_of(potential, make_graph([molecule(0)]))


@pytest.fixture(scope="module")
def compiled(potential):
    return jax.jit(functools.partial(predict, potential, stress=True))


@pytest.fixture(scope="module")
def run(compiled, variables, make_graph):
    """Return a function of structures: their predictions, without those of the padding."""

    def run(*structures):
        graph = make_graph(structures, CUTOFF, SHAPE)
        found = jax.device_get(compiled(variables, graph))._asdict()
        real = dict.fromkeys(("energy", "stress"), graph.graph_mask)
        return Prediction(**{k: found[k][real.get(k, graph.node_mask)] for k in FIELDS})

    return run


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
def test_energy_is_invariant_and_forces_turn(run, molecule, rotation, inversion, periodic):
    structure = crystal() if periodic else molecule(0)
    matrix = -rotation if inversion else rotation
    before, after = run(structure), run(moved(structure, matrix))
    assert np.abs(before.forces).max() > 0.1
    np.testing.assert_allclose(after.energy, before.energy, rtol=0, atol=1e-10)
    np.testing.assert_allclose(after.forces, before.forces @ matrix.T, rtol=0, atol=1e-10)
    np.testing.assert_allclose(after.stress, matrix @ before.stress @ matrix.T, rtol=0, atol=1e-10)
    assert np.any(before.stress) == periodic


@EVERY_NETWORK
def test_compiled_predictions_are_one_native_call(potential, variables, compiled, make_graph):
    """Compare a small network's with the results of what is written."""
    graph = make_graph([crystal()], shape=SHAPE)
    native = compile_predict(potential, stress=True)
    found, expected = native(variables, graph), compiled(variables, graph)
    for name in FIELDS:
        pair = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(*pair, rtol=0, atol=1e-10)
    text = native.lower(variables, graph).compile().as_text()
    assert len(re.findall(r'custom_call_target="eqfuse_\w+"', text)) == 1


def test_permutation_and_translation(run, molecule):
    species, positions, _ = molecule(0)
    order = np.random.default_rng(1).permutation(len(species))
    before = run((species, positions, None))
    after = run((species[order], positions[order] + 2.5, None))
    np.testing.assert_allclose(after.energy, before.energy, rtol=0, atol=1e-10)
    np.testing.assert_allclose(after.forces, before.forces[order], rtol=0, atol=1e-10)


def derivative(energy, step):
    """Return the slope of an energy along a step h, times h, from five points.

    The formula is off by h^4 E''''' / 30, and rounding by 1e-15 / h.
    """
    return (8 * (energy(step) - energy(-step)) - (energy(2 * step) - energy(-2 * step))) / 12


@pytest.mark.parametrize("periodic", [False, True])
@EVERY_NETWORK
def test_forces_are_minus_the_gradient(run, molecule, periodic):
    species, positions, cell = crystal() if periodic else molecule(0)
    forces, h = run((species, positions, cell)).forces, 1e-3
    for atom, axis in np.ndindex(*positions.shape):
        step = np.zeros_like(positions)
        step[atom, axis] = h
        slope = derivative(lambda x: run((species, positions + x, cell)).energy[0], step)
        assert abs(-slope / h - forces[atom, axis]) < 1e-7


@EVERY_NETWORK
def test_stress_is_the_strain_derivative_over_the_volume(run):
    structure = crystal()
    stress, h = run(structure).stress[0], 1e-3
    np.testing.assert_array_equal(stress, stress.T)
    assert np.abs(stress).max() > 1e-2
    volume = abs(np.linalg.det(structure[2]))
    for i, j in [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]:
        step = np.zeros((3, 3))
        step[i, j] += h / 2
        step[j, i] += h / 2
        slope = derivative(lambda x: run(moved(structure, np.eye(3) + x)).energy[0], step)
        assert abs(slope / (h * volume) - stress[i, j]) < 1e-7


def test_molecules_far_apart_do_not_see_each_other(run, molecule):
    (z1, x1, _), (z2, x2, _) = molecule(0), molecule(1, 5)
    together = (np.append(z1, z2), np.append(x1, x2 + np.array([100.0, 0, 0]), axis=0), None)
    whole, parts = run(together), run((z1, x1, None), (z2, x2, None))
    # Coordinates near 100 Å round at 1.4e-14 Å.
    np.testing.assert_allclose(whole.energy[0], parts.energy.sum(), rtol=0, atol=EXACT)
    np.testing.assert_allclose(whole.forces, parts.forces, rtol=0, atol=EXACT)


def test_an_isolated_atom(run):
    alone = run((np.array([2]), np.ones((1, 3)), None))
    assert np.isfinite(alone.energy[0])
    assert not np.any(alone.forces)


def test_a_batch_gives_what_its_members_give(run, molecule):
    members = [molecule(0), crystal(), molecule(1, 4)]
    batch, single = run(*members), [run(member) for member in members]
    for field in FIELDS:
        expected = np.concatenate([getattr(prediction, field) for prediction in single])
        np.testing.assert_allclose(getattr(batch, field), expected, rtol=0, atol=EXACT)


def test_energy_and_forces_are_smooth_at_the_cutoff(potential, run):
    def at(distance):
        positions = np.array([[0, 0, 0], [1.1, 0, 0], [0, 0, distance]])
        return run((np.array([0, 1, 2]), positions, None))

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


def test_periodic_is_the_same_as_a_supercell(run):
    species, positions, cell = crystal()
    atoms = ase.Atoms(species + 1, positions, cell=cell, pbc=True)
    many = make_supercell(atoms, [[2, 0, 0], [1, 2, 0], [0, 0, 2]])
    cells = len(many) // len(atoms)
    small = run((species, positions, cell))
    large = run((many.numbers - 1, many.positions, many.cell.array))
    np.testing.assert_allclose(large.energy, cells * small.energy, rtol=0, atol=cells * EXACT)
    np.testing.assert_allclose(large.forces, np.tile(small.forces, (cells, 1)), rtol=0, atol=1e-11)
    np.testing.assert_allclose(large.stress, small.stress, rtol=0, atol=EXACT)


def test_padding_is_neutral(potential, variables, make_graph, molecule):
    """For predictions and for the gradients of a training, wherever atoms of the padding are."""

    def loss(variables, graph):
        prediction = predict(potential, variables, graph, stress=True)
        return sum(jnp.sum(jnp.sin(field)) for field in prediction[:4]), prediction[:4]

    gradient = jax.jit(jax.grad(loss, has_aux=True))
    members = [molecule(0), crystal()]
    bare, padded = (make_graph(members, shape=s) for s in (None, SHAPE))
    places = np.random.default_rng(7).normal(size=padded.positions.shape)
    places = np.where(padded.node_mask[:, None], padded.positions, places)
    graphs = bare, padded, dataclasses.replace(padded, positions=places)
    of_bare, of_padded, elsewhere = (gradient(variables, graph) for graph in graphs)
    for value, expected in zip(of_padded[1], of_bare[1], strict=True):
        count = len(expected) - 1
        np.testing.assert_allclose(value[:count], expected[:count], rtol=0, atol=EXACT)
        assert not np.any(value[count:])
    for a, b in zip(*(jax.tree.leaves(g) for g, _ in (of_bare, of_padded)), strict=True):
        # A sum over some 600 edges of terms of order 1, in another order.
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    jax.tree.map(np.testing.assert_array_equal, elsewhere, of_padded)


def test_second_derivatives_are_finite_at_zero_length(potential, variables, make_graph, molecule):
    graph = make_graph([molecule(0, 3)], shape=Shape(5, 12, 2))
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
    graph = make_graph([molecule(0)])
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


def test_the_energy_of_an_isolated_atom_is_its_reference(
    potential, variables, compiled, make_graph, molecule
):
    """In a molecule the factor is one; an atom leaves it without a jump of energy or force."""
    # far from what the network has for one atom, which depends on the version of flax
    variables = {"params": variables["params"] | {"shift": np.array([1.2, -1.4, 1.1])}}
    bound = jax.jit(functools.partial(predict, potential.clone(binds_within=CUTOFF)))
    species, positions, _ = molecule(0)
    positions = positions / 2  # with as many neighbours as atoms of a molecule have

    def computed(predicted, positions):
        found = predicted(variables, make_graph([(species, positions, None)], shape=SHAPE))
        return np.asarray(found.node_energy[:6]), np.asarray(found.forces[:6])

    (energies, forces), (expected, others) = (computed(p, positions) for p in (bound, compiled))
    near = np.exp(-4 * _near(positions))
    assert near.max() < 1e-3
    np.testing.assert_allclose(energies, (1 - near) * expected, rtol=1e-12)
    assert np.abs(forces - others).max() < 0.05 * np.abs(others).max()

    apart = positions * 100.0
    for values in computed(bound, apart):
        np.testing.assert_array_equal(values, 0.0)
    assert np.abs(computed(compiled, apart)[0]).min() > 0.05

    # the first atom leaves: the force is the derivative, up to where nothing is left of it
    direction, step = np.eye(1, len(species)).T * [[1.0, 0.0, 0.0]], 1e-5
    for distance in (0.0, 2.5, 3.5):
        before, after = (
            computed(bound, positions + (distance + s) * direction)[0].sum() for s in (-step, step)
        )
        force = computed(bound, positions + distance * direction)[1][0, 0]
        assert force == pytest.approx(-(after - before) / (2 * step), abs=1e-6)


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
    graph = make_graph([(np.zeros(2, int), molecule(0)[1][:2], None)])
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(potential.init, jax.random.key(0), graph.vectors, graph.species, graph.edges)
